"""Stops or kills the broker of a `PopConsumer`, and starts it again; lets its disk fail."""

from __future__ import annotations

import shutil
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any
from unittest import mock

from aerobee_broker.errors import StoreWriteError
from aerobee_broker.metadata.topics import TopicConfig
from aerobee_wire.status import MqError
from support.broker.harness import BrokerHarness
from support.broker.pop_consumer import GROUP, TOPIC, PopConsumer


async def begin(path: Path, **options: Any) -> BrokerHarness:
    harness = await BrokerHarness.begin(path, **options)
    harness.tables.topics.put(TopicConfig(TOPIC, 1, 1))
    await harness.group(GROUP)
    return harness


def copy_store(harness: BrokerHarness) -> Path:
    """What a broker that is killed now leaves behind: for `start_over`."""
    path = harness.store.path.parent / "copy"
    shutil.copytree(harness.store.path, path / "store")
    return path


async def start_over(consumer: PopConsumer, path: Path) -> BrokerHarness:
    """Stops the consumer's broker, and starts it with the store in `path`; time goes on."""
    await consumer.harness.end()
    consumer.harness = await BrokerHarness.begin(path, clock=consumer.harness.clock)
    consumer.harness.tables.topics.put(TopicConfig(TOPIC, 1, 1))
    return consumer.harness


async def crash(consumer: PopConsumer) -> BrokerHarness:
    return await start_over(consumer, copy_store(consumer.harness))


async def restart(consumer: PopConsumer) -> BrokerHarness:
    return await start_over(consumer, consumer.harness.store.path.parent)


def failing_disk(
    harness: BrokerHarness, error: MqError | None = None
) -> AbstractContextManager[Any]:
    """Every flush within it fails."""
    error = error or StoreWriteError("injected")
    return mock.patch.object(harness.store.flush, "write_and_sync", side_effect=error)
