"""Creating and updating topics and groups, against running services."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from aerobee_client import Code, LiteSimpleConsumer, Message, MqError, Producer, SimpleConsumer
from support.clock.polling import until_sync
from support.codes import raises_code
from support.processes.command import Up, aerobee, aerobee_json


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    with Up(tmp_path_factory.mktemp("data"), "--set", "brokerName=broker-a") as up:
        yield up


def json_of(up: Up, *arguments: str) -> Any:
    return aerobee_json(*arguments, namesrv=up.namesrv)


def test_a_topic_is_updated_and_never_replaced(up: Up) -> None:
    json_of(up, "topic", "create", "crates", "--queues", "3", "--type", "delay")
    refused = aerobee("topic", "create", "crates", namesrv=up.namesrv)
    assert refused.returncode == 1
    for part in ("broker-a", "read_queues is 3 (requested: 8)", "DELAY"):
        assert part in refused.stderr
    change = ("topic", "update", "crates", "--write-queues", "1", "--attribute", "reserve.time=48")
    would = json_of(up, *change, "--dry-run")
    assert [(each["setting"], each["before"], each["after"]) for each in would] == [
        ("write_queue_count", 3, 1),
        ("attributes.reserve.time", None, "48"),
    ]
    assert json_of(up, *change) == would and json_of(up, *change) == []
    assert "nothing to change" in aerobee(*change, namesrv=up.namesrv).stderr
    (topic,) = [each for each in json_of(up, "topic", "list") if each["topic"] == "crates"]
    assert topic["message_type"] == "DELAY"
    (there,) = topic["brokers"]
    assert (there["read_queue_count"], there["write_queue_count"]) == (3, 1)


def test_the_attributes_of_lite_topics_by_their_names_in_rocketmq(up: Up) -> None:
    """As mqadmin sets them. What they say holds at once, also of one that is changed."""
    parent = ("topic", "create", "sessions", "--type", "lite")
    json_of(up, *parent, "--attribute", "lite.topic.expiration=30")
    bind = ("--attribute", "lite.bind.topic=sessions", "--attribute", "lite.sub.model=Exclusive")
    json_of(up, "group", "create", "agents", *bind, "--attribute", "lite.sub.client.quota=1")
    bound = ("--attribute", "lite.bind.topic=sessions")
    for given in (
        ("--attribute", "lite.bind.topic=nowhere"),
        (*bound, "--attribute", "lite.sub.model=exclusive"),
        (*bound, "--attribute", "lite.sub.client.quota=x"),
    ):
        assert aerobee("group", "create", "others", *given, namesrv=up.namesrv).returncode == 1
    wrong_ttl = ("topic", "update", "sessions", "--attribute", "lite.topic.expiration=never")
    assert aerobee(*wrong_ttl, namesrv=up.namesrv).returncode == 1
    with (
        LiteSimpleConsumer("agents", "sessions", namesrv=up.namesrv) as one,
        LiteSimpleConsumer("agents", "sessions", namesrv=up.namesrv) as other,
        Producer(namesrv=up.namesrv) as producer,
    ):
        one.subscribe_lite("a")
        with raises_code(Code.LITE_SUBSCRIPTION_QUOTA_EXCEEDED):
            one.subscribe_lite("b")
        json_of(up, "group", "update", "agents", "--attribute", "lite.sub.client.quota=2")
        one.subscribe_lite("b")
        other.subscribe_lite("a")
        producer.send(Message("sessions", b"x", lite_topic="a"))
        (message,) = other.receive()
        other.ack(message)
        one.receive(wait=timedelta(0))
        assert one.lite_topics == {"b"}
    changed = json_of(up, "topic", "update", "sessions", "--attribute", "lite.topic.expiration=-1")
    assert [(each["setting"], each["before"], each["after"]) for each in changed] == [
        ("attributes.lite.topic.expiration", "30", "-1")
    ]


def test_a_queue_with_messages_is_given_up_by_force_only(up: Up) -> None:
    json_of(up, "topic", "create", "jars", "--queues", "2")
    with Producer(namesrv=up.namesrv) as producer:
        for n in range(4):  # the queues take turns
            producer.send(Message("jars", b"%d" % n))
    shrink = ("topic", "update", "jars", "--queues", "1")
    for options, code, words in (
        ((), 1, "--force"),
        (("--dry-run",), 1, "--force"),
        (("--dry-run", "--force"), 0, "would become unreadable"),
        (("--force",), 0, "are now unreadable"),
    ):
        done = aerobee(*shrink, *options, namesrv=up.namesrv)
        assert (done.returncode, words in done.stderr) == (code, True), done.stderr
    assert len(json_of(up, "topic", "status", "jars")) == 1


@pytest.mark.parametrize(
    "change",
    [
        ("topic", "create", "--attribute", "colour=red"),
        ("topic", "create", "--lite-ttl", "30m"),  # needs --type lite
        ("topic", "create", "--queues", "100000"),
        ("topic", "update", "--create", "--permission", "r", "--attribute", "colour=red"),
        ("group", "create", "--retry-delays", "90d"),
        ("group", "create", "--lite-topic", "no-such-parent"),
        ("group", "update", "--create", "--max-attempts", "1000000"),
    ],
)
def test_a_dry_run_fails_if_the_change_would_fail(up: Up, change: tuple[str, ...]) -> None:
    kind, verb, *options = change
    errors = []
    for dry_run in (("--dry-run",), ()):
        done = aerobee(kind, verb, "never-made", *options, *dry_run, namesrv=up.namesrv)
        assert done.returncode == 1
        errors.append(done.stderr)
    assert errors[0] == errors[1]


def test_a_file_creates_and_updates_many(up: Up, tmp_path: Path) -> None:
    file = tmp_path / "cluster.yaml"
    listed = "topics: [{topic: bins, queues: 2}, {topic: bags, type: fifo}]"
    file.write_text(listed + "\ngroups: [{group: sorters, max_attempts: 4}]")
    made = json_of(up, "topic", "create", "--from", str(file), "--dry-run")
    assert [(each["topic"], each["created"]) for each in made] == [("bins", True), ("bags", True)]
    assert {"bins", "bags"}.isdisjoint(topics_of(up))
    assert aerobee("topic", "update", "--from", str(file), namesrv=up.namesrv).returncode == 1
    json_of(up, "topic", "create", "bins", "--queues", "3")
    differs = aerobee("topic", "create", "--from", str(file), namesrv=up.namesrv)
    assert differs.returncode == 1 and "bags" not in topics_of(up)
    update = ("topic", "update", "--create", "--from", str(file))
    would = json_of(up, *update, "--dry-run")
    assert [(each["name"], each["setting"]) for each in would] == [
        ("bins", "read_queue_count"),
        ("bins", "write_queue_count"),
        ("bags", "created"),
    ]
    assert json_of(up, *update) == would and json_of(up, *update) == []
    json_of(up, "group", "update", "--create", "--from", str(file))
    (change,) = json_of(up, "group", "update", "sorters", "--max-attempts", "6")
    assert (change["setting"], change["before"], change["after"]) == ("max_attempts", 4, 6)
    again = aerobee("group", "create", "--from", str(file), namesrv=up.namesrv)
    assert (again.returncode, "max_attempts is 6 (requested: 4)" in again.stderr) == (1, True)


def topics_of(up: Up) -> set[str]:
    return {topic["topic"] for topic in json_of(up, "topic", "list")}


def offsets(up: Up, group: str, topic: str) -> dict[int, int | None]:
    rows = json_of(up, "group", "progress", group, "--topic", topic)
    return {row["queue_id"]: row["consumer_offset"] for row in rows if row["topic"] == topic}


def test_one_queue_is_reset_and_the_offsets_are_cloned(up: Up) -> None:
    json_of(up, "topic", "create", "cloned", "--queues", "2")
    for group in ("old", "new"):
        json_of(up, "group", "create", group)
    with Producer(namesrv=up.namesrv) as producer:
        for number in range(40):
            producer.send(Message("cloned", b"%d" % number))
    json_of(up, "group", "reset-offset", "old", "cloned", "--to", "latest", "--yes")
    one = ("--to", "earliest", "--queue", "broker-a/1", "--yes")
    [moved] = json_of(up, "group", "reset-offset", "old", "cloned", *one)
    assert (moved["queue_id"], moved["queue_offset"]) == (1, 0)
    wanted = offsets(up, "old", "cloned")
    assert wanted[1] == 0 and wanted[0] is not None
    clone = ("group", "clone-offsets", "old", "new")
    would = json_of(up, *clone, "--dry-run")
    assert {each["queue_id"]: each["queue_offset"] for each in would} == wanted
    assert set(offsets(up, "new", "cloned").values()) <= {None}
    assert json_of(up, *clone, "--yes") == would
    assert offsets(up, "new", "cloned") == wanted
    for wrong in ("broker-b/0", "broker-a/2"):
        change = ("group", "reset-offset", "old", "cloned", "--to", "latest", "--queue", wrong)
        assert aerobee(*change, "--yes", namesrv=up.namesrv).returncode == 1
    assert offsets(up, "old", "cloned") == wanted


def test_a_paused_group_does_not_consume_until_it_is_resumed(up: Up) -> None:
    json_of(up, "topic", "create", "paused")
    json_of(up, "group", "create", "sleepers")
    with Producer(namesrv=up.namesrv) as producer:
        producer.send(Message("paused", b"a"))
    [change] = json_of(up, "group", "pause", "sleepers")
    assert (change["setting"], change["after"]) == ("consume_enable", False)
    assert json_of(up, "group", "pause", "sleepers") == []
    with SimpleConsumer("sleepers", namesrv=up.namesrv) as consumer:
        consumer.subscribe("paused")
        with raises_code(Code.NO_PERMISSION):
            consumer.receive()
        json_of(up, "group", "resume", "sleepers")
        [message] = until_sync(lambda: receive(consumer))
        assert message.body == b"a"
        consumer.ack(message)


def receive(consumer: SimpleConsumer) -> list[Any]:
    """What it receives; nothing while it has not noticed that its group consumes again."""
    try:
        return list(consumer.receive())
    except MqError:
        return []


def test_what_is_exported_is_applied_once(up: Up, tmp_path: Path) -> None:
    file, listing = tmp_path / "cluster.yaml", tmp_path / "topics.json"
    json_of(up, "topic", "create", "kept", "--queues", "3", "--type", "delay")
    json_of(up, "group", "create", "keepers", "--max-attempts", "4", "--retry-delays", "1s,90s")
    assert aerobee("export", str(file), namesrv=up.namesrv).returncode == 0
    assert aerobee("export", "-", namesrv=up.namesrv).stdout == file.read_text()
    assert json_of(up, "apply", str(file)) == [], "it is as the file says"
    for kind, name in (("topic", "kept"), ("group", "keepers")):
        aerobee(kind, "delete", name, "--yes", namesrv=up.namesrv)
    json_of(up, "group", "create", "keepers", "--max-attempts", "9", "--retry-delays", "1s,90s")
    planned = json_of(up, "apply", str(file), "--dry-run")
    assert {(each["name"], each["setting"]) for each in planned} == {
        ("kept", "created"),
        ("keepers", "max_attempts"),
    }
    assert json_of(up, "apply", str(file)) == planned
    assert json_of(up, "apply", str(file)) == []
    listing.write_text(aerobee("topic", "list", "--json", namesrv=up.namesrv).stdout)
    assert json_of(up, "topic", "update", "--from", str(listing)) == []


def test_entries_without_settings_create_what_is_missing_and_change_nothing(
    up: Up, tmp_path: Path
) -> None:
    file = tmp_path / "names.yaml"
    file.write_text("topics: [{topic: bare}]\ngroups: [{group: barest}]\n")
    planned = json_of(up, "apply", str(file), "--dry-run")
    assert [(each["name"], each["setting"]) for each in planned] == [
        ("bare", "created"),
        ("barest", "created"),
    ]
    assert json_of(up, "apply", str(file)) == planned and json_of(up, "apply", str(file)) == []
    json_of(up, "topic", "update", "bare", "--queues", "9")
    json_of(up, "group", "update", "barest", "--max-attempts", "2")
    exported = tmp_path / "all.yaml"
    assert aerobee("export", str(exported), namesrv=up.namesrv).returncode == 0
    assert json_of(up, "apply", str(file)) == [], "the changed settings stay"
    assert aerobee("export", "-", namesrv=up.namesrv).stdout == exported.read_text()


def test_a_group_of_lite_topics_is_applied_with_its_topic(up: Up, tmp_path: Path) -> None:
    file = tmp_path / "lite.yaml"
    file.write_text(
        "topics: [{topic: parents, type: lite}]\n"
        "groups: [{group: children, attributes: {lite.bind.topic: parents}}]\n"
    )
    done = aerobee("apply", str(file), "--dry-run", namesrv=up.namesrv)
    assert done.returncode == 0 and "children" in done.stderr
    assert {each["name"] for each in json_of(up, "apply", str(file))} == {"parents", "children"}
    assert json_of(up, "apply", str(file)) == []
