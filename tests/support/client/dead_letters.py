"""Dead letters of the group "billing", on a broker in memory."""

from __future__ import annotations

from aerobee_client import AsyncAdminClient, ReceivedMessage
from aerobee_client.admin.dead_letters import DeadLetters
from aerobee_wire import properties as names
from support.client.memory import MemoryBroker

GROUP = "billing"
DEAD = "%DLQ%billing"
RETRY = "%RETRY%billing"

PROPERTIES = {
    names.UNIQUE_KEY: "0A0000010000000000000000000000AB",
    names.TAGS: "paid",
    names.KEYS: "order-7 customer-3",
    "currency": "EUR",
    names.RETRY_TOPIC: "orders",
    names.ORIGIN_MESSAGE_ID: "0A00000B00002A9F0000000000000040",
    names.DLQ_ORIGIN_TOPIC: "orders",
    names.DLQ_ORIGIN_MESSAGE_ID: "0A0000010000000000000000000000AB",
    names.DLQ_REASON: "ValueError",
    names.DLQ_REASON_DESCRIPTION: "no such order",
    names.DELAY: "3",
    names.REAL_TOPIC: RETRY,
}


def add_dead_letter(broker: MemoryBroker, body: bytes = b"{}", **changes: str) -> None:
    """Appends a dead letter. `changes`: of its properties."""
    encoded = names.encode({**PROPERTIES, **changes})
    broker.append(DEAD, 0, body, encoded, flag=5, born_ms=1_000, reconsume_times=3)


async def read_all(admin: AsyncAdminClient) -> list[ReceivedMessage]:
    return [message async for message in DeadLetters(admin, GROUP).read()]
