"""Persistent tables: loading their files at a start, and writes that fail."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from aerobee_broker.disk import RealDisk
from aerobee_broker.metadata.json_file import JsonFile
from aerobee_broker.metadata.persistent_table import PersistentTable
from aerobee_broker.metadata.topics import TopicConfig, Topics
from aerobee_wire.status import Code
from support.broker.harness import Begin, BrokerHarness
from support.clock.manual_clock import ManualClock
from support.codes import raises_code


async def saved(tmp_path: Path) -> Path:
    """A topics.json with a .bak that has topic "first" too."""
    harness = await BrokerHarness.begin(tmp_path)
    await harness.send("first", b"a")
    await harness.send("second", b"a")
    await harness.end()
    return tmp_path / "store" / "config" / "topics.json"


async def test_damaged_table_is_loaded_from_its_backup(begin: Begin, tmp_path: Path) -> None:
    path = await saved(tmp_path)
    path.write_bytes(path.read_bytes()[:-1])
    with capture_logs() as logs:
        harness = await begin()
    assert "first" in harness.tables.topics
    [event] = [entry for entry in logs if entry["event"] == "config_file_damaged"]
    assert (event["log_level"], str(path) in event["reason"]) == ("error", True)


async def test_whole_table_is_loaded_without_a_log_event(begin: Begin, tmp_path: Path) -> None:
    await saved(tmp_path)
    with capture_logs() as logs:
        harness = await begin()
    assert "second" in harness.tables.topics
    assert not [entry for entry in logs if entry["event"] == "config_file_damaged"]


@pytest.mark.parametrize(
    ("number", "code"), [(errno.ENOSPC, Code.DISK_FULL), (errno.EIO, Code.SYSTEM_ERROR)]
)
async def test_a_table_that_cannot_be_written_says_whether_the_disk_is_full(
    tmp_path: Path, number: int, code: Code
) -> None:
    topics = Topics(ManualClock())

    async def fail(job: Callable[[], Any]) -> Any:
        raise OSError(number, "as the disk says")

    table = PersistentTable(topics, JsonFile(RealDisk(), tmp_path / "topics.json"), fail)
    topics.put(TopicConfig("t", 4, 4))
    with raises_code(code):
        await table.save()
