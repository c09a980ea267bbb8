"""The wiring of delayed messages: by delay level, and by delivery time."""

from __future__ import annotations

from aerobee_broker.delivery.delay.due_copies import DueCopies
from aerobee_broker.delivery.delay.level_delivery import LevelDelivery
from aerobee_broker.delivery.delay.level_progress import LevelProgress
from aerobee_broker.delivery.delay.levels import DelayQueues
from aerobee_broker.delivery.delay.router import DelayRouter
from aerobee_broker.delivery.delay.timer_delivery import TimerDelivery
from aerobee_broker.delivery.delay.timer_format import TimerQueue
from aerobee_broker.delivery.delay.timer_recall import TimerRecall
from aerobee_broker.delivery.delay.timer_table import TimerTable
from aerobee_broker.wiring.core import Core
from aerobee_wire import topics as names


class Delay:
    def __init__(self, core: Core) -> None:
        environment = core.environment
        options, clock, metrics = environment.options, environment.clock, environment.metrics
        progress = LevelProgress(core.store, core.tables.delay_offsets)
        due_copies = DueCopies(core.store, core.topics)
        waiting = TimerTable()
        timer_queue = TimerQueue(
            waiting,
            max_delay_ms=options.timer_max_delay_sec * 1_000,
            max_messages=options.timer_max_messages,
        )
        self.queues = DelayQueues(options.delay_levels_ms, progress.is_empty)
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
