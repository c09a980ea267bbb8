"""Messages that wait on a broker, by delay level or with a time of their own, and what happens to
a store meanwhile: a retention that wants its files, a loss of what can be derived."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any

from aerobee_broker.delivery.send.send import SendResult
from support.broker.harness import BrokerHarness, message

# Log files so small that a few messages fill one, and a retention that keeps the last one only.
SMALL_FILES: dict[str, Any] = {
    "mappedFileSizeCommitLog": 65_536,
    "retainBytes": 65_536,
    "cleanResourceInterval": 1_000,
}


async def delayed(harness: BrokerHarness, body: bytes, level: int, topic: str = "t") -> SendResult:
    one = message(topic, body, properties={"DELAY": str(level)})
    return (await harness.broker.sending.sender.send([one]))[0]


async def timed(harness: BrokerHarness, body: bytes, delay_ms: int, topic: str = "t") -> SendResult:
    due = str(harness.clock.now_ms() + delay_ms)
    one = message(topic, body, properties={"TIMER_DELIVER_MS": due})
    return (await harness.broker.sending.sender.send([one]))[0]


async def recall(harness: BrokerHarness, stored: SendResult, topic: str = "t") -> None:
    """Raises NotRecalled."""
    await harness.broker.delay.recall.recall(topic, stored.deliver_ms, stored.unique_message_id)


async def fill(harness: BrokerHarness) -> None:
    """More log than SMALL_FILES keeps."""
    for _ in range(40):
        await harness.send("other", b"x" * 4_000)


async def clean(harness: BrokerHarness) -> int:
    """A look of retention; returns where the log begins."""
    await asyncio.sleep(2)
    harness.store.maintain(harness.clock.now_ms())
    while harness.store.maintain_files():
        pass
    return harness.store.min_physical_offset


def lose(store: Path, *names: str) -> None:
    """Files and directories of a store that was stopped."""
    for name in names:
        path = store / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
