"""Connect the parts of a broker, and bind them to gRPC services.

The module starts nothing: `app` and the tests start the result of `components`.
"""

from __future__ import annotations

from functools import partial

from aerobee.broker.v1 import (
    admin_pb2,
    client_pb2,
    dead_letter_pb2,
    lite_pb2,
    message_pb2,
    offset_pb2,
    pop_pb2,
    search_pb2,
    transaction_pb2,
)

from aerobee_broker.cluster.identity import Identity
from aerobee_broker.commit.commit import ALONE, Replicas
from aerobee_broker.config import BrokerOptions
from aerobee_broker.delivery.admin import Administration
from aerobee_broker.delivery.draining import Draining
from aerobee_broker.delivery.gauges import Backlog, ConsumerGauges, Gauges, LiteGauges, StoreGauges
from aerobee_broker.delivery.lite.lag import GroupProgress
from aerobee_broker.delivery.pop.lease_space import LeaseSpaces
from aerobee_broker.delivery.statistics.listing import Listing
from aerobee_broker.delivery.statistics.sampler import Kind, Sampler
from aerobee_broker.delivery.waiting import Waiting
from aerobee_broker.metadata.table_journal import TableUpkeep
from aerobee_broker.registry.topics import Announce, Spread
from aerobee_broker.rpc.admin import AdminRpcs, StatusReport
from aerobee_broker.rpc.clients import ClientRpcs
from aerobee_broker.rpc.letters import LetterRpcs
from aerobee_broker.rpc.lite import LiteRpcs
from aerobee_broker.rpc.messages import MessageRpcs, TransactionRpcs
from aerobee_broker.rpc.offsets import OffsetRpcs
from aerobee_broker.rpc.pop import PopRpcs
from aerobee_broker.rpc.reads import LookupRpcs, QueueRpcs, ReadRpcs
from aerobee_broker.rpc.search import SearchRpcs
from aerobee_broker.rpc.tracking import TrackingRpcs
from aerobee_broker.rpc.waiting import WaitingRpcs
from aerobee_broker.store.message_store import MessageStore
from aerobee_broker.wiring.consuming import Consuming, letter_jobs
from aerobee_broker.wiring.core import Core
from aerobee_broker.wiring.environment import Environment
from aerobee_broker.wiring.lite import Lite
from aerobee_broker.wiring.sending import Delay, Sending, TransactionParts
from aerobee_broker.wiring.store import store_options
from aerobee_broker.wiring.tables import Tables
from aerobee_chassis.background import BackgroundTask
from aerobee_chassis.lifecycle import Component, Step
from aerobee_chassis.rpc.services import Service, bind

TRANSACTION_ROUND_MS = 1_000  # between two checks of the transactions that are due


class Broker:
    """Own the parts of a broker.

    `announce` registers changed topics with the name servers. `spread` creates a topic on the other
    brokers of the cluster. `replicas` are the replicas of this broker's log. If there are any,
    `table_upkeep` saves the journalled tables.
    """

    def __init__(
        self,
        environment: Environment,
        store: MessageStore,
        tables: Tables,
        identity: Identity,
        *,
        announce: Announce,
        spread: Spread,
        replicas: Replicas = ALONE,
        table_upkeep: TableUpkeep | None = None,
    ) -> None:
        core = self._core = Core(
            environment, store, tables, announce=announce, spread=spread, replicas=replicas
        )
        self._identity, self._table_upkeep = identity, table_upkeep
        self.store, self.commit, self.log, self.polls = store, core.commit, core.log, core.polls
        self.topics, self.groups, self.clients = core.topics, core.groups, core.clients
        self.topic_retention = core.topic_retention
        self.locks, self.replies = core.locks, core.replies
        self.permission = core.permission
        self.delay = Delay(core)
        parts = self._transaction_parts = TransactionParts(core, self.delay.router)
        self.transactions = parts.transactions
        self.transaction_checks, self.transaction_upkeep = parts.checks, parts.upkeep
        self.sending = Sending(core, self.delay, self.transactions, identity.store_host)
        self.consuming = Consuming(core)
        self.lite = lite = Lite(core)
        self.letters = letter_jobs(core, self.consuming)
        self.leases = LeaseSpaces(
            queues=self.consuming.leases, lite=lite.leases, lite_in_use=lambda: lite.state.in_use
        )
        self.sampler = Sampler(
            environment.metrics, self.consuming.offset_queries.lags, environment.clock
        )
        self.administration = Administration(
            store=store,
            topics=core.topics,
            groups=core.groups,
            clients=core.clients,
            offsets=tables.offsets,
            saved_offsets=tables.saved_offsets,
            polls=core.polls,
            leases=self.consuming.leases,
            journal=core.journal,
            lite=self.lite.state,
            forget_topic=partial(self.sampler.forget, Kind.TOPIC),
            forget_group=partial(self.sampler.forget, Kind.GROUP),
            letters=self.letters,
        )
        backlog = Backlog(core.polls, self.delay.levels, self.delay.timers, self.transactions)
        self.draining = self._make_draining(tables, backlog)
        self.report = StatusReport(
            identity=identity,
            store=store,
            metrics=environment.metrics,
            backlog=backlog,
            drain=tables.drain,
            disk=environment.disk,
            store_path=environment.path,
            options=environment.options,
            clock=environment.clock,
        )
        self.gauges = Gauges(
            metrics=environment.metrics,
            store=store,
            store_gauges=StoreGauges(
                metrics=environment.metrics,
                disk=environment.disk,
                path=environment.path,
                clock=environment.clock,
            ),
            backlog=backlog,
            leases=self.consuming.leases,
            topics=core.topics,
            groups=core.groups,
            clients=core.clients,
            clock=environment.clock,
        )
        self.consumer_gauges = ConsumerGauges(
            queries=self.consuming.offset_queries,
            leases=self.consuming.leases,
            metrics=environment.metrics,
            clock=environment.clock,
            timers=self.delay.timers,
        )
        self.lite_gauges = LiteGauges(self.lite.lag, environment.metrics)

    def _make_draining(self, tables: Tables, backlog: Backlog) -> Draining:
        return Draining(
            clock=self._core.environment.clock,
            drain=tables.drain,
            saved_drain=tables.saved_drain,
            store=self.store,
            topics=self.topics,
            groups=self.groups,
            offset_queries=self.consuming.offset_queries,
            leases=self.leases,
            lite_lag=self.lite.lag,
            backlog=backlog,
        )

    def components(self) -> tuple[Component, ...]:
        """Return the components in the order of their start.

        They stop in reverse order: delivery ends, then everything is flushed, then the tables are
        saved.
        """
        journal = () if self._core.journal is None else (self._core.journal,)
        return (
            Step(start=self.store.enable_read_retries),
            Step(stop=self.gauges.clear),
            *journal,
            self._core.tables,
            Step(restore=self._core.restore_registries),
            self.transaction_upkeep,
            self.consuming.leases.journal,
            Step(stop=self.commit.drain),
            self.delay.levels,
            self.delay.timers,
            self.consuming.leases,
            BackgroundTask("lease expiry", self.consuming.leases.expiry.run),
            self.letters,
            self.lite.state,
            self.lite.ttl,
            BackgroundTask("lite lease expiry", self.lite.leases.expiry.run),
        )

    async def save_tables(self) -> None:
        """Save consumer offsets. Save topics and groups too, if an earlier save failed."""
        if self._table_upkeep is not None:
            await self._table_upkeep.save()
        else:
            await self._core.tables.save_incremental()
        await self._core.tables.saved_history.save()

    async def use(self, options: BrokerOptions) -> None:
        """Put the options that may change at run time into effect.

        Raises MqError if the topic that new topics inherit from cannot be saved.
        """
        self.store.use(store_options(options))
        self.groups.use(options)
        self.replies.use(options.max_message_size)
        self.sending.admission.use(options)
        self.consuming.pull.reading.use(options)
        self.delay.use(options)
        self._transaction_parts.use(options)
        self.report.use(options)
        await self.topics.use(options)

    def due_in_ms(self) -> float | None:
        """Return the ms until time alone triggers an action: a delivery, a lease end, a check.

        Return None if no action is pending, and a negative value if an action is due or running.
        """
        checks_ms = self.transaction_checks.schedule.due_in_ms()
        waits = (
            self.delay.levels.due_in_ms(),
            self.delay.timers.head_due_in_ms(),
            self.consuming.leases.deadlines.due_in_ms(),
            self.lite.leases.deadlines.due_in_ms(),
            None if checks_ms is None else checks_ms + TRANSACTION_ROUND_MS,
        )
        return min((wait for wait in waits if wait is not None), default=None)

    def end_long_calls(self) -> None:
        """End long polls and streams, because they would use up the grace period of a stop."""
        self.clients.close()
        self.polls.close()
        self.lite.dispatch.ready.close()
        self.sampler.close()

    def services(self) -> list[Service]:
        consuming, broker_name = self.consuming, self._identity.broker_name
        messages = MessageRpcs(
            sender=self.sending.sender,
            batch_sender=self.sending.batch_sender,
            send_back=self.sending.send_back,
            timer_recall=self.delay.recall,
            replies=self.replies,
            identity=self._identity,
            send_latency=self.sampler.send_latency,
        )
        pop = PopRpcs(consuming.pop, consuming.notifications, self.leases, broker_name=broker_name)
        reads = ReadRpcs(consuming.pull, self.store)
        queries = consuming.offset_queries
        progress = GroupProgress(queries, self.lite.lag)
        offsets = OffsetRpcs(queries, self._core.handovers, progress)
        lite = LiteRpcs(
            self.lite.syncing, self.lite.pop, self.lite.inspection, broker_name=broker_name
        )
        clients = ClientRpcs(
            self.clients,
            self.groups,
            self.locks,
            self.transaction_checks,
            self.replies,
            polls=self.polls,
            clock=self._core.environment.clock,
        )
        admin = AdminRpcs(
            self.administration,
            self.draining,
            self.report,
            self.topics,
            self.groups,
            Listing(
                queries=queries,
                progress=progress,
                leases=self.leases,
                sampler=self.sampler,
            ),
            self.locks,
        )
        search = SearchRpcs(consuming.searches, consuming.copies)
        waiting = WaitingRpcs(
            Waiting(
                store=self.store,
                groups=self.groups,
                leases=self.leases,
                transactions=self.transactions,
                levels=self.delay.levels,
                timers=self.delay.timers,
            )
        )
        return [
            bind(contract.DESCRIPTOR.services_by_name[name], *handlers)
            for contract, name, *handlers in (
                (message_pb2, "MessageService", messages, reads, LookupRpcs(self.store)),
                (offset_pb2, "OffsetService", offsets, QueueRpcs(queries)),
                (client_pb2, "ClientService", clients),
                (transaction_pb2, "TransactionService", TransactionRpcs(self.transactions)),
                (pop_pb2, "PopService", pop),
                (search_pb2, "SearchService", search, TrackingRpcs(consuming.tracking)),
                (lite_pb2, "LiteService", lite),
                (dead_letter_pb2, "DeadLetterService", LetterRpcs(self.letters)),
                (admin_pb2, "AdminService", admin, waiting),
            )
        ]
