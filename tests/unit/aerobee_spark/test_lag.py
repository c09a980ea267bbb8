"""The lag out of a progress."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

from aerobee_spark import lag
from aerobee_spark.reading.offsets import Queue

A0, A1 = Queue("t", "broker-a", 0), Queue("t", "broker-a", 1)


def offsets(**queues: int) -> dict[str, Any]:
    return {"v": 1, "topics": {"t": {"broker-a": {name[1:]: at for name, at in queues.items()}}}}


def test_the_lag_is_what_lies_between_the_batch_and_the_ends() -> None:
    source = {"endOffset": offsets(q0=5, q1=7), "latestOffset": offsets(q0=9, q1=7)}
    found = lag.of({"sources": [source]})
    assert (found.by_queue, found.total) == ({A0: 4, A1: 0}, 4)
    assert lag.finished({"sources": [source]}) == {A0: 5, A1: 7}


def test_a_progress_may_be_an_object_with_offsets_as_text() -> None:
    """As Spark hands it to listeners."""
    texts = {"endOffset": json.dumps(offsets(q0=5)), "latestOffset": json.dumps(offsets(q0=6))}
    assert lag.of(SimpleNamespace(sources=[SimpleNamespace(**texts)])).total == 1


def test_sources_of_other_formats_and_without_offsets_count_nothing() -> None:
    kafka = {"endOffset": {"t": {"0": 5}}, "latestOffset": {"t": {"0": 9}}}
    early = {"endOffset": "null", "latestOffset": None}
    text = {"endOffset": "5", "latestOffset": "none of ours"}
    progress = {"sources": [kafka, early, text]}
    assert (lag.of(progress).by_queue, lag.finished(progress)) == ({}, {})
