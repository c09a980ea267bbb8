"""A broker: its parts, wired, and the gRPC services over them.

Starts nothing: `app` and the tests start `components`.
"""

from __future__ import annotations

from aerobee.broker.v1 import (
    admin_pb2,
    client_pb2,
    message_pb2,
    offset_pb2,
    pop_pb2,
    transaction_pb2,
)

from aerobee_broker.delivery.admin import Administration
from aerobee_broker.delivery.broker_status import Backlog, Gauges, StatusReport
from aerobee_broker.delivery.draining import Draining, RemainingWork
from aerobee_broker.identity import Identity
from aerobee_broker.registry.topics import Announce, Spread
from aerobee_broker.rpc.admin import AdminRpcs
from aerobee_broker.rpc.clients import ClientRpcs
from aerobee_broker.rpc.messages import MessageRpcs
from aerobee_broker.rpc.offsets import OffsetRpcs
from aerobee_broker.rpc.pop import PopRpcs
from aerobee_broker.rpc.transactions import TransactionRpcs
from aerobee_broker.store.message_store import MessageStore
from aerobee_broker.wiring.consuming import Consuming
from aerobee_broker.wiring.core import Core
from aerobee_broker.wiring.delay import Delay
from aerobee_broker.wiring.environment import Environment
from aerobee_broker.wiring.sending import Sending
from aerobee_broker.wiring.tables import Tables
from aerobee_broker.wiring.transactions import TransactionParts
from aerobee_chassis.background import BackgroundTask
from aerobee_chassis.lifecycle import Component, Step
from aerobee_chassis.rpc.services import Service, bind


class Broker:
    """`announce` registers changed topics with the name servers, `spread` creates a topic on the
    other brokers of the cluster.
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
    ) -> None:
        core = self._core = Core(environment, store, tables, announce=announce, spread=spread)
        self._identity = identity
        self.store = store
        self.commit, self.log = core.commit, core.log
        self.topics, self.groups, self.clients = core.topics, core.groups, core.clients
        self.permission, self.polls = core.permission, core.polls

        delay = Delay(core)
        self.delay_queues, self.delay_router = delay.queues, delay.router
        self.level_delivery, self.timer_delivery = delay.levels, delay.timers
        self.timer_recall = delay.recall

        transactions = TransactionParts(core, delay.router)
        self.transactions, self.transaction_checks = transactions.transactions, transactions.checks
        self.transaction_upkeep = transactions.upkeep

        sending = Sending(core, delay, self.transactions, identity.store_host)
        self.sender, self.batch_sender = sending.sender, sending.batch_sender
        self.send_back = sending.send_back

        consuming = Consuming(core)
        self.pull, self.offset_queries = consuming.pull, consuming.offset_queries
        self.pop, self.acks, self.leases = consuming.pop, consuming.acks, consuming.leases
        self.invisible_durations = consuming.invisible_durations
        self.dead_letters = consuming.dead_letters
        self.lease_table, self.lease_journal = consuming.lease_table, consuming.lease_journal
        self.lease_deadlines = consuming.lease_deadlines
        self.lease_expiry = consuming.lease_expiry

        self._wire_administration()

    def _wire_administration(self) -> None:
        core, environment = self._core, self._core.environment
        self.administration = Administration(
            store=self.store,
            topics=self.topics,
            groups=self.groups,
            offsets=core.tables.offsets,
            saved_offsets=core.tables.saved_offsets,
            polls=self.polls,
            leases=self.leases,
        )
        backlog = Backlog(self.polls, self.level_delivery, self.timer_delivery, self.transactions)
        self.draining = Draining(
            core.tables.drain,
            core.tables.saved_drain,
            self.topics,
            RemainingWork(
                store=self.store,
                topics=self.topics,
                groups=self.groups,
                offset_queries=self.offset_queries,
                leases=self.leases,
                backlog=backlog,
            ),
        )
        self.report = StatusReport(
            self._identity,
            self.store,
            environment.metrics,
            backlog,
            core.tables.drain,
            disk=environment.disk,
            store_path=environment.path,
        )
        self.gauges = Gauges(
            environment.metrics,
            self.store,
            backlog,
            self.leases,
            topics=self.topics,
            groups=self.groups,
            clients=self.clients,
            offset_queries=self.offset_queries,
        )

    def components(self) -> tuple[Component, ...]:
        """In the order of their start. Stopped in reverse: delivery ends, then everything is
        flushed, then the tables are saved."""
        return (
            Step(start=self.store.enable_read_retries),
            self._core.tables,
            Step(restore=self._core.restore_registries),
            self.transaction_upkeep,
            self.lease_journal,
            Step(stop=self.commit.drain),
            self.level_delivery,
            self.timer_delivery,
            self.leases,
            BackgroundTask("lease expiry", self.lease_expiry.run),
        )

    def end_long_calls(self) -> None:
        """Long polls and streams, which would use up the grace of a stop."""
        self.clients.close()
        self.polls.close()

    def services(self) -> list[Service]:
        """The gRPC services over these parts."""
        messages = MessageRpcs(
            sender=self.sender,
            batch_sender=self.batch_sender,
            pull=self.pull,
            send_back=self.send_back,
            store=self.store,
            timer_recall=self.timer_recall,
            broker_name=self._identity.broker_name,
            store_host=self._identity.store_host,
        )
        admin = AdminRpcs(self.administration, self.draining, self.report, self.topics, self.groups)
        return [
            bind(message_pb2.DESCRIPTOR.services_by_name["MessageService"], messages),
            bind(
                offset_pb2.DESCRIPTOR.services_by_name["OffsetService"],
                OffsetRpcs(self.offset_queries),
            ),
            bind(
                client_pb2.DESCRIPTOR.services_by_name["ClientService"],
                ClientRpcs(self.clients, self.groups, self.transaction_checks),
            ),
            bind(
                transaction_pb2.DESCRIPTOR.services_by_name["TransactionService"],
                TransactionRpcs(self.transactions),
            ),
            bind(
                pop_pb2.DESCRIPTOR.services_by_name["PopService"],
                PopRpcs(
                    self.pop,
                    self.acks,
                    self.invisible_durations,
                    self.dead_letters,
                    broker_name=self._identity.broker_name,
                ),
            ),
            bind(admin_pb2.DESCRIPTOR.services_by_name["AdminService"], admin),
        ]
