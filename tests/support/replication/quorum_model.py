"""Random histories of a group without etcd whose operators change options as they like, promote
several replicas at once, and put older copies of disks back.

Replicas, masters and promotions are a model of one step at a time. The code itself decides: epochs
and quorums, the in-sync set, the checks of a promotion, and those of a master that starts again. A
message is a number; a log is a list of them, and offsets are its indices. Records of logs at name
servers (`LogWitness`) are never late: each step ends with them.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from aerobee_broker.config import BrokerOptions
from aerobee_broker.replication.election.electability import (
    check_electable,
    check_enough,
    check_furthest,
    knows_of_promotions,
    lacks_confirmed,
    leads_already,
)
from aerobee_broker.replication.election.log_records import LogRecord
from aerobee_broker.replication.identity import Replica
from aerobee_broker.replication.in_sync.in_sync_set import InSyncRules, InSyncSet
from aerobee_broker.replication.in_sync.quorum import Quorum
from aerobee_broker.replication.log.epochs import EpochHistory, promotion_epoch
from aerobee_broker.replication.log.handshake import Action, LogDescription, agree
from aerobee_broker.replication.log.status import ReplicaStatus, Role
from aerobee_chassis.config import load
from aerobee_wire.status import MqError


def options_of(copies: int, required: int) -> BrokerOptions:
    return load(
        BrokerOptions,
        sets=[
            *("brokerRole=SYNC_MASTER", "namesrvAddr=10.0.0.1:9876"),
            *(f"totalReplicas={copies}", f"inSyncReplicas={required}"),
        ],
    )


@dataclass(frozen=True)
class Copy:
    """A copy of a disk. A replica that led last begins as its master, if it may."""

    history: EpochHistory
    log: list[int]
    confirmed: int
    generation: int
    is_displaced: bool
    led_last: bool


class ModelReplica:
    """`log`: what is on its disk. `present`: its in-sync set while it is master."""

    def __init__(self, number: int, options: BrokerOptions) -> None:
        self.identity = Replica(number, f"s{number}")
        self.options = options
        self.history = EpochHistory()
        self.log: list[int] = []
        self.confirmed = 0
        self.is_up = True
        self.epoch = 0  # as master; 0: it is none
        self.led_last = False
        self.present: InSyncSet | None = None
        self.generation = 1
        self.is_displaced = False
        self.is_raised = True  # its generation, since it started

    def copy(self) -> Copy:
        led = self.led_last or bool(self.epoch)
        return Copy(
            self.history, list(self.log), self.confirmed, self.generation, self.is_displaced, led
        )

    def put_back(self, copy: Copy) -> None:
        self.history, self.log, self.confirmed = copy.history, list(copy.log), copy.confirmed
        self.generation, self.is_displaced = copy.generation, copy.is_displaced
        self.led_last = copy.led_last

    def record(self) -> LogRecord:
        return LogRecord(self.generation, len(self.log), self.history.highest)

    def describe(self) -> LogDescription:
        end, known = len(self.log), self.epoch or self.history.highest
        return LogDescription(
            *("c", "b", self.identity, self.history, known, 0, end, self.confirmed, 1 << 20)
        )

    def status(self) -> ReplicaStatus:
        role = Role.MASTER if self.epoch else Role.SLAVE
        copies = self.options.total_replicas
        known = ReplicaStatus(self.describe(), "", role, len(self.log), copies, elected=False)
        return replace(
            known,
            learner=self.learner,
            generation=self.generation,
            copying=self.is_displaced,
            has_its_log=not self.is_displaced,
        )

    @property
    def learner(self) -> bool:
        """Whether its own options say that it only reads."""
        return self.identity.replica_id >= self.options.total_replicas

    def note(self, epoch: int) -> None:
        if epoch > self.history.highest:
            self.epoch, self.present, self.led_last = 0, None, False
        self.history = self.history.note(epoch)

    def crash(self) -> None:
        self.is_up, self.led_last = False, bool(self.epoch) or self.led_last
        self.is_raised = False
        self.epoch, self.present = 0, None

    def settle(self, shown: int) -> None:
        if self.history.can_settle(self.history.newest_epoch, shown):
            self.history = self.history.settle(self.history.newest_epoch)


@dataclass(frozen=True)
class Promotion:
    """The replicas `found` have answered, after the name servers had `records`."""

    one: ModelReplica
    found: list[ModelReplica]
    records: dict[str, LogRecord]
    epoch: int


class QuorumModel:
    """A group of `copies` replicas. `acknowledged`: messages that no master may lack."""

    def __init__(self, seed: int, copies: int) -> None:
        self.rng = random.Random(seed)
        self.options = [
            options_of(total, required)
            for total in range(3, copies + 1)
            for required in range(1, total + 1)
        ]
        first = self.rng.choice(self.options)
        self.replicas = [ModelReplica(number, first) for number in range(copies)]
        self.acknowledged: set[int] = set()
        self.newest = 0
        self.sent = self.promotions = self.changes = self.went_back = 0
        self.records: dict[str, LogRecord] = {}  # at the name servers
        self.copies: list[tuple[ModelReplica, Copy]] = []
        self.promoting: list[Promotion] = []
        self._lead(self.replicas[0], 1)

    def step(self) -> None:
        chosen = self.rng.choices(
            (
                *(self._follow, self._send, self._leave, self._crash, self._start, self._promote),
                *(self._go_on_promoting, self._copy_disk, self._put_disk_back),
            ),
            (30, 30, 5, 8, 14, 6, 8, 3, 3),
        )
        chosen[0]()
        for each in self.replicas:
            if each.is_up:
                self._record(each)

    # ---- disks, and their records ----

    def _record(self, one: ModelReplica) -> None:
        """What `LogWitness` does every second."""
        store_id, own = one.identity.store_id, one.record()
        known = self.records[store_id] = max(own, self.records.get(store_id, own))
        if known > own and not one.epoch:
            one.is_displaced = True
            one.note(known.epoch)
        elif known > own:
            one.generation = known.generation + 1
        elif not one.is_raised:
            one.generation += 1
            one.is_raised = True

    def _copy_disk(self) -> None:
        one = self.rng.choice(self.replicas)
        self.copies.append((one, one.copy()))

    def _put_disk_back(self) -> None:
        off = [(one, copy) for one, copy in self.copies if not one.is_up]
        if off:
            one, copy = self.rng.choice(off)
            one.put_back(copy)
            self.went_back += 1

    # ---- roles ----

    def _lead(self, one: ModelReplica, epoch: int) -> None:
        before, options, end = one.history.quorums, one.options, len(one.log)
        quorum = Quorum(options.total_replicas, options.least_copies)
        one.history = one.history.begin(epoch, one.identity.store_id, end, quorum)
        rules = InSyncRules(
            synchronous=True,
            elected=False,
            in_sync_replicas=options.required_replicas,
            copies=options.total_replicas,
            before=before,
        )
        one.epoch, one.confirmed = epoch, end
        one.present = InSyncSet(one.identity, end, rules)
        one.present.stored(0, end, end, 0)
        self._check(one)

    def _start(self) -> None:
        off = [each for each in self.replicas if not each.is_up]
        if off:
            one = self.rng.choice(off)
            one.is_up = True
            if self.rng.random() < 0.4:
                one.options = self.rng.choice(self.options)
                self.changes += 1
        self._lead_again()

    def _lead_again(self) -> None:
        """A former master asks those that it reaches."""
        former = [each for each in self.replicas if each.is_up and each.led_last and not each.epoch]
        for one in former:
            found = self._reached(one)
            if any(each.history.highest > one.history.highest for each in found):
                one.led_last = False
                continue
            known = [each.status() for each in found]
            own = one.describe()
            self._record(one)
            if one.is_displaced or leads_already(known, one.history.highest) is not None:
                continue
            if lacks_confirmed(own, known) is None and knows_of_promotions(own, known, one.options):
                self._lead(one, one.history.highest + 1)

    def _reached(self, one: ModelReplica) -> list[ModelReplica]:
        others = [each for each in self.replicas if each.is_up and each is not one]
        return self.rng.sample(others, self.rng.randint(0, len(others)))

    def _crash(self) -> None:
        up = [each for each in self.replicas if each.is_up]
        if up:
            self.rng.choice(up).crash()

    def _promote(self) -> None:
        """Ask the others, and check. Other steps may come before the epoch is noted."""
        slaves = [each for each in self.replicas if each.is_up and not each.epoch]
        if not slaves:
            return
        one = self.rng.choice(slaves)
        found = self._reached(one)
        highest = max(each.history.highest for each in (one, *found))
        if any(each.epoch == highest for each in found):
            return  # it would hand over
        self._record(one)
        epoch = promotion_epoch(highest, one.identity.replica_id)
        asked = Promotion(one, found, dict(self.records), epoch)
        if self._may_be_promoted(asked, found):
            self.promoting.append(asked)
            if self.rng.random() < 0.5:
                self._go_on_promoting()

    def _may_be_promoted(self, asked: Promotion, found: list[ModelReplica]) -> bool:
        one, known = asked.one, [each.status() for each in found]
        own = one.status()
        try:
            check_electable(own)
            check_enough(own, known, one.options, asked.records)
            check_furthest(own.log, [each.log for each in known if not each.learner])
        except MqError:
            return False
        return True

    def _go_on_promoting(self) -> None:
        """The epoch is noted where it is not known yet; then it leads, if that suffices."""
        if not self.promoting:
            return
        asked = self.promoting.pop(self.rng.randrange(len(self.promoting)))
        one, epoch = asked.one, asked.epoch
        if not one.is_up or one.epoch:
            return
        noted = [
            each
            for each in asked.found
            if each.is_up and each.history.highest < epoch and self.rng.random() < 0.95
        ]
        for each in noted:
            each.note(epoch)
        if self._may_be_promoted(asked, noted) and one.history.highest < epoch:
            self.promotions += 1
            self._lead(one, epoch)

    # ---- the log ----

    def _masters(self) -> list[ModelReplica]:
        return [each for each in self.replicas if each.is_up and each.epoch]

    def _follow(self) -> None:
        """A slave adopts a master's epochs, and copies all or a part of what it lacks."""
        masters = self._masters()
        slaves = [each for each in self.replicas if each.is_up and not each.epoch]
        if not masters or not slaves:
            return
        master, slave = self.rng.choice(masters), self.rng.choice(slaves)
        try:
            agreement = agree(slave.describe(), master.describe())
        except MqError:
            return
        present = master.present
        assert present is not None
        if agreement.action is not Action.FOLLOW:
            slave.generation += 1
            slave.log = master.log[: agreement.begin]
        slave.led_last = False
        slave.history = slave.history.adopt(master.history.entries).note(master.epoch)
        self._leave_all(slave)
        present.began(slave.identity, 0, len(slave.log), learner=slave.learner)
        self._copy(master, slave, self.rng.choice((len(master.log), self.rng.randint(0, 3))))

    def _copy(self, master: ModelReplica, slave: ModelReplica, count: int) -> None:
        present = master.present
        assert present is not None
        slave.log = master.log[: max(len(slave.log), min(len(master.log), len(slave.log) + count))]
        present.reported(slave.identity, len(slave.log), 0)
        begun = master.history.entries[-1].start
        if slave.is_displaced and len(slave.log) >= max(present.shown, begun):
            known = self.records.get(slave.identity.store_id, slave.record())
            slave.is_displaced = False
            slave.generation = max(slave.generation, known.generation) + 1
        wanted = present.next_change(0)
        if wanted is not None:
            present.change_ended(wanted)
        self._acknowledge(master)

    def _follows(self, slave: ModelReplica, master: ModelReplica) -> bool:
        if not slave.is_up or slave.epoch or slave.history.highest != master.epoch:
            return False
        present = master.present
        assert present is not None
        return any(each.replica == slave.identity for each in present.followers())

    def _send(self) -> None:
        masters = self._masters()
        if not masters:
            return
        master = self.rng.choice(masters)
        present = master.present
        assert present is not None
        if not present.suffices and self.rng.random() < 0.8:
            return
        self.sent += 1
        master.log.append(self.sent)
        end = len(master.log)
        present.stored(0, end, end, 0)
        for slave in self.replicas:
            if self._follows(slave, master) and self.rng.random() < 0.9:
                self._copy(master, slave, end)
                if self.rng.random() < 0.5:
                    slave.confirmed = max(slave.confirmed, present.shown)
                    slave.settle(present.shown)
        self._acknowledge(master)

    def _leave(self) -> None:
        self._leave_all(self.rng.choice(self.replicas))

    def _leave_all(self, slave: ModelReplica) -> None:
        """Its streams end, and it leaves the sets."""
        for master in self._masters():
            present = master.present
            assert present is not None
            if any(each.replica == slave.identity for each in present.followers()):
                present.ended(slave.identity)
                if (wanted := present.next_change(0)) is not None:
                    present.change_ended(wanted)
            self._acknowledge(master)

    # ---- what must hold ----

    def _acknowledge(self, master: ModelReplica) -> None:
        present = master.present
        assert present is not None
        master.confirmed = max(master.confirmed, present.shown)
        if self.rng.random() < 0.5:
            master.settle(present.shown)
        start = master.history.entries[-1].start
        self.acknowledged.update(master.log[start : present.acknowledged])
        for each in self._masters():
            self._check(each)

    def _check(self, master: ModelReplica) -> None:
        """A master that another one has replaced may lack messages."""
        self.newest = max(self.newest, master.epoch)
        if master.epoch < self.newest:
            return
        lost = self.acknowledged.difference(master.log)
        assert not lost, f"replica {master.identity} leads epoch {master.epoch} without {lost}"


def play(seed: int, copies: int, steps: int) -> QuorumModel:
    """Play a history. Raises AssertionError if a master lacks an acknowledged message."""
    model = QuorumModel(seed, copies)
    for _ in range(steps):
        model.step()
    return model
