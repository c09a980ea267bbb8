"""What clients of lite topics of a simulated group do at random, what they were told, and whether
it holds.

Two parents, of which one has a TTL, and three consumer groups of two clients each: Shared and
Exclusive under the first, Shared under the second. A call that is answered is kept to its answer;
one that fails with an unknown outcome, either way.
"""

from __future__ import annotations

import asyncio
import itertools
import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from aerobee_broker.store.message_store import MessageStore
from support.disk.stores import visible
from support.lite.broker_client import ADD, LEAVE, REMOVE, REPLACE, Got
from support.lite.observed import LiteObserved
from support.simulation.calls import Calls, until_done
from support.simulation.client import SimulatedClient
from support.simulation.cluster import SimulatedCluster
from support.simulation.lite_client import SimulatedLite

SESSIONS, DEVICES = "sessions", "devices"  # the second one has a TTL of a minute
NAMES = tuple(f"n{number}" for number in range(8))
QUEUES = 2
INVISIBLE_MS = 3_000
LONGEST_INVISIBLE_MS = 6_000
MANY_RETRIES = 10_000
DRAIN_S = 240.0
# A subscription is memory of a master: a client tells it again now and then.
SAID_AGAIN = 0.2


class Line(NamedTuple):
    """A lite topic."""

    parent: str
    name: str

    @property
    def queue_id(self) -> int:
        return NAMES.index(self.name) % QUEUES


@dataclass(frozen=True)
class Stored:
    """An acknowledged message. Virtual time in ms: its send began, and was answered."""

    body: bytes
    began_ms: float
    answered_ms: float


@dataclass
class Member:
    """A client of a group. `names`: the lite topics that it believes to hold."""

    lite: SimulatedLite
    exclusive: bool
    observed: LiteObserved
    names: set[str] = field(default_factory=set)
    is_syncing: bool = False

    @property
    def parent(self) -> str:
        return self.lite.parent


class LiteWorkload:
    """`synchronous`: what is acknowledged outlives failovers, and is on `required` replicas.
    `ttl_ms`: of the second parent."""

    def __init__(
        self, cluster: SimulatedCluster, *, synchronous: bool, required: int = 1, ttl_ms: int
    ) -> None:
        self.sent: defaultdict[Line, dict[int, Stored]] = defaultdict(dict)
        self.members = [
            Member(
                SimulatedLite(SimulatedClient(cluster), client_id, group, parent), alone, observed
            )
            for group, parent, alone in (
                ("agents", SESSIONS, False),
                ("owners", SESSIONS, True),
                ("readers", DEVICES, False),
            )
            for observed in (LiteObserved(),)
            for client_id in ("c1", "c2")
        ]
        self._cluster = cluster
        self._rng = cluster.rng
        self._calls = Calls(cluster)
        self._producer = SimulatedClient(cluster)
        self._synchronous = synchronous
        self._required = required
        self._ttl_ms = ttl_ms
        self._number = 0
        self._sending: set[Line] = set()
        self._ahead_ms = (math.inf, -math.inf)  # least and most, a broker's clock of virtual time

    async def begin(self) -> None:
        """Parents and groups are there."""
        for member in self.members[::2]:
            lite = member.lite
            ttl = {"lite_topic_expiration": "1"} if member.parent == DEVICES else {}
            await until_done(partial(lite.put_parent, **ttl))
            model = {"lite_sub_model": "Exclusive"} if member.exclusive else {}
            await until_done(partial(lite.bind, MANY_RETRIES, **model))

    def act(self, count: int) -> None:
        """Begins so many calls at once."""
        acts = (*(self._send,) * 5, *(self._consume,) * 4, self._subscribe)
        for _ in range(count):
            self._calls.begin(self._rng.choice(acts)())

    def look(self) -> None:
        """How far the clocks of brokers are apart, by which messages expire."""
        now_ms = self._now_ms()
        for node in self._cluster.nodes:
            ahead = node.clock.now_ms() - now_ms
            self._ahead_ms = min(self._ahead_ms[0], ahead), max(self._ahead_ms[1], ahead)

    def _now_ms(self) -> float:
        return self._cluster.loop.time() * 1_000

    @property
    def acknowledged(self) -> int:
        return sum(map(len, self.sent.values()))

    @property
    def settled(self) -> int:
        return sum(len(member.observed.settled) for member in self.members[::2])

    @property
    def expired(self) -> int:
        """Acknowledged messages that a group never got, as their TTL allows."""
        return sum(
            len(sent.keys() - member.observed.delivered[line])
            for member in self.members[::2]
            for line, sent in self.sent.items()
            if line.parent == member.parent
        )

    # ---- what clients do ----

    async def _send(self) -> None:
        """One at a time to a lite topic."""
        line = Line(self._rng.choice((SESSIONS, DEVICES)), self._rng.choice(NAMES))
        if line in self._sending:
            return
        self._sending.add(line)
        self._number += 1
        body = b"%d|" % self._number * self._rng.choice((1, 10, 200))
        began_ms = self._now_ms()
        try:
            result = await self._producer.send(
                line.parent, body, line.queue_id, {"__LITE_TOPIC": line.name}
            )
        finally:
            self._sending.discard(line)
        if self._synchronous:
            self._cluster.check_acknowledged(result.physical_offset, self._required)
        self.sent[line][result.queue_offset] = Stored(body, began_ms, self._now_ms())

    async def _subscribe(self) -> None:
        member = self._rng.choice(self.members)
        some = self._rng.sample(NAMES, self._rng.randint(1, len(NAMES)))
        action = self._rng.choice((ADD, ADD, REMOVE, REPLACE, LEAVE))
        match action:
            case 0:
                member.names.update(some)
            case 1:
                member.names.difference_update(some)
            case 2:
                member.names = set(some)
            case _:
                some, member.names = [], set()
        await self._sync(member, action, some)

    async def _sync(self, member: Member, action: int, names: Iterable[str]) -> None:
        """One at a time of a client, as those of a real one are."""
        if member.is_syncing:
            return
        member.is_syncing = True
        try:
            lost = await member.lite.sync(action, *sorted(names))
        finally:
            member.is_syncing = False
        member.names.difference_update(lost)

    async def _consume(self) -> None:
        member = self._rng.choice(self.members)
        if self._rng.random() < SAID_AGAIN:
            member.names = member.names or set(NAMES)
            await self._sync(member, REPLACE, member.names)
        await self._receive(member, self._rng.choice((1, 8, 32)), self._rng.choice((0, 500)))

    async def _receive(self, member: Member, count: int, poll_ms: int) -> int:
        """Returns how many messages it got."""
        began = self._cluster.loop.time()
        got, lost = await member.lite.pop_all(count, poll_ms=poll_ms, invisible_ms=INVISIBLE_MS)
        member.names.difference_update(lost)
        self._received(member, got, began)
        self._calls.begin(self._settle(member, got))
        return len(got)

    def _received(self, member: Member, got: list[Got], began: float) -> None:
        """In order, right, and not what was acknowledged before the receive began."""
        for each in got:
            line, at = line_of(member, each), each.queue_offset
            stored = self.sent[line].get(at)
            assert stored is None or stored.body == each.body, f"{line} {at} is another message"
            if self._synchronous:
                late = line.parent == DEVICES and at <= self._last_that_may_have_expired(line)
                member.observed.received((line, at), began, late=late)

    async def _settle(self, member: Member, got: list[Got]) -> None:
        """Most of it; of some the lease is changed, or ends."""
        await asyncio.sleep(self._rng.choice((0, 0.01, 1)))
        if not got:
            return
        dice = self._rng.random()
        if dice < 0.1:
            ms = self._rng.choice((10, LONGEST_INVISIBLE_MS))
            await member.lite.change(got, ms, uncounted=self._rng.random() < 0.5)
        kept = got if dice > 0.4 else [each for each in got if self._rng.random() < 0.7]
        if kept:
            codes = await member.lite.ack(kept)
            places = [(line_of(member, each), each.queue_offset) for each in got]
            acked = {
                (line_of(member, each), each.queue_offset)
                for each, code in zip(kept, codes, strict=True)
                if not code
            }
            if self._cluster.keeps_what_was_answered(self._required):
                member.observed.acknowledged(places, acked, self._cluster.loop.time())
            else:
                member.observed.acked.update(acked)

    # ---- the end ----

    async def finish(self) -> None:
        """Once the group is whole again: waits for what is under way, and consumes all."""
        await self._calls.wait()
        for member in self.members[1::2]:
            await until_done(partial(member.lite.sync, LEAVE))
        for member in self.members[::2]:
            await until_done(partial(member.lite.sync, ADD, *NAMES))
            await self._drain(member)
        await self._calls.wait()

    async def _drain(self, member: Member) -> None:
        deadline = self._cluster.loop.time() + DRAIN_S
        while any(each.lag for each in await until_done(member.lite.listed)):
            assert self._cluster.loop.time() < deadline, (
                f"{member.lite.group} does not come to an end"
            )
            if not await until_done(partial(self._receive, member, 32, 2_000)):
                await until_done(partial(member.lite.sync, REPLACE, *NAMES))
            await self._calls.wait()

    async def check(self, store: MessageStore) -> None:
        """Against what the master shows and counts."""
        if not self._synchronous:
            return
        found = visible(store)
        for line, sent in self.sent.items():
            shown = found.get((line.parent, line.queue_id), {})
            gone = [at for at, each in sent.items() if shown.get(at) != each.body]
            assert not gone, f"acknowledged and gone: {line} {gone[:5]}"
        for member in self.members[::2]:
            self._check_delivered(member)
        units = sum(len(shown) for (topic, _), shown in found.items() if topic == SESSIONS)
        counted = await until_done(self.members[0].lite.listed)
        assert sum(each.messages for each in counted) == units

    def _check_delivered(self, member: Member) -> None:
        for line, sent in self.sent.items():
            if line.parent != member.parent:
                continue
            missing = sent.keys() - member.observed.delivered[line]
            if line.parent == DEVICES:
                missing = {at for at in missing if at > self._last_that_may_have_expired(line)}
            assert not missing, f"{member.lite.group} never got {line} {sorted(missing)[:5]}"

    def _last_that_may_have_expired(self, line: Line) -> int:
        """The last message behind which nothing of its lite topic was stored for the TTL, or -1."""
        sent, last = self.sent[line], -1
        offsets = sorted(sent)
        apart_ms = self._ahead_ms[1] - self._ahead_ms[0]
        for at, following in itertools.zip_longest(offsets, offsets[1:]):
            until_ms = self._now_ms() if following is None else sent[following].answered_ms
            if until_ms - sent[at].began_ms > self._ttl_ms - apart_ms:
                last = at
        return last


def line_of(member: Member, got: Got) -> Line:
    line = Line(member.parent, got.lite_topic)
    assert got.lease.queue_id == line.queue_id
    return line
