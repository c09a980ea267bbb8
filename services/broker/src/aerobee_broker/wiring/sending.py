"""Create and connect the parts for sends: delayed messages, transactions, send-backs."""

from __future__ import annotations

import os
import random

from aerobee_broker.config import BrokerOptions
from aerobee_broker.delivery.delay.delivery_loop import DueCopies
from aerobee_broker.delivery.delay.level_delivery import LevelDelivery
from aerobee_broker.delivery.delay.levels import DelayQueues
from aerobee_broker.delivery.delay.progress import LevelProgress
from aerobee_broker.delivery.delay.router import DelayRouter
from aerobee_broker.delivery.delay.timer_delivery import TimerDelivery
from aerobee_broker.delivery.delay.timer_format import TimerQueue
from aerobee_broker.delivery.delay.timer_recall import TimerRecall
from aerobee_broker.delivery.delay.timer_table import TimerTable
from aerobee_broker.delivery.retry.send_back import RetryRouter, SendBack
from aerobee_broker.delivery.send.admission import Admission
from aerobee_broker.delivery.send.batch import BatchSender
from aerobee_broker.delivery.send.broker_properties import BrokerProperties
from aerobee_broker.delivery.send.send import Sender
from aerobee_broker.delivery.transaction.check_back import TransactionChecks
from aerobee_broker.delivery.transaction.open_transactions import CheckSchedule, OpenTransactions
from aerobee_broker.delivery.transaction.transactions import Transactions
from aerobee_broker.delivery.transaction.upkeep import TransactionUpkeep
from aerobee_broker.store.options import HOUR_MS
from aerobee_broker.wiring.core import Core
from aerobee_wire import properties as props
from aerobee_wire import topics as names
from aerobee_wire.message_id import UniqueIds


class Delay:
    def __init__(self, core: Core) -> None:
        environment = core.environment
        options, clock, metrics = environment.options, environment.clock, environment.metrics
        progress = LevelProgress(core.store, core.tables.delay_offsets)
        due_copies = DueCopies(core.store, core.topics)
        waiting = TimerTable()
        timer_queue = self._timer_queue = TimerQueue(
            waiting,
            max_delay_ms=options.timer_max_delay_sec * 1_000,
            max_messages=options.timer_max_messages,
            on_accept=metrics.timer_accepted,
        )
        store = core.store
        self.queues = DelayQueues(
            options.delay_levels_ms,
            progress.is_empty,
            lambda: (store.end_offset, store.flush.rollback_count),
        )
        self.router = DelayRouter(self.queues, timer_queue, clock)
        self.levels = LevelDelivery(
            log=core.log,
            queues=self.queues,
            progress=progress,
            due_copies=due_copies,
            metrics=metrics,
            clock=clock,
        )
        self.timers = TimerDelivery(
            log=core.log,
            queue=timer_queue,
            table=waiting,
            due_copies=due_copies,
            metrics=metrics,
            clock=clock,
            fills_later=options.is_replicated,
        )
        self.recall = TimerRecall(
            core.log, waiting, self.timers, clock, enabled=options.recall_message_enable
        )
        core.store.cleaning.protect(progress.needed_from)
        core.store.cleaning.protect(self.timers.needed_from)
        core.arrivals.listen(names.SCHEDULE_TOPIC, self.levels.arrived)
        core.arrivals.listen(names.TIMER_TOPIC, self.timers.arrived)
        core.arrivals.expect(self.router.has_unconfirmed)

    def use(self, options: BrokerOptions) -> None:
        """Use other limits of delivery times."""
        self._timer_queue.use(
            max_delay_ms=options.timer_max_delay_sec * 1_000,
            max_messages=options.timer_max_messages,
        )


class TransactionParts:
    def __init__(self, core: Core, router: DelayRouter) -> None:
        options, clock = core.environment.options, core.environment.clock
        schedule = self._schedule = CheckSchedule(clock, timeout_ms=options.transaction_time_out)
        table = OpenTransactions()
        self.transactions = Transactions(
            log=core.log,
            table=table,
            schedule=schedule,
            topics=core.topics,
            router=router,
            metrics=core.environment.metrics,
            clock=clock,
        )
        self.upkeep = TransactionUpkeep(
            transactions=self.transactions,
            log=core.log,
            table=table,
            offsets=core.tables.offsets,
            clock=clock,
        )
        core.store.cleaning.protect(self.upkeep.needed_from)
        self.checks = TransactionChecks(
            transactions=self.transactions,
            schedule=schedule,
            clients=core.clients,
            clock=clock,
            interval_ms=options.transaction_check_interval,
            max_checks=options.transaction_check_max,
            reserved_ms=options.file_reserved_time * HOUR_MS,
        )

    def use(self, options: BrokerOptions) -> None:
        """Use other times and numbers of checks."""
        self._schedule.use(options.transaction_time_out)
        self.checks.use(
            interval_ms=options.transaction_check_interval,
            max_checks=options.transaction_check_max,
            reserved_ms=options.file_reserved_time * HOUR_MS,
        )


class Sending:
    def __init__(
        self, core: Core, delay: Delay, transactions: Transactions, store_host: str
    ) -> None:
        environment = core.environment
        options, clock, metrics = environment.options, environment.clock, environment.metrics
        admission = self.admission = Admission(
            core.topics, core.permission, options, environment.rng
        )
        properties = BrokerProperties(
            added_properties(options), unique_ids(store_host, environment.rng), clock
        )
        self.sender = Sender(
            log=core.log,
            admission=admission,
            properties=properties,
            delays=delay.router,
            retries=RetryRouter(core.topics, core.groups, metrics),
            transactions=transactions,
            metrics=metrics,
            clock=clock,
            traces=environment.traces,
        )
        self.batch_sender = BatchSender(
            log=core.log,
            admission=admission,
            properties=properties,
            delays=delay.router,
            metrics=metrics,
            clock=clock,
            traces=environment.traces,
        )
        self.send_back = SendBack(
            log=core.log,
            topics=core.topics,
            groups=core.groups,
            delays=delay.router,
            metrics=metrics,
            permission=core.permission,
            rng=environment.rng,
            traces=environment.traces,
        )


def unique_ids(store_host: str, rng: random.Random) -> UniqueIds:
    """Return a generator of unique ids for messages without an id. `store_host` is "ip:port"."""
    ip = store_host.rpartition(":")[0].strip("[]")
    return UniqueIds(ip, os.getpid(), rng.getrandbits(32))


def added_properties(options: BrokerOptions) -> dict[str, str]:
    """Return the properties that the broker adds to each message."""
    return {
        props.MESSAGE_REGION: options.region_id,
        props.TRACE_ON: "true" if options.trace_on else "false",
        props.CLUSTER: options.broker_cluster_name,
    }
