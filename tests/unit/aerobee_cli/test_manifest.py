"""Topics and groups as entries of a file, and back: what `export` writes, `--from` reads."""

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
from aerobee_cli.commands import manifest as commands
from aerobee_cli.errors import INCOMPLETE, CommandError
from aerobee_cli.options import BadOption, NamesrvOptions
from aerobee_client.admin.descriptions import GroupDescription, TopicDescription, TopicOnBroker
from aerobee_wire.consume_order import ConsumeOrder
from aerobee_wire.retry_policy import ExponentialRetryPolicy
from aerobee_wire.status import MqError


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
