"""A broker with topic and group of `PopConsumer`, which is stopped or killed and starts again;
and a disk that fails for a while."""

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
from support.broker.pop_consumer import GROUP, TOPIC


async def begin(path: Path, **options: Any) -> BrokerHarness:
    harness = await BrokerHarness.begin(path, **options)
    harness.tables.topics.put(TopicConfig(TOPIC, 1, 1))
    await harness.group(GROUP)
    return harness


def copy_store(harness: BrokerHarness, path: Path) -> None:
    """What a broker that is killed now leaves behind."""
    shutil.copytree(harness.store.path, path / "store")


async def begin_again(path: Path, before: BrokerHarness) -> BrokerHarness:
    """Over what is in `path`; time goes on."""
    harness = await BrokerHarness.begin(path, clock=before.clock)
    harness.tables.topics.put(TopicConfig(TOPIC, 1, 1))
    return harness


async def crash(harness: BrokerHarness, path: Path) -> BrokerHarness:
    """Kills a broker, and starts it over a copy of its store."""
    copy_store(harness, path)
    await harness.end()
    return await begin_again(path, harness)


async def restart(harness: BrokerHarness) -> BrokerHarness:
    """Stops a broker cleanly, and starts it again."""
    await harness.end()
    return await begin_again(harness.store.path.parent, harness)


def failing_disk(
    harness: BrokerHarness, error: MqError | None = None
) -> AbstractContextManager[Any]:
    """Every flush within it fails."""
    error = error or StoreWriteError("injected")
    return mock.patch.object(harness.store.flush, "write_and_sync", side_effect=error)
