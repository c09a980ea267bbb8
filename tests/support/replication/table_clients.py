"""Clients of a simulated group that change topics, groups and offsets: one change of a name at a
time, and what each name may be in the end.

A topic's number of queues, a group's retries and an offset are numbers that no other change uses.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from aerobee_broker.metadata.subscription_groups import SubscriptionGroup
from aerobee_broker.metadata.topics import TopicConfig
from aerobee_broker.store.messages import NewMessage
from aerobee_wire.status import MqError
from support.disk.stores import visible

if TYPE_CHECKING:
    from support.replication.group import SimulatedGroup
    from support.replication.replica import SimulatedReplica

NAMES = ("t0", "t1", "t2")
GONE = 0  # instead of a number


@dataclass
class _Row:
    """What may be there: what was acknowledged last, or something that was tried since."""

    acknowledged: int = GONE
    tried: set[int] = field(default_factory=set)
    busy: bool = False

    def check(self, found: int, what: str) -> None:
        may_be = {self.acknowledged, *self.tried}
        assert found in may_be, f"{what} is {found}, and acknowledged was one of {sorted(may_be)}"


@dataclass
class _Messages:
    """Of one topic: those that are there for sure, and those that are not."""

    there: set[bytes] = field(default_factory=set)
    gone: set[bytes] = field(default_factory=set)
    perhaps: set[bytes] = field(default_factory=set)


class TableClients:
    def __init__(self, group: SimulatedGroup) -> None:
        self._group = group
        self._number = 0
        self._rows: dict[tuple[str, str], _Row] = {}
        self._messages = {name: _Messages() for name in NAMES}
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def is_busy(self) -> bool:
        return bool(self._tasks)

    @property
    def acknowledged(self) -> int:
        """Rows of which something was acknowledged."""
        return sum(row.acknowledged != GONE for row in self._rows.values())

    def change(self, replica: SimulatedReplica | None) -> None:
        """One, of a random kind and name."""
        rng = self._group.rng
        kind = rng.choice(("topic", "topic", "delete topic", "group", "delete group", "offset"))
        kind = rng.choice((kind, kind, "send"))
        if replica is not None and replica.leader is not None:
            self.begin(replica, kind, rng.choice(NAMES))

    def begin(self, replica: SimulatedReplica, kind: str, name: str) -> asyncio.Task[None] | None:
        """None: another change of this name is under way."""
        table = "groups" if "group" in kind else "offsets" if kind == "offset" else "topics"
        row = self._rows.setdefault((table, name), _Row())
        if row.busy:
            return None
        self._number += 1
        change = self._send if kind == "send" else self._change
        task = replica.process.spawn(change(replica, kind, name, row, self._number))
        self._tasks.add(task)
        row.busy = True

        def ended(task: asyncio.Task[None]) -> None:
            row.busy = False
            self._tasks.discard(task)

        task.add_done_callback(ended)
        return task

    async def _change(
        self, replica: SimulatedReplica, kind: str, name: str, row: _Row, number: int
    ) -> None:
        assert replica.parts is not None
        own = replica.parts.own_tables
        if own.journal is None:
            return
        deletes = kind.startswith("delete")
        value = GONE if deletes else number
        row.tried.add(value)
        if kind == "delete topic":
            messages = self._messages[name]
            messages.perhaps |= messages.there
            messages.there.clear()
        before = set(self._messages[name].perhaps)
        try:
            match kind:
                case "topic":
                    await own.put_topic(TopicConfig(name, number, number))
                case "delete topic":
                    await own.delete_topic(name)
                case "group":
                    await own.put_group(SubscriptionGroup(name, retry_max_times=number))
                case "delete group":
                    await own.delete_group(name)
                case "offset":
                    await own.reset("consumers", f"o{name}", 0, number)
        except MqError:
            return
        row.acknowledged = value
        row.tried.clear()
        if kind == "delete topic":
            self._messages[name].gone |= before

    async def _send(
        self, replica: SimulatedReplica, _kind: str, name: str, _row: _Row, number: int
    ) -> None:
        """To a topic, which the master has."""
        assert replica.parts is not None and replica.leader is not None
        assert replica.commit is not None
        if name not in replica.parts.own_tables.tables.topics:
            return
        body = b"%d of %s" % (number, name.encode())
        self._messages[name].perhaps.add(body)
        try:
            replica.leader.check_sends()
            replica.opened().append([NewMessage(name, 0, body)])
            await replica.commit.sent(replica.opened().end_offset)
        except MqError:
            return
        self._messages[name].there.add(body)

    # ---- the end ----

    def check(self, replica: SimulatedReplica, *, synchronous: bool) -> None:
        """Of a master, once nothing is under way. Tables are acknowledged when they are confirmed,
        with asynchronous replication too; messages are not."""
        for (table, name), row in self._rows.items():
            row.check(_found(replica, table, name), f"{name} of {table}")
        found = visible(replica.opened())
        for name, messages in self._messages.items():
            bodies = set(found.get((name, 0), {}).values())
            lost = messages.there - bodies
            assert not (synchronous and lost), f"acknowledged and gone: {sorted(lost)[:3]}"
            back = messages.gone & bodies
            assert not back, f"deleted and back: {sorted(back)[:3]}"


def _found(replica: SimulatedReplica, table: str, name: str) -> int:
    rows: dict[str, Any] = contents(replica)[table]
    if table == "topics":
        return int(rows[name]["readQueueNums"]) if name in rows else GONE
    if table == "groups":
        return int(rows[name]["retryMaxTimes"]) if name in rows else GONE
    return int(rows.get(f"o{name}@consumers", {"0": GONE})["0"])


def contents(replica: SimulatedReplica) -> dict[str, Any]:
    assert replica.parts is not None
    return replica.parts.own_tables.contents()
