"""A history of two replicas: random operations on a master and the replica that follows it, with
kills, power cuts, full disks and failovers, and what must hold whatever happens to them.

Both are in the in-sync set throughout, so the confirm offset is the lower of their durable ends.

* what either has shown stays, at its queue offset, on both, also after failovers
* what was confirmed is never cut
* the logs are alike, byte for byte, once the replica has caught up; so is what both show
* no damage is reported
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from functools import partial

from aerobee_broker.errors import CommitLogBroken, MessageCorrupted, StoreError
from aerobee_broker.store.message_store import MessageStore
from aerobee_broker.store.messages import NewMessage
from aerobee_wire import properties
from support.clock.manual_clock import ManualClock
from support.disk.replicated import REPLICATED, derive_all, log_bytes, open_replica, sync
from support.disk.simulated_disk import PowerCut, SimulatedDisk
from support.disk.stores import Broken, Queue, claim, visible


class Machine:
    """A store, its disk and its clock, which may differ from that of the other by seconds."""

    def __init__(self, seed: int, offset_ms: int) -> None:
        self.disk = SimulatedDisk(seed)
        self.clock = ManualClock()
        self.clock.advance(offset_ms)
        self.store = self.open()

    def open(self) -> MessageStore:
        try:
            self.store = open_replica(self.disk, REPLICATED, self.clock)
        except CommitLogBroken as error:
            raise Broken(error.message) from error
        return self.store


class Following:
    """One seed, one history."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.master, self.replica = Machine(seed, 0), Machine(seed + 1, self.rng.randint(0, 3_000))
        self.master.store.flush.open_to_appends()
        self.epoch = 1
        self.number = 0
        self.confirmed = 0
        self.shown: dict[Queue, dict[int, bytes]] = {}
        self.failovers = self.power_cuts = self.cut_bytes = 0

    def live(self, operations: int) -> None:
        for _ in range(operations):
            choices: list[tuple[int, Callable[[], None]]] = [
                (30, self.append),
                (20, self.flush_master),
                (40, self.ship),
                (20, self.flush_replica),
                (20, self.confirm),
                (10, self.upkeep),
                (5, self.look),
                (3, self.fill_up),
                (3, self.end_replica),
                (2, self.end_master),
                (1, self.fail_over),
            ]
            self.rng.choices([act for _, act in choices], [weight for weight, _ in choices])[0]()

    # ---- operations ----

    def append(self) -> None:
        rng = self.rng
        messages = []
        for _ in range(rng.randint(1, 6)):
            self.number += 1
            named = {"UNIQ_KEY": f"ID{self.number:06d}", "TAGS": rng.choice(["red", "green"])}
            messages.append(
                NewMessage(
                    rng.choice(["a", "b"]),
                    rng.randint(0, 1),
                    b"%06d|" % self.number * rng.randint(1, 80),
                    properties.encode(named),
                )
            )
        self.attempt(lambda: self.master.store.append(messages))

    def attempt(self, act: Callable[[], object]) -> None:
        with contextlib.suppress(StoreError):
            act()

    def flush_master(self) -> None:
        self.flush(self.master)

    def flush_replica(self) -> None:
        self.flush(self.replica)

    def flush(self, machine: Machine) -> None:
        """Written and synced, or only written; messages may come in meanwhile."""
        flush = machine.store.flush
        try:
            flush.seal()
            if machine is self.master and self.rng.random() < 0.5:
                self.append()
            flush.write_sealed()
            if self.rng.random() < 0.8:
                flush.sync()
        except StoreError:
            flush.roll_back()

    def ship(self) -> None:
        shipper = self.master.store.shipper()
        for _ in range(self.rng.randint(1, 3)):
            size = self.rng.choice([1, 700, 20_000])
            try:
                chunk = shipper.read(self.replica.store.end_offset, size)
            except MessageCorrupted as error:
                raise Broken(error.message) from error
            if chunk is None:
                break
            self.attempt(partial(self.replica.store.follower.append, *chunk[:2]))
        shipper.close()

    def confirm(self) -> None:
        master, replica = self.master.store, self.replica.store
        self.confirmed = min(master.flushed_offset, replica.flushed_offset)
        master.flush.confirm(self.confirmed)
        if self.rng.random() < 0.8:
            replica.follower.confirm(self.confirmed, self.replica.clock.monotonic_ms())
        self.replica.clock.advance(self.rng.choice([0, 5, 20]))
        replica.follower.derive(self.replica.clock.monotonic_ms())

    def upkeep(self) -> None:
        for machine in (self.master, self.replica):
            machine.clock.advance(self.rng.choice([0, 1_000, 5_000]))
            machine.store.maintain(machine.clock.now_ms())
            while machine.store.maintain_files() and self.rng.random() < 0.8:
                pass

    def fill_up(self) -> None:
        machine = self.rng.choice([self.master, self.replica])
        used = machine.disk.used_bytes()
        little = used + self.rng.randint(0, 9_000)
        machine.disk.capacity = None if machine.disk.capacity else little

    # ---- ends ----

    def crash(self, machine: Machine) -> None:
        if self.rng.random() < 0.5:
            machine.disk = machine.disk.after_kill()
        else:
            machine.disk = machine.disk.after_power_cut(self.rng.randrange(1 << 30))
            self.power_cuts += 1
        machine.disk.capacity = None

    def end_replica(self) -> None:
        if self.rng.random() < 0.3:
            self.attempt(self.replica.store.close)
            self.replica.disk = self.replica.disk.after_kill()
            self.replica.disk.capacity = None
        else:
            self.crash(self.replica)
        self.replica.open()
        self.join()

    def end_master(self) -> None:
        """It comes back before anybody else is elected."""
        self.crash(self.master)
        self.master.open()
        self.lead(self.master.store)

    def fail_over(self) -> None:
        """The other one is elected, while it runs or after it has died too."""
        self.failovers += 1
        self.crash(self.master)
        if self.rng.random() < 0.3:
            self.crash(self.replica)
            self.replica.open()
        else:
            self.flush(self.replica)
            sync(self.replica.store)
        self.master, self.replica = self.replica, self.master
        self.replica.open()
        self.lead(self.master.store)

    def lead(self, store: MessageStore) -> None:
        """Everything in its log is confirmed once the other one agrees with it."""
        self.epoch += 1
        claim(store.end_offset >= self.confirmed, "the new master lacks what was confirmed")
        store.follower.confirm(self.confirmed, 0)
        derive_all(store)
        self.join()
        self.catch_up()
        store.follower.confirm(store.end_offset, 0)
        derive_all(store)
        self.confirmed = store.end_offset
        store.flush.open_to_appends()

    def join(self) -> None:
        """The replica is cut where it leaves the master's log. The power may go meanwhile."""
        while True:
            replica = self.replica
            replica.disk.capacity = None
            sync(replica.store)
            agreed = min(replica.store.end_offset, self.master.store.end_offset)
            claim(agreed >= self.confirmed, "what was confirmed would be cut")
            if self.rng.random() < 0.3:
                replica.disk.crash_at = replica.disk.steps + self.rng.randint(1, 12)
            try:
                cut = replica.store.cut(agreed, self.epoch)
            except PowerCut:
                self.crash(replica)
                replica.open()
            else:
                replica.disk.crash_at = None
                claim(not cut.confirmed, "what the replica knew to be confirmed was cut")
                self.cut_bytes += cut.end - cut.begin
                return

    def catch_up(self) -> None:
        for machine in (self.master, self.replica):
            machine.disk.capacity = None
        idle, reached = 0, -1
        while self.replica.store.end_offset < self.master.store.written_offset:
            idle = 0 if self.replica.store.end_offset > reached else idle + 1
            reached = self.replica.store.end_offset
            claim(idle < 10, f"the replica takes nothing after {reached}")
            self.ship()
        sync(self.replica.store)

    # ---- checks ----

    def look(self) -> None:
        for machine in (self.master, self.replica):
            found = visible(machine.store)
            claim(machine.store.corruption_count == 0, f"{list(machine.store.damage.suspects)}")
            for queue, messages in found.items():
                known = self.shown.setdefault(queue, {})
                for offset, body in messages.items():
                    claim(known.setdefault(offset, body) == body, f"{queue} {offset} has changed")

    def check(self) -> None:
        """Once the replica has caught up."""
        self.master.disk.capacity = None
        self.master.store.flush.confirm(0)
        self.flush(self.master)
        sync(self.master.store)
        self.catch_up()
        self.confirmed = self.master.store.flushed_offset
        self.master.store.flush.confirm(self.confirmed)
        self.replica.store.follower.confirm(self.confirmed, 0)
        derive_all(self.replica.store)
        self.look()
        claim(log_bytes(self.master.disk) == log_bytes(self.replica.disk), "the logs differ")
        found, theirs = (
            {queue: messages for queue, messages in visible(machine.store).items() if messages}
            for machine in (self.master, self.replica)
        )
        claim(found == theirs, "the replicas show different messages")
        shown = {queue: messages for queue, messages in self.shown.items() if messages}
        claim(found == shown, "something that was shown is gone")
        for queue, messages in found.items():
            for offset, body in self.rng.sample(sorted(messages.items()), min(3, len(messages))):
                for store in (self.master.store, self.replica.store):
                    hits = store.query(queue[0], f"ID{body[:6].decode()}", unique=True)
                    claim([hit.queue_offset for hit in hits] == [offset], "the index differs")


def following(seed: int, operations: int = 250) -> Following:
    history = Following(seed)
    for _ in range(3):
        history.live(operations // 3)
        history.check()
    return history
