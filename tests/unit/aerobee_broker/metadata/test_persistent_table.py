"""Persistent tables: loading their files at a start."""

from __future__ import annotations

from pathlib import Path

from structlog.testing import capture_logs

from support.broker.harness import Begin, BrokerHarness


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
