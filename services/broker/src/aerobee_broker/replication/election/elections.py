"""Run a member of a group with etcd: candidate, master or slave, as elections decide.

the process has started         enroll at the coordinator, which may know that the disk is old
a master is known               follow it, until another is master or its port refuses
no master, and it may stand     candidate: after a wait, claim mastership at the coordinator
it was elected                  master, until another is elected or its disk fails
an operator promotes it         the master hands over, then this replica claims its key
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import structlog

from aerobee_broker.errors import NotServed, StoreReadOnly
from aerobee_broker.replication.election.coordinators.candidates import (
    RANK_MS,
    Decision,
    Standing,
    decide,
    rank,
)
from aerobee_broker.replication.election.coordinators.coordinator import (
    Candidacy,
    Coordinator,
    CoordinatorAway,
    CoordinatorDamaged,
    MasterKey,
    Mastership,
    View,
)
from aerobee_broker.replication.election.coordinators.mastership_keeper import (
    MastershipKeeper,
    MayBeReplaced,
)
from aerobee_broker.replication.election.enrolling import Enrollment
from aerobee_broker.replication.election.liveness_probe import refuses
from aerobee_broker.replication.election.member import Member
from aerobee_broker.replication.election.unclean import (
    UncleanElection,
    log_given_up,
    may_stand,
    not_in_sync,
)
from aerobee_broker.replication.errors import NotElectable, NotPromoted
from aerobee_broker.replication.identity import Replica
from aerobee_broker.replication.in_sync.counts import Reason
from aerobee_broker.replication.in_sync.in_sync_set import Members
from aerobee_broker.replication.log.handshake import LogDescription
from aerobee_broker.replication.log.status import ReplicaStatus
from aerobee_broker.replication.role.master import MasterRole
from aerobee_broker.replication.role.role_runner import RoleRunner
from aerobee_broker.replication.rpc.replica import Promotion, ReplicaCalls
from aerobee_chassis.background import PeriodicTask, until_one_ends
from aerobee_chassis.lifecycle import Lifecycle
from aerobee_wire.epochs import can_reach
from aerobee_wire.status import Code, MqError

AGAIN_S = 1.0  # seconds after a role could not be taken
COORDINATOR_PAUSE_S = 0.2  # seconds after the coordinator did not answer
CANDIDACY_S = 1.0  # seconds between two announcements of this replica's candidacy
CONTACT_S = 0.5  # seconds between two checks of whether a master is isolated
ASK_AGAIN_MS = 300  # milliseconds until the other replicas are asked again how far their logs go
CLAIMS = 5  # attempts of a promotion: the in-sync set may change between a read and a claim


class Elections(Member):
    """Take the role that elections through the coordinator decide.

    `make_coordinator` is called when the store of this replica is open. `address` is the
    "host:port" that slaves dial.
    """

    def __init__(
        self,
        roles: RoleRunner,
        make_coordinator: Callable[[Replica], Coordinator],
        address: str,
        calls: ReplicaCalls,
    ) -> None:
        super().__init__(roles, calls)
        self._coordinator: Coordinator | None = None  # set when the coordinator knows of this start
        self._enrollment = Enrollment(roles.own, make_coordinator)
        self._claiming = asyncio.Lock()
        self._won: Mastership | None = None  # won by a promotion; set until the role is taken
        self._claimed_epoch = 0  # that this replica was elected for; 0 after it has led
        # Of a master whose state the coordinator has lost: replicas that may have been elected, and
        # those of them that the operator has given up.
        self._silent: frozenset[Replica] = frozenset()
        self._given_up: frozenset[Replica] = frozenset()
        self._address = address
        self._options = roles.own.environment.options
        self._clock = roles.own.environment.clock.real
        self._lifecycle = Lifecycle()
        self._task: asyncio.Task[None] | None = None
        self._vacant_since_ms: int | None = None  # since when the group has no known master
        self._logged = ""
        self._waits_because = ""
        self._unclean = UncleanElection(self._options.broker_id)

    @property
    def coordinator_reachable(self) -> bool:
        if self._coordinator is None:
            return self._enrollment.is_reachable
        return self._coordinator.is_reachable

    @property
    def set_at_coordinator(self) -> frozenset[int]:
        view = None if self._coordinator is None else self._coordinator.view
        return frozenset() if view is None else view.in_sync_ids(self._roles.own.replica)

    @property
    def claimed_epoch(self) -> int:
        return self._claimed_epoch

    @property
    def waits_because(self) -> str:
        if self._coordinator is None:
            return self._enrollment.trouble
        has_role = self._roles.slave or (self._roles.master and not self._silent)
        return "" if has_role else self._waits_because

    async def start(self) -> None:
        await self._lifecycle.start(PeriodicTask("candidacy", CANDIDACY_S, self._announce))
        self._task = asyncio.create_task(self._run(), name="role")

    async def stop(self) -> None:
        await self._lifecycle.stop()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        await super().stop()

    def _candidacy(self) -> Candidacy:
        """Return the present candidacy. Raises NotServed while the store is closed."""
        if not self._roles.own.is_open:
            raise self._roles.refusal()
        own, reach = self._roles.own, self._roles.own.reach
        return Candidacy(
            own.replica,
            self._address,
            reach.epoch,
            reach.end,
            self._options.broker_election_priority,
            heard=own.highest_epoch(),
            seen=own.enrollment.seen,
            whole=own.is_whole,
            learner=self._options.is_learner,
        )

    async def _announce(self) -> None:
        if (coordinator := self._coordinator) is None:
            return
        if coordinator.view is not None:
            await self._note_seen(coordinator.view)
        if self._roles.own.is_open:
            coordinator.announce(self._candidacy())
        now_ms, slave = self._clock.monotonic_ms(), self._roles.slave
        if slave is not None and slave.is_following:
            self._unclean.heard_of(slave.master_end, now_ms)
        if coordinator.view is not None:
            self._unclean.look(coordinator.view, now_ms)

    async def _note_seen(self, view: View) -> None:
        if view.state is None:
            return
        try:
            await self._roles.own.note_seen(view.state.version)
        except OSError as error:  # an election by an older state then waits for fewer replicas
            structlog.get_logger().error("state_not_noted", reason=str(error))

    # ---- which role ----

    async def _run(self) -> None:
        coordinator = self._coordinator = await self._enrollment.enrolled()
        if self._enrollment.older_than is not None:
            now_ms = self._clock.monotonic_ms()
            self._unclean.heard_of(self._enrollment.older_than.end, now_ms)
        coordinator.announce(self._candidacy())
        try:
            while True:
                try:
                    await self._take_role(coordinator)
                except (CoordinatorAway, CoordinatorDamaged) as error:
                    structlog.get_logger().warning("role_not_taken", reason=str(error))
                    await asyncio.sleep(COORDINATOR_PAUSE_S)
                    continue
                except (MqError, OSError, ValueError) as error:
                    structlog.get_logger().error("role_not_taken", reason=str(error))
                except Exception:
                    structlog.get_logger().exception("role_failed")
                else:
                    continue
                await asyncio.sleep(AGAIN_S)
                await self.until_open()
        finally:
            if self._roles.own.is_open:  # with the end of the log after the last write
                coordinator.announce(self._candidacy())
            await coordinator.close()

    async def _take_role(self, coordinator: Coordinator) -> None:
        """Take the role that the coordinator's data demands. Return when another may be due."""
        view = coordinator.view or await coordinator.changed(None)
        await self._note_seen(view)
        async with self._claiming:
            mastership, self._won = self._won, None
        if mastership is None and (mastership := coordinator.claimed_in(view)) is not None:
            self._note_elected(mastership.epoch, Reason.LATE_ANSWER)
        if mastership is None:
            if view.master is not None and not self._is_own(view.master):
                self._vacant_since_ms = None
                mastership = await self._follow(coordinator, view, view.master)
            elif view.master is not None and await self._is_alive(view.master):
                await self._wait_for_twin(coordinator, view, view.master)
            else:
                mastership = await self._stand(coordinator, view)
        if mastership is not None:
            self._vacant_since_ms = None
            await self._lead(coordinator, mastership)

    def _is_own(self, master: MasterKey) -> bool:
        """Return whether `master` has the id of this replica, usually from an earlier process."""
        return master.replica.replica_id == self._roles.own.replica.replica_id

    async def _is_alive(self, own: MasterKey) -> bool:
        """Return whether the process that wrote this replica's master key still answers.

        A key with this process's own address is from the previous process. An error counts as an
        answer. The wait for the other process is bounded, because the key ends with the lease of
        that process.
        """
        if own.address == self._address:
            return False
        try:
            await self.calls.status(own.address)
        except MqError as error:
            return error.code is not Code.BROKER_UNREACHABLE
        return True

    async def _wait_for_twin(self, coordinator: Coordinator, view: View, own: MasterKey) -> None:
        """Wait while another process with the same brokerId is master.

        This process registers too, so that the name servers see two processes with one brokerId.
        """
        self._vacant_since_ms = None
        reason = f"another process at {own.address} is master with this brokerId: stop one of them"
        self._waits_because = reason
        if reason != self._logged:
            self._logged = reason
            structlog.get_logger().error("other_process_leads", other_address=own.address)
        await self._roles.register_candidate(self._options.broker_id)
        await self._has_changed(coordinator, view, ASK_AGAIN_MS)

    # ---- candidate ----

    async def _stand(self, coordinator: Coordinator, view: View) -> Mastership | None:
        now_ms = self._clock.monotonic_ms()
        if self._vacant_since_ms is None:
            self._vacant_since_ms = now_ms
        decision = self._decide(view)
        self._waits_because = decision.reason
        if decision.wait_ms is None and not view.shows(self._roles.own.replica):
            await coordinator.changed(view)  # this replica has just started
            return None
        self._log_waiting(view, decision)
        if decision.wait_ms is None:
            return await self._stand_outside(coordinator, view)
        await self._roles.register_candidate(self._options.broker_id)
        left_ms = self._vacant_since_ms + decision.wait_ms - now_ms
        if await self._has_changed(coordinator, view, left_ms):
            return None
        if not self._is_current(view):
            decision = self._decide(await self._asked(view))
            if await coordinator.read() != view:  # a master may have been elected meanwhile
                return None
            waited_ms = self._clock.monotonic_ms() - self._vacant_since_ms
            if decision.wait_ms is None or decision.wait_ms > waited_ms:
                self._waits_because = decision.reason
                self._log_waiting(view, decision)
                await self._has_changed(coordinator, view, ASK_AGAIN_MS)
                return None
        return await self._elect(coordinator, view, Reason.NO_MASTER)

    async def _asked(self, view: View) -> View:
        """Return the view with the present log ends of the candidates that answer.

        The replica asks the other candidates, because the candidacies at etcd may be seconds old.
        """
        others = [
            each
            for each in view.candidacies.values()
            if each.replica.replica_id != self._options.broker_id
        ]
        asked = (self.calls.status(each.address) for each in others)
        answers = await asyncio.gather(*asked, return_exceptions=True)
        found = {self._options.broker_id: self._candidacy()}
        for each, answer in zip(others, answers, strict=True):
            if isinstance(answer, ReplicaStatus):
                epoch, end = answer.log.history.reach(answer.synced)
                found[each.replica.replica_id] = replace(each, epoch=epoch, end=end)
            elif not isinstance(answer, MqError):
                raise answer
        return replace(view, candidacies=found)

    def _decide(self, view: View) -> Decision:
        copies, wait_ms = self._options.total_replicas, self._options.election_wait_for_set
        is_current = self._is_current(view)
        return decide(view, Standing(self._candidacy(), is_current, copies, wait_ms))

    def _is_current(self, view: View) -> bool:
        """Return whether this process has had all data confirmed in the state's epoch."""
        return view.state is not None and self._roles.own.current_epoch == view.state.epoch

    async def _stand_outside(self, coordinator: Coordinator, view: View) -> Mastership | None:
        """Stand for election although this replica is not in the in-sync set.

        It becomes master only if the options allow the loss of acknowledged messages.
        """
        await self._roles.register_candidate(self._options.broker_id)
        now_ms = self._clock.monotonic_ms()
        self._unclean.look(view, now_ms)
        wait_ms = self._unclean.wait_ms(view, now_ms) if may_stand(self._roles.own) else None
        if wait_ms is None:
            await coordinator.changed(view)
            return None
        if await self._has_changed(coordinator, view, wait_ms):
            return None
        async with self._claiming:
            seen = await coordinator.read()  # a member may be back
            if seen != view:
                return None
            candidacy = self._candidacy()
            coordinator.announce(candidacy)
            mastership = await coordinator.elect(seen, unclean=True)
        if mastership is not None:
            self._note_elected(mastership.epoch, Reason.UNCLEAN)
            self._log_given_up(mastership.epoch, candidacy.end)
        return mastership

    def _log_given_up(self, epoch: int, end: int) -> None:
        size, reported_ms_ago = self._unclean.given_up(end, self._clock.monotonic_ms())
        log_given_up(self._roles.own.counts, epoch, end, size, reported_ms_ago)

    async def _has_changed(self, coordinator: Coordinator, view: View, within_ms: int) -> bool:
        if within_ms <= 0:
            return coordinator.view is not view
        try:
            async with asyncio.timeout(within_ms / 1000):
                await coordinator.changed(view)
        except TimeoutError:
            return False
        return True

    async def _elect(
        self, coordinator: Coordinator, view: View, reason: Reason
    ) -> Mastership | None:
        async with self._claiming:
            coordinator.announce(self._candidacy())
            mastership = await coordinator.elect(view)
        if mastership is None:
            # The view is out of date: the watch may be late by up to the duration of a lease.
            await coordinator.read()
        else:
            self._note_elected(mastership.epoch, reason)
        return mastership

    def _note_elected(self, epoch: int, reason: Reason) -> None:
        self._roles.own.counts.elected(reason)
        structlog.get_logger().warning("elected", epoch=epoch, reason=reason.value)

    # ---- promoted ----

    async def promote(self, *, unclean: bool) -> Promotion:
        coordinator = self._coordinator
        if coordinator is None:  # the port opens before this has started
            raise self._roles.refusal()
        async with self._promoting:
            if (promotion := self.as_master()) is not None:
                self._given_up = self._silent if unclean else self._given_up
                return promotion
            self.check_finished()
            try:
                epoch, handed_over = await self._claim_by_hand(coordinator, unclean=unclean)
            except (CoordinatorAway, CoordinatorDamaged) as error:
                raise NotPromoted(str(error)) from error
            await self.until_master(epoch)
        return Promotion(epoch, handed_over)

    async def _claim_by_hand(self, coordinator: Coordinator, *, unclean: bool) -> tuple[int, bool]:
        """Claim the mastership for an operator.

        Return the epoch, and whether the previous master has handed over.
        """
        me = self._roles.own.replica
        for _ in range(CLAIMS):
            view = await coordinator.read()
            self.check_finished()
            if not (unclean or self._is_electable(view)):
                raise NotElectable(not_in_sync(me, self._decide(view).reason))
            handed_over = await self._ask_master(view, me, unclean=unclean)
            if not (unclean or handed_over or self._is_current(view)):
                decision = self._decide(await self._asked(view))
                if decision.yields:
                    raise NotElectable(not_in_sync(me, decision.reason))
            async with self._claiming:
                seen = await coordinator.read()  # the set may have changed while it handed over
                if seen.master != view.master or not (unclean or self._is_electable(seen)):
                    continue
                self.check_finished()  # it may have been reopened, or have cut its log
                gives_up, candidacy = not self._is_electable(seen), self._candidacy()
                coordinator.announce(candidacy)
                mastership = await coordinator.elect(seen, unclean=unclean)
                if mastership is not None:
                    reason = Reason.UNCLEAN_PROMOTION if unclean else Reason.PROMOTION
                    self._note_elected(mastership.epoch, reason)
                    if gives_up:
                        self._log_given_up(mastership.epoch, candidacy.end)
                    self._won = mastership
                    return mastership.epoch, handed_over
        raise NotPromoted("the coordinator's state changes all the time")

    def _is_electable(self, view: View) -> bool:
        """Return whether an election of this replica loses no acknowledged messages."""
        own = self._candidacy()
        if view.trusted_state(own.seen) is not None:
            return view.may_be_elected(own)
        return self._decide(view).wait_ms is not None

    async def _ask_master(self, view: View, me: Replica, *, unclean: bool) -> bool:
        """Ask the master to hand over, and return whether it has done so.

        A master that does not answer is replaced anyway. If the process of this member is current,
        that loses nothing, because this member has all acknowledged messages.
        """
        master = view.master
        if master is None:
            return False
        try:
            await self.calls.hand_over(master.address, master.epoch, me)
        except MqError as error:
            if error.code in (Code.BROKER_UNREACHABLE, Code.SERVICE_NOT_AVAILABLE):
                structlog.get_logger().warning("not_handed_over", reason=error.message)
                return False
            raise
        return True

    async def note_epoch(self, epoch: int) -> LogDescription:
        raise NotElectable("etcd decides who is master of this group, not options")

    def _log_waiting(self, view: View, decision: Decision) -> None:
        """Log the decision, once for each reason and in-sync set."""
        members = sorted(map(str, view.state.in_sync)) if view.state is not None else []
        if not decision.reason or (logged := f"{members} {decision.reason}") == self._logged:
            return
        self._logged = logged
        log = structlog.get_logger().bind(replica=str(self._roles.own.replica), in_sync=members)
        if decision.wait_ms is not None or decision.yields:
            log.warning("waits_for_set", reason=decision.reason)
            return
        name, number = self._options.broker_name, self._options.broker_id
        promote = f"aerobee broker promote {name} --to {number} --unclean"
        advice = f"if the others are gone for good, {promote} gives up what only they have"
        log.warning("not_electable", reason=decision.reason, advice=advice)

    # ---- slave ----

    async def _follow(
        self, coordinator: Coordinator, view: View, master: MasterKey
    ) -> Mastership | None:
        """Follow `master` until another master is known.

        Return a mastership if this replica won one.
        """
        broke, ended = asyncio.Event(), asyncio.Event()

        def on_broken() -> None:
            broke.set()
            ended.set()

        async def address() -> str:
            return master.address

        elected: list[Mastership] = []

        async def claim() -> None:
            while not elected:
                broke.clear()
                await broke.wait()
                if await refuses(master.address):
                    elected.extend(await self._claim(coordinator, master))

        works = [
            self._roles.run_slave(address, self._options.broker_id, on_broken=on_broken),
            self._until_another(coordinator, view, master, ended),
        ]
        if self._options.ha_fast_failover:
            works.append(claim())
        await until_one_ends(*works)
        return elected[0] if elected else None

    async def _until_another(
        self, coordinator: Coordinator, view: View, master: MasterKey, ended: asyncio.Event
    ) -> None:
        """Wait until another master is known, or until the master is gone.

        A master may have lost its key while its stream is open, for example after an outage of
        etcd. It has the duration of a lease to put the key back, and more if etcd has lost the
        state.
        """
        while True:
            is_lost = view.trusted_state(self._roles.own.enrollment.seen) is None
            if view.master is not None and view.master.nonce != master.nonce and not is_lost:
                return
            if view.master is not None and view.master.nonce == master.nonce:
                view = await coordinator.changed(view)
                continue
            ended.clear()
            if not self._roles.is_following:
                return
            timeout_s = None if is_lost else self._options.etcd_lease_ttl
            waits = [
                asyncio.ensure_future(ended.wait()),
                asyncio.ensure_future(self._until_news(coordinator, view, is_lost=is_lost)),
            ]
            try:
                done, _ = await asyncio.wait(
                    waits, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED
                )
            finally:
                for wait in waits:
                    wait.cancel()
            if waits[1] not in done or coordinator.view is None:
                return
            view = coordinator.view

    async def _until_news(self, coordinator: Coordinator, view: View, *, is_lost: bool) -> None:
        """Wait until a master is known again. If the state was lost, wait for any change."""
        before = view
        while view is before or (view.master is None and not is_lost):
            view = await coordinator.changed(view)

    async def _claim(self, coordinator: Coordinator, master: MasterKey) -> list[Mastership]:
        """Claim the key of a master whose port refuses connections.

        Return the mastership in a list, or an empty list if the claim fails. The claim is safe even
        if that master still lives.
        """
        view, own = coordinator.view, self._roles.own
        if view is None or view.master != master or not own.is_open:
            return []
        if not view.may_be_elected(self._candidacy()):
            return []
        if not self._is_current(view):
            return []
        if await self._has_changed(coordinator, view, rank(view, own.replica) * RANK_MS):
            return []
        try:
            mastership = await self._elect(coordinator, view, Reason.PORT_REFUSES)
        except (CoordinatorAway, NotServed) as error:  # or its store is being reopened
            structlog.get_logger().warning("not_elected", reason=str(error))
            return []
        return [] if mastership is None else [mastership]

    # ---- master ----

    async def _lead(self, coordinator: Coordinator, won: Mastership) -> None:
        """Lead in the epoch that was won, until another replica is elected.

        If the coordinator loses its data, the old master asks this replica for its epoch. So this
        replica reports the epoch first, and then reads whether the coordinator still has it.
        """
        self._claimed_epoch = won.epoch
        try:
            try:
                mastership = won.seen_in(await coordinator.read())
            except (CoordinatorAway, CoordinatorDamaged):
                self._won = self._won or won
                raise
            if mastership is not None and not mastership.is_forgotten:
                await self._lead_in(coordinator, mastership)
        finally:
            self._claimed_epoch = 0
            self._silent = self._given_up = frozenset()

    async def _lead_in(self, coordinator: Coordinator, mastership: Mastership) -> None:
        keeper = MastershipKeeper(
            coordinator,
            mastership,
            lambda possible: self._may_restore(coordinator, mastership.epoch, possible),
        )
        keeping = asyncio.create_task(keeper.run(), name="mastership")

        async def ended(role: MasterRole) -> None:
            ends: list[asyncio.Future[Any]] = [keeping, role.over]
            looking = PeriodicTask(
                "contact", CONTACT_S, lambda: self._look_for_contact(coordinator, role)
            )
            await looking.start()
            try:
                await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            finally:
                await looking.stop()
            reason = self._roles.own.store.flush.read_only_reason
            if reason:  # another master is elected while this one pauses
                raise StoreReadOnly(reason)

        superseded = False
        try:
            await self._roles.run_master(
                mastership.epoch, KeptSet(keeper), ended, lambda _: self._has_gone_back(coordinator)
            )
            superseded = keeping.done()
        finally:
            keeping.cancel()
            await asyncio.wait([keeping])
            if not superseded:
                await self._resign(coordinator, keeper.mastership)

    async def _may_restore(
        self, coordinator: Coordinator, epoch: int, possible: frozenset[Replica]
    ) -> bool:
        """Return whether no replica of `possible` was elected after `epoch`.

        A replica that answers with another store has lost its disk, so nothing is left of what it
        may have acknowledged. Raises MayBeReplaced if one of them does not answer. Only the
        operator can give it up.
        """
        candidacies = {} if coordinator.view is None else coordinator.view.candidacies
        others = possible - {self._roles.own.replica}
        known = [candidacies.get(each.replica_id) for each in others]
        answers = await asyncio.gather(
            *(self.calls.status(each.address) for each in known if each is not None),
            return_exceptions=True,
        )
        epochs: dict[int, int] = {}  # by replica id
        for answer in answers:
            if isinstance(answer, ReplicaStatus):
                epochs[answer.log.replica.replica_id] = answer.log.epoch
            elif not isinstance(answer, MqError):
                raise answer
        if any(epoch < other and can_reach(other, epoch) for other in epochs.values()):
            return False
        heard = {each for each in others if epochs.get(each.replica_id, epoch + 1) <= epoch}
        self._silent = others - heard - self._given_up
        if self._silent:
            name, number = self._options.broker_name, self._options.broker_id
            silent = ", ".join(str(each.replica_id) for each in sorted(self._silent))
            self._waits_because = (
                f"etcd has lost the state of this group, and replica {silent} may have been "
                f"elected: start it; if it is gone for good, aerobee broker promote {name} --to "
                f"{number} --unclean gives up what only it has"
            )
            raise MayBeReplaced(self._waits_because)
        return True

    def _has_gone_back(self, coordinator: Coordinator) -> bool:
        """Return whether the coordinator's state is older than one that a replica has read.

        Only then a higher epoch that a slave knows shows that another master was elected. In all
        other cases the coordinator notifies this master of its successor.
        """
        view, seen = coordinator.view, self._roles.own.enrollment.seen
        return view is not None and view.trusted_state(seen) is None

    async def _look_for_contact(self, coordinator: Coordinator, role: MasterRole) -> None:
        """Isolate the master if its lease has ended and an in-sync replica is silent.

        In this case another master may have been elected.
        """
        lease_ms = self._options.etcd_lease_ttl * 1000
        lost = coordinator.alive_until_ms() < self._clock.monotonic_ms()
        is_isolated = lost and role.silent_ms() > lease_ms
        await self._roles.set_isolated(role, is_isolated=is_isolated)

    async def _resign(self, coordinator: Coordinator, mastership: Mastership) -> None:
        """Delete the master key on a stop or a disk failure.

        Then another replica is elected at once.
        """
        try:
            await coordinator.resign(mastership)
        except (CoordinatorAway, CoordinatorDamaged) as error:
            structlog.get_logger().warning("not_resigned", reason=str(error))


class KeptSet:
    """Give a mastership keeper the interface of `CoordinatedSet`. Each answer is final."""

    def __init__(self, keeper: MastershipKeeper) -> None:
        self._keeper = keeper

    async def write(self, members: Members, confirmed: int) -> Members | None:
        self._keeper.want(members, confirmed)
        return await self._keeper.settled()

    async def read(self) -> Members | None:
        return await self._keeper.settled()
