"""What a task of the sink makes of rows, without Spark around it, at a real broker: rows that
cannot be sent, by their numbers, and a task that is repeated.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from aerobee_client import AdminClient
from aerobee_client.options.producer import ProducerOptions
from aerobee_client.sending.columns import ColumnSender
from aerobee_spark.errors import Code, MqError, WriteError
from aerobee_spark.reading import columns
from aerobee_spark.reading.message_columns import COLUMNS
from aerobee_spark.writing.message_columns import FrameColumns
from aerobee_spark.writing.options import WriteOptions
from aerobee_spark.writing.task import Task, Topics
from aerobee_wire.topics import dead_letter_topic, retry_topic
from support.clock.polling import until_sync
from support.codes import raises_code
from support.processes import redriving
from support.processes.service import (
    ServiceProcess,
    broker_process,
    namesrv_and_broker,
    namesrv_process,
)
from support.spark.sink import MIB, TIMEOUT_S, ids, numbers, stored

MAP = pa.map_(pa.string(), pa.string())
KINDS = {
    pa.string(): "string",
    pa.int32(): "int",
    pa.timestamp("us", "UTC"): "timestamp",
    MAP: "map<string,string>",
}
BAD = 7
Send = Callable[..., int]


@pytest.fixture
def send(namesrv: str, topic: str) -> Send:
    """`send(columns, **options)`: as task 3 of a job sends the rows of one Arrow batch."""

    def task(given_rows: dict[str, pa.Array], **options: str) -> int:
        given = {"nameServer": namesrv, "topic": topic} | options
        batch = pa.record_batch(given_rows)
        kinds = [(name, KINDS[array.type]) for name, array in given_rows.items()]
        parsed = WriteOptions.parse({name: text for name, text in given.items() if text})
        return Task(parsed, FrameColumns.of(kinds), "job", 3).write([batch])

    return task


def rows(bad: Any, good: Any, kind: pa.DataType) -> pa.Array:
    """Ten, of which one is bad."""
    return pa.array([bad if row == BAD else good for row in range(10)], kind)


def bodies(count: int = 10) -> pa.Array:
    return pa.array([str(row) for row in range(count)], pa.string())


LATE = datetime.now(UTC) + timedelta(days=4)
SOON = datetime.now(UTC) + timedelta(days=2)
BAD_ROWS: dict[str, dict[str, pa.Array]] = {
    "null body": {"body": rows(None, "x", pa.string())},
    "empty body": {"body": rows("", "x", pa.string())},
    "large body": {"body": rows("x" * (4 * MIB + 1), "x", pa.string())},
    "separator": {"properties": rows([("a", "x\x01")], [("a", "x")], MAP)},
    "reserved name": {"properties": rows([("TAGS", "x")], [("a", "x")], MAP)},
    "time": {"deliverAt": rows(LATE, SOON, pa.timestamp("us", "UTC"))},
    "system topic": {"topic": rows("RMQ_SYS_TRANS_HALF_TOPIC", "fine", pa.string())},
    "retry topic": {"topic": rows("%RETRY%billing", "fine", pa.string())},
    "queue": {
        "brokerName": rows("broker-a", "broker-a", pa.string()),
        "queueId": rows(9, 1, pa.int32()),
    },
    "broker": {
        "brokerName": rows("broker-x", "broker-a", pa.string()),
        "queueId": rows(1, 1, pa.int32()),
    },
}


@pytest.mark.parametrize("case", BAD_ROWS)
def test_a_row_that_cannot_be_sent_is_named_and_none_of_its_batch_is_sent(
    admin: AdminClient, send: Send, topic: str, case: str
) -> None:
    given = {"body": bodies()} | BAD_ROWS[case]
    with pytest.raises(WriteError) as raised:
        send(given, topic="" if "topic" in given else topic)
    assert raised.value.message.startswith(f"partition 3, row {BAD}: ")
    assert raised.value.sent == 0
    assert stored(admin, topic) == []


def test_a_task_that_is_repeated_sends_under_equal_ids(
    admin: AdminClient, send: Send, topic: str
) -> None:
    for _ in range(2):
        assert send({"body": bodies(9000)}) == 9000
    found = stored(admin, topic)
    assert numbers(found) == sorted([*range(9000)] * 2)
    assert len(ids(found)) == len({(each.unique_message_id, each.body) for each in found}) == 9000


def test_columns_of_nulls_are_as_if_they_were_not_there(
    admin: AdminClient, send: Send, topic: str
) -> None:
    nulls = {
        "tags": pa.string(),
        "keys": pa.string(),
        "properties": MAP,
        "flag": pa.int32(),
        "messageGroup": pa.string(),
        "brokerName": pa.string(),
        "queueId": pa.int32(),
        "deliverAt": pa.timestamp("us", "UTC"),
    }
    assert send({"body": bodies()} | {n: pa.nulls(10, kind) for n, kind in nulls.items()}) == 10
    found = stored(admin, topic)
    assert numbers(found) == list(range(10))
    assert {name for each in found for name in each.properties} == {"UNIQ_KEY"}


def test_a_topic_that_does_not_exist_is_not_created(admin: AdminClient, send: Send) -> None:
    with pytest.raises(WriteError) as raised:
        send({"body": bodies()}, topic="nowhere")
    assert raised.value.code is Code.TOPIC_NOT_EXIST
    with raises_code(Code.TOPIC_NOT_EXIST):
        admin.topic_status("nowhere")
    assert send({"body": bodies()}, topic="nowhere", createTopic="true") == 10
    assert numbers(stored(admin, "nowhere")) == list(range(10))


def test_what_brokers_refuse_is_reported_in_their_words(
    admin: AdminClient, send: Send, topic: str
) -> None:
    admin.update_topic(topic, permission=4)
    with pytest.raises(WriteError) as raised:
        send({"body": bodies()})
    assert raised.value.code is Code.NO_PERMISSION
    assert raised.value.sent == 0


def test_name_servers_that_do_not_answer_fail_the_task(send: Send) -> None:
    with pytest.raises(WriteError) as raised:
        send({"body": bodies()}, nameServer="127.0.0.1:1")
    assert raised.value.code is Code.NAMESRV_UNREACHABLE


# ---- dead letters ----


@pytest.mark.parametrize("target", ["retry", "origin"])
def test_dead_letters_are_sent_again_under_their_ids(
    namesrv: str, admin: AdminClient, topic: str, target: str
) -> None:
    group = f"of_{target}"
    redriving.fill(namesrv, group, f"{topic}_origin", 500)
    to = retry_topic(group) if target == "retry" else f"{topic}_origin"
    if target == "retry":
        admin.create_topic(to, queues=1)
    letters = stored(admin, dead_letter_topic(group))
    page = admin.browse(dead_letter_topic(group), "broker-a", 0, 0, max_messages=500)
    records, kinds = page.records, list(COLUMNS.items())
    options = WriteOptions.parse({"nameServer": namesrv, "redrive": target})
    task = Task(options, FrameColumns.of(kinds), "job", 0)
    sent = page.message_count
    assert task.write([columns.decode(records, "broker-a")]) == sent > 0
    found = {each.unique_message_id: each for each in stored(admin, to)}
    assert len(found) == sent
    for letter in letters[:sent]:
        again = found[letter.unique_message_id]
        assert (again.body, again.flag) == (letter.body, letter.flag)
        assert again.properties["REDRIVE_TIMES"] == "1"
        assert "DLQ_REASON" not in again.properties


# ---- brokers that go away ----


@pytest.fixture
def two_brokers(tmp_path: Path) -> Iterator[tuple[str, ServiceProcess]]:
    """The name server, and one of its two brokers."""
    homes = [tmp_path / name for name in ("n", "a", "b")]
    for home in homes:
        home.mkdir()
    with (
        namesrv_process(homes[0]) as namesrv,
        broker_process(homes[1], namesrv=namesrv.address) as broker,
        broker_process(homes[2], "--set=brokerName=broker-b", namesrv=namesrv.address),
    ):
        yield namesrv.address, broker


def test_another_broker_takes_over_when_one_is_killed(
    two_brokers: tuple[str, ServiceProcess],
) -> None:
    namesrv, broker = two_brokers
    count = 12_000
    options = {"nameServer": namesrv, "topic": "orders", "maxMessagesPerSecond": "4000"}
    task = Task(WriteOptions.parse(options), FrameColumns.of([("body", "string")]), "job", 0)
    with AdminClient(namesrv) as admin, ThreadPoolExecutor(1) as beside:
        admin.create_topic("orders", queues=2)
        sending = beside.submit(task.write, [pa.record_batch({"body": bodies(count)})])
        until_sync(lambda: sending.done() or at(admin, "broker-a") > 1000, timeout_s=TIMEOUT_S)
        broker.kill()
        assert sending.result(TIMEOUT_S) == count
        broker.start()
        until_sync(lambda: at(admin, "broker-a") > 1000, retry_on=(MqError,))
        found = stored(admin, "orders")
    by_id = {each.unique_message_id: int(each.body) for each in found}
    assert sorted(by_id.values()) == list(range(count))


def at(admin: AdminClient, broker_name: str) -> int:
    """Messages that a broker has of the orders."""
    queues = admin.topic_status("orders")
    return sum(queue.max_offset for queue in queues if queue.broker_name == broker_name)


def test_the_only_broker_is_waited_for_while_it_restarts(tmp_path: Path) -> None:
    waits: list[float] = []
    with namesrv_and_broker(tmp_path) as (namesrv, broker):
        options = WriteOptions.parse({"nameServer": namesrv.address, "topic": "orders"})
        hasty = WriteOptions.parse(
            {"nameServer": namesrv.address, "topic": "orders", "sendTimeoutMs": "1"}
        )

        def sleep(seconds: float) -> None:
            waits.append(seconds)
            if len(waits) == 2:
                broker.start()

        given = ProducerOptions()
        with (
            AdminClient(namesrv.address) as admin,
            ColumnSender("tests", namesrv=namesrv.address, options=given) as sender,
        ):
            admin.create_topic("orders", queues=2)
            broker.kill()
            until_sync(lambda: not admin.cluster().brokers)
            with raises_code(Code.TOPIC_NOT_EXIST):
                Topics(hasty, sender).ready("orders")
            Topics(options, sender, sleep).ready("orders")
            assert len(waits) >= 2
            assert len(sender.queues("orders").writable) == 2


def test_the_broker_of_a_topic_is_waited_for_while_others_run(tmp_path: Path) -> None:
    """A topic that does not exist is not waited for."""
    waits: list[float] = []
    with namesrv_and_broker(tmp_path) as (namesrv, broker):
        given = {"nameServer": namesrv.address, "topic": "orders"}
        options, hasty = (WriteOptions.parse(given | more) for more in ({}, {"sendTimeoutMs": "1"}))

        def sleep(seconds: float) -> None:
            waits.append(seconds)
            if len(waits) == 2:
                broker.start()

        home = tmp_path / "other"
        home.mkdir()
        with (
            AdminClient(namesrv.address) as admin,
            ColumnSender("tests", namesrv=namesrv.address, options=ProducerOptions()) as sender,
        ):
            admin.create_topic("orders", queues=2)
            with broker_process(home, "--set=brokerName=broker-b", namesrv=namesrv.address):
                broker.kill()
                until_sync(lambda: len(admin.cluster().brokers) == 1)
                with raises_code(Code.TOPIC_NOT_EXIST) as raised:
                    Topics(hasty, sender).ready("orders")
                assert raised.value.retryable
                assert "broker-a" in raised.value.message
                with raises_code(Code.TOPIC_NOT_EXIST):
                    Topics(options, sender, sleep).ready("nowhere")
                assert not waits
                Topics(options, sender, sleep).ready("orders")
                assert len(waits) >= 2
                assert len(sender.queues("orders").writable) == 2


def test_a_chosen_queue_waits_for_its_broker_and_then_fails(
    two_brokers: tuple[str, ServiceProcess],
) -> None:
    namesrv, broker = two_brokers
    options = {"nameServer": namesrv, "topic": "orders", "sendTimeoutMs": "1500"}
    kinds = [("body", "string"), ("brokerName", "string"), ("queueId", "int")]
    task = Task(WriteOptions.parse(options), FrameColumns.of(kinds), "job", 0)
    here = {
        "brokerName": rows("broker-a", "broker-a", pa.string()),
        "queueId": rows(0, 0, pa.int32()),
    }
    batch = pa.record_batch({"body": bodies()} | here)
    with AdminClient(namesrv) as admin:
        admin.create_topic("orders", queues=1)
        assert task.write([batch]) == 10
        broker.send_signal(signal.SIGSTOP)
        with pytest.raises(WriteError) as raised:
            task.write([batch])
        broker.kill()
        # The name server may have the killed broker in its route for a moment.
        until_sync(lambda: at(admin, "broker-b") == 0, "no message there", retry_on=(MqError,))
    assert raised.value.sent == 0
    assert "10 more may be stored" in raised.value.message
