"""A whole broker whose tables are journalled: whatever changes them is in the log before it is
answered, so a copy made of the journal alone is the same."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from aerobee_broker.delivery.pull.offsets import QueueOffset
from aerobee_broker.metadata import journal_records
from aerobee_broker.metadata.consumer_offsets import ConsumerOffsets
from aerobee_broker.metadata.journal_records import JournalledTables
from aerobee_broker.metadata.subscription_groups import SubscriptionGroups
from aerobee_broker.metadata.topics import TopicConfig, Topics
from aerobee_wire import topics as names
from aerobee_wire.record import Record
from support.broker.harness import BrokerHarness
from support.broker.replicas import ScriptedReplicas
from support.clock.manual_clock import ManualClock
from support.clock.virtual_loop import run_ready_tasks


def rows(tables: JournalledTables) -> list[dict[str, Any]]:
    return [
        {table.name_of(key): table.row_to_json(row) for key, row in table.rows().items()}
        for table in tables.by_name().values()
    ]


async def journal(harness: BrokerHarness) -> list[Record]:
    records = [
        record
        for queue_id in (0, 1)
        for record in await harness.read(names.METADATA_LOG_TOPIC, queue_id)
    ]
    return sorted(records, key=lambda record: record.physical_offset)


async def copy(harness: BrokerHarness) -> JournalledTables:
    clock = ManualClock()
    found = JournalledTables(Topics(clock), SubscriptionGroups(clock), ConsumerOffsets(clock))
    for record in await journal(harness):
        journal_records.apply(journal_records.decode(record.body), found)
    return found


def own(harness: BrokerHarness) -> JournalledTables:
    tables = harness.tables
    return JournalledTables(tables.topics, tables.groups, tables.offsets)


async def test_whatever_changes_a_table_is_in_the_journal_when_it_is_answered(
    tmp_path: Path,
) -> None:
    harness = await BrokerHarness.begin(tmp_path, journalled=True)
    broker, queries = harness.broker, harness.broker.consuming.offset_queries
    assert rows(await copy(harness)) == rows(own(harness)), "from the first start on"
    await harness.send("t", b"1", b"2", b"3")
    await harness.group("g")
    await broker.topics.put(TopicConfig("wide", 8, 8))
    assert rows(await copy(harness)) == rows(own(harness))
    await queries.reset("g", "t", [0], queue_offset=1)
    assert rows(await copy(harness)) == rows(own(harness))
    queries.update("g", [QueueOffset("t", 0, 2), QueueOffset("wide", 3, 0)])
    await broker.save_tables()
    assert rows(await copy(harness)) == rows(own(harness))
    assert await queries.forget("g", "t", dry_run=False)
    assert rows(await copy(harness)) == rows(own(harness))
    queries.update("g", [QueueOffset("t", 0, 2)])
    await broker.save_tables()
    await broker.administration.delete_topic("wide")
    assert rows(await copy(harness)) == rows(own(harness))
    await broker.administration.delete_topic("t")
    await harness.send("t", b"another")
    await broker.administration.delete_group("g", remove_offsets=True)
    assert rows(await copy(harness)) == rows(own(harness))
    assert "t" in harness.tables.topics
    deletions = [record for record in await journal(harness) if record.queue_id == 1]
    assert len(deletions) == 3, "of wide, t and the retry topic of g"
    await harness.end()
    again = await BrokerHarness.begin(tmp_path, journalled=True)
    assert rows(await copy(again)) == rows(own(again))
    await again.end()


async def test_a_change_is_answered_once_the_replicas_have_it(tmp_path: Path) -> None:
    replicas = ScriptedReplicas()
    replicas.has = 1 << 40
    harness = await BrokerHarness.begin(tmp_path, replicas=replicas, journalled=True)
    await harness.group("g")
    await harness.send("t", b"1", b"2")
    replicas.has = harness.store.end_offset
    administration = harness.broker.administration
    changes = [
        asyncio.create_task(change)
        for change in (
            harness.broker.topics.put(TopicConfig("new", 4, 4)),
            harness.broker.consuming.offset_queries.reset("g", "t", [0], queue_offset=1),
            administration.delete_group("g", remove_offsets=True),
            administration.delete_topic("t"),
        )
    ]
    await run_ready_tasks()
    assert not [task for task in changes if task.done()]
    replicas.has = 1 << 40
    harness.broker.commit.advance()
    await asyncio.gather(*changes)
    assert rows(await copy(harness)) == rows(own(harness))
    await harness.end()


async def test_a_broker_without_replicas_keeps_no_journal(tmp_path: Path) -> None:
    harness = await BrokerHarness.begin(tmp_path)
    await harness.send("t", b"1")
    await harness.broker.administration.delete_topic("t")
    await harness.broker.save_tables()
    assert names.METADATA_LOG_TOPIC not in harness.store.topics()
    assert names.METADATA_LOG_TOPIC not in harness.tables.topics
    await harness.end()
    assert b"journalPosition" not in (tmp_path / "store" / "config" / "topics.json").read_bytes()
