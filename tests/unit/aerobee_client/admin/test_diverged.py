"""What of a tail that was cut is sent again, to where, and with which properties."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
from aerobee.namesrv.v1 import namesrv_pb2

from aerobee_client import AsyncAdminClient, MqError
from aerobee_client.admin import diverged
from aerobee_client.admin.descriptions import DivergedFile, DivergedMessage
from aerobee_client.admin.diverged import Kind
from aerobee_wire import properties as names
from aerobee_wire.record import Record, decode
from aerobee_wire.status import Code
from support.client.memory import MemoryCluster
from support.codes import raises_code
from support.records import encode

FROM = "broker-b/2/1-4096.log/4096"


def record(topic: str, queue_id: int = 3, **properties: str) -> Record:
    given = {"UNIQ_KEY": "A1", "color": "red", **properties}
    data = encode(topic=topic, queue_id=queue_id, body=b"x", properties=names.encode(given))
    return decode(data, 0)


@pytest.mark.parametrize(
    ("stored", "kind", "place"),
    [
        (record("orders"), Kind.MESSAGE, ("orders", 3)),
        (
            record("SCHEDULE_TOPIC_XXXX", 1, REAL_TOPIC="orders", REAL_QID="5", DELAY="2"),
            Kind.DELAYED,
            ("orders", 5),
        ),
        (
            record("rmq_sys_wheel_timer", 0, REAL_TOPIC="orders", REAL_QID="5", TIMER_OUT_MS="9"),
            Kind.DELAYED,
            ("orders", 5),
        ),
        (
            record("SCHEDULE_TOPIC_XXXX", 3, REAL_TOPIC="%RETRY%g", REAL_QID="0", DELAY="4"),
            Kind.RETRY,
            ("%RETRY%g", 0),
        ),
        (record("%RETRY%g", 0), Kind.RETRY, ("%RETRY%g", 0)),
        (record("%DLQ%g", 0), Kind.DEAD_LETTER, ("%DLQ%g", 0)),
        (
            record("RMQ_SYS_TRANS_HALF_TOPIC", 0, REAL_TOPIC="orders", REAL_QID="2"),
            Kind.HALF_MESSAGE,
            ("orders", 2),
        ),
        (
            record("rmq_sys_wheel_timer", 0, REAL_TOPIC="orders", TIMER_DEL_UNIQKEY="A0"),
            Kind.INTERNAL,
            None,
        ),
        (record("rmq_sys_METADATA_LOG"), Kind.INTERNAL, None),
        (record("rmq_sys_REVIVE_LOG_c"), Kind.INTERNAL, None),
    ],
    ids=[
        "message",
        "delayed by a level",
        "delayed",
        "retry that waits",
        "retry",
        "dead letter",
        "half message",
        "timer that recalls",
        "journal",
        "revive log",
    ],
)
def test_a_record_is_identified_by_where_it_lies(
    stored: Record, kind: Kind, place: tuple[str, int] | None
) -> None:
    assert diverged.kind_of(stored) is kind
    if place is not None:
        assert (diverged.topic_of(stored), diverged.queue_of(stored)) == place


def test_a_message_is_sent_with_its_own_properties_and_where_it_was_cut() -> None:
    sent = diverged.properties_for(record("orders", KEYS="k", TAGS="t", MIN_OFFSET="0"), FROM)
    assert sent == {
        "UNIQ_KEY": "A1", "color": "red", "KEYS": "k", "TAGS": "t", "RESENT_FROM": FROM,
    }  # fmt: skip
    assert next(iter(sent)) == "UNIQ_KEY"


def test_a_message_without_a_message_id_gets_that_of_its_record() -> None:
    given = record("orders")
    bare = decode(encode(topic="orders", body=b"x"), 0)
    assert diverged.properties_for(given, FROM)["UNIQ_KEY"] == "A1"
    assert diverged.properties_for(bare, FROM)["UNIQ_KEY"] == bare.offset_message_id


def test_a_committed_message_does_not_become_a_half_message_again() -> None:
    sent = diverged.properties_for(record("orders", TRAN_MSG="true", PGROUP="p"), FROM)
    assert "TRAN_MSG" not in sent


def test_what_waits_keeps_its_time_and_what_had_waited_does_not_wait_again() -> None:
    waiting = record(
        "rmq_sys_wheel_timer", 0, REAL_TOPIC="orders", TIMER_DELAY_MS="50", TIMER_OUT_MS="1234"
    )
    sent = diverged.properties_for(waiting, FROM)
    assert (sent["TIMER_DELIVER_MS"], "TIMER_DELAY_MS" in sent) == ("1234", False)
    level = record("SCHEDULE_TOPIC_XXXX", 1, REAL_TOPIC="orders", REAL_QID="5", DELAY="2")
    assert diverged.properties_for(level, FROM)["DELAY"] == "2"
    delivered = record("orders", TIMER_DELIVER_MS="1234", TIMER_OUT_MS="1234", DELAY="2")
    assert (
        not {"TIMER_DELIVER_MS", "TIMER_OUT_MS", "DELAY"}
        & diverged.properties_for(delivered, FROM).keys()
    )


def cut_off(topic: str, number: int = 0) -> DivergedMessage:
    stored = record(topic)
    return DivergedMessage(
        topic=topic, kind="message", message_id=f"A{number}", keys="", tag="",
        body_size=len(stored.body), queue_id=0, reconsume_times=0, physical_offset=number,
        store_timestamp_ms=0, stored=False, record=stored,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("topic", "auto_create", "code"),
    [
        ("orders", False, None),
        ("new", True, None),
        ("new", False, Code.TOPIC_NOT_EXIST),
        ("closed", True, Code.NO_PERMISSION),
    ],
)
async def test_a_dry_run_of_a_resend_fails_where_the_broker_would_refuse(
    admin: AsyncAdminClient,
    cluster: MemoryCluster,
    topic: str,
    auto_create: bool,
    code: Code | None,
) -> None:
    def route(_: str, request: Any) -> Any:
        writable = {"orders": 6, "closed": 4} | ({"TBW102": 7} if auto_create else {})
        if request.topic not in writable:
            raise MqError(Code.TOPIC_NOT_EXIST, "no route")
        found = namesrv_pb2.GetTopicRouteResponse()
        permission = writable[request.topic]
        found.route.queues.add(
            broker_name="a", read_queue_count=1, write_queue_count=1, permission=permission
        )
        found.route.brokers.add(broker_name="a", addresses={0: "a:1"})
        return found

    cluster.answers["GetTopicRoute"] = route
    file = DivergedFile(
        broker_name="a", replica_id=2, address="a:2", name="1-40.log", epoch=1, begin_offset=40,
        size=10,
    )  # fmt: skip
    messages = [cut_off(topic, number) for number in range(2)]
    with raises_code(code) if code else nullcontext():
        assert await admin.resend_diverged(file, messages, dry_run=True) == 2
    assert not cluster.requests("Send")
