"""The wiring of pull, pop and the offsets of groups."""

from __future__ import annotations

from aerobee_broker.config import BrokerOptions
from aerobee_broker.delivery.pop.acks import Acknowledgements
from aerobee_broker.delivery.pop.dead_letters import DeadLetters
from aerobee_broker.delivery.pop.expiry import LeaseDeadlines, LeaseExpiry
from aerobee_broker.delivery.pop.invisible_duration import InvisibleDurations
from aerobee_broker.delivery.pop.lease_journal import LeaseJournal
from aerobee_broker.delivery.pop.lease_journal_format import QUEUE_ID
from aerobee_broker.delivery.pop.lease_table import LeaseTable
from aerobee_broker.delivery.pop.leases import Leases
from aerobee_broker.delivery.pop.pop import Notifications, Pop
from aerobee_broker.delivery.pop.selector import MessageSelector
from aerobee_broker.delivery.pull.access import ReadAccess
from aerobee_broker.delivery.pull.offsets import OffsetQueries
from aerobee_broker.delivery.pull.pull import Pull
from aerobee_broker.delivery.pull.reading import QueueReading
from aerobee_broker.delivery.pull.slow_readers import SlowReaders
from aerobee_broker.metrics import memory_limit
from aerobee_broker.wiring.core import Core
from aerobee_wire import topics as names


class Consuming:
    def __init__(self, core: Core) -> None:
        options, tables = core.environment.options, core.tables
        access = ReadAccess(
            core.topics, core.groups, core.permission, options, core.environment.in_flight
        )
        self.pull = Pull(
            store=core.store,
            reading=QueueReading(core.store, core.polls, options),
            slow_readers=SlowReaders(
                core.store,
                core.replicas.slaves_at if options.slave_read_enable else None,
                slow_reader_bytes(options),
            ),
            access=access,
            offsets=tables.offsets,
            clients=core.clients,
            locks=core.locks,
            metrics=core.environment.metrics,
        )
        self._wire_leases(core)
        self._wire_pop(core, access)
        self.offset_queries = OffsetQueries(
            store=core.store,
            topics=core.topics,
            groups=core.groups,
            offsets=tables.offsets,
            saved_offsets=tables.saved_offsets,
            clients=core.clients,
            locks=core.locks,
            polls=core.polls,
            on_reset=self.leases.reset,
            on_forget=self.leases.leave,
        )

    def _wire_leases(self, core: Core) -> None:
        store, clock, offsets = core.store, core.environment.clock, core.tables.offsets
        topic = names.pop_journal_topic(core.environment.options.broker_cluster_name)
        table = self.lease_table = LeaseTable(clock, lambda: store.max_offset(topic, QUEUE_ID))
        journal = self.lease_journal = LeaseJournal(
            log=core.log,
            table=table,
            snapshot=core.tables.file_of(table, "popLeases.json", logged=core.log.flushed),
            clock=clock,
            topic=topic,
        )
        deadlines = self.lease_deadlines = LeaseDeadlines(clock)
        self.leases = Leases(
            store=store,
            table=table,
            journal=journal,
            deadlines=deadlines,
            polls=core.polls,
            offsets=offsets,
            groups=core.groups,
            clock=clock,
        )
        self.acks = Acknowledgements(
            table=table,
            journal=journal,
            deadlines=deadlines,
            polls=core.polls,
            offsets=offsets,
            clock=clock,
        )

    def _wire_pop(self, core: Core, access: ReadAccess) -> None:
        options, clock = core.environment.options, core.environment.clock
        table, journal, deadlines = self.lease_table, self.lease_journal, self.lease_deadlines
        self.invisible_durations = InvisibleDurations(
            table=table,
            journal=journal,
            deadlines=deadlines,
            groups=core.groups,
            clock=clock,
            levels_ms=options.delay_levels_ms,
        )
        self.dead_letters = DeadLetters(
            store=core.store,
            table=table,
            acks=self.acks,
            topics=core.topics,
            groups=core.groups,
            metrics=core.environment.metrics,
        )
        self.lease_expiry = LeaseExpiry(
            deadlines=deadlines,
            table=table,
            groups=core.groups,
            polls=core.polls,
            clock=clock,
            attempts_used_up=self.dead_letters.attempts_used_up,
        )
        selector = MessageSelector(
            store=core.store,
            table=table,
            offsets=core.tables.offsets,
            journal=journal,
            clock=clock,
        )
        self.notifications = Notifications(
            selector=selector,
            table=table,
            polls=core.polls,
            access=access,
            long_polling=options.long_polling_enable,
        )
        self.pop = Pop(
            selector=selector,
            journal=journal,
            deadlines=deadlines,
            durations=self.invisible_durations,
            polls=core.polls,
            access=access,
            metrics=core.environment.metrics,
            long_polling=options.long_polling_enable,
        )


def slow_reader_bytes(options: BrokerOptions) -> int:
    """Return the lag in bytes beyond which a reader is sent to a slave."""
    return memory_limit() * options.access_message_in_memory_max_ratio // 100
