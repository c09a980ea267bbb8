"""Test a facts table: commits, locks, snapshots, each message once, and compaction."""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from aerobee_client import AdminClient
from aerobee_client.admin.letters import LetterState, LetterStatus
from aerobee_spark.errors import ReportError
from aerobee_spark.landing import job as landed_states
from aerobee_spark.landing.compaction import compact
from aerobee_spark.reading.offsets import Bounds, Queue
from aerobee_spark.table import letter_states
from aerobee_spark.table.commits import Commit, Landed, active, spans
from aerobee_spark.table.files import FactsFiles
from aerobee_spark.table.letter_states import QueueStates
from aerobee_spark.table.local_files import LocalFiles
from aerobee_spark.table.rows import landed_in, read

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
EPOCH_MS = round(EPOCH.timestamp() * 1000)
DAY_MS = 86_400_000
ABOUT = {"topics": ["t"]}
Key = tuple[int, int, str]


@pytest.fixture
def files(tmp_path: Path) -> FactsFiles:
    found = FactsFiles(tmp_path / "table")
    found.create(ABOUT)
    return found


def land(
    files: FactsFiles,
    run: str,
    batch: int,
    offsets: Sequence[int],
    *,
    queue_id: int = 0,
    start: int | None = None,
    end: int | None = None,
) -> None:
    """Commit a batch of one queue.

    Each row is stored an hour after the one before. Its body names the run that wrote it.
    """
    folder = f"run={run}/batch={batch}"
    path = Path(files.where) / folder / "part-0.parquet"
    path.parent.mkdir(parents=True)
    table = pa.table(
        {
            "topic": ["t"] * len(offsets),
            "brokerName": ["b"] * len(offsets),
            "queueId": pa.array([queue_id] * len(offsets), pa.int32()),
            "queueOffset": pa.array(offsets, pa.int64()),
            "storeTimestamp": pa.array(
                [EPOCH + timedelta(hours=offset) for offset in offsets], pa.timestamp("us", "UTC")
            ),
            "body": [f"{run}-{batch}"] * len(offsets),
        }
    )
    pq.write_table(table, path)
    upto = end if end is not None else max(offsets, default=-1) + 1
    begin = min(offsets, default=upto) if start is None else start
    rows = landed_in([path]).get(Queue("t", "b", queue_id))
    landed = Landed(
        "t",
        "b",
        queue_id,
        start,
        upto,
        len(offsets),
        upto - begin - len(offsets),
        rows.first_offset if rows else None,
        rows.last_offset if rows else None,
        rows.first_ms if rows else None,
        rows.last_ms if rows else None,
    )
    files.commit(Commit(run, batch, files.next_seq(), folder, 0, (landed,)))


def rows_of(files: FactsFiles, topics: tuple[str, ...] = ()) -> Counter[Key]:
    return Counter(
        (row["queueId"], row["queueOffset"], row["body"])
        for batch in read(files, files.snapshot(), topics)
        for row in batch.to_pylist()
    )


def test_a_batch_counts_from_its_commit_on(files: FactsFiles) -> None:
    land(files, "r", 0, range(3))
    (Path(files.where) / "run=r/batch=1").mkdir()
    pq.write_table(pa.table({"topic": ["t"]}), Path(files.where) / "run=r/batch=1/part-0.parquet")
    assert rows_of(files) == Counter((0, offset, "r-0") for offset in range(3))
    assert (files.is_committed("r", 0), files.is_committed("r", 1)) == (True, False)
    assert rows_of(files, ("other",)) == Counter()


def test_the_newest_run_of_a_message_counts(files: FactsFiles) -> None:
    land(files, "one", 0, range(10))
    land(files, "one", 1, range(10, 20))
    land(files, "one", 2, range(5), queue_id=1)
    land(files, "two", 0, range(4, 15))
    expected = {(0, offset, "one-0") for offset in range(4)}
    expected |= {(0, offset, "two-0") for offset in range(4, 15)}
    expected |= {(0, offset, "one-1") for offset in range(15, 20)}
    expected |= {(1, offset, "one-2") for offset in range(5)}
    assert rows_of(files) == Counter(expected)


def test_random_runs_have_each_message_once(files: FactsFiles) -> None:
    chance = random.Random(7)
    newest: dict[tuple[int, int], str] = {}
    for run in range(6):
        for batch in range(chance.randrange(1, 4)):
            queue_id, low = chance.randrange(2), chance.randrange(60)
            offsets = sorted(chance.sample(range(low, low + 30), chance.randrange(30)))
            land(files, f"r{run}", batch, offsets, queue_id=queue_id)
            newest |= {(queue_id, offset): f"r{run}-{batch}" for offset in offsets}
        if chance.random() < 0.5:
            compact(files)
    assert rows_of(files) == Counter((*key, run) for key, run in newest.items())


def test_what_was_gone_before_it_was_landed_is_reported(files: FactsFiles) -> None:
    land(files, "one", 0, range(3, 10))
    land(files, "one", 1, range(14, 20), start=10)
    (span,) = spans(files.commits())
    assert (span.start, span.end, span.lost) == (3, 20, 4)
    assert span.upto_ms == EPOCH_MS + 19 * 3_600_000
    land(files, "two", 0, range(16, 20))  # reads again what is left
    assert [each.lost for each in spans(files.commits())] == [4]
    land(files, "two", 1, [], start=20, end=25)
    assert [(each.end, each.lost) for each in spans(files.commits())] == [(25, 9)]


def test_a_run_that_begins_behind_a_gap_has_lost_the_gap(files: FactsFiles) -> None:
    land(files, "one", 0, range(5))
    land(files, "two", 0, range(8, 10))
    assert [each.lost for each in spans(files.commits())] == [3]


def test_compaction_joins_by_day_and_changes_no_row(files: FactsFiles) -> None:
    for batch in range(12):
        land(files, "one", batch, range(10 * batch, 10 * batch + 10), start=10 * batch)
    before, reading = rows_of(files), read(files, files.snapshot())
    first = next(reading)
    done = compact(files)
    assert (done.rows, done.expired, done.files_before, done.files_after) == (110, 0, 11, 5)
    assert rows_of(files) == before
    # A reader that had begun goes on with the files that it knew.
    assert first.num_rows + sum(batch.num_rows for batch in reading) == 120
    assert sorted(path.name for path in Path(files.where).glob("compact=1/*")) == [
        f"day=2026-01-0{day}" for day in range(1, 6)
    ]
    land(files, "one", 12, range(120, 130), start=120)
    compact(files)
    assert rows_of(files) == before + Counter((0, offset, "one-12") for offset in range(120, 130))
    assert not (Path(files.where) / "run=one/batch=0").exists()
    assert (Path(files.where) / "run=one/batch=11").exists()  # removed by the next one
    (span,) = spans(files.snapshot())
    assert (span.start, span.end, span.lost) == (0, 130, 0)


def test_compaction_leaves_out_what_is_too_old(files: FactsFiles) -> None:
    for batch in range(6):
        land(files, "one", batch, range(24 * batch, 24 * batch + 24), start=24 * batch)
    done = compact(files, keep_ms=3 * DAY_MS, now_ms=EPOCH_MS + 5 * DAY_MS)
    assert (done.rows, done.expired) == (72, 48)
    assert sum(rows_of(files).values()) == 96
    assert [each.lost for each in spans(files.snapshot())] == [0]


def test_a_compaction_that_was_killed_leaves_nothing(files: FactsFiles) -> None:
    for batch in range(3):
        land(files, "one", batch, range(5 * batch, 5 * batch + 5))
    before = rows_of(files)
    torn = Path(files.where) / "compact=1/day=2026-01-01"
    torn.mkdir(parents=True)
    (torn / "part.parquet").write_bytes(b"torn")
    assert rows_of(files) == before
    compact(files)
    assert rows_of(files) == before


def test_a_commit_that_is_replaced_does_not_count() -> None:
    one, two = (Commit("r", n, n + 1, "", 0, ()) for n in range(2))
    joined = Commit("compact", 1, 2, "", 0, (), ("r-0", "r-1"))
    assert active([one, two, joined]) == [joined]
    assert active([one, two]) == [two, one]


def test_a_commit_is_read_as_it_was_written() -> None:
    landed = Landed("t", "b", 0, 1, 5, 3, 1, 1, 4, 100, 200)
    commit = Commit("r", 3, 7, "run=r/batch=3", 123, (landed,), ("r-1",))
    assert Commit.parse(commit.as_json()) == commit
    with pytest.raises(ReportError):
        Commit.parse({**commit.as_json(), "v": 2})


def test_a_table_of_something_else_is_refused(files: FactsFiles, tmp_path: Path) -> None:
    files.create(ABOUT)
    with pytest.raises(ReportError):
        files.create({"topics": ["other"]})
    with pytest.raises(ReportError) as raised:
        files.create({"group": "g", "kinds": ["dlq"]})
    assert "None" not in raised.value.message
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "mine.txt").write_text("")
    with pytest.raises(ReportError):
        FactsFiles(tmp_path / "used").create(ABOUT)
    with pytest.raises(ReportError):
        FactsFiles(tmp_path / "nowhere").about()


HOLDER = """
import sys
from pathlib import Path
from aerobee_spark.table.files import FactsFiles
with FactsFiles(Path(sys.argv[1])).lock() as held:
    print(held, flush=True)
    sys.stdin.read()
"""


def test_a_second_job_is_refused_while_the_first_one_runs(files: FactsFiles) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(Path(files.where))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as holder:
        assert holder.stdout is not None and holder.stdout.readline()
        with pytest.raises(ReportError, match=str(holder.pid)), files.lock():
            pass
        with files.lock("_compact.lock"):
            pass
        holder.kill()
        holder.wait()
    with files.lock():
        pass


def test_a_job_waits_for_what_a_killed_one_left_running(files: FactsFiles) -> None:
    """A child process holds the lock, as the Java of a job does."""
    with files.lock() as held:
        child = subprocess.Popen(["sleep", "0.5"], pass_fds=held)
    (Path(files.where) / "_lock").write_text("999999999")  # a process that there is not
    with files.lock():
        assert child.poll() is not None or child.wait() == 0


def test_a_file_appears_whole(tmp_path: Path) -> None:
    files = LocalFiles(tmp_path)
    assert files.create("commit.json", b"one")
    assert not files.create("commit.json", b"two")
    assert files.read("commit.json") == b"one"
    assert list(tmp_path.iterdir()) == [tmp_path / "commit.json"]


def test_a_commit_comes_after_its_files_and_their_folders_are_on_the_disk(
    files: FactsFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[Path] = []
    monkeypatch.setattr(
        "aerobee_spark.table.local_files.os.fsync",
        lambda number: synced.append(Path(f"/proc/self/fd/{number}").readlink()),
    )
    land(files, "r", 0, range(3))
    folder = Path(files.where) / "run=r/batch=0"
    commit = synced.index(Path(files.where) / "_commits/.r-0.json.new")
    before = {folder / "part-0.parquet", folder, folder.parent, Path(files.where)}
    assert set(synced[:commit]) == before and synced[0] == folder / "part-0.parquet"


def test_a_commit_without_all_of_its_files_is_no_shorter_table(files: FactsFiles) -> None:
    land(files, "r", 0, range(3))
    land(files, "r", 1, range(3, 6))
    land(files, "r", 2, range(6, 8))
    land(files, "r", 3, range(8, 9))
    shutil.rmtree(Path(files.where) / "run=r/batch=0")
    with pytest.raises(ReportError):
        rows_of(files)
    with pytest.raises(ReportError):
        compact(files)
    assert [commit.run for commit in files.commits()] == ["r"] * 4


def test_a_reader_that_two_compactions_overtake_is_reported(files: FactsFiles) -> None:
    for batch in range(3):
        land(files, "r", batch, range(batch * 5, batch * 5 + 5))
    snapshot = files.snapshot()
    reading = read(files, snapshot)
    next(reading)
    compact(files)
    land(files, "r", 3, range(15, 20))
    compact(files)
    with pytest.raises(ReportError):
        list(reading)


def test_reading_many_commits_looks_at_each_a_few_times(files: FactsFiles) -> None:
    looks = 0

    class Queues(tuple[Landed, ...]):
        __slots__ = ()

        def __iter__(self) -> Iterator[Landed]:
            nonlocal looks
            looks += 1
            return super().__iter__()

    many = [
        Commit("r", number, number, f"run=r/batch={number}", 0, Queues([landed]))
        for number in range(300, 0, -1)
        for landed in [Landed("t", "b", 0, number, number, 0, 0, number, number)]
    ]
    assert list(read(files, many)) == []
    assert looks <= 3 * len(many)


def test_the_lost_are_those_that_every_part_over_them_lost() -> None:
    chance = random.Random(11)
    for _ in range(300):
        parts = []
        for _ in range(chance.randrange(1, 6)):
            start = chance.randrange(20)
            end = start + chance.randrange(8)
            front = chance.randrange(end - start + 1)  # lost, all of it before the first row
            rows = end - start - front
            first = start + front if rows else None
            parts.append(Landed("t", "b", 0, start, end, rows, front, first))
        (span,) = spans([Commit("r", 0, 1, "", 0, tuple(parts))])
        held = {offset for part in parts for offset in range(part.start or 0, part.end)}
        held -= {
            offset
            for offset in held
            if all(
                offset < (part.end if part.first_offset is None else part.first_offset)
                for part in parts
                if (part.start or 0) <= offset < part.end
            )
        }
        begin, end = min(part.start or 0 for part in parts), max(part.end for part in parts)
        assert (span.start, span.end) == (begin, end)
        assert span.lost == end - begin - len(held)


def test_the_next_seq_is_known_from_the_newest_commit_of_each_run(files: FactsFiles) -> None:
    assert files.next_seq() == 1
    for batch in range(11):  # by number, not by name
        land(files, "one-a", batch, range(batch, batch + 1))
    land(files, "two", 0, range(11, 12))
    for batch in range(10):
        (Path(files.where) / "_commits" / f"one-a-{batch}.json").write_text("not opened")
    assert files.next_seq() == 13


# ---- states of dead letters ----


def test_states_are_replaced_and_those_of_expired_letters_stay(files: FactsFiles) -> None:
    assert letter_states.read(files) is None
    one, other = Queue("%DLQ%g", "a", 0), Queue("%DLQ%g", "b", 0)
    sent = ("redriven", EPOCH_MS, "job", "origin", "ops")
    states = [QueueStates(one, 0, 4, EPOCH_MS, {1: sent}), QueueStates(other, 0, 2, EPOCH_MS)]
    assert letter_states.update(files, states) == {"open": 5, "redriven": 1}
    # Letters 0 and 1 have expired, 2 was dismissed, 4 is new; broker b does not answer.
    dismissed = ("dismissed", EPOCH_MS + 5, "job-2", "", "ops")
    fresh = QueueStates(one, 2, 5, EPOCH_MS + DAY_MS, {2: dismissed})
    counts = letter_states.update(files, [fresh])
    assert counts == {"open": 5, "redriven": 1, "dismissed": 1}
    found = letter_states.read(files)
    assert found is not None and found.schema.equals(letter_states.SCHEMA)
    rows = {(row["brokerName"], row["queueOffset"]): row for row in found.to_pylist()}
    assert [rows["a", n]["state"] for n in range(5)] == [
        *("open", "redriven", "dismissed", "open", "open")
    ]
    assert rows["a", 1]["stateTimestamp"] == EPOCH
    assert (rows["a", 1]["target"], rows["a", 3]["stateTimestamp"]) == ("origin", None)
    assert rows["a", 4]["stateAsOf"] == EPOCH + timedelta(days=1)
    assert rows["b", 0]["stateAsOf"] == EPOCH
    assert len(rows) == 7
    files.create(ABOUT)  # its file belongs to the table


def test_only_letters_of_the_table_have_states(files: FactsFiles) -> None:
    """Offsets 3 and 4 arrived after the batch, and queue 1 has no batch."""

    class Admin:
        def letter_states(self, *place: Any) -> dict[int, LetterStatus]:
            asked.append(place)
            return {2: LetterStatus(LetterState.REDRIVEN, EPOCH_MS, "job")}

    asked: list[Any] = []
    first, second = Queue("%DLQ%g", "b", 0), Queue("%DLQ%g", "b", 1)
    landed = Landed(*first, 1, 3, 2, 0, 1, 2, EPOCH_MS, EPOCH_MS)
    files.commit(Commit("r", 0, files.next_seq(), "run=r/batch=0", 0, (landed,)))
    bounds = {first: Bounds(0, 5), second: Bounds(0, 4)}
    counts, problems = landed_states.refresh_letter_states(
        files, cast(AdminClient, Admin()), bounds
    )
    assert (counts, problems) == ({"open": 1, "redriven": 1}, {})
    assert asked == [("g", "b", 0, 1, 3)]
