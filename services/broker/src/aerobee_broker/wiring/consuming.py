"""Create and connect the parts for pull, pop, the offsets of groups and jobs over dead letters."""

from __future__ import annotations

from aerobee_broker.config import BrokerOptions
from aerobee_broker.delivery.letters.letter_jobs import LetterJobs
from aerobee_broker.delivery.letters.outcomes import Outcomes
from aerobee_broker.delivery.pop.lease_journal import LeaseJournal
from aerobee_broker.delivery.pop.lease_journal_format import QUEUE_ID
from aerobee_broker.delivery.pop.lease_space import LeaseSpace
from aerobee_broker.delivery.pop.lease_table import LeaseTable
from aerobee_broker.delivery.pop.pop import Notifications, Pop, Retries
from aerobee_broker.delivery.pull.access import ReadAccess
from aerobee_broker.delivery.pull.offsets import OffsetQueries
from aerobee_broker.delivery.pull.pull import Pull
from aerobee_broker.delivery.pull.reading import QueueReading, SlowReaders
from aerobee_broker.delivery.search.copies import Copies
from aerobee_broker.delivery.search.pace import Pace
from aerobee_broker.delivery.search.search import Searches
from aerobee_broker.delivery.tracking.tracking import Tracking
from aerobee_broker.metrics import memory_limit
from aerobee_broker.wiring.core import Core
from aerobee_wire import topics as names


class Consuming:
    def __init__(self, core: Core) -> None:
        options, tables = core.environment.options, core.tables
        access = ReadAccess(
            core.topics, core.groups, core.permission, options, core.environment.in_flight
        )
        self.leases = self._make_leases(core)
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
            on_commit=self.leases.follow,
            traces=core.environment.traces,
        )
        retries = Retries(leases=self.leases, access=access, store=core.store)
        self.notifications = Notifications(
            leases=self.leases,
            polls=core.polls,
            access=access,
            retries=retries,
            long_polling=options.long_polling_enable,
        )
        self.pop = Pop(
            leases=self.leases,
            polls=core.polls,
            access=access,
            retries=retries,
            metrics=core.environment.metrics,
            long_polling=options.long_polling_enable,
            traces=core.environment.traces,
        )
        self.offset_queries = OffsetQueries(
            store=core.store,
            topics=core.topics,
            groups=core.groups,
            offsets=tables.offsets,
            saved_offsets=tables.saved_offsets,
            clients=core.clients,
            locks=core.locks,
            polls=core.polls,
            on_commit=self.leases.follow,
            on_reset=self.leases.reset,
            on_forget=self.leases.leave,
        )
        pace = Pace()
        self.searches = Searches(
            store=core.store,
            queries=self.offset_queries,
            access=access,
            polls=core.polls,
            pace=pace,
        )
        self.copies = Copies(store=core.store, topics=tables.topics, pace=pace)
        self.tracking = Tracking(
            store=core.store,
            topics=core.topics,
            clients=core.clients,
            offsets=tables.offsets,
            table=self.leases.table,
            copies=self.copies,
            journal_topic=self.leases.journal.topic,
        )

    @staticmethod
    def _make_leases(core: Core) -> LeaseSpace:
        store, clock = core.store, core.environment.clock
        topic = names.pop_journal_topic(core.environment.options.broker_cluster_name)
        table = LeaseTable(clock, lambda: store.max_offset(topic, QUEUE_ID))
        journal = LeaseJournal(
            log=core.log,
            table=table,
            snapshot=core.tables.file_of(table, "popLeases.json", logged=core.log.flushed),
            clock=clock,
            topic=topic,
        )
        return LeaseSpace(
            store,
            journal,
            core.tables.offsets,
            core.polls,
            topics=core.topics,
            groups=core.groups,
            metrics=core.environment.metrics,
            levels_ms=core.environment.options.delay_levels_ms,
            traces=core.environment.traces,
        )


def slow_reader_bytes(options: BrokerOptions) -> int:
    """Return the lag in bytes above which a consumer should read from a slave."""
    return memory_limit() * options.access_message_in_memory_max_ratio // 100


def letter_jobs(core: Core, consuming: Consuming) -> LetterJobs:
    return LetterJobs(
        log=core.log,
        topics=core.topics,
        groups=core.groups,
        permission=core.permission,
        outcomes=Outcomes(core.store, core.tables.offsets, consuming.leases.table.find),
        metrics=core.environment.metrics,
        clock=core.environment.clock,
        traces=core.environment.traces,
    )
