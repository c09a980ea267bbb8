"""A history: random operations on a store, and what must hold whatever happens to it.

The history records which messages it sent, which of them were confirmed (flushed) and which were
visible to a reader. After any crash:

* every confirmed message is at its queue offset, and is found by its unique id
* every message that was visible is there
* every message that is there was sent to that queue and offset, and none is there twice
* no corrupt record is reported: a crash alone is no damage
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Mapping
from pathlib import Path

from aerobee_broker.errors import StoreError
from aerobee_broker.store.message_store import MessageStore
from aerobee_broker.store.messages import NewBatch, NewMessage
from aerobee_broker.store.options import StoreOptions
from aerobee_wire import properties, record
from aerobee_wire.topics import retry_topic
from support.clock.manual_clock import ManualClock
from support.disk.simulated_disk import PowerCut, SimulatedDisk
from support.disk.stores import SMALL, Queue, claim, open_store, visible

# The last one needs records of version 2.
TOPICS = ("orders", retry_topic("billing"), retry_topic("g" * 130))


class History:
    """One seed, one history. `disk` changes at each crash."""

    def __init__(
        self, seed: int, options: StoreOptions = SMALL, *, disk_fails: bool = False
    ) -> None:
        self.disk_fails = disk_fails
        self.rng = random.Random(seed)
        self.options = options
        self.clock = ManualClock()
        self.disk = SimulatedDisk(seed)
        self.store: MessageStore | None = None
        # Bodies that were sent to a place, also those whose write failed.
        self.sent: dict[Queue, dict[int, set[bytes]]] = {}
        self.confirmed: dict[Queue, dict[int, bytes]] = {}
        self.shown: dict[Queue, dict[int, bytes]] = {}
        self.unconfirmed: list[tuple[int, Queue, int, bytes]] = []  # end, queue, offset, body
        self.number = 0
        self.acknowledged = 0
        self.power_cuts = 0
        self.problems: list[str] = []

    # ---- life ----

    def open(self) -> None:
        self.store = open_store(self.disk, self.options, self.clock)

    def live(self, operations: int) -> None:
        """Raises PowerCut when the disk dies."""
        if self.store is None:
            self.open()
        for _ in range(operations):
            self._operate()

    def live_until_power_cut(self, operations: int, crash_at: int) -> None:
        """Lives until the disk dies in its call number `crash_at` from now, or the operations are
        done; then the power is cut, and comes back.
        """
        self.disk.crash_at = self.disk.steps + crash_at
        try:
            self.live(operations)
        except PowerCut:
            self.power_cuts += 1
        self.cut_power()

    def cut_power(self) -> None:
        self._die(self.disk.after_power_cut(self.rng.randrange(1 << 30)))

    def kill(self) -> None:
        """Of the process: what the operating system has, it keeps."""
        self._die(self.disk.after_kill())

    def _die(self, left: SimulatedDisk) -> None:
        self.disk = left
        self.disk.capacity = None
        self.store = None
        self.unconfirmed.clear()

    # ---- operations ----

    def _operate(self) -> None:
        operations: list[tuple[int, Callable[[], None]]] = [
            (30, self.append),
            (20, self.write),
            (30, self.flush),
            (10, self.maintain),
            (10, self.upkeep),
            (6, self.look),
            (1, self.restart),
            (1, self.crash_process),
        ]
        if self.disk_fails:
            operations += [(2, self.fail_a_sync), (2, self.fill_up)]
        weights = [weight for weight, _ in operations]
        self.rng.choices(operations, weights)[0][1]()

    def append(self) -> None:
        if self.rng.random() < 0.3:
            self.append_batch()
        else:
            self.append_messages()

    def append_batch(self) -> None:
        assert self.store is not None
        first, *others = (self.message() for _ in range(self.rng.randint(1, 6)))
        bodies = [message.body for message in (first, *others)]
        strings = [message.properties for message in (first, *others)]
        columns = NewBatch(first.topic, first.queue_id, bodies, strings, born_host=first.born_host)
        try:
            offset = self.store.append_batch(columns).first_queue_offset
        except StoreError:
            return
        queue = (first.topic, first.queue_id)
        for number, body in enumerate(bodies, offset):
            self.sent.setdefault(queue, {}).setdefault(number, set()).add(body)
            self.unconfirmed.append((self.store.end_offset, queue, number, body))

    def append_messages(self) -> None:
        assert self.store is not None
        batch = [self.message() for _ in range(self.rng.randint(1, 6))]
        try:
            places = self.store.append(batch)
        except StoreError:
            return
        for message, place in zip(batch, places, strict=True):
            if message.sys_flag:
                continue  # prepared: in the log only
            queue = (message.topic, message.queue_id)
            self.sent.setdefault(queue, {}).setdefault(place.queue_offset, set()).add(message.body)
            end = place.physical_offset + place.store_size
            self.unconfirmed.append((end, queue, place.queue_offset, message.body))

    def message(self) -> NewMessage:
        self.number += 1
        rng = self.rng
        named = {"UNIQ_KEY": f"ID{self.number:06d}"}
        if rng.random() < 0.5:
            named["TAGS"] = rng.choice(["red", "green", "größe"])
        if rng.random() < 0.3:
            named["KEYS"] = f"order{rng.randint(0, 9)} all"
        return NewMessage(
            topic=rng.choice(TOPICS),
            queue_id=rng.randint(0, 2),
            body=f"{self.number:06d}|".encode() * rng.randint(1, 60),
            properties=properties.encode(named),
            sys_flag=record.TRANSACTION_PREPARED if rng.random() < 0.03 else 0,
            born_host="[::1]:80" if rng.random() < 0.1 else "10.1.2.3:80",
        )

    def write(self) -> None:
        assert self.store is not None
        written = self.store.written_offset
        try:
            self.store.flush.write()
        except StoreError:
            self.unconfirmed = [end for end in self.unconfirmed if end[0] <= written]

    def write_and_sync(self) -> int:
        """As group commit does it: sealed, then written while messages come in."""
        assert self.store is not None
        try:
            self.store.flush.seal()
            if self.rng.random() < 0.5:
                self.append()
            return self.store.flush.write_and_sync()
        except StoreError:
            self.store.flush.roll_back()
            written = self.store.written_offset
            self.unconfirmed = [end for end in self.unconfirmed if end[0] <= written]
            return self.store.flushed_offset

    def flush(self) -> None:
        """write, sync, and then perhaps another append before confirm, as beside a real flusher."""
        assert self.store is not None
        if self.rng.random() < 0.5:
            flushed = self.write_and_sync()
        else:
            self.write()
            try:
                flushed = self.store.flush.sync()
            except StoreError:
                return
        if self.rng.random() < 0.3:
            self.append()
        self.store.flush.confirm(flushed)
        for end, queue, offset, body in list(self.unconfirmed):
            if end <= flushed:
                self.confirmed.setdefault(queue, {})[offset] = body
                self.acknowledged += 1
        self.unconfirmed = [end for end in self.unconfirmed if end[0] > flushed]

    def fail_a_sync(self) -> None:
        """One of the next syncs fails, once: of the log, or of anything."""
        only = self.rng.choice(["commitlog", ""])
        left = self.rng.randint(1, 4)

        def fails(path: Path) -> bool:
            nonlocal left
            if only in str(path):
                left -= 1
            return left == 0

        self.disk.fail_syncs = fails

    def fill_up(self) -> None:
        """Little space for a while; or enough again."""
        used = self.disk.used_bytes()
        little = used + self.rng.randint(0, 9_000)
        self.disk.capacity = None if self.disk.capacity else little

    def maintain(self) -> None:
        assert self.store is not None
        self.clock.advance(self.rng.choice([0, 1_000, 5_000]))
        self.store.maintain(self.clock.now_ms())

    def upkeep(self) -> None:
        assert self.store is not None
        for _ in range(self.rng.randint(1, 4)):
            if not self.store.maintain_files():
                break

    def look(self) -> None:
        """A consumer reads everything; what it saw must stay."""
        assert self.store is not None
        self.shown = visible(self.store)
        self.check_shown(self.shown)

    def restart(self) -> None:
        assert self.store is not None
        self.flush()
        # When it cannot be closed, what was confirmed must be there all the same.
        with contextlib.suppress(StoreError):
            self.store.close()
        before, self.disk = self.disk, self.disk.after_kill()
        # The power may go in the next life: the count goes on.
        self.disk.steps, self.disk.crash_at = before.steps, before.crash_at
        self.disk.capacity = None
        self.unconfirmed.clear()
        self.open()
        self.check()

    def crash_process(self) -> None:
        self.kill()
        self.open()
        self.check()

    # ---- checks ----

    def check(self) -> None:
        """After any start: see the head of the module."""
        assert self.store is not None
        claim(
            self.store.corruption_count == 0,
            f"a crash was reported as damage: {list(self.store.damage.suspects)[:3]}",
        )
        found = visible(self.store)
        self.check_shown(found)
        claim(self.store.corruption_count == 0, f"damage: {list(self.store.damage.suspects)[:3]}")
        for what, promised in (("confirmed", self.confirmed), ("shown", self.shown)):
            for queue, messages in promised.items():
                for offset, body in messages.items():
                    there = found.get(queue, {}).get(offset)
                    claim(there == body, f"{queue} {offset} was {what} and is {there!r:.60}")
        self._check_index()
        # What is there now was recovered, and is visible: it must stay.
        self.confirmed = found

    def check_shown(self, found: Mapping[Queue, Mapping[int, bytes]]) -> None:
        for queue, messages in found.items():
            for offset, body in messages.items():
                claim(
                    body in self.sent.get(queue, {}).get(offset, ()),
                    f"nobody sent {body!r:.60} to {queue} {offset}",
                )

    def _check_index(self) -> None:
        assert self.store is not None
        for queue, messages in self.confirmed.items():
            for offset, body in self.rng.sample(sorted(messages.items()), min(2, len(messages))):
                key = f"ID{body[:6].decode()}"
                hits = self.store.query(queue[0], key, unique=True)
                claim(
                    [(hit.queue_id, hit.queue_offset) for hit in hits] == [(queue[1], offset)],
                    f"{key} is found {len(hits)} times",
                )


def power_cuts(
    seed: int, lives: int = 3, options: StoreOptions = SMALL, *, disk_fails: bool = False
) -> History:
    """A history of several lives, each ended by a power cut at a random call; checked after each.
    Also the start itself is interrupted now and then.
    """
    history = History(seed, options, disk_fails=disk_fails)
    for _ in range(lives):
        operations = history.rng.randint(5, 60)
        history.live_until_power_cut(operations, history.rng.randint(1, operations * 5))
        while history.rng.random() < 0.2:
            history.live_until_power_cut(0, history.rng.randint(1, 12))  # in the recovery
        history.open()
        history.check()
    assert history.store is not None
    history.append()
    history.restart()
    return history
