"""A master's in-sync set beside what is true: replicas, what they have on their disks, and the set
at the coordinator. Steps change the truth, and tell the master some of it, late."""

from __future__ import annotations

import random
from collections.abc import Callable

from aerobee_broker.replication.identity import Replica
from aerobee_broker.replication.in_sync.in_sync_set import InSyncRules, InSyncSet, Members

ME = Replica(0, "m")
OTHERS = tuple(Replica(number, "s") for number in (1, 2, 3))


class InSyncModel:
    """Raises AssertionError in the step after which a rule does not hold."""

    def __init__(self, rules: InSyncRules, start: int = 0) -> None:
        self.rules = rules
        self.set = InSyncSet(ME, start, rules)
        self.now_ms = self.reported_ms = 0  # now, and when the master last heard anything
        self.had_all_ms = dict.fromkeys(OTHERS, 0)  # until then each had the whole log
        self.end = self.own_synced = start
        self.stored = dict.fromkeys(OTHERS, 0)  # on the disk of each
        self.following: set[Replica] = set()
        self.at_coordinator: Members = frozenset({ME})
        self.writing: Members | None = None
        self._confirmed = self._acknowledged = self._shown = 0
        self.report_stored()

    # ---- steps ----

    def report_stored(self) -> None:
        self.reported_ms = self.now_ms
        self.set.stored(0, self.end, self.own_synced, self.now_ms)
        self.check()

    def write(self, count: int) -> None:
        self.end += count
        self.report_stored()

    def sync(self) -> None:
        self.own_synced = self.end
        self.report_stored()

    def wait(self, milliseconds: int) -> None:
        self.now_ms += milliseconds
        self._note_who_has_all()

    def follow(self, replica: Replica) -> None:
        if replica not in self.following:
            self.following.add(replica)
            self.set.began(replica, 0, self.stored[replica])
            self.check()

    def copy(self, replica: Replica, count: int) -> None:
        """The replica stores more; the master hears of it by `report`."""
        if replica in self.following:
            self.stored[replica] = min(self.end, self.stored[replica] + count)
            self._note_who_has_all()

    def _note_who_has_all(self) -> None:
        for replica, stored in self.stored.items():
            if stored == self.end:
                self.had_all_ms[replica] = self.now_ms

    def report(self, replica: Replica) -> None:
        if replica in self.following:
            self.reported_ms = self.now_ms
            self.set.reported(replica, self.stored[replica], self.now_ms)
            self.check()

    def end_stream(self, replica: Replica) -> None:
        if replica in self.following:
            self.following.discard(replica)
            self.set.ended(replica)
            self.check()

    def begin_change(self) -> None:
        if self.writing is None:
            self.writing = self.set.next_change(self.now_ms)
            self.check()

    def end_change(self, *, takes_effect: bool, answered: bool) -> None:
        if self.writing is not None:
            if takes_effect:
                self.at_coordinator = self.writing
            self.writing = None
            self.set.change_ended(self.at_coordinator if answered else None)
            self.check()

    def read(self) -> None:
        if self.set.is_unresolved:
            self.set.change_ended(self.at_coordinator)
            self.check()

    def settle(self) -> None:
        """Everybody follows, has everything and says so, and every write is answered."""
        for _ in range(3):
            self.sync()
            for replica in OTHERS:
                self.follow(replica)
                self.copy(replica, self.end)
                self.report(replica)
            self.end_change(takes_effect=True, answered=True)
            self.read()
            self.begin_change()
        self.end_change(takes_effect=True, answered=True)

    # ---- what must hold ----

    def has(self, replica: Replica) -> int:
        return self.own_synced if replica == ME else self.stored[replica]

    def check(self) -> None:
        in_sync = self.set
        possible = self.at_coordinator | (self.writing or self.at_coordinator)
        assert possible <= in_sync.waited_for, "R3: somebody may be elected who is not waited for"
        assert self._confirmed <= in_sync.confirmed, "R5: the confirm offset fell"
        electable = min(self.has(replica) for replica in possible)
        assert in_sync.confirmed <= electable, "R4: confirmed, and not on an electable replica"
        assert self._shown <= in_sync.shown <= in_sync.confirmed, "R5: what is shown"
        if in_sync.acknowledged > self._acknowledged:
            self._check_acknowledged(possible)
        if in_sync.shown > self._shown and not self.rules.elected:
            self._check_copies(in_sync.shown, "shown")
        self._confirmed, self._acknowledged = in_sync.confirmed, in_sync.acknowledged
        self._shown = in_sync.shown

    def _check_acknowledged(self, possible: Members) -> None:
        acknowledged = self.set.acknowledged
        if not self.rules.synchronous:
            assert acknowledged <= self.own_synced
            oldest_ms = self.reported_ms - self.rules.max_not_caught_up_ms
            late = [one for one in possible - {ME} if self.had_all_ms[one] < oldest_ms]
            assert not late, "acknowledged, though more than that time may be lost"
            return
        assert acknowledged <= self.set.confirmed, "R4: acknowledged, and not confirmed"
        self._check_copies(acknowledged, "R4: acknowledged")

    def _check_copies(self, offset: int, what: str) -> None:
        """As many as the rules require have everything below."""
        certain = self.at_coordinator & (self.writing or self.at_coordinator)
        copies = sum(self.has(replica) >= offset for replica in certain)
        needed = self.rules.in_sync_replicas if self.rules.synchronous else 1
        if self.rules.synchronous and self.rules.auto_in_sync_replicas:
            needed = max(self.rules.min_in_sync_replicas, min(needed, len(certain)))
        assert copies >= needed, f"{what} on too few replicas"


def random_history(seed: int) -> None:
    """A hundred random steps, and rest at the end. Raises AssertionError."""
    rng = random.Random(seed)
    rules = InSyncRules(
        synchronous=rng.random() < 0.7,
        elected=rng.random() < 0.5,
        in_sync_replicas=rng.randint(1, 3),
        auto_in_sync_replicas=rng.random() < 0.5,
    )
    model = InSyncModel(rules)
    steps: tuple[Callable[[], object], ...] = (
        lambda: model.write(rng.randint(1, 9)),
        model.sync,
        lambda: model.wait(rng.choice((1, 30, 400, 2_500))),
        lambda: model.follow(rng.choice(OTHERS)),
        lambda: model.copy(rng.choice(OTHERS), rng.choice((1, 9, 1_000))),
        lambda: model.report(rng.choice(OTHERS)),
        lambda: model.end_stream(rng.choice(OTHERS)),
        model.begin_change,
        lambda: model.end_change(takes_effect=rng.random() < 0.7, answered=rng.random() < 0.7),
        model.read,
    )
    for _ in range(100):
        rng.choice(steps)()
    model.settle()
    assert model.set.members == {ME, *OTHERS}
    assert model.set.confirmed == model.set.acknowledged == model.set.shown == model.end
