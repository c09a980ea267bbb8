"""Persistent tables: loading their files at a start, and writes that fail."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from aerobee_broker.disk import RealDisk
from aerobee_broker.errors import ConfigFileDamaged
from aerobee_broker.metadata.persistent_table import JsonFile, PersistentTable
from aerobee_broker.metadata.topics import TopicConfig, Topics
from aerobee_wire.checked_json import encode
from aerobee_wire.status import Code
from support.broker.harness import Begin, BrokerHarness
from support.clock.manual_clock import ManualClock
from support.codes import raises_about, raises_code


@pytest.fixture
def file(tmp_path: Path) -> JsonFile:
    return JsonFile(RealDisk(), tmp_path / "topics.json")


def test_no_file_is_no_content(file: JsonFile) -> None:
    assert file.load() is None


def test_load_returns_what_was_written(file: JsonFile) -> None:
    file.write(encode({"größe": 1}))
    assert file.load() == {"größe": 1}
    assert not file.path.with_suffix(".json.tmp").exists()


def test_previous_content_stays_in_bak(file: JsonFile) -> None:
    for number in (1, 2, 3):
        file.write(encode({"number": number}))
    assert file.path.with_suffix(".json.bak").read_bytes() == encode({"number": 2})


@pytest.mark.parametrize("damage", [b"", b'{"number":', b"[1]", b"\xff\xfe{}"])
def test_damaged_file_is_loaded_from_its_backup(file: JsonFile, damage: bytes) -> None:
    file.write(encode({"number": 1}))
    file.write(encode({"number": 2}))
    file.path.write_bytes(damage)
    assert file.load() == {"number": 1}


def test_a_crash_between_the_two_renames_loses_nothing(file: JsonFile) -> None:
    """The old content is in `.bak`, the new one still in `.tmp`."""
    file.write(encode({"number": 1}))
    file.path.rename(file.path.with_suffix(".json.bak"))
    file.path.with_suffix(".json.tmp").write_bytes(b'{"num')
    assert file.load() == {"number": 1}


def test_damage_of_file_and_backup_is_an_error(file: JsonFile) -> None:
    file.path.write_bytes(b"nonsense")
    file.path.with_suffix(".json.bak").write_bytes(b"")
    with raises_about(ConfigFileDamaged, str(file.path)):
        file.load()


def test_a_crash_after_the_backup_was_taken_loses_nothing(tmp_path: Path) -> None:
    """The damaged file must not become the backup."""

    class Off(BaseException):
        pass

    class Crashing(RealDisk):
        def rename(self, old: Path, new: Path) -> None:
            if new == path:
                raise Off
            super().rename(old, new)

    path = tmp_path / "topics.json"
    file = JsonFile(RealDisk(), path)
    file.write(encode({"number": 1}))
    file.write(encode({"number": 2}))
    path.write_bytes(b'{"number":')
    file = JsonFile(Crashing(), path)
    assert file.load() == {"number": 1}
    with pytest.raises(Off):
        file.write(encode({"number": 3}))
    file = JsonFile(RealDisk(), path)
    assert file.load() == {"number": 1}
    file.write(encode({"number": 3}))
    file.write(encode({"number": 4}))
    assert file.load() == {"number": 4}
    assert path.with_suffix(".json.bak").read_bytes() == encode({"number": 3})


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
