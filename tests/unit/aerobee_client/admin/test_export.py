"""Messages as JSON objects."""

from __future__ import annotations

from aerobee_client import AsyncAdminClient, ReceivedMessage
from aerobee_client.admin.export import full, status_fields, summary
from aerobee_client.admin.letters import LetterState, LetterStatus
from aerobee_wire import properties as names
from aerobee_wire import record
from support import records
from support.client.dead_letters import DEAD, PROPERTIES, add_dead_letter, read_all
from support.client.memory import MemoryBroker


async def test_the_summary_has_the_origin_and_the_failure(
    brokers: list[MemoryBroker], admin: AsyncAdminClient
) -> None:
    add_dead_letter(brokers[1])
    (message,) = await read_all(admin)
    shown = summary(message)
    assert shown == {
        "message_id": PROPERTIES[names.UNIQUE_KEY],
        "offset_message_id": message.offset_message_id,
        "topic": DEAD,
        "origin_topic": "orders",
        "origin_message_id": PROPERTIES[names.ORIGIN_MESSAGE_ID],
        "lite_topic": "",
        "tag": "paid",
        "keys": ["order-7", "customer-3"],
        "reconsume_times": 3,
        "born_timestamp_ms": 1_000,
        "store_timestamp_ms": message.store_timestamp_ms,
        "reason": "ValueError",
        "description": "no such order",
        "cause": "",
        "consumer": "",
        "broker_name": "b",
        "queue_id": 0,
        "queue_offset": 0,
        "body_size": 2,
    }
    assert full(message)["body"] == "{}"
    assert full(message)["properties"]["currency"] == "EUR"


async def test_a_dead_letter_names_its_lite_topic(
    brokers: list[MemoryBroker], admin: AsyncAdminClient
) -> None:
    add_dead_letter(brokers[0], __LITE_TOPIC="session-1")
    (message,) = await read_all(admin)
    assert (message.lite_topic, summary(message)["lite_topic"]) == ("session-1", "session-1")


async def test_a_body_that_is_not_utf8_is_given_in_base64(
    brokers: list[MemoryBroker], admin: AsyncAdminClient
) -> None:
    add_dead_letter(brokers[0], b"\xff\x00")
    (message,) = await read_all(admin)
    shown = full(message)
    assert shown["body_base64"] == "/wA=" and "body" not in shown


def test_a_body_that_cannot_be_decompressed_is_given_as_stored() -> None:
    encoded = records.encode(
        topic=DEAD,
        body=b"not compressed",
        properties=names.encode(PROPERTIES),
        sys_flag=record.COMPRESSED,
    )
    message = ReceivedMessage(record.decode(encoded), "a")
    assert summary(message)["body_size"] == len(b"not compressed")
    item = full(message)
    assert item["body"] == "not compressed"
    assert "compressed" in item["body_problem"]


def test_an_unknown_state_has_the_fields_of_a_known_one() -> None:
    """A listing shows them, also for a group that was deleted."""
    known = LetterStatus(LetterState.OPEN, at_ms=0)
    assert status_fields(None) == dict.fromkeys(status_fields(known))
