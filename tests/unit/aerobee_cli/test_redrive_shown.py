"""What a redrive shows: progress, a table, a JSON object."""

from __future__ import annotations

import io
import json

import pytest

from aerobee_cli.progress import LINE_INTERVAL_S, Progress, in_words, progress_text
from aerobee_cli.redriving import TABLE_ROWS, JsonObject, Rows
from aerobee_client.admin.redriving.outcome import Outcome, Status


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_has_rate_and_remaining_time() -> None:
    text = progress_text(25_000, 100_000, 24_000, 5.0)
    assert "25,000 of 100,000" in text and "24,000 sent" in text
    assert "5,000 a second" in text and "15 s left" in text


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.2, "0 s"), (59.6, "1 min 0 s"), (3_599, "59 min 59 s"), (7_500, "2 h 5 min")],
)
def test_durations_in_words(seconds: float, words: str) -> None:
    assert in_words(seconds) == words


def test_a_short_redrive_prints_no_progress_and_a_long_one_a_line_now_and_then() -> None:
    out, now_s = io.StringIO(), [0.0]
    progress = Progress(out, lambda: now_s[0])
    for n in range(1, 251):
        now_s[0] = n * LINE_INTERVAL_S / 100
        progress.update(looked_at=n, total=1_000, sent=n)
        assert len(out.getvalue().splitlines()) == n // 100
    progress.close()
    assert out.getvalue().endswith("left\n")


def test_a_terminal_has_one_line_that_is_free_again_in_the_end() -> None:
    out, now_s = Terminal(), [0.0]
    progress = Progress(out, lambda: now_s[0])
    for n in range(1, 4):
        now_s[0] = float(n)
        progress.update(looked_at=n, total=10, sent=n)
    progress.close()
    progress.close()
    assert "\n" not in out.getvalue() and out.getvalue().count("\r") == 4
    assert out.getvalue().endswith("\r\x1b[K")


def outcome(n: int, status: Status) -> Outcome:
    return Outcome(f"ID{n}", f"at-{n}", "", "orders", status)


@pytest.mark.parametrize("count", [0, 1, 3])
def test_the_json_is_one_object(count: int, capsys: pytest.CaptureFixture[str]) -> None:
    shown = JsonObject()
    for n in range(count):
        shown.add([outcome(n, Status.SENT), outcome(n, Status.SENT_BEFORE)])
    shown.end({"sent": count, "group": "billing"})
    found = json.loads(capsys.readouterr().out)
    assert [item["message_id"] for item in found.pop("outcomes")] == [
        f"ID{n}" for n in range(count)
    ]
    assert found == {"sent": count, "group": "billing"}


def test_a_table_ends_somewhere(capsys: pytest.CaptureFixture[str]) -> None:
    shown = Rows()
    shown.add(outcome(n, Status.FAILED) for n in range(TABLE_ROWS + 7))
    shown.add([outcome(0, Status.SENT)])
    shown.end({})
    printed = capsys.readouterr()
    assert printed.out.count("at-") == TABLE_ROWS and printed.err.startswith("7 more")
