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
from support.broker.harness import Parts
from support.broker.pop_consumer import GROUP, TOPIC


async def begin(path: Path, **options: Any) -> Parts:
    parts = await Parts.begin(path, **options)
    parts.tables.topics.put(TopicConfig(TOPIC, 1, 1))
    await parts.group(GROUP)
    return parts


def copy_store(parts: Parts, path: Path) -> None:
    """What a broker that is killed now leaves behind."""
    shutil.copytree(parts.store.path, path / "store")


async def begin_again(path: Path, before: Parts) -> Parts:
    """Over what is in `path`; time goes on."""
    parts = await Parts.begin(path, clock=before.clock)
    parts.tables.topics.put(TopicConfig(TOPIC, 1, 1))
    return parts


async def crash(parts: Parts, path: Path) -> Parts:
    """Kills a broker, and starts it over a copy of its store."""
    copy_store(parts, path)
    await parts.end()
    return await begin_again(path, parts)


async def restart(parts: Parts) -> Parts:
    """Stops a broker cleanly, and starts it again."""
    await parts.end()
    return await begin_again(parts.store.path.parent, parts)


def failing_disk(parts: Parts, error: MqError | None = None) -> AbstractContextManager[Any]:
    """Every flush within it fails."""
    error = error or StoreWriteError("injected")
    return mock.patch.object(parts.store.flush, "write_and_sync", side_effect=error)
