"""What clients of a simulated group do at random, what they were told, and whether it holds.

A call that is answered is kept to its answer; one that fails with an unknown outcome, either way.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from aerobee.broker.v1 import pop_pb2, transaction_pb2

from aerobee_broker.store.message_store import MessageStore
from aerobee_wire.status import Code, MqError
from support.disk.stores import visible
from support.simulation.calls import Calls, until_done
from support.simulation.client import SimulatedClient
from support.simulation.cluster import Place, SimulatedCluster

ORDERS, DELAYED, HALVES = "orders", "delayed", "halves"
GROUP = "consumers"
TABLE_TOPICS, TABLE_GROUPS = ("d0", "d1", "d2"), ("g0", "g1")
QUEUES = 2
INVISIBLE_MS = 3_000
DELAYS_S = (1, 5, 20)
LONGEST_S = 30  # until all that waits for a time is delivered
MANY_RETRIES = 10_000


@dataclass
class Entry:
    """Of a table. `is_there`: None where that is unknown."""

    is_there: bool | None = False
    is_changing: bool = False


@dataclass
class Observed:
    """What clients know."""

    sent: dict[Place, bytes] = field(default_factory=dict)  # acknowledged
    delayed: set[bytes] = field(default_factory=set)  # acknowledged
    committed: set[bytes] = field(default_factory=set)
    never: set[bytes] = field(default_factory=set)  # rolled back
    delivered: set[Place] = field(default_factory=set)
    settled: dict[Place, float] = field(default_factory=dict)  # acked, when
    topics: dict[str, Entry] = field(
        default_factory=lambda: {name: Entry() for name in TABLE_TOPICS}
    )
    groups: dict[str, Entry] = field(
        default_factory=lambda: {name: Entry() for name in TABLE_GROUPS}
    )


class Workload:
    """`synchronous`: what is acknowledged outlives failovers, and is on `required` replicas."""

    def __init__(self, cluster: SimulatedCluster, *, synchronous: bool, required: int = 1) -> None:
        self.observed = Observed()
        self._cluster = cluster
        self._rng = cluster.rng
        self._client = SimulatedClient(cluster)
        self._synchronous = synchronous
        self._required = required
        self._number = 0
        self._calls = Calls(cluster)
        cluster.vanishing.update(TABLE_TOPICS)

    async def begin(self) -> None:
        """Topics and the group are there."""
        client = self._client
        types = {ORDERS: "NORMAL", DELAYED: "DELAY", HALVES: "TRANSACTION"}
        for topic, kind in types.items():
            await until_done(partial(client.put_topic, topic, kind, QUEUES))
        await until_done(lambda: client.put_group(GROUP, MANY_RETRIES))

    def act(self, count: int) -> None:
        """Begins so many calls at once."""
        acts = (
            *(self._send,) * 5, *(self._consume,) * 3, self._send_delayed, self._transact,
            self._change_topic, self._change_group,
        )  # fmt: skip
        for _ in range(count):
            self._calls.begin(self._rng.choice(acts)())

    def _body(self) -> bytes:
        self._number += 1
        return b"%d|" % self._number * self._rng.choice((1, 10, 200))

    # ---- messages ----

    async def _send(self) -> None:
        body, queue_id = self._body(), self._rng.randrange(QUEUES)
        result = await self._client.send(ORDERS, body, queue_id)
        if self._synchronous:
            self._cluster.check_acknowledged(result.physical_offset, self._required)
        self.observed.sent[ORDERS, result.queue_id, result.queue_offset] = body

    async def _send_delayed(self) -> None:
        body, delay_s = self._body(), self._rng.choice(DELAYS_S)
        named = {"TIMER_DELAY_SEC": str(delay_s)} if self._rng.random() < 0.6 else {"DELAY": "1"}
        await self._client.send(DELAYED, body, self._rng.randrange(QUEUES), named)
        self.observed.delayed.add(body)

    async def _transact(self) -> None:
        body = self._body()
        half = await self._client.send(HALVES, body, 0, {"TRAN_MSG": "true", "PGROUP": "producers"})
        await asyncio.sleep(self._rng.choice((0, 0.01, 1)))
        commits = self._rng.random() < 0.6
        resolution = transaction_pb2.COMMIT if commits else transaction_pb2.ROLLBACK
        for _ in range(3):
            try:
                code = await self._client.end_transaction(half, resolution)
            except MqError:
                await asyncio.sleep(0.5)
                continue
            if code is Code.SUCCESS:
                (self.observed.committed if commits else self.observed.never).add(body)
            return

    async def _consume(self) -> None:
        began = self._cluster.loop.time()
        found = await self._client.pop(ORDERS, GROUP, self._rng.choice((1, 8)), INVISIBLE_MS)
        await self._received(found, began)

    async def _received(self, found: list[tuple[Any, pop_pb2.Lease]], began: float) -> None:
        for record, _ in found:
            place = record.topic, record.queue_id, record.queue_offset
            self.observed.delivered.add(place)
            settled = self.observed.settled.get(place)
            assert settled is None or settled >= began or not self._synchronous, (
                f"{place} was acknowledged at {settled}, and came again to a pop of {began}"
            )
        await asyncio.sleep(self._rng.choice((0, 0.01, 1)))
        kept = [lease for _, lease in found if self._rng.random() < 0.8]
        if not kept:
            return
        for lease, code in zip(kept, await self._client.ack(kept), strict=True):
            if code is Code.SUCCESS and self._cluster.keeps_what_was_answered(self._required):
                place = lease.topic, lease.queue_id, lease.queue_offset
                self.observed.settled.setdefault(place, self._cluster.loop.time())

    # ---- tables ----

    async def _change_topic(self) -> None:
        name = self._rng.choice(TABLE_TOPICS)
        client = self._client
        if self.observed.topics[name].is_there and self._rng.random() < 0.6:
            await client.send(name, self._body())
            return
        await self._change(
            self.observed.topics[name],
            lambda: client.put_topic(name),
            lambda: client.delete_topic(name),
        )

    async def _change_group(self) -> None:
        name = self._rng.choice(TABLE_GROUPS)
        client = self._client
        await self._change(
            self.observed.groups[name],
            lambda: client.put_group(name),
            lambda: client.delete_group(name),
        )

    async def _change(
        self,
        entry: Entry,
        put: Callable[[], Awaitable[Any]],
        delete: Callable[[], Awaitable[Any]],
    ) -> None:
        if entry.is_changing:
            return
        wanted = not entry.is_there
        entry.is_changing, entry.is_there = True, None
        try:
            await (put() if wanted else delete())
            if self._cluster.keeps_what_was_answered(self._required):
                entry.is_there = wanted
        finally:
            entry.is_changing = False

    # ---- the end ----

    async def finish(self) -> None:
        """Once the group is whole again: waits for what is under way, and consumes all."""
        await self._calls.wait()
        await asyncio.sleep(LONGEST_S)
        deadline = self._cluster.loop.time() + 120
        while missing := set(self._of_orders()) - self.observed.delivered:
            late = self._cluster.loop.time() > deadline
            assert not late, f"never delivered: {sorted(missing)[:5]}"
            began = self._cluster.loop.time()
            found = await until_done(lambda: self._client.pop(ORDERS, GROUP, 32, INVISIBLE_MS))
            self._calls.begin(self._received(found, began))
            await asyncio.sleep(0.1 if found else 1.0)
        await self._calls.wait()

    def _of_orders(self) -> list[Place]:
        return list(self.observed.sent) if self._synchronous else []

    async def check(self, store: MessageStore) -> None:
        """Against what the master shows."""
        if not self._synchronous:
            return
        found = visible(store)
        gone = [
            place
            for place, body in self.observed.sent.items()
            if found.get(place[:2], {}).get(place[2]) != body
        ]
        assert not gone, f"acknowledged and gone: {sorted(gone)[:5]} of {len(self.observed.sent)}"
        delayed = self._bodies(found, DELAYED)
        missing = self.observed.delayed - delayed.keys()
        assert not missing, f"never delivered at its time: {sorted(missing)[0][:20]!r}"
        halves = self._bodies(found, HALVES)
        for body in self.observed.committed:
            assert halves[body] == 1, f"committed, and there {halves[body]} times: {body[:20]!r}"
        wrong = self.observed.never & halves.keys()
        assert not wrong, f"rolled back, and there: {sorted(wrong)[0][:20]!r}"
        self._check_table(self.observed.topics, await until_done(self._client.topics))
        self._check_table(self.observed.groups, set(await until_done(self._client.groups)))

    def _bodies(self, found: dict[tuple[str, int], dict[int, bytes]], topic: str) -> Counter[bytes]:
        return Counter(
            body
            for (its_topic, _), messages in found.items()
            if its_topic == topic
            for body in messages.values()
        )

    def _check_table(self, entries: dict[str, Entry], found: set[str]) -> None:
        for name, entry in entries.items():
            if entry.is_there is not None:
                assert (name in found) == entry.is_there, f"{name} is there: {name in found}"
