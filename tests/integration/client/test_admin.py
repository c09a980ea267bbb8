"""Administration, and refusals, against a real name server and a real broker."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from aerobee_client import AdminClient, Message, NamesrvUnreachable, Producer, PushConsumer
from aerobee_wire.status import Code
from support.codes import raises_code
from support.processes.service import namesrv_and_broker

SOON = timedelta(milliseconds=100)


def test_administration_end_to_end(namesrv: str) -> None:
    with AdminClient(namesrv) as admin, Producer("p", namesrv=namesrv) as producer:
        (created,) = admin.create_topic("looked-after", queues=3, message_type="DELAY")
        assert created.created and not created.unreachable_namesrvs
        with raises_code(Code.TOPIC_EXIST_ALREADY):
            admin.create_topic("looked-after", queues=5)
        (again,) = admin.create_topic("looked-after", queues=3, message_type="DELAY")
        assert not again.created
        grown = admin.update_topic("looked-after", queues=5)
        assert [change.after for change in grown.changes] == [5, 5]
        assert admin.update_topic("looked-after", queues=5).changes == ()
        (topic,) = [t for t in admin.list_topics() if t.topic == "looked-after"]
        assert (topic.brokers[0].write_queue_count, topic.message_type) == (5, "DELAY")
        assert admin.topic_route("looked-after").queues[0].read_queue_count == 5

        result = producer.send(Message("looked-after", b"body", tag="T", keys=["k1", "k2"]))
        assert sum(queue.max_offset for queue in admin.topic_status("looked-after")) == 1
        fetched = admin.get_message(result.offset_message_id)
        assert (fetched.body, fetched.tag, fetched.keys) == (b"body", "T", ("k1", "k2"))
        assert admin.get_message(result.message_id).offset_message_id == result.offset_message_id
        with raises_code(Code.QUERY_NOT_FOUND):
            admin.get_message(result.message_id[:-4] + "FFFF")
        for found in (
            admin.query_messages("looked-after", key="k2"),
            admin.query_messages("looked-after", unique_id=result.message_id),
        ):
            assert [message.offset_message_id for message in found] == [result.offset_message_id]
        browsed = admin.browse(
            "looked-after", result.queue.broker_name, result.queue.queue_id, result.queue_offset
        )
        assert [message.message_id for message in browsed.messages()] == [result.message_id]
        found_at = admin.search_offset(
            "looked-after",
            result.queue.broker_name,
            result.queue.queue_id,
            fetched.store_timestamp_ms,
        )
        assert found_at == result.queue_offset

        admin.create_group("looked-after-g", max_attempts=4, retry_delays=[SOON])
        group = admin.get_group("looked-after-g")
        assert (group.max_attempts, group.retry_delays_ms) == (4, (100,))
        with raises_code(Code.SUBSCRIPTION_GROUP_EXIST_ALREADY):
            admin.create_group("looked-after-g")
        (change,) = admin.update_group("looked-after-g", max_attempts=5).changes
        assert (change.setting, change.before, change.after) == ("max_attempts", 4, 5)
        assert admin.get_group("looked-after-g") == replace(group, max_attempts=5)
        assert "looked-after-g" in {g.consumer_group for g in admin.list_groups()}

        (broker,) = admin.cluster().brokers
        status = admin.broker_status(broker.broker_name)
        assert status.broker_address == broker.addresses[0] and status.messages_in_total >= 1

        assert admin.delete_group("looked-after-g")
        assert admin.delete_topic("looked-after")
        with raises_code(Code.TOPIC_NOT_EXIST):
            admin.topic_route("looked-after")


def test_body_over_the_brokers_limit_is_refused_by_the_broker(namesrv: str) -> None:
    with Producer("p", namesrv=namesrv, max_message_size=2**30) as producer:
        with raises_code(Code.MESSAGE_ILLEGAL):
            producer.send(Message("large", bytes(4 * 1024 * 1024 + 1)))
        assert producer.send(Message("large", bytes(4 * 1024 * 1024))).queue_offset == 0


def test_an_unreachable_name_server_is_named() -> None:
    with (
        Producer("p", namesrv="127.0.0.1:1") as producer,
        pytest.raises(NamesrvUnreachable) as caught,
    ):
        producer.send(Message("t", b"x"))
    assert "127.0.0.1:1" in caught.value.message
    with AdminClient("127.0.0.1:1") as admin, pytest.raises(NamesrvUnreachable):
        admin.list_topics()
    with pytest.raises(NamesrvUnreachable):
        PushConsumer("g", print, namesrv="127.0.0.1:1").start()


def test_unknown_names_have_their_codes(namesrv: str) -> None:
    with AdminClient(namesrv) as admin:
        for code, ask in (
            (Code.TOPIC_NOT_EXIST, lambda: admin.topic_status("nowhere")),
            (Code.SUBSCRIPTION_GROUP_NOT_EXIST, lambda: admin.get_group("nobody")),
            (Code.QUERY_NOT_FOUND, lambda: admin.get_message(_missing_id(admin))),
            (Code.NO_PERMISSION, lambda: admin.create_topic("SCHEDULE_TOPIC_XXXX")),
        ):
            with raises_code(code):
                ask()


def _missing_id(admin: AdminClient) -> str:
    from aerobee_wire.message_id import offset_message_id, pack_host

    (broker,) = admin.cluster().brokers
    return offset_message_id(pack_host(broker.addresses[0]), 1 << 40)


def test_unknown_topic_is_refused_while_auto_creation_is_off(tmp_path: Path) -> None:
    settings = ("--set=autoCreateTopicEnable=false", "--set=autoCreateSubscriptionGroup=false")
    with namesrv_and_broker(tmp_path, *settings) as (namesrv, _):
        with Producer("p", namesrv=namesrv.address) as producer, raises_code(Code.TOPIC_NOT_EXIST):
            producer.send(Message("nowhere", b"x"))
        with AdminClient(namesrv.address) as admin:
            admin.create_topic("somewhere")
        consumer = PushConsumer("nobody", print, namesrv=namesrv.address)
        consumer.subscribe("somewhere")
        with raises_code(Code.SUBSCRIPTION_GROUP_NOT_EXIST):
            consumer.start()
