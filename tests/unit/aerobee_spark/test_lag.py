"""Test the lag that is computed from the progress of a query."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from aerobee_spark import lag
from aerobee_spark.errors import Code, MqError
from aerobee_spark.reading import planning
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
    """Spark passes progress to listeners in this form."""
    texts = {"endOffset": json.dumps(offsets(q0=5)), "latestOffset": json.dumps(offsets(q0=6))}
    assert lag.of(SimpleNamespace(sources=[SimpleNamespace(**texts)])).total == 1


def test_sources_of_other_formats_and_without_offsets_count_nothing() -> None:
    kafka = {"endOffset": {"t": {"0": 5}}, "latestOffset": {"t": {"0": 9}}}
    early = {"endOffset": "null", "latestOffset": None}
    text = {"endOffset": "5", "latestOffset": "none of ours"}
    progress = {"sources": [kafka, early, text]}
    assert (lag.of(progress).by_queue, lag.finished(progress)) == ({}, {})


def event(**queues: int) -> Any:
    source = SimpleNamespace(endOffset=offsets(**queues), latestOffset=offsets(q0=9, **queues))
    return SimpleNamespace(
        progress=SimpleNamespace(name="query", id="1", batchId=1, sources=[source])
    )


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Mock:
    """Replace the server of the gauge: `start` records its `registry`."""
    start = Mock(return_value=(SimpleNamespace(server_port=9), SimpleNamespace()))
    monkeypatch.setattr("prometheus_client.start_http_server", start)
    return start


def test_a_queue_that_is_gone_leaves_the_gauge(server: Mock) -> None:
    listener = lag.LagListener(port=0)
    registry = server.call_args.kwargs["registry"]

    def shown() -> set[str]:
        return {
            sample.labels["queue_id"] for metric in registry.collect() for sample in metric.samples
        }

    listener.onQueryProgress(event(q1=5, q2=5))
    assert shown() == {"0", "1", "2"}
    listener.onQueryProgress(event(q2=6))
    assert shown() == {"0", "2"}


def test_a_listener_without_its_group_leaves_nothing_open(
    server: Mock, monkeypatch: pytest.MonkeyPatch
) -> None:
    admin = Mock()
    admin.get_group.side_effect = MqError(Code.SUBSCRIPTION_GROUP_NOT_EXIST, "no such group")
    monkeypatch.setattr(planning, "connect", lambda _: admin)
    with pytest.raises(MqError):
        lag.LagListener(port=0, progressGroup="g", nameServer="n:1")
    admin.close.assert_called_once_with()
    server.assert_not_called()
