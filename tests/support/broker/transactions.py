"""Half messages of a broker, and the ends of their transactions."""

from __future__ import annotations

from aerobee_broker.delivery.send.send import SendResult
from aerobee_broker.delivery.transaction.transactions import End, Resolution
from aerobee_wire.status import Code
from support.broker.harness import BrokerHarness, message


async def half(
    harness: BrokerHarness, body: bytes = b"a", topic: str = "t", **properties: str
) -> SendResult:
    given = {"TRAN_MSG": "true", "PGROUP": "producers", **properties}
    return (await harness.broker.sending.sender.send([message(topic, body, 1, properties=given)]))[
        0
    ]


async def end(
    harness: BrokerHarness,
    stored: SendResult,
    resolution: Resolution = Resolution.COMMIT,
    group: str = "",
) -> Code:
    request = End(stored.transaction_id, stored.queue_offset, resolution, group)
    outcome = (await harness.broker.transactions.end([request]))[0]
    return Code.SUCCESS if outcome is None else outcome.code


async def visible(harness: BrokerHarness, topic: str = "t") -> list[bytes]:
    return await harness.bodies(topic, (0, 1))
