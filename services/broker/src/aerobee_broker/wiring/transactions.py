"""The wiring of transactions: half messages, their ends, checks and upkeep."""

from __future__ import annotations

from aerobee_broker.delivery.delay.router import DelayRouter
from aerobee_broker.delivery.transaction.check_back import TransactionChecks
from aerobee_broker.delivery.transaction.check_schedule import CheckSchedule
from aerobee_broker.delivery.transaction.open_transactions import OpenTransactions
from aerobee_broker.delivery.transaction.transactions import Transactions
from aerobee_broker.delivery.transaction.upkeep import TransactionUpkeep
from aerobee_broker.store.options import HOUR_MS
from aerobee_broker.wiring.core import Core


class TransactionParts:
    def __init__(self, core: Core, router: DelayRouter) -> None:
        options, clock = core.environment.options, core.environment.clock
        schedule = CheckSchedule(clock, timeout_ms=options.transaction_time_out)
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
