"""Dead letters with one cause are one cluster."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

from aerobee_spark.reading.redaction import masked
from aerobee_spark.report.data import clusters
from aerobee_spark.report.data.clusters import Clusters, own_frame

NOW_MS = 1_767_225_600_000 + 3_600_000  # an hour after the first letter
TRACE = (
    '  File "/app/orders/charge.py", line 7, in handle\n    pay(order)\n'
    '  File "/app/orders/cards.py", line 12, in pay\n    client.post(url)\n'
    '  File "/usr/lib/python3.11/site-packages/requests/api.py", line 59, in post\n    raise\n'
)


def row(number: int, reason: str = "ValueError", text: str = "order {} is late") -> dict[str, Any]:
    return {
        "reason": reason,
        "description": text.format(number),
        "stored_at": f"2026-01-01T00:00:0{number % 10}.000Z",
        "message_id": f"ID{number}",
        "topic": "%DLQ%g",
        "broker_name": "broker-a",
        "queue_id": 0,
        "queue_offset": number,
    }


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("order 4711 is late", "order # is late"),
        ("took 1,234.5 ms at 10:20:30", "took # ms at #"),
        ("object at 0x7f3a", "object at #"),
        ("id 6f1b2c3d-0000-4000-8000-00000000abcd", "id #"),
        ("token 9f86d081884c7d659a2feaa0c55ad015", "token #"),
        ("no such address: the street is missing", "no such address: the street is missing"),
        ("deadbeef facade", "deadbeef facade"),
        ("~12ab34cd56ef", "~12ab34cd56ef"),  # a redacted text
    ],
)
def test_numbers_and_ids_are_masked(text: str, expected: str) -> None:
    assert masked(text) == expected


def test_the_frame_is_the_innermost_call_of_the_application() -> None:
    assert own_frame(TRACE) == "cards.py in pay"
    assert own_frame(TRACE.splitlines(keepends=True)[4]) == "api.py in post"
    assert own_frame("") == own_frame("at com.example.Orders.pay(Orders.java:7)") == ""


def test_letters_of_one_cause_are_counted_together() -> None:
    found = Clusters("billing", NOW_MS)
    for number in range(5):
        found.add(row(number), TRACE, is_open=number > 2)
    found.add(row(7), "", is_open=True)
    found.add(row(8, reason="it's late"), "", is_open=False)
    first, second, third = found.top(9)
    assert (first["reason"], first["frame"], first["text"]) == (
        *("ValueError", "cards.py in pay", "order # is late"),
    )
    assert (first["dead_letters"], first["open"]) == (5, 2)
    assert (first["first"], first["last"]) == (row(0)["stored_at"], row(4)["stored_at"])
    assert first["example"]["message_id"] == "ID4"
    command = "aerobee dlq redrive billing --all --reason ValueError --to origin --dry-run"
    assert first["redrive"] == command
    assert (second["dead_letters"], second["open"]) == (1, 1)
    assert "--reason 'it'\"'\"'s late'" in third["redrive"], "a shell reads one word"
    assert found.count == 3 and len(found.top(1)) == 1


def test_letters_without_a_reason_have_a_command_that_sends_only_these() -> None:
    found = Clusters("billing", NOW_MS)
    found.add(row(1), "", is_open=True)
    found.add(row(2, reason=""), "", is_open=True)
    assert {each["reason"]: each["redrive"] for each in found.top(9)} == {
        "": "aerobee dlq redrive billing --all --no-reason --to origin --dry-run",
        "ValueError": "aerobee dlq redrive billing --all --reason ValueError --to origin --dry-run",
    }


def test_open_letters_are_unknown_if_a_state_is() -> None:
    found = Clusters("billing", NOW_MS)
    found.add(row(1), "", is_open=True)
    found.add(row(2), "", is_open=None)
    assert [(each["dead_letters"], each["open"]) for each in found.top(9)] == [(2, None)]


def test_too_many_causes_become_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clusters, "MOST", 2)
    found = Clusters("billing", NOW_MS)
    for word in ("a", "b", "c", "d"):
        found.add(row(1, text=word), "", is_open=True)
    assert [each["dead_letters"] for each in found.top(9)] == [2, 1, 1]


def test_a_cluster_has_its_new_letters_and_its_trend() -> None:
    found = Clusters("billing", NOW_MS, {("broker-a", 0): 2})
    days = (
        "2026-01-01T00:59:00",
        "2025-12-31T00:30:00",
        "2025-12-30T23:00:00",
        "2025-12-01T00:00:00",
    )
    for number, stored_at in enumerate(days):
        found.add(row(number) | {"stored_at": f"{stored_at}.000Z"}, "", is_open=True)
    found.add(row(1) | {"broker_name": "broker-b"}, "", is_open=True)
    (cluster,) = found.top(9)
    assert (cluster["dead_letters"], cluster["new"]) == (5, 3)
    assert (cluster["last_24h"], cluster["before_24h"]) == (2, 2)


def test_thirty_generated_causes_are_the_truth() -> None:
    """Each cause has its own reason, place and text, and its letters have different values."""
    rng = random.Random(30)
    found, truth = Clusters("billing", NOW_MS), Counter[tuple[str, str]]()
    for number in range(3_000):
        cause = min(rng.randrange(30), rng.randrange(30))
        reason, word = f"Error{chr(65 + cause % 15)}", ("late", "lost")[cause // 15]
        trace = TRACE.replace("in pay", f"in step_{cause}")
        text = f"order {{}} of {rng.randrange(10**6)} is {word}"
        found.add(row(number, reason=reason, text=text), trace, is_open=number % 2 == 0)
        truth[reason, f"cards.py in step_{cause}"] += 1
    clusters = found.top(100)
    assert {(each["reason"], each["frame"]): each["dead_letters"] for each in clusters} == truth
    assert found.count == len(truth) == 30
    assert [each["open"] for each in clusters] == sorted(
        (c["open"] for c in clusters), reverse=True
    )
