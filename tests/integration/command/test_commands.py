"""The commands against running services."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest
from aerobee.broker.v1 import pop_pb2

from aerobee_cli import main
from aerobee_cli.app import app
from aerobee_cli.command_line import CommandGroup
from aerobee_client import Message, Producer, PushConsumer, ReceivedMessage
from aerobee_wire.record import iter_records
from support.clock.polling import until_sync
from support.processes.command import COMMAND, Up, aerobee, aerobee_json
from support.processes.terminal import Terminal
from support.stubs import Stub

CLOSED = "127.0.0.1:1"


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    with Up(tmp_path_factory.mktemp("data"), "--set", "brokerName=broker-a") as up:
        yield up


def json_of(up: Up, *arguments: str) -> Any:
    return aerobee_json(*arguments, namesrv=up.namesrv)


class BadOrder(Exception):
    pass


def fail(message: ReceivedMessage) -> None:
    raise BadOrder(f"cannot read {message.body.decode()}")


def dead_letters(up: Up, group: str, bodies: list[str]) -> list[dict[str, Any]]:
    """Creates a group that fails on these messages of topic GROUP-orders at its only attempt."""
    topic = f"{group}-orders"
    json_of(up, "topic", "create", topic, "--queues", "2")
    json_of(up, "group", "create", group, "--max-attempts", "1")
    with Producer(namesrv=up.namesrv) as producer:
        for n, body in enumerate(bodies):
            producer.send(
                Message(
                    topic,
                    body.encode(),
                    tag=f"tag{n}",
                    keys=[f"key-{n}", "all"],
                    properties={"currency": "EUR"},
                )
            )
    with PushConsumer(group, fail, namesrv=up.namesrv) as consumer:
        consumer.subscribe(topic)

        def all_dead() -> list[dict[str, Any]]:
            done = aerobee("dlq", "list", group, "--json", namesrv=up.namesrv)
            found: list[dict[str, Any]] = json.loads(done.stdout or "[]")
            return found if len(found) == len(bodies) else []

        return until_sync(all_dead, "all messages are dead-lettered")


def body_of(up: Up, item: dict[str, Any]) -> str:
    shown = json_of(up, "message", "get", item["offset_message_id"])
    return str(shown["body"])


# ---- topics ----


def test_a_topic_is_created_listed_routed_and_deleted(up: Up) -> None:
    (made,) = json_of(up, "topic", "create", "parcels", "--queues", "3", "--type", "fifo")
    assert made["broker_name"] == "broker-a" and made["created"] is True
    (again,) = json_of(up, "topic", "create", "parcels", "--queues", "3", "--type", "fifo")
    assert again["created"] is False

    topics = {topic["topic"]: topic for topic in json_of(up, "topic", "list")}
    assert topics["parcels"]["message_type"] == "FIFO"
    assert topics["parcels"]["brokers"][0]["write_queue_count"] == 3

    route = json_of(up, "topic", "route", "parcels")
    assert route["brokers"][0]["addresses"] == {"0": up.broker}
    assert len(json_of(up, "topic", "status", "parcels")) == 3

    assert aerobee("topic", "delete", "parcels", "--yes", namesrv=up.namesrv).returncode == 0
    assert "parcels" not in {topic["topic"] for topic in json_of(up, "topic", "list")}


def test_a_topic_cannot_have_the_name_of_its_broker(up: Up) -> None:
    done = aerobee("topic", "create", "broker-a", namesrv=up.namesrv)
    assert done.returncode == 1 and "brokerTopicEnable" in done.stderr
    sent = aerobee("message", "send", "broker-a", "x", namesrv=up.namesrv)
    assert sent.returncode == 0 and "brokerTopicEnable" in sent.stderr


def test_topics_of_the_system_are_listed_on_request(up: Up) -> None:
    assert "TBW102" not in {topic["topic"] for topic in json_of(up, "topic", "list")}
    assert "TBW102" in {topic["topic"] for topic in json_of(up, "topic", "list", "--all")}


def test_without_json_there_is_a_table(up: Up) -> None:
    json_of(up, "topic", "create", "letters")
    shown = aerobee("topic", "list", namesrv=up.namesrv)
    assert "letters" in shown.stdout and "broker-a (8 queues)" in shown.stdout
    for command in (("topic", "route", "letters"), ("topic", "status", "letters")):
        assert "broker-a" in aerobee(*command, namesrv=up.namesrv).stdout
    assert up.broker in aerobee("cluster", "list", namesrv=up.namesrv).stdout


# ---- delivery times ----


def test_a_message_is_sent_for_later_and_recalled(up: Up) -> None:
    json_of(up, "topic", "create", "later")
    sent = json_of(up, "message", "send", "later", "x", "--delay", "1h")
    recalled = json_of(up, "message", "recall", "later", sent["recall_handle"])
    assert recalled == {"message_id": sent["message_id"], "topic": "later"}
    again = aerobee("message", "recall", "later", sent["recall_handle"], namesrv=up.namesrv)
    assert (again.returncode, again.stdout) == (1, "")
    wrong = aerobee("message", "send", "later", "x", "--delay", "soon", namesrv=up.namesrv)
    assert wrong.returncode == 2 and "--delay" in wrong.stderr


# ---- groups ----


def test_a_group_is_created_listed_and_deleted(up: Up) -> None:
    json_of(up, "group", "create", "packers", "--max-attempts", "3", "--retry-delays", "200ms,2s")
    groups = {group["consumer_group"]: group for group in json_of(up, "group", "list")}
    assert groups["packers"]["max_attempts"] == 3
    assert groups["packers"]["retry_delays_ms"] == [200, 2_000]
    assert "200ms, 2s" in aerobee("group", "list", namesrv=up.namesrv).stdout
    assert aerobee("group", "delete", "packers", "--yes", namesrv=up.namesrv).returncode == 0
    assert "packers" not in {group["consumer_group"] for group in json_of(up, "group", "list")}


def test_a_group_shows_its_order_and_its_retries(up: Up) -> None:
    retry = "exponential:initial=2s,max=1m,multiplier=3"
    json_of(up, "group", "create", "couriers", "--order", "off", "--retry", retry)
    shown = json_of(up, "group", "show", "couriers")
    assert shown["order"] == "off" and shown["retry_delays_ms"] == []
    assert shown["exponential_retry"] == {"initial_ms": 2_000, "max_ms": 60_000, "multiplier": 3}
    text = aerobee("group", "show", "couriers", namesrv=up.namesrv).stdout
    assert "off: messages in no order" in text and "2s to 1m" in text
    json_of(up, "group", "update", "couriers", "--order", "auto")
    assert json_of(up, "group", "show", "couriers")["order"] == "auto"
    assert aerobee("group", "show", "nobody", namesrv=up.namesrv).returncode == 1


def test_a_message_that_blocks_its_group_is_shown_and_skipped(up: Up) -> None:
    json_of(up, "topic", "create", "postcards", "--queues", "1", "--type", "fifo")
    json_of(up, "group", "create", "postmen")
    with Producer(namesrv=up.namesrv) as producer:
        first, _ = producer.send_batch([Message("postcards", body) for body in (b"torn", b"whole")])
    [broker] = json_of(up, "broker", "status")

    def pop() -> list[bytes]:
        request = pop_pb2.PopRequest(
            consumer_group="postmen",
            topic="postcards",
            invisible_duration_ms=100,
            start=pop_pb2.POP_START_EARLIEST,
            client_id="postman-1",
        )
        with grpc.insecure_channel(broker["broker_address"]) as channel:
            answer = Stub(pop_pb2, channel).Pop(request, timeout=20)
        return [record.body for record in iter_records(answer.records)]

    assert json_of(up, "group", "blocked", "postmen") == []
    assert pop() == [b"torn"]
    [blocked] = until_sync(lambda: json_of(up, "group", "blocked", "postmen"), "it has failed")
    assert (blocked["message_group"], blocked["message_id"]) == ("", first.message_id)
    assert (blocked["topic"], blocked["attempt"], blocked["waiting"]) == ("postcards", 1, 1)
    assert blocked["client_id"] == "postman-1" and blocked["since_timestamp_ms"] > 0
    skip = ("group", "blocked", "postmen", "--skip", first.message_id, "--reason", "torn apart")
    assert json_of(up, *skip)[0]["message_id"] == first.message_id
    [letter] = json_of(up, "dlq", "list", "postmen")
    assert letter["message_id"] == first.message_id and letter["reason"] == "torn apart"
    assert pop() == [b"whole"]
    assert aerobee(*skip, namesrv=up.namesrv).returncode == 1, "skipped already"
    assert aerobee("group", "blocked", "nobody", namesrv=up.namesrv).returncode == 1


def test_a_group_can_be_sent_back_to_the_start(up: Up) -> None:
    json_of(up, "topic", "create", "events", "--queues", "1")
    json_of(up, "group", "create", "readers")
    with Producer(namesrv=up.namesrv) as producer:
        producer.send_batch([Message("events", b"%d" % n) for n in range(5)])
    seen: list[bytes] = []
    with PushConsumer("readers", lambda m: seen.append(m.body), namesrv=up.namesrv) as consumer:
        consumer.subscribe("events")
        until_sync(lambda: len(seen) == 5, "all are consumed")

    def progress() -> dict[str, Any]:
        (queue,) = json_of(up, "group", "progress", "readers", "--topic", "events")
        assert isinstance(queue, dict)
        return queue

    assert (progress()["consumer_offset"], progress()["lag"]) == (5, 0)
    (moved,) = json_of(
        up, "group", "reset-offset", "readers", "events", "--to", "earliest", "--yes"
    )
    assert moved["queue_offset"] == 0
    assert (progress()["consumer_offset"], progress()["lag"]) == (0, 5)
    (moved,) = json_of(up, "group", "reset-offset", "readers", "events", "--to", "3", "--yes")
    assert moved["queue_offset"] == 3


# ---- messages ----


def test_a_message_is_sent_found_and_shown(up: Up) -> None:
    sent = json_of(
        *(up, "message", "send", "notes", "grüße", "--tag", "hot", "--key", "k1", "--key", "k2"),
        *("--property", "a=b=c"),
    )
    (by_key,) = json_of(up, "message", "query", "notes", "--key", "k2")
    (by_id,) = json_of(up, "message", "query", "notes", "--id", sent["message_id"])
    assert by_key == by_id
    assert by_key["offset_message_id"] == sent["offset_message_id"]
    shown = json_of(up, "message", "get", sent["offset_message_id"])
    assert (shown["body"], shown["tag"], shown["keys"]) == ("grüße", "hot", ["k1", "k2"])
    assert shown["properties"]["a"] == "b=c"
    assert json_of(up, "message", "get", sent["message_id"]) == shown


def test_a_body_can_come_from_stdin(up: Up) -> None:
    done = aerobee(
        *("message", "send", "notes", "--file", "-", "--json"),
        namesrv=up.namesrv,
        input_bytes=b"\xff\x00",
    )
    sent = json.loads(done.stdout)
    shown = json_of(up, "message", "get", sent["offset_message_id"])
    assert shown["body_base64"] == "/wA="


def test_a_message_is_sent_many_times_at_a_rate(up: Up) -> None:
    json_of(up, "topic", "create", "steps", "--type", "fifo")
    send = ("message", "send", "steps", "x", "--message-group", "customer-7")
    done = json_of(up, *send, "--count", "20", "--rate", "50")
    assert (done["topic"], done["sent"], done["failed"]) == ("steps", 20, 0)
    assert done["seconds"] >= 0.38, "the last send is 19/50 s behind the first"
    used = [each for each in json_of(up, "topic", "status", "steps") if each["max_offset"]]
    assert [each["max_offset"] for each in used] == [20], "a message group has one queue"
    refused = aerobee(*send, "--delay", "1s", "--count", "2", namesrv=up.namesrv)
    assert refused.returncode == 1 and refused.stderr.startswith("error: ")


def test_a_message_is_sent_with_a_priority(up: Up) -> None:
    json_of(up, "topic", "create", "urgent", "--type", "priority")
    sent = json_of(up, "message", "send", "urgent", "x", "--priority", "3")
    shown = json_of(up, "message", "get", sent["offset_message_id"])
    assert shown["properties"]["_SYS_MSG_PRIORITY_"] == "3"


def consumed(up: Up, *arguments: str) -> list[dict[str, Any]]:
    """What `aerobee message consume --json` prints."""
    done = aerobee("message", "consume", *arguments, "--json", namesrv=up.namesrv)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_messages_are_read_without_changing_an_offset(up: Up) -> None:
    json_of(up, "topic", "create", "readings", "--queues", "2")
    for number in range(3):
        json_of(up, "message", "send", "readings", f"reading {number}")
    for _ in range(2):
        items = consumed(up, "readings", "--from", "earliest", "--count", "3")
        assert {item["body"] for item in items} == {f"reading {number}" for number in range(3)}
    assert len(consumed(up, "readings", "--from", "1h", "--count", "2")) == 2
    assert consumed(up, "readings", "--timeout", "100ms") == [], "none arrives from now on"
    short = aerobee(
        *("message", "consume", "readings", "--count", "1", "--timeout", "100ms"),
        namesrv=up.namesrv,
    )
    assert short.returncode == 3
    missing = aerobee("message", "consume", "no-readings", namesrv=up.namesrv)
    assert missing.returncode == 1 and missing.stderr.startswith("error: ")


@pytest.mark.parametrize("lease", [(), ("--lease",)], ids=["by offset", "by lease"])
def test_messages_are_consumed_and_acknowledged(up: Up, lease: tuple[str, ...]) -> None:
    topic, group = f"parcels{len(lease)}", f"carriers{len(lease)}"
    json_of(up, "topic", "create", topic, "--queues", "1")
    json_of(up, "group", "create", group)
    for number in range(4):
        json_of(up, "message", "send", topic, f"parcel {number}")
    taken = consumed(up, topic, "--group", group, *lease, "--count", "3")
    assert [item["body"] for item in taken] == [f"parcel {number}" for number in range(3)]

    def lag() -> int:
        return sum(
            each["lag"] for each in json_of(up, "group", "progress", group, "--topic", topic)
        )

    until_sync(lambda: lag() == 1, "three are acknowledged")
    [last] = consumed(up, topic, "--group", group, *lease, "--count", "1")
    assert last["body"] == "parcel 3"
    unknown = aerobee("message", "consume", topic, "--group", "nobody", namesrv=up.namesrv)
    assert unknown.returncode == 1 and "nobody" in unknown.stderr


def test_ctrl_c_ends_a_consumer_with_a_summary(up: Up) -> None:
    json_of(up, "topic", "create", "ticks")
    command = [*COMMAND, "message", "consume", "ticks"]
    with Terminal(command, env={"NAMESRV_ADDR": up.namesrv}) as terminal:
        terminal.until_shown("Ctrl-C ends")
        aerobee(
            "message", "send", "ticks", "--file", "-", namesrv=up.namesrv, input_bytes=b"\xff\x1b"
        )
        terminal.until_shown("not text")
        assert terminal.end() == 0
    assert "(2 bytes, not text) ff1b" in terminal.text and "1 message in" in terminal.lines[-1]


# ---- dead letters ----


def test_a_listing_fits_its_terminal_and_a_pipe_has_all_of_it(up: Up) -> None:
    (item,) = dead_letters(up, "narrow", ["order 7"])
    columns = "message-id,dead-since,origin,attempts,reason"
    with Terminal([*COMMAND, "dlq", "list", "narrow"], env={"NAMESRV_ADDR": up.namesrv}) as shown:
        assert shown.wait() == 0
    assert len(shown.lines) == 2 + 2, "titles, a rule, the row and its reason"
    assert all(len(line) <= 80 for line in shown.lines)
    assert shown.lines[2].startswith(item["message_id"])
    assert shown.lines[3].strip() == f"{item['reason']}: {item['description']}"
    piped = aerobee("dlq", "list", "narrow", "--columns", columns, namesrv=up.namesrv)
    titles, row = piped.stdout.splitlines()
    assert titles.split() == columns.split(",")
    assert row.split("  ")[0] == item["message_id"] and item["description"] in row
    empty = aerobee("dlq", "list", "narrow", "--tag", "none", namesrv=up.namesrv)
    assert (empty.stdout, empty.stderr) == ("", "no dead letters of narrow\n")


def test_a_dead_letter_has_its_origin_and_reason(up: Up) -> None:
    (item,) = dead_letters(up, "billing", ["order 7"])
    (original,) = json_of(up, "message", "query", "billing-orders", "--key", "key-0")
    assert item["message_id"] == original["message_id"]
    assert item["origin_topic"] == "billing-orders"
    assert item["origin_message_id"] == original["offset_message_id"]
    assert (item["tag"], item["keys"]) == ("tag0", ["key-0", "all"])
    assert item["born_timestamp_ms"] == original["born_timestamp_ms"]
    assert item["store_timestamp_ms"] >= original["store_timestamp_ms"]
    assert item["reason"].endswith("BadOrder")
    assert item["description"] == "cannot read order 7"
    assert (item["broker_name"], item["queue_id"], item["queue_offset"]) == ("broker-a", 0, 0)
    assert item["reconsume_times"] >= 0

    table = aerobee("dlq", "list", "billing", namesrv=up.namesrv).stdout
    ids = (item["message_id"], item["origin_message_id"])
    for text in (*ids, "billing-orders", "key-0, all", "BadOrder"):
        assert text in table


def test_looking_at_dead_letters_consumes_none(up: Up, tmp_path: Path) -> None:
    items = dead_letters(up, "lookers", ["a", "b", "c"])
    bodies = [body_of(up, item) for item in items]
    assert sorted(bodies) == ["a", "b", "c"]
    assert json_of(up, "dlq", "list", "lookers") == items
    (tagged,) = json_of(up, "dlq", "list", "lookers", "--tag", "tag1")
    assert body_of(up, tagged) == "b"
    assert json_of(up, "dlq", "list", "lookers", "--limit", "2") == items[:2]
    (first,) = json_of(up, "dlq", "peek", "lookers")
    assert (first["body"], first["properties"]["currency"]) == (bodies[0], "EUR")
    (third,) = json_of(up, "dlq", "peek", "lookers", "--id", items[2]["message_id"])
    assert third["body"] == bodies[2]
    assert "currency=EUR" in aerobee("dlq", "peek", "lookers", namesrv=up.namesrv).stdout

    out = tmp_path / "dead.jsonl"
    done = aerobee("dlq", "export", "lookers", "--out", str(out), namesrv=up.namesrv)
    assert done.returncode == 0
    exported = [json.loads(line) for line in out.read_text().splitlines()]
    assert [item["body"] for item in exported] == bodies
    to_stdout = aerobee("dlq", "export", "lookers", namesrv=up.namesrv).stdout
    assert to_stdout == out.read_text()
    assert json_of(up, "dlq", "list", "lookers") == items


def test_redriven_dead_letters_reach_only_their_group(up: Up) -> None:
    items = dead_letters(up, "menders", ["x", "y"])
    topic = "menders-orders"
    json_of(up, "group", "create", "others")
    others: list[bytes] = []
    mended: list[ReceivedMessage] = []
    both = threading.Event()

    def mend(message: ReceivedMessage) -> None:
        mended.append(message)
        if len(mended) == 2:
            both.set()

    with PushConsumer("others", lambda m: others.append(m.body), namesrv=up.namesrv) as bystander:
        bystander.subscribe(topic)
        until_sync(lambda: len(others) == 2, "the other group has what was sent at first")

        dry = json_of(up, "dlq", "redrive", "menders", "--all", "--dry-run")
        assert (dry["would_send"], dry["reasons"]) == (2, {"BadOrder": 2})
        done = aerobee("dlq", "redrive", "menders", "--all", "--rate", "50", namesrv=up.namesrv)
        assert done.returncode == 0
        assert done.stderr == "sent 2 dead letters of menders to %RETRY%menders\n"
        with PushConsumer("menders", mend, namesrv=up.namesrv) as consumer:
            consumer.subscribe(topic)
            assert both.wait(timedelta(seconds=20).total_seconds())
    assert sorted(message.body for message in mended) == [b"x", b"y"]
    assert {message.reconsume_times for message in mended} == {0}
    assert {message.topic for message in mended} == {topic}
    assert {message.message_id for message in mended} == {item["message_id"] for item in items}
    assert {message.properties["currency"] for message in mended} == {"EUR"}
    assert len(others) == 2


def test_purged_dead_letters_are_gone_and_new_ones_are_kept(up: Up) -> None:
    dead_letters(up, "sweepers", ["x", "y"])
    dry = aerobee("dlq", "purge", "sweepers", "--dry-run", namesrv=up.namesrv)
    assert (dry.returncode, dry.stderr) == (0, "would delete 2 dead letters of sweepers\n")
    assert len(json_of(up, "dlq", "list", "sweepers")) == 2
    done = aerobee("dlq", "purge", "sweepers", "--yes", namesrv=up.namesrv)
    assert (done.returncode, done.stderr) == (0, "deleted 2 dead letters of sweepers\n")
    assert json_of(up, "dlq", "list", "sweepers") == []
    again = json_of(up, "dlq", "purge", "sweepers", "--yes")
    assert again == {"group": "sweepers", "dead_letters": 0, "deleted": False}
    assert len(dead_letters(up, "sweepers", ["z"])) == 1
    nobody = aerobee("dlq", "purge", "nobody", "--yes", namesrv=up.namesrv)
    assert nobody.returncode == 1
    assert "nobody" in nobody.stderr


def test_an_unknown_dead_letter_cannot_be_redriven(up: Up) -> None:
    dead_letters(up, "searchers", ["x"])
    done = aerobee("dlq", "redrive", "searchers", "--id", "ABC", namesrv=up.namesrv)
    assert done.returncode == 1 and "ABC" in done.stdout


def test_a_group_without_dead_letters_lists_none(up: Up) -> None:
    json_of(up, "group", "create", "flawless")
    assert json_of(up, "dlq", "list", "flawless") == []
    shown = aerobee("dlq", "list", "flawless", namesrv=up.namesrv)
    assert shown.returncode == 0 and "flawless" in shown.stderr


# ---- cluster ----


def test_broker_status_shows_its_counters(up: Up) -> None:
    status = json_of(up, "broker", "status", "broker-a")
    assert status["broker_address"] == up.broker
    assert status["read_only_reason"] == ""
    assert status["resident_memory_bytes"] > 0
    (same,) = json_of(up, "broker", "status")
    assert same["broker_name"] == "broker-a"
    assert "broker-a" in aerobee("broker", "status", namesrv=up.namesrv).stdout


# ---- errors ----


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("topic", "route", "nowhere"), "nowhere"),
        (("topic", "status", "nowhere"), "nowhere"),
        (("topic", "create", "bad name"), "bad name"),
        (("group", "progress", "nobody"), "nobody"),
        (("dlq", "list", "nobody"), "nobody"),
        (("message", "get", "abc"), "abc"),
        (("message", "send", "notes", ""), "empty"),
        (("broker", "status", "broker-z"), "broker-z"),
    ],
)
def test_an_error_is_one_line_that_names_the_cause(
    up: Up, arguments: tuple[str, ...], text: str
) -> None:
    done = aerobee(*arguments, namesrv=up.namesrv)
    assert done.returncode == 1 and not done.stdout
    assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1
    assert text in done.stderr


def test_an_unreachable_name_server_is_one_line() -> None:
    done = aerobee("topic", "list", namesrv=CLOSED)
    assert done.returncode == 1 and not done.stdout
    assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1
    assert CLOSED in done.stderr and "NAMESRV_ADDR" in done.stderr


def test_the_name_server_can_be_given_before_or_after_the_command(up: Up) -> None:
    before = aerobee("--namesrv", up.namesrv, "cluster", "list", "--json", namesrv=CLOSED)
    after = aerobee("cluster", "list", "--json", "--namesrv", up.namesrv, namesrv=CLOSED)
    assert json.loads(before.stdout) == json.loads(after.stdout) != []


def listings(group: CommandGroup = app, path: str = "") -> Iterator[str]:
    """All commands that print a table of which the user chooses the columns."""
    for name in group.list_commands(None):
        child, here = group.get_command(None, name), f"{path} {name}".strip()
        if isinstance(child, CommandGroup):
            yield from listings(child, here)
        elif child is not None and any(each.name == "columns" for each in child.params):
            yield here


def end_without_reader(arguments: Sequence[str], errors: Path) -> tuple[int, str]:
    """Run a command whose stdout is a pipe without reader. Return its exit code and stderr."""
    reader, writer = os.pipe()
    os.close(reader)
    with (
        pytest.MonkeyPatch.context() as patch,
        errors.open("w+") as stderr,
        os.fdopen(writer, "w") as stdout,
    ):
        patch.setattr(sys, "stdout", stdout)
        patch.setattr(sys, "stderr", stderr)
        code = main.main(arguments)
        stdout.flush()  # as Python does at exit
    return code, errors.read_text()


def test_each_listing_ends_like_a_program_in_c_if_its_reader_has_read_enough(
    up: Up, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in `aerobee dlq list billing | head -1`."""
    monkeypatch.setenv("NAMESRV_ADDR", up.namesrv)
    [dead] = dead_letters(up, "piped", ["x"])
    topic, message_id = "piped-orders", dead["message_id"]
    json_of(up, "topic", "create", "sessions", "--type", "lite")
    json_of(up, "message", "send", "sessions", "x", "--lite-topic", "session-1")
    certificates = str(tmp_path / "certificates")
    json_of(up, "certs", "init", certificates)
    given: dict[str, tuple[str, ...]] = {
        "acl list": (),
        "audit list": (),
        "broker config get": ("broker-a",),
        "broker diverged list": ("broker-a",),
        "broker ha-status": ("broker-a",),
        "certs show": (certificates,),
        "client list": (),
        "cluster list": (),
        "context list": (),
        "delayed list": (),
        "dlq jobs list": (),
        "dlq list": ("piped",),
        "group blocked": ("piped",),
        "group list": (),
        "group members": ("piped",),
        "group progress": ("piped",),
        "lease list": ("piped", "--topic", topic),
        "lite clients": ("sessions",),
        "lite list": ("sessions",),
        "lite show": ("sessions", "session-1"),
        "message query": (topic, "--key", "all"),
        "namesrv config get": (),
        "proxy list": (),
        "quota list": (),
        "topic list": (),
        "topic route": (topic,),
        "topic status": (topic,),
        "transaction list": (),
        "user list": (),
    }
    # They need a user, a replica or a port that this cluster does not have.
    elsewhere = {"acl get", "broker diverged show", "proxy config get"}
    assert {*given, *elsewhere} == set(listings())
    given |= {
        "dlq peek": ("piped",),
        "message browse": (topic,),
        "message get": (dead["offset_message_id"],),
        "message search": (topic, "--key", "all"),
        "message show": (message_id,),
        "message tail": (topic, "--no-follow"),
        "message track": (message_id,),
    }
    calls = [(*name.split(), *arguments, "--json") for name, arguments in given.items()]
    tables = ("cluster list", "dlq list", "message browse", "message show", "topic list")
    calls += [(*name.split(), *given[name]) for name in tables]
    calls.append(("dlq", "export", "piped"))
    found = {call: end_without_reader(call, tmp_path / "errors") for call in calls}
    assert {call: end for call, end in found.items() if end != (141, "")} == {}


def test_a_process_whose_reader_has_read_enough_ends_quietly(up: Up) -> None:
    command = [*COMMAND, "--namesrv", up.namesrv, "topic", "list"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    with process.stderr:
        assert process.stderr.read() == b""
    assert process.wait(20) == 141


@pytest.mark.parametrize(
    "arguments", [("broker", "--print-config"), ("store", "check", "."), ("topic", "list")]
)
def test_a_command_whose_output_nobody_reads_ends_quietly(
    up: Up, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    env = {**os.environ, "NAMESRV_ADDR": up.namesrv}
    try:
        done = subprocess.run(
            [*COMMAND, *arguments], stdout=writer, stderr=subprocess.PIPE, cwd=tmp_path, env=env,
            timeout=60, check=False,
        )  # fmt: skip
    finally:
        os.close(writer)
    assert b"Broken pipe" not in done.stderr
