"""Create and connect the parts for lite topics: their leases, pops, subscriptions and TTL."""

from __future__ import annotations

from aerobee_broker.delivery.lite.dispatch import LiteDispatch
from aerobee_broker.delivery.lite.inspection import LiteInspection
from aerobee_broker.delivery.lite.lag import LiteLag
from aerobee_broker.delivery.lite.line_leases import LineLeases
from aerobee_broker.delivery.lite.lite_pop import LitePop
from aerobee_broker.delivery.lite.positions import LitePositions, PositionsFile
from aerobee_broker.delivery.lite.ready import ReadyLines
from aerobee_broker.delivery.lite.state import LiteState
from aerobee_broker.delivery.lite.subscriptions import Subscriptions
from aerobee_broker.delivery.lite.syncing import Syncing
from aerobee_broker.delivery.lite.ttl import LiteTtl
from aerobee_broker.delivery.pop.lease_journal import LeaseJournal
from aerobee_broker.delivery.pop.lease_journal_format import QUEUE_ID
from aerobee_broker.delivery.pop.lease_space import LeaseSpace
from aerobee_broker.delivery.pull.access import ReadAccess
from aerobee_broker.wiring.core import Core
from aerobee_wire import topics as names


class Lite:
    def __init__(self, core: Core) -> None:
        environment, store, lines = core.environment, core.store, core.lines
        clock, options = environment.clock, environment.options
        topic = names.lite_journal_topic(options.broker_cluster_name)
        self.positions = positions = LitePositions(clock, lines.expirations)
        table = LineLeases(clock, lambda: store.max_offset(topic, QUEUE_ID), positions)
        journal = LeaseJournal(
            log=core.log,
            table=table,
            snapshot=core.tables.file_of(table, "liteLeases.json", logged=core.log.visible),
            clock=clock,
            topic=topic,
        )
        self.dispatch = dispatch = LiteDispatch(
            lines=lines,
            subscriptions=Subscriptions(),
            ready=ReadyLines(),
            table=table,
            positions=positions,
            journal=journal,
        )
        core.parents.listen(lines.add_parent)
        core.parents.listen(lambda parent: core.arrivals.listen(parent, dispatch.arrived))
        self.leases = LeaseSpace(
            lines,
            journal,
            positions,
            dispatch,
            topics=core.topics,
            groups=core.groups,
            metrics=environment.metrics,
            levels_ms=options.delay_levels_ms,
            whole_batches=True,
        )
        self.pop = LitePop(
            dispatch=dispatch,
            leases=self.leases,
            access=ReadAccess(
                core.topics, core.groups, core.permission, options, environment.in_flight
            ),
            metrics=environment.metrics,
        )
        self.syncing = Syncing(
            store=store,
            dispatch=dispatch,
            topics=core.topics,
            groups=core.groups,
            clock=clock.real,
        )
        core.clients.on_leave(self.syncing.leave)
        self.lag = LiteLag(lines, positions, core.groups)
        self.inspection = LiteInspection(dispatch, self.syncing, clock.real)
        self.state = LiteState(
            store=store,
            lines=lines,
            positions=positions,
            file=PositionsFile(environment.disk, environment.path / "liteOffsets"),
            table=table,
            leases=self.leases,
            syncing=self.syncing,
            topics=core.tables.topics,
            writer=environment.writer,
            add_parent=core.parents,
        )
        store.cleaning.protect(self.state.needed_from)
        self.ttl = self._ttl(core, table, journal)

    def _ttl(self, core: Core, table: LineLeases, journal: LeaseJournal) -> LiteTtl:
        return LiteTtl(
            store=core.store,
            lines=core.lines,
            ready=self.dispatch.ready,
            table=table,
            positions=self.positions,
            journal=journal,
            topics=core.tables.topics,
            groups=core.groups,
            metrics=core.environment.metrics,
            clock=core.environment.clock,
        )
