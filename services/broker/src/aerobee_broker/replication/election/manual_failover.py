"""Run a member of a group without etcd.

The options decide which replica is master until an operator promotes another replica. After that
the epochs decide, also after a restart. Options that give another replica the role of the master
ask for a promotion. A promotion has these steps:

    ask every replica for its state → the master hands over, if it answers
    → each replica notes the new epoch, so that the old master confirms nothing more
    → this replica is master
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial

import structlog

from aerobee_broker.errors import EpochNotBelieved, MasterOutdated
from aerobee_broker.replication.election.coordinators.static_coordinator import StaticCoordinator
from aerobee_broker.replication.election.electability import (
    check_copies,
    check_electable,
    check_enough,
    check_furthest,
    check_related,
    check_whole,
    knows_of_promotions,
    lacks_confirmed,
    leads_already,
    master_among,
    related,
)
from aerobee_broker.replication.election.log_records import LogWitness
from aerobee_broker.replication.election.masters import GroupAtNameServer, Masters
from aerobee_broker.replication.election.member import Member
from aerobee_broker.replication.election.status import replica_status
from aerobee_broker.replication.election.unclean import log_given_up
from aerobee_broker.replication.errors import EpochNotNoted, NotPromoted, OtherGroup
from aerobee_broker.replication.in_sync.counts import Reason
from aerobee_broker.replication.log.epochs import NOTHING, EpochHistory, Reach, promotion_epoch
from aerobee_broker.replication.log.handshake import LogDescription
from aerobee_broker.replication.log.status import ReplicaStatus, Role
from aerobee_broker.replication.role.master import MasterRole
from aerobee_broker.replication.role.role_runner import RoleRunner
from aerobee_broker.replication.rpc.replica import Promotion, ReplicaCalls
from aerobee_chassis.background import PeriodicTask, until_one_ends
from aerobee_chassis.lifecycle import Lifecycle
from aerobee_wire.epochs import PROMOTION_STEP, can_reach
from aerobee_wire.route import FORMER_MASTER_ID
from aerobee_wire.status import MqError

AGAIN_S = 1.0  # seconds after a role could not be taken
RECORD_S = 1.0  # seconds between two records of the log at name servers


class ManualFailover(Member):
    """Take the role that the options and promotions decide. There are no elections.

    `start` returns when this replica has taken its role or has failed to. A master that learns of a
    higher epoch becomes a slave, because an operator has begun that epoch at another replica.
    """

    def __init__(
        self,
        roles: RoleRunner,
        coordinator: StaticCoordinator,
        masters: Masters,
        address: str,
        calls: ReplicaCalls,
    ) -> None:
        """Create the member. `address` is the "host:port" of this replica."""
        super().__init__(roles, calls)
        self._coordinator = coordinator
        self._masters = masters
        self._witness = LogWitness(roles.own, masters, lambda: roles.master is not None)
        self._lifecycle = Lifecycle()
        self._address = address
        self._options = roles.own.environment.options
        self._clock = roles.own.environment.clock.real
        self._started_ms = self._clock.monotonic_ms()
        self._task: asyncio.Task[None] | None = None
        self._tried = roles.taken  # also set when a role could not be taken
        self._wait_logged = False
        self._known_at_first = 0  # the highest epoch that it knew when it started
        # True if the options give this replica another role than at the previous start.
        self._was_changed = False
        self._promoted = asyncio.Event()
        self._promoted_to = NOTHING  # the epoch of a promotion, and the log that it compared

    async def start(self) -> None:
        self._coordinator.load()
        await self._lifecycle.start(PeriodicTask("log records", RECORD_S, self._witness.look))
        self._task = asyncio.create_task(self._run(), name="role")
        await self._tried.wait()

    async def stop(self) -> None:
        await self._lifecycle.stop()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        await super().stop()

    # ---- which role ----

    async def _run(self) -> None:
        leads: bool | None = None
        while True:
            try:
                if leads is None:
                    leads = await self._leads_at_first()
                promoted, self._promoted_to = self._promoted_to, NOTHING
                self._promoted.clear()
                if promoted.epoch:
                    await self._lead(promoted.epoch, promoted.end)
                elif leads and self._must_be_promoted():
                    await until_one_ends(
                        self._follow(), self._until_promoted(), self._promote_by_options()
                    )
                elif leads and (may_lead := await self._may_lead()) is not False:
                    if may_lead is None:
                        await until_one_ends(
                            self._follow(), self._until_promoted(), self._until_answers()
                        )
                        continue
                    self._roles.own.counts.elected(Reason.START)
                    await self._lead(self._next_epoch())
                else:
                    await until_one_ends(self._follow(), self._until_promoted())
                leads = False
                continue
            except (MqError, OSError, ValueError) as error:
                structlog.get_logger().error("role_not_taken", reason=str(error))
            except Exception:
                structlog.get_logger().exception("role_failed")
            self._tried.set()
            await asyncio.sleep(AGAIN_S)
            await self.until_open()

    async def _until_promoted(self) -> None:
        await self._promoted.wait()

    async def _leads_at_first(self) -> bool:
        """Return whether this replica begins as master, by its options and its own files.

        The options decide at the first start and after they were changed. Otherwise this replica
        leads if it was the last master.
        """
        by_options = self._options.broker_role != "SLAVE"
        role, before = "master" if by_options else "slave", self._coordinator.configured
        await self._coordinator.configure(role)
        self._was_changed = before not in ("", role)
        self._known_at_first = self._roles.own.highest_epoch()
        if self._was_changed or self._coordinator.state is None:
            return by_options
        return self._led_last()

    def _must_be_promoted(self) -> bool:
        """Return whether the options give this replica the role of another master.

        It may lack acknowledged messages, so it leads only if a promotion would lose none. A group
        in which one copy suffices has given that up.
        """
        options, quorums = self._options, self._roles.own.epochs.history.quorums
        required = max([options.least_copies, *(each.required for each in quorums)])
        if not (options.namesrvs and self._known_at_first):
            return False
        if required < 2:
            return False
        return self._coordinator.state is None or not self._led_last()

    async def _promote_by_options(self) -> None:
        """Retry a promotion of this replica. Return when another master has begun an epoch."""
        while self._roles.own.highest_epoch() <= self._known_at_first:
            await asyncio.sleep(AGAIN_S)
            if await self._highest_elsewhere() > self._known_at_first:
                return
            try:
                await self.promote(unclean=False)
            except MqError as error:
                if not self._wait_logged:
                    log = structlog.get_logger()
                    log.warning(
                        "waits_for_replicas", epoch=self._known_at_first, reason=error.message
                    )
                self._wait_logged = True

    def _led_last(self) -> bool:
        """Return whether this replica led, or was about to, in the highest epoch that it knows."""
        own, state = self._roles.own, self._coordinator.state
        assert state is not None, "it was a master once"
        highest = own.highest_epoch()
        if highest > state.epoch:
            log = structlog.get_logger()
            log.warning("master_superseded", epoch=highest, own_epoch=state.epoch)
        # If another replica has taken that epoch too, the history lacks this replica's entry.
        entries = own.epochs.history.entries
        led = any(
            (each.epoch, each.store_id) == (state.epoch, own.replica.store_id) for each in entries
        )
        return highest < state.epoch or (highest == state.epoch and led)

    def _next_epoch(self) -> int:
        highest = self._highest_epoch()
        number = self._roles.own.replica.replica_id
        return promotion_epoch(highest, number) if self._was_changed else highest + 1

    def _highest_epoch(self) -> int:
        """Return the highest epoch that this replica knows."""
        return max(self._roles.own.highest_epoch(), self._coordinator.epoch)

    async def _lead(self, epoch: int, least_end: int = 0) -> None:
        """Lead `epoch` until a higher epoch is known.

        A restart leads again without a comparison of logs, once the begin is durable. So the log
        must be durable first, up to the physical offset `least_end`, with which the other replicas
        were compared. Raises NotPromoted if the disk has lost a part of it.
        """
        own = self._roles.own
        await own.flush_rest()
        if own.store.flushed_offset < least_end:
            raise NotPromoted(
                f"its log ended at physical offset {least_end}, and its disk has lost what is "
                f"behind {own.store.flushed_offset}"
            )
        await self._coordinator.begin(epoch, own.replica)
        await self._roles.run_master(epoch, self._coordinator, self._until_outdated)

    async def _until_outdated(self, role: MasterRole) -> None:
        role.end(self._roles.own.highest_epoch())  # noted while the role started
        await until_one_ends(self._until_appointed(role), self._until_known_elsewhere(role))
        structlog.get_logger().warning("master_superseded", own_epoch=self._roles.epoch)

    async def _until_appointed(self, role: MasterRole) -> None:
        """Wait until a slave or a promoted replica has reported a higher epoch."""
        if not await asyncio.shield(role.over):  # its disk fails, and there are no elections
            await asyncio.Event().wait()  # it still serves reads, and reports its state

    async def _until_known_elsewhere(self, role: MasterRole) -> None:
        """Wait until other replicas or name servers know a higher epoch.

        A master that was isolated during a promotion has no slave that would report the epoch.
        """
        while True:
            await asyncio.sleep(self._options.ha_housekeeping_interval / 1000)
            highest = max(await self._highest_elsewhere(), self._roles.own.highest_epoch())
            if highest > self._roles.epoch:
                role.end(highest)
                return

    async def _highest_elsewhere(self) -> int:
        """Return the highest epoch that name servers and the replicas known to them report."""
        group = await self._masters.group()
        found, _ = await self._ask(group)
        return self._highest(group, found)

    def _highest(self, group: GroupAtNameServer, found: Sequence[ReplicaStatus]) -> int:
        at_name_servers = group.epoch if can_reach(group.epoch, self._highest_epoch()) else 0
        return max([at_name_servers, *(each.log.epoch for each in found)])

    async def _may_lead(self) -> bool | None:
        """Return whether no other replica knows a higher epoch than this one.

        If this replica leads, its whole log becomes visible. Return None if the group has had a
        master and too few replicas answer to decide.
        """
        await self._witness.look()
        group = await self._masters.group()
        found, _ = await self._ask(group)
        # This replica may have noted a promotion of another replica meanwhile.
        heard = max(self._highest(group, found), self._roles.own.highest_epoch())
        highest = max(self._known_at_first, self._coordinator.epoch)
        if heard > highest:
            structlog.get_logger().warning("master_superseded", epoch=heard, own_epoch=highest)
            return False
        if not highest or self._was_changed:
            return True
        if self._is_older_copy(found):
            return False
        if (other := leads_already(found, highest)) is not None:
            self._log_other(other)
            return None
        own = self._roles.own.describe()
        if knows_of_promotions(own, found, self._options) and self._waited_for_all(found):
            return True
        if not self._wait_logged:
            answering = [each.log.replica.replica_id for each in found]
            structlog.get_logger().warning("waits_for_replicas", epoch=highest, answer=answering)
        self._wait_logged = True
        return None

    def _is_older_copy(self, found: Sequence[ReplicaStatus]) -> bool:
        """Return whether this disk is known to lack messages that the group has confirmed."""
        if self._roles.own.is_displaced:
            return True  # logged when it was found
        own = self._roles.own.describe()
        if (knows_more := lacks_confirmed(own, found)) is None:
            return False
        structlog.get_logger().error(
            "store_went_back",
            end=own.end,
            known_end=knows_more.log.confirmed,
            known_by=str(knows_more.log.replica),
            advice="this disk is an older copy, and does not lead: promote another replica",
        )
        return True

    def _log_other(self, address: str) -> None:
        if not self._wait_logged:
            structlog.get_logger().error(
                "other_process_leads",
                other_address=address,
                advice="another process is master of this replica's last epoch, perhaps with a "
                "copy of its disk: stop one of them",
            )
        self._wait_logged = True

    def _waited_for_all(self, found: Sequence[ReplicaStatus]) -> bool:
        """Return whether all other replicas answer, or have had enough time to answer.

        One of the other replicas may know that the disk of this replica is an older copy.
        """
        options = self._options
        if not (options.namesrvs and options.is_synchronous):
            return True
        waited_ms = self._clock.monotonic_ms() - self._started_ms
        others = sum(not each.learner for each in found)
        return others >= options.total_replicas - 1 or waited_ms >= options.election_wait_for_set

    async def _until_answers(self) -> None:
        """Wait until other replicas report whether this one may lead again."""
        while True:
            await asyncio.sleep(AGAIN_S)
            if await self._may_lead() is not None:
                return

    async def _follow(self) -> None:
        number = self._options.broker_id or FORMER_MASTER_ID
        await self._roles.run_slave(self._find_master, number)

    async def _find_master(self) -> str:
        """Return the address of the master.

        Name servers know of promotions. The option haMasterAddress names only the first master.
        """
        group = await self._masters.group()
        registered = "" if group.master == self._address else group.master
        if registered and group.epoch >= self._roles.own.highest_epoch():
            return registered
        return self._options.ha_master_address or registered

    # ---- promoted ----

    async def promote(self, *, unclean: bool) -> Promotion:
        async with self._promoting:
            if (promotion := self.as_master()) is not None:
                if unclean:
                    await self._give_up_unmet()
                return promotion
            self.check_finished()
            await self._witness.look()  # before the others answer: their logs grow
            records = dict(self._witness.records)
            own, before = replica_status(self._roles, self._address), self._highest_epoch()
            damaged = list(self._roles.own.store.damage.ranges)
            found = await self._others()
            if not unclean:
                check_related(own.log, found)
                check_whole(own.log, damaged, found)
            master = master_among(related(own.log, found))
            if master is not None:
                check_copies(own, self._options, master)
                await self.calls.hand_over(master.address, master.log.epoch, own.log.replica)
            elif not unclean:
                check_electable(own)
                check_enough(own, found, self._options, records)
                check_furthest(own.log, [each.log for each in found if not each.learner])
            if (begun := self._highest_epoch()) > before:
                # A higher epoch would end its master, and this replica may have a shorter log.
                raise NotPromoted(f"another promotion has begun epoch {begun}")
            highest = max([before, *(each.log.epoch for each in found)])
            epoch = promotion_epoch(highest, own.log.replica.replica_id)
            noted = await self._note_at([each.address for each in found], epoch)
            # The old master may be back, and this replica may have cut its log.
            self.check_finished()
            known = {log.replica for log in noted}
            answered = [each for each in found if each.log.replica in known]
            if not unclean and (master is None or master.log.replica not in known):
                check_enough(own, answered, self._options, records)
            if not unclean:
                # Also after a handover: the master accepts messages again if this took too long.
                whole = {each.log.replica for each in answered if not each.learner}
                check_furthest(
                    self._roles.own.describe(), [log for log in noted if log.replica in whole]
                )
            if master is None and unclean:
                lacks = max(0, own.master_end - own.log.end) if own.master_end else None
                log_given_up(self._roles.own.counts, epoch, own.log.end, lacks, None)
            reason = Reason.UNCLEAN_PROMOTION if unclean else Reason.PROMOTION
            self._roles.own.counts.elected(reason)
            self._promoted_to = Reach(epoch, 0 if unclean else self._roles.own.describe().end)
            self._promoted.set()
            try:
                await self.until_master(epoch)
            except NotPromoted:
                self._promoted_to = NOTHING  # not later, when another replica may have more
                raise
            if unclean:
                await self._give_up_unmet()
        return Promotion(epoch, handed_over=master is not None)

    async def _give_up_unmet(self) -> None:
        """Accept sends although too few replicas know the options of this master."""
        if self._roles.master is not None:
            await self._roles.master.give_up_unmet()

    async def _others(self) -> list[ReplicaStatus]:
        """Return the status of each other replica that answers.

        The addresses come from the name servers and the options.
        """
        found, silent = await self._ask(await self._masters.group())
        for error in silent:
            structlog.get_logger().warning("replica_does_not_answer", reason=error.message)
        return [each for each in found if each.role is not Role.REFUSED]

    async def _ask(self, group: GroupAtNameServer) -> tuple[list[ReplicaStatus], list[MqError]]:
        """Return one status for each replica id that answers, and the errors of the rest.

        A replica with an epoch that this group cannot have reached counts as one that is silent.
        So does one of another group: an address may have been given to another machine.
        """
        addresses = {*group.addresses.values(), self._options.ha_master_address}
        asked = [self.calls.status(each) for each in sorted(addresses - {self._address, ""})]
        found: dict[int, ReplicaStatus] = {}
        silent: list[MqError] = []
        known, own = self._highest_epoch(), self._roles.own.replica
        group_name = self._options.broker_cluster_name, self._options.broker_name
        for answer in await asyncio.gather(*asked, return_exceptions=True):
            if isinstance(answer, ReplicaStatus) and answer.log.group != group_name:
                silent.append(OtherGroup(answer.address, *answer.log.group))
            elif isinstance(answer, ReplicaStatus) and not can_reach(answer.log.epoch, known):
                silent.append(EpochNotBelieved(str(own), answer.log.epoch, known))
            elif isinstance(answer, ReplicaStatus):
                found[answer.log.replica.replica_id] = answer
            elif isinstance(answer, MqError):
                silent.append(answer)
            else:
                raise answer
        return list(found.values()), silent

    async def _note_at(self, addresses: list[str], epoch: int) -> list[LogDescription]:
        asked = (self.calls.note_epoch(address, epoch) for address in addresses)
        noted = []
        for answer in await asyncio.gather(*asked, return_exceptions=True):
            if isinstance(answer, LogDescription):
                noted.append(answer)
            elif isinstance(answer, MqError):
                structlog.get_logger().warning("epoch_not_noted", reason=answer.message)
            else:
                raise answer
        return noted

    async def note_epoch(self, epoch: int) -> LogDescription:
        own = self._roles.own
        if not (own.is_open and own.has_its_log):
            self.check_finished()

        def note(history: EpochHistory) -> EpochHistory:
            if epoch % PROMOTION_STEP or not can_reach(epoch, history.highest):
                raise EpochNotBelieved(str(own.replica), epoch, history.highest)
            if epoch <= history.highest:  # perhaps by another promotion
                raise MasterOutdated("that is to be master", epoch, history.highest)
            return history.note(epoch)

        try:
            await own.environment.flusher(partial(own.epochs.change, note))
        except OSError as error:  # it may still be on the disk, and be valid after a restart
            raise EpochNotNoted(str(own.replica), epoch, error) from error
        if self._roles.master is not None:
            self._roles.master.end(epoch)
        if not own.is_open:  # it is being reopened, and the end of its log is unknown
            raise self._roles.refusal()
        return own.describe()
