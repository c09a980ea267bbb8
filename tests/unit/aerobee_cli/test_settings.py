"""Settings of topics and groups, from options and from files. No network."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Any, Self

import click
import pytest
import yaml

from aerobee_cli import manifest, settings
from aerobee_cli.changes import create_all, show_created, show_deleted, update_all
from aerobee_cli.commands import manifest as commands
from aerobee_cli.errors import INCOMPLETE, CommandError
from aerobee_cli.options import BadOption, NamesrvOptions
from aerobee_cli.settings import attributes_of, lite_ttl_attributes, wanted
from aerobee_client.admin.descriptions import (
    Created,
    GroupDescription,
    TopicDescription,
    TopicOnBroker,
    Update,
)
from aerobee_wire.consume_order import ConsumeOrder
from aerobee_wire.retry_policy import ExponentialRetryPolicy
from aerobee_wire.status import Code, MqError

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


# ---- test manifest ----
#
# Topics and groups as entries of a file, and back: what `export` writes, `--from` reads.


def topic(
    name: str,
    read: int = 4,
    write: int = 4,
    permission: int = 6,
    attributes: Mapping[str, str] = {},
) -> dict[str, Any]:
    on_broker = TopicOnBroker("a", "h:1", read, write, permission, False, attributes)
    return asdict(TopicDescription.of(name, [on_broker]))


def described(name: str, **fields: Any) -> GroupDescription:
    delays = tuple(fields.pop("retry_delays_ms", ()))
    return GroupDescription(name, 3, delays, True, False, "off", ("a",), **fields)


def group(name: str, **fields: Any) -> dict[str, Any]:
    return asdict(described(name, **fields))


def read_back(tmp_path: Path, content: Any, kind: str) -> dict[str, Any]:
    file = tmp_path / "file.yaml"
    file.write_text(yaml.safe_dump(content))
    return settings.wanted(kind, None, {}, file)


def test_a_topic_is_read_back_with_its_settings(tmp_path: Path) -> None:
    items = [
        topic("a", 8, 2, 4, {"message.type": "FIFO", "lite.topic.expiration": "30"}),
        topic("b", attributes={"message.type": "UNSPECIFIED"}),
    ]
    content = {"topics": [manifest.topic_entry(each) for each in items]}
    assert read_back(tmp_path, content, "topic") == {
        "a": {
            "read_queues": 8,
            "write_queues": 2,
            "permission": 4,
            "message_type": "FIFO",
            "order": True,
            "attributes": {"lite.topic.expiration": "30"},
        },
        "b": {"queues": 4, "permission": 6},
    }


def test_a_group_is_read_back_with_its_settings(tmp_path: Path) -> None:
    policy = ExponentialRetryPolicy(1_500, 7_200_000, 3)
    items = [
        group("a", retry_delays_ms=(1_000, 90_000), attributes={"priority.factor": "100"}),
        group("b", exponential_retry=policy),
        group("c"),
    ]
    content = {"groups": [manifest.group_entry(each) for each in items]}
    common = {
        "max_attempts": 3,
        "order": ConsumeOrder.OFF,
        "consume_enable": True,
        "consume_from_min_enable": False,
    }
    assert read_back(tmp_path, content, "group") == {
        "a": {
            **common,
            "retry_delays": [timedelta(seconds=1), timedelta(seconds=90)],
            "attributes": {"priority.factor": "100"},
        },
        "b": {**common, "exponential_retry": policy},
        "c": {**common, "retry_delays": []},
    }


@pytest.mark.parametrize("kind", ["topic", "group"])
def test_a_listing_is_a_file(tmp_path: Path, kind: str) -> None:
    items = [topic("a"), topic("b", 2, 1)] if kind == "topic" else [group("a"), group("b")]
    entry = manifest.topic_entry if kind == "topic" else manifest.group_entry
    file = tmp_path / "list.json"
    file.write_text(json.dumps(items, indent=2))
    of_listing = settings.wanted(kind, None, {}, file)
    assert of_listing == read_back(tmp_path, {f"{kind}s": [entry(each) for each in items]}, kind)
    with pytest.raises(BadOption, match="is not the output of"):
        settings.wanted("group" if kind == "topic" else "topic", None, {}, file)


@pytest.mark.parametrize("text", ['["a"]', '[{"topic": "a"}]', "- topic: a\n"])
def test_a_list_of_something_else_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "list.json"
    file.write_text(text)
    with pytest.raises(BadOption):
        settings.wanted("topic", None, {}, file)


def test_topics_that_differ_between_brokers_are_named() -> None:
    same, other = topic("same"), topic("other")
    same["brokers"] *= 2
    other["brokers"] = [*other["brokers"], topic("other", 8)["brokers"][0]]
    assert manifest.differing_topics([same, other]) == ["other"]


def test_groups_that_differ_between_brokers_are_named() -> None:
    brokers = {
        "b": [group("same"), group("delays", retry_delays_ms=(1_000,)), group("attributes")],
        "a": [group("same"), group("delays"), group("attributes", attributes={"a": "1"})],
        "c": [group("alone"), group("same")],
    }
    groups, differing = manifest.groups_of(brokers)
    assert [each["consumer_group"] for each in groups] == ["alone", "attributes", "delays", "same"]
    assert groups[2]["retry_delays_ms"] == (1_000,), "the settings of the first broker"
    assert differing == ["attributes", "delays"]


class Admin:
    """Two brokers have a group with other settings each, and no topic."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def list_topics(self, *, silent: list[MqError]) -> list[TopicDescription]:
        return []

    def groups_of_brokers(self, *, silent: list[MqError]) -> dict[str, list[GroupDescription]]:
        return {
            "a": [described("billing", retry_delays_ms=(1_000,))],
            "b": [described("billing", retry_delays_ms=(2_000,))],
        }


def test_an_export_names_a_group_that_differs_and_has_its_first_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("aerobee_cli.options.admin_client", lambda _: Admin())
    file = tmp_path / "cluster.yaml"
    options = NamesrvOptions(context=click.Context(click.Command("export")))
    with pytest.raises(click.exceptions.Exit) as ended:
        commands.export(file=file, options=options)
    assert ended.value.exit_code == INCOMPLETE
    assert "group billing" in capsys.readouterr().err
    (exported,) = settings.file_entries(file, "group").values()
    assert exported["retry_delays"] == [timedelta(seconds=1)]


def test_a_permission_that_no_option_has_is_refused() -> None:
    with pytest.raises(CommandError, match="permission 0"):
        manifest.topic_entry(topic("a", permission=0))


def test_a_file_may_have_one_section(tmp_path: Path) -> None:
    file = tmp_path / "file.yaml"
    file.write_text("topics: [{topic: a}]\n")
    assert settings.file_entries(file, "topic") == {"a": {}}
    assert settings.file_entries(file, "group") == {}
    file.write_text("topic: []\n")
    with pytest.raises(BadOption):
        settings.file_entries(file, "topic")


# ---- test changes ----
#
# Changes of topics and groups: the remarks about parts that did not follow.


AWAY = "10.0.0.9:9876"


def create(name: str, *, dry_run: bool, **_: Any) -> list[Created]:
    unreachable = () if dry_run else (AWAY,)
    return [
        Created(broker, "a:1", created=True, unreachable_namesrvs=unreachable) for broker in "ab"
    ]


def update(name: str, *, dry_run: bool, **_: Any) -> Update:
    return Update((), unreachable_namesrvs=() if dry_run else (AWAY,))


def absent(name: str, *, dry_run: bool, **_: Any) -> Update:
    raise MqError(Code.TOPIC_NOT_EXIST, "no such topic")


@pytest.mark.parametrize("dry_run", [False, True])
def test_a_name_server_that_missed_a_creation_is_named_once(
    dry_run: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    made = create_all("topic", {"t": {}}, create, dry_run=dry_run, silent=[])
    show_created("topic", made, dry_run=dry_run, as_json=True)
    assert capsys.readouterr().err.count(AWAY) == (0 if dry_run else 1)


@pytest.mark.parametrize("change", [update, absent])
@pytest.mark.parametrize("dry_run", [False, True])
def test_a_name_server_that_missed_an_update_is_named_once(
    change: Any, dry_run: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    update_all({"t": {}, "u": {}}, change, create=create, dry_run=dry_run, silent=[])
    assert capsys.readouterr().err.count(AWAY) == (0 if dry_run else 1)


@pytest.mark.parametrize("deleted", [False, True])
def test_a_deletion_may_be_repeated(deleted: bool, capsys: pytest.CaptureFixture[str]) -> None:
    """A broker that did not answer in time may have deleted what it had."""
    show_deleted("topic", "t", deleted, [], as_json=True)
    assert json.loads(capsys.readouterr().out) == {"topic": "t", "deleted": deleted}


def test_a_deletion_that_missed_a_broker_is_not_complete(
    capsys: pytest.CaptureFixture[str],
) -> None:
    error = MqError(Code.REQUEST_TIMEOUT, "broker b: no answer")
    error.at_broker("b")
    with pytest.raises(click.exceptions.Exit) as caught:
        show_deleted("group", "g", False, [error], as_json=False)
    assert caught.value.exit_code == INCOMPLETE
    assert "on a broker that answers" in capsys.readouterr().err
