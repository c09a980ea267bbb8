"""The records of the metadata journal: their bytes, and tables that are compared with a copy made
of records alone."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aerobee_broker.metadata import journal_records
from aerobee_broker.metadata.consumer_offsets import ConsumerOffsets
from aerobee_broker.metadata.journal_records import (
    JournalledTables,
    MetadataRecord,
    ParentCreation,
    TableChange,
    TopicDeletion,
)
from aerobee_broker.metadata.subscription_groups import SubscriptionGroup, SubscriptionGroups
from aerobee_broker.metadata.table import DataVersion
from aerobee_broker.metadata.table_journal import TableChanges
from aerobee_broker.metadata.topics import TopicConfig, Topics
from support.clock.manual_clock import ManualClock

VERSION = DataVersion(3, 1_000, 7)
NAMES = st.sampled_from(["a", "b", "%RETRY%g", "ü"])
GROUPS = st.sampled_from(["g", "h"])


def tables() -> JournalledTables:
    clock = ManualClock()
    return JournalledTables(Topics(clock), SubscriptionGroups(clock), ConsumerOffsets(clock))


def contents(found: JournalledTables) -> list[dict[str, Any]]:
    return [table.to_json() for table in found]


def decoded(record: MetadataRecord) -> list[MetadataRecord]:
    return [journal_records.decode(each.body) for each in journal_records.messages(record, 5)]


@pytest.mark.parametrize(
    ("record", "queue_id", "body"),
    [
        (
            TableChange("offsets", VERSION, {"t@g": {"0": 5}}, ["u@g"]),
            0,
            '{"kind":"offsets","version":{"counter":7,"stateVersion":3,"timestamp":1000},'
            '"put":{"t@g":{"0":5}},"removed":["u@g"]}',
        ),
        (
            TableChange("topics", VERSION, {}, [], anew=True),
            0,
            '{"kind":"topics","version":{"counter":7,"stateVersion":3,"timestamp":1000},'
            '"anew":true,"put":{},"removed":[]}',
        ),
        (TopicDeletion("ü", 900), 1, '{"kind":"deleteTopic","topic":"ü","below":900}'),
        (ParentCreation("ü"), 1, '{"kind":"createParent","topic":"ü"}'),
    ],
)
def test_the_bytes_of_each_record_stay_as_they_are(
    record: MetadataRecord, queue_id: int, body: str
) -> None:
    [message] = journal_records.messages(record, 5)
    assert (message.topic, message.queue_id) == ("rmq_sys_METADATA_LOG", queue_id)
    assert (message.body.decode(), message.born_timestamp_ms) == (body, 5)
    assert journal_records.decode(message.body) == record


def test_a_large_change_is_several_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_records, "MAX_BODY", 1_000)
    before, after = tables(), tables()
    after.topics.put(TopicConfig("gone", 1, 1))
    for n in range(30):
        before.topics.put(TopicConfig(f"t{n}", 4, 4))
    change = TableChanges("topics", before.topics, is_known=False).take()
    assert change is not None
    records = decoded(change)
    assert len(records) > 2
    for record in records:
        journal_records.apply(record, after)
    assert contents(after) == contents(before)


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"kind": "unknown"},
        {"kind": "deleteTopic", "topic": 1, "below": 0},
        {"kind": "topics", "version": {}, "put": {}, "removed": [1]},
        {"kind": "topics", "version": {}, "put": 5, "removed": []},
        [],
    ],
)
def test_what_is_no_record_is_reported(body: object) -> None:
    with pytest.raises((KeyError, TypeError, ValueError)):
        journal_records.decode(json.dumps(body).encode())


@pytest.mark.parametrize(
    ("table", "rows"),
    [
        ("topics", {"a": {"perm": 6}}),
        ("topics", {"b": {"readQueueNums": 1, "writeQueueNums": 1, "perm": 6}, "a": None}),
        ("groups", {"g": {"retryMaxTimes": "many"}}),
        ("offsets", {"a@g": {"0": "x"}}),
        ("offsets", {"without": {"0": 1}}),
    ],
)
def test_rows_that_are_none_change_nothing(table: str, rows: dict[str, Any]) -> None:
    found = tables()
    found.topics.put(TopicConfig("a", 2, 2))
    before = contents(found)
    with pytest.raises((AttributeError, KeyError, TypeError, ValueError)):
        journal_records.apply(TableChange(table, VERSION, rows, anew=True), found)
    assert contents(found) == before


def test_a_table_that_is_newer_than_a_record_does_not_take_it() -> None:
    found = tables()
    found.topics.put(TopicConfig("a", 2, 2))
    found.offsets.commit("g", "a", 0, 5)
    journal_records.apply(TopicDeletion("a", 9), found, {"topics"})
    assert "a" in found.topics
    assert found.offsets.get("g", "a", 0) is None
    change = TableChange("topics", VERSION, {}, ["a"])
    journal_records.apply(change, found, {"topics"})
    assert "a" in found.topics
    journal_records.apply(change, found)
    assert "a" not in found.topics
    assert found.topics.version == VERSION


# ---- a copy made of records alone ----


class Pair:
    """Tables, and a copy of them. What was taken is written (`confirm`), or rolled back."""

    def __init__(self, *, is_known: bool) -> None:
        self.own, self.copy = tables(), tables()
        if not is_known:
            self.own.topics.put(TopicConfig("from before", 1, 1))
            self.copy.topics.put(TopicConfig("not there", 1, 1))
        self._changes = {
            name: TableChanges(name, table, is_known=is_known)
            for name, table in self.own.by_name().items()
        }
        self._pending: list[tuple[TableChanges, TableChange] | TopicDeletion] = []

    def take(self) -> None:
        for changes in self._changes.values():
            change = changes.take()
            if change is not None:
                self._pending.append((changes, change))

    def delete(self, topic: str) -> None:
        """As the journal of a master does."""
        self.own.offsets.remove_topic(topic)
        self.own.topics.remove(topic)
        self._pending.append(TopicDeletion(topic, 1))
        self._changes["topics"].forget([topic])
        offsets = self._changes["offsets"]
        offsets.forget([key for key in offsets.known_keys() if key[0] == topic])

    def remove_group(self, consumer_group: str) -> None:
        self.own.offsets.remove_group(consumer_group)
        self.own.groups.remove(consumer_group)

    def confirm(self) -> None:
        for entry in self._pending:
            record = entry if isinstance(entry, TopicDeletion) else entry[1]
            for each in decoded(record):
                journal_records.apply(each, self.copy)
        self._pending.clear()

    def roll_back(self) -> None:
        """The deletions are logged again at once, before anything else."""
        pending, self._pending = self._pending, []
        for entry in pending:
            if isinstance(entry, TopicDeletion):
                self._pending.append(entry)
            else:
                changes, change = entry
                changes.lose(change)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("topic"), NAMES, st.integers(1, 3)),
        st.tuples(st.just("delete"), NAMES, st.just(0)),
        st.tuples(st.just("group"), GROUPS, st.integers(0, 3)),
        st.tuples(st.just("remove group"), GROUPS, st.just(0)),
        st.tuples(st.just("commit"), NAMES, st.integers(0, 3)),
        st.tuples(st.just("forget"), NAMES, st.just(0)),
        st.tuples(st.just("reset"), NAMES, st.integers(0, 3)),
        st.tuples(st.just("take"), NAMES, st.just(0)),
        st.tuples(st.just("confirm"), NAMES, st.just(0)),
        st.tuples(st.just("roll back"), NAMES, st.just(0)),
    ),
    max_size=40,
)


@given(steps=STEPS, is_known=st.booleans())
def test_a_copy_made_of_records_is_the_table(
    steps: list[tuple[str, str, int]], is_known: bool
) -> None:
    pair = Pair(is_known=is_known)
    own = pair.own
    actions: dict[str, Callable[[str, int], object]] = {
        "topic": lambda name, n: own.topics.put(TopicConfig(name, n, n)),
        "delete": lambda name, _: pair.delete(name),
        "group": lambda name, n: own.groups.put(SubscriptionGroup(name, retry_max_times=n)),
        "remove group": lambda name, _: pair.remove_group(name),
        "commit": lambda name, n: own.offsets.commit("g", name, n % 2, n),
        "forget": lambda name, _: own.offsets.remove("g", name),
        "reset": lambda name, n: own.offsets.reset("h", name, n % 2, n),
        "take": lambda _name, _n: pair.take(),
        "confirm": lambda _name, _n: pair.confirm(),
        "roll back": lambda _name, _n: pair.roll_back(),
    }
    for action, name, number in steps:
        actions[action](name, number)
    pair.take()
    pair.confirm()
    assert contents(pair.copy) == contents(pair.own)
    pair.take()
    pair.confirm()
    assert contents(pair.copy) == contents(pair.own)
