"""Run the job of the demo: send flights, consume them, and read the dead letters.

The consumer computes the mean arrival delay by carrier.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter, defaultdict
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import islice
from typing import TYPE_CHECKING

from aerobee_cli import output
from aerobee_cli.demo import flights
from aerobee_cli.demo.progress import Figures, Progress
from aerobee_cli.errors import CommandError
from aerobee_client import (
    AsyncAdminClient,
    AsyncProducer,
    AsyncPushConsumer,
    ConsumeFromWhere,
    Message,
    MqError,
)
from aerobee_client.admin.dead_letters import DeadLetters
from aerobee_wire.topics import is_retry

if TYPE_CHECKING:
    from aerobee_client import ReceivedMessage

TOPIC = "flights"
GROUP = "arrival-delay"
PRODUCER_GROUP = "flight-board"
QUEUES = 8
MAX_ATTEMPTS = 3
RETRY_DELAYS = (timedelta(seconds=1), timedelta(seconds=2))
BATCH = 128
# The maximum number of batches in flight. One fdatasync of the broker covers several batches.
WINDOW = 4
# This is long enough for a restart of the broker.
SEND_TIMEOUT = timedelta(seconds=60)
POLL_S = 0.2
# If there is no progress for this time, the demo fails.
STALLED_S = 120.0


class NeverArrived(Exception):
    """Raised for a flight without an arrival time or delay, which was cancelled or diverted."""


class ArrivalDelays:
    """Counts arrival delays by carrier. Each flight counts once, even after several deliveries.

    A message is redelivered after a failure, and possibly after a crash of a broker or a consumer.
    `arrived` holds the ids of the messages whose delay was counted. `retries` holds the pair
    (message id, reconsume times) for each redelivery by the broker. While the broker is
    unavailable, the client retries a message itself and increases its count each time. Therefore
    only the first delivery of each stored record is added to `retries`.
    """

    def __init__(self) -> None:
        self.arrived: set[str] = set()
        self.retries: set[tuple[str, int]] = set()
        # Reconsume times at the first delivery of a retry, by its offset message id.
        self._times: dict[str, int] = {}
        self._total: dict[str, int] = defaultdict(int)
        self._count: dict[str, int] = defaultdict(int)

    async def on_flight(self, message: ReceivedMessage) -> None:
        """Count a flight. Raises NeverArrived, whose text becomes the reason of the dead letter."""
        if is_retry(message.stored_topic):
            times = self._times.setdefault(message.offset_message_id, message.reconsume_times)
            self.retries.add((message.message_id, times))
        flight = json.loads(message.body)
        if flight["arr_time"] is None or flight["arr_delay"] is None:
            raise NeverArrived(_never_arrived(flight))
        if message.message_id not in self.arrived:
            self.arrived.add(message.message_id)
            self._total[flight["carrier"]] += flight["arr_delay"]
            self._count[flight["carrier"]] += 1

    def mean_by_carrier(self) -> dict[str, float]:
        """Return the mean delay of each carrier in minutes. Below 0, flights arrived early."""
        return {
            carrier: self._total[carrier] / self._count[carrier] for carrier in sorted(self._count)
        }

    def count_by_carrier(self) -> dict[str, int]:
        """Return the number of flights of each carrier whose delay was counted."""
        return dict(sorted(self._count.items()))


def _never_arrived(flight: dict[str, object]) -> str:
    missing = "arrival time" if flight["arr_time"] is None else "arrival delay"
    day = f"{flight['year']}-{flight['month']:02}-{flight['day']:02}"
    number = f"{flight['carrier']}{flight['flight']}"
    return f"no {missing}: {number} of {day}, {flight['origin']} to {flight['dest']}"


@dataclass(slots=True)
class Job:
    """One run of the job, which sends `total` flights from `rows`.

    The results are complete after `run` has returned. `under_way` is set when a third of the
    flights is sent.
    """

    namesrv: str
    rows: Iterable[flights.Row]
    total: int
    progress: Progress
    delays: ArrivalDelays = field(default_factory=ArrivalDelays)
    sent: set[str] = field(default_factory=set)
    # The carrier of each dead letter, by message id.
    dead: dict[str, str] = field(default_factory=dict)
    under_way: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self) -> None:
        """Run until every message was consumed or dead-lettered.

        Raises MqError, and CommandError if there is no progress for STALLED_S.
        """
        output.silence_client()  # its listener fails on purpose
        async with AsyncAdminClient(self.namesrv) as admin:
            await admin.create_topic(TOPIC, queues=QUEUES)
            await admin.create_group(GROUP, max_attempts=MAX_ATTEMPTS, retry_delays=RETRY_DELAYS)
            consumer = AsyncPushConsumer(
                GROUP,
                self.delays.on_flight,
                namesrv=self.namesrv,
                consume_from_where=ConsumeFromWhere.FIRST_OFFSET,
            )
            consumer.subscribe(TOPIC)
            async with consumer:
                sending = asyncio.create_task(self._send_all())
                try:
                    await self._until_finished(admin, sending)
                finally:
                    sending.cancel()

    def figures(self) -> Figures:
        return Figures(
            messages_sent=len(self.sent),
            messages_consumed=len(self.delays.arrived),
            retried=len(self.delays.retries),
            dead_letters=len(self.dead),
            dead_letters_by_tag=dict(sorted(Counter(self.dead.values()).items())),
            mean_arrival_delay_by_tag=self.delays.mean_by_carrier(),
        )

    def is_finished(self) -> bool:
        """Return whether every sent message was consumed or dead-lettered."""
        return self.delays.arrived | self.dead.keys() >= self.sent

    async def _send_all(self) -> None:
        window = asyncio.Semaphore(WINDOW)
        async with AsyncProducer(
            PRODUCER_GROUP, namesrv=self.namesrv, send_timeout=SEND_TIMEOUT
        ) as producer:

            async def send(batch: list[Message]) -> None:
                try:
                    results = await producer.send_batch(batch)
                    self.sent.update(result.message_id for result in results)
                    if 3 * len(self.sent) >= self.total:
                        self.under_way.set()
                finally:
                    window.release()

            messages = map(message_of, self.rows)
            async with asyncio.TaskGroup() as group:
                while batch := list(islice(messages, BATCH)):
                    await window.acquire()
                    group.create_task(send(batch))

    async def _until_finished(self, admin: AsyncAdminClient, sending: asyncio.Task[None]) -> None:
        dead_letters = DeadLetters(admin, GROUP)
        loop = asyncio.get_running_loop()
        last, moved_at = Figures(), loop.time()
        while True:
            await asyncio.wait({sending}, timeout=POLL_S)
            if sending.done():
                _reraise(sending)
                await asyncio.sleep(POLL_S)
            await self._read(dead_letters)
            figures = self.figures()
            self.progress.update(figures)
            if sending.done() and self.is_finished():
                return
            if figures != last:
                last, moved_at = figures, loop.time()
            elif loop.time() - moved_at > STALLED_S:
                missing = len(self.sent - self.delays.arrived - self.dead.keys())
                raise CommandError(
                    f"nothing has moved for {STALLED_S:g} s: {missing} messages were "
                    "neither consumed nor dead-lettered"
                )

    async def _read(self, dead_letters: DeadLetters) -> None:
        # A broker that restarts does not answer; the next call asks again.
        with suppress(MqError):
            async for message in dead_letters.read():
                self.dead[message.message_id] = message.tag


def message_of(row: flights.Row) -> Message:
    """Return a flight as a message with a JSON body, the carrier as tag, and the flight as key."""
    return Message(TOPIC, flights.to_json(row), tag=row["carrier"], keys=flights.key(row))


def _reraise(sending: asyncio.Task[None]) -> None:
    """Raise the first exception of `sending`, without the ExceptionGroup around it."""
    try:
        sending.result()
    except ExceptionGroup as group:
        raise group.exceptions[0] from None
