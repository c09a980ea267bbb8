"""Settings of topics and groups, from options and from files. No network."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from aerobee_cli.options import BadOption
from aerobee_cli.settings import attributes_of, lite_ttl_attributes, wanted
from aerobee_wire.consume_order import ConsumeOrder
from aerobee_wire.retry_policy import ExponentialRetryPolicy

FILE = """
topics:
  - topic: orders
    read_queues: 8
    write_queues: 4
    permission: rw
    type: fifo
    attributes: {reserve.time: 72}
  - topic: plain
groups:
  - group: billing
    max_attempts: 5
    retry_delays: [1s, 5s]
    order: off
    consume: false
    consume_from_min: true
  - {group: slow, retry: "exponential:initial=1s", order: auto}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "cluster.yaml"


def test_a_file_lists_topics_and_groups(file: Path) -> None:
    file.write_text(FILE, encoding="utf-8")
    assert wanted("topic", None, {"queues": None}, file) == {
        "orders": {
            "read_queues": 8,
            "write_queues": 4,
            "permission": 6,
            "message_type": "FIFO",
            "order": True,
            "attributes": {"reserve.time": "72"},
        },
        "plain": {},
    }
    assert wanted("group", None, {}, file) == {
        "billing": {
            "max_attempts": 5,
            "retry_delays": [timedelta(seconds=1), timedelta(seconds=5)],
            "order": ConsumeOrder.OFF,  # in YAML `off` is a boolean
            "consume_enable": False,
            "consume_from_min_enable": True,
        },
        "slow": {
            "exponential_retry": ExponentialRetryPolicy(initial_ms=1_000),
            "order": ConsumeOrder.AUTO,
        },
    }


def test_options_mean_what_a_file_means() -> None:
    given: dict[str, Any] = {"queues": 3, "permission": "r", "type": None, "attributes": None}
    assert wanted("topic", "t", given, None) == {"t": {"queues": 3, "permission": 4}}
    assert attributes_of(["a=b=c", "gone="]) == {"a": "b=c", "gone": ""}
    assert attributes_of(None) is None
    with pytest.raises(BadOption):
        attributes_of(["a"])
    with pytest.raises(BadOption, match="a is given twice"):
        attributes_of(["a=1", "a=2"])


def test_one_is_named_or_many_are_listed(file: Path) -> None:
    file.write_text(FILE, encoding="utf-8")
    for name, given, path in ((None, {}, None), ("t", {}, file), (None, {"queues": 3}, file)):
        with pytest.raises(BadOption):
            wanted("topic", name, given, path)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "topics: 3",
        "- topic: t",
        "topics: [t]",
        "topics: [{queues: 3}]",
        "topics: [{topic: t, colour: red}]",
        "topics: [{topic: t, queues: 0}]",
        "topics: [{topic: t, queues: many}]",
        "topics: [{topic: t, type: odd}]",
        "topics: [{topic: t, permission: x}]",
        "topics: [{topic: t, attributes: 3}]",
        "topics: [{topic: t}, {topic: t}]",
        "topics: [{topic: t, queues: 3, queues: 4}]",
        "topics: [{topic: t}]\nqueues: []",
        "topics: [",
        "groups: []",
    ],
)
def test_a_file_that_is_wrong_is_refused_by_its_name(file: Path, text: str) -> None:
    file.write_text(text, encoding="utf-8")
    with pytest.raises(BadOption, match=str(file)):
        wanted("topic", None, {}, file)


@pytest.mark.parametrize(
    "text",
    [
        "groups: [{group: g, order: never}]",
        "groups: [{group: g, consume: maybe}]",
        "groups: [{group: g, retry: linear}]",
        "groups: [{group: g, retry_delays: [1]}]",
        "groups: [{group: g, retry_delays: 1s, retry: exponential}]",
    ],
)
def test_a_group_that_is_wrong_is_refused(file: Path, text: str) -> None:
    file.write_text(text, encoding="utf-8")
    with pytest.raises(BadOption):
        wanted("group", None, {}, file)


@pytest.mark.parametrize(
    ("given", "minutes"),
    [("1m", "1"), ("60s", "1"), ("2h", "120"), ("30d", "43200"), ("never", "-1")],
)
def test_the_ttl_of_lite_topics_is_an_attribute_in_minutes(given: str, minutes: str) -> None:
    assert lite_ttl_attributes(given) == {"--lite-ttl": ("lite.topic.expiration", minutes)}
    assert lite_ttl_attributes(None) == {}
