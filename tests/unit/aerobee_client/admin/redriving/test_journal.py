"""The journal of a redrive: what it says after a run, a crash at any byte, and who may use it."""

from __future__ import annotations

import itertools
import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aerobee_client.admin.redriving.journal import MAX_IN_FLIGHT, Journal
from aerobee_client.admin.redriving.message_ids import Claim, MessageIds
from aerobee_client.admin.redriving.outcome import Outcome, Status
from aerobee_client.admin.redriving.rules import Target
from aerobee_wire.status import Code
from support.codes import raises_code

GROUP = "billing"


@contextmanager
def opened(
    path: Path, group: str = GROUP, target: Target = Target.RETRY, *, read_only: bool = False
) -> Iterator[tuple[Journal, MessageIds]]:
    ids = MessageIds()
    try:
        journal = Journal.open(path, group, target, ids, read_only=read_only)
        yield journal, ids
        journal.close()
    finally:
        ids.close()


def outcome(message_id: str, status: Status, *, unknown: bool = False) -> Outcome:
    return Outcome(message_id, f"at-{message_id}", "", "orders", status, outcome_unknown=unknown)


def window(journal: Journal, *outcomes: Outcome) -> None:
    journal.sending((each.message_id, each.offset_message_id) for each in outcomes)
    journal.sync()
    journal.finished(outcomes)


def claims(ids: MessageIds, *message_ids: str) -> list[Claim]:
    return ids.claim([(message_id, f"at-{message_id}") for message_id in message_ids])


def test_what_was_sent_is_known_in_the_next_run(tmp_path: Path) -> None:
    with opened(tmp_path / "j") as (journal, ids):
        assert claims(ids, "a") == [Claim.NEW]
        window(journal, outcome("a", Status.SENT), outcome("b", Status.FAILED))
        window(journal, outcome("c", Status.FAILED, unknown=True))
        journal.sending([("d", "at-d")])
    with opened(tmp_path / "j") as (_, ids):
        assert (ids.count(Claim.SENT), ids.count(Claim.UNKNOWN)) == (1, 2)
        assert ids.claim([("a", "elsewhere")]) == [Claim.TAKEN]
        expected = [Claim.SENT, Claim.NEW, Claim.UNKNOWN, Claim.UNKNOWN]
        assert claims(ids, "a", "b", "c", "d") == expected
        assert claims(ids, "b", "c") == [Claim.TAKEN, Claim.TAKEN]


def test_of_letters_that_are_claimed_together_the_first_of_a_message_id_has_it(
    tmp_path: Path,
) -> None:
    with opened(tmp_path / "j") as (journal, _):
        window(journal, outcome("sent", Status.SENT))
        journal.sending([("unknown", "at-unknown")])
    with opened(tmp_path / "j") as (_, ids):
        letters = [("new", "x"), ("sent", "at-sent"), ("new", "y"), ("unknown", "z")]
        expected = [Claim.NEW, Claim.SENT, Claim.TAKEN, Claim.UNKNOWN]
        assert ids.claim([*letters, ("unknown", "z")]) == [*expected, Claim.TAKEN]
        assert ids.claim([("new", "x")]) == [Claim.TAKEN]
        assert ids.claim([]) == []


def test_what_was_in_flight_once_stays_unknown_until_it_is_sent(tmp_path: Path) -> None:
    with opened(tmp_path / "j") as (journal, _):
        journal.sending([("a", "at-a"), ("b", "at-b")])
    with opened(tmp_path / "j") as (journal, _):
        window(journal, outcome("a", Status.FAILED), outcome("b", Status.SENT))
    with opened(tmp_path / "j") as (_, ids):
        assert claims(ids, "a", "b") == [Claim.UNKNOWN, Claim.SENT]


@pytest.mark.parametrize(
    ("group", "target"), [("other", "retry"), (GROUP, "origin"), (GROUP, "topic:repair")]
)
def test_a_journal_of_another_group_or_target_is_refused(
    tmp_path: Path, group: str, target: str
) -> None:
    with opened(tmp_path / "j") as (journal, _):
        window(journal, outcome("a", Status.SENT))
    before = (tmp_path / "j").read_bytes()
    with raises_code(Code.INVALID_PARAMETER), opened(tmp_path / "j", group, Target.parse(target)):
        pass
    assert (tmp_path / "j").read_bytes() == before


@pytest.mark.parametrize(
    "content",
    [
        b"hello",
        b"hello\n",
        b"{}\n",
        b"[]\n",
        b"\n",
        bytes(40),
        b'{"redrive": 2, "group": "billing"}\n',
    ],
)
def test_a_file_that_is_no_journal_is_refused_and_left_alone(
    tmp_path: Path, content: bytes
) -> None:
    (tmp_path / "j").write_bytes(content)
    with raises_code(Code.INVALID_PARAMETER), opened(tmp_path / "j"):
        pass
    assert (tmp_path / "j").read_bytes() == content


def test_two_redrives_do_not_share_a_journal(tmp_path: Path) -> None:
    with opened(tmp_path / "j"), raises_code(Code.INVALID_PARAMETER), opened(tmp_path / "j"):
        pass
    with opened(tmp_path / "j"):
        pass


def test_a_dry_run_reads_a_journal_that_another_redrive_writes(tmp_path: Path) -> None:
    with opened(tmp_path / "j") as (journal, _):
        window(journal, outcome("a", Status.SENT))
        with opened(tmp_path / "j", read_only=True) as (_, ids):
            assert claims(ids, "a", "b") == [Claim.SENT, Claim.NEW]


def test_a_dry_run_fails_where_the_journal_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    places = [
        (tmp_path / "none" / "j", FileNotFoundError),
        (tmp_path / "file" / "j", NotADirectoryError),
        (tmp_path, IsADirectoryError),
    ]
    for (path, kind), read_only in itertools.product(places, (True, False)):
        with pytest.raises(kind) as caught, opened(path, read_only=read_only):
            pass
        assert str(caught.value.filename) == str(path)
    with opened(tmp_path / "j", read_only=True) as (_, ids):
        assert claims(ids, "a") == [Claim.NEW]
    assert not (tmp_path / "j").exists()


@pytest.mark.parametrize("line", [b"garbage\n", b'{"sent": "never-announced"}\n', b"{}\n"])
def test_damage_before_the_end_is_refused_with_its_line(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "j"
    with opened(path) as (journal, _):
        window(journal, outcome("a", Status.SENT))
    with path.open("ab") as file:
        file.write(line)
    with opened(path) as (journal, ids):  # at the end: torn, and cut off
        assert claims(ids, "a") == [Claim.SENT]
        assert line not in path.read_bytes()
    with path.open("ab") as file:
        file.write(line)
        for n in range(2 * MAX_IN_FLIGHT + 1):
            file.write(json.dumps({"sending": f"{n}", "letter": "x"}).encode() + b"\n")
    before = path.read_bytes()
    with raises_code(Code.INVALID_PARAMETER), opened(path):
        pass
    assert path.read_bytes() == before


@pytest.mark.parametrize("line", [1, 2, 3, 4, 5])
def test_damage_before_the_outcome_of_a_later_window_is_refused(tmp_path: Path, line: int) -> None:
    """What announced the second window was on the disk, with all before it, when "c" was sent: no
    crash has torn that. Taken for torn, "a" or "c" would be sent again without a word."""
    path = tmp_path / "j"
    with opened(path) as (journal, _):
        window(journal, outcome("a", Status.SENT), outcome("b", Status.FAILED))
        window(journal, outcome("c", Status.SENT))
    lines = path.read_bytes().splitlines(keepends=True)
    assert len(lines) == 7
    path.write_bytes(b"".join([*lines[:line], b"damaged\n", *lines[line + 1 :]]))
    before = path.read_bytes()
    with raises_code(Code.INVALID_PARAMETER), opened(path):
        pass
    assert path.read_bytes() == before


WINDOWS = st.lists(
    st.lists(
        st.sampled_from([(Status.SENT, False), (Status.FAILED, False), (Status.FAILED, True)]),
        min_size=1,
        max_size=5,
    ),
    min_size=1,
    max_size=6,
)


@settings(deadline=None)
@given(WINDOWS, st.data())
def test_a_kill_at_any_byte_forgets_nothing_that_was_announced(
    windows: list[list[tuple[Status, bool]]], data: st.DataObject
) -> None:
    """A process that is killed leaves what it has written: the beginning of the file. Whatever was
    announced by then was perhaps sent, and is SENT, UNKNOWN or refused by the broker; nothing is
    taken for sent that was not."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "j"
        outcomes = [
            [
                outcome(f"{n}-{m}", status, unknown=unknown)
                for m, (status, unknown) in enumerate(each)
            ]
            for n, each in enumerate(windows)
        ]
        with opened(path) as (journal, _):
            for each in outcomes:
                window(journal, *each)
        whole = path.read_bytes()
        cut = data.draw(st.integers(0, len(whole)))
        tail = data.draw(st.sampled_from([b"", bytes(50), b"\xff\xfe\n", b'{"sent": "9']))
        kept = whole[:cut]
        header_is_whole = b"\n" in kept
        path.write_bytes(kept + tail if header_is_whole else kept)
        lines = kept.rpartition(b"\n")[0].splitlines()[1:]
        announced = [json.loads(line) for line in lines]
        with opened(path) as (journal, ids):
            for one in itertools.chain.from_iterable(outcomes):
                self_id = one.message_id
                sending = {"sending": self_id, "letter": one.offset_message_id} in announced
                sent = {"sent": self_id} in announced
                refused = {"failed": self_id} in announced
                expected = (
                    Claim.SENT if sent else Claim.UNKNOWN if sending and not refused else Claim.NEW
                )
                assert ids.claim([(self_id, one.offset_message_id)]) == [expected]
            # It goes on behind what was cut off.
            window(journal, outcome("later", Status.SENT))
        with opened(path) as (_, ids):
            assert claims(ids, "later") == [Claim.SENT]


def test_many_message_ids_lie_in_a_file(tmp_path: Path) -> None:
    ids = MessageIds()
    ids.load((f"{n:032X}", "x", Claim.SENT) for n in range(50_000))
    assert ids.count(Claim.SENT) == 50_000
    last, new = f"{49_999:032X}", f"{50_000:032X}"
    assert ids.claim([(last, "x"), (new, "x"), (new, "y")]) == [Claim.SENT, Claim.NEW, Claim.TAKEN]
    ids.close()
