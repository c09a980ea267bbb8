"""A message group that is sent in order, through whatever fails; for tests that say which of its
messages are stored, and where."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from datetime import timedelta

from aerobee_client import AsyncProducer, Code, Message, MqError, SendResult


def numbered(topic: str, group: str, number: int) -> Message:
    return Message(topic, b"%d" % number, message_group=group)


class Group:
    """A message group whose messages 0, 1, … are sent behind each other, several at a time; after a
    failure again from the first that failed on.

    `message_of` makes one of topic, group and number; `on_stored` is called with the number and the
    result of each that is acknowledged. `timeouts_ms`: one of these is drawn for the sends of a
    turn. `pause_s`: after each turn.
    """

    def __init__(
        self,
        name: str,
        topic: str,
        rng: random.Random,
        *,
        message_of: Callable[[str, str, int], Message] = numbered,
        on_stored: Callable[[int, SendResult], None] = lambda number, result: None,
        timeouts_ms: tuple[int, ...] = (300, 1_000, 60_000),
        pause_s: float = 0.0,
    ) -> None:
        self.name = name
        self.acknowledged = 0
        self.failures: Counter[Code] = Counter()
        self._topic = topic
        self._rng = rng
        self._message_of = message_of
        self._on_stored = on_stored
        self._timeouts_ms = timeouts_ms
        self._pause_s = pause_s

    async def send(
        self, producer: AsyncProducer, stop: asyncio.Event, timeout: timedelta | None = None
    ) -> None:
        """`timeout`: of each send; None: one is drawn."""
        while not stop.is_set():
            count = self._rng.randint(1, 8)
            numbers = range(self.acknowledged, self.acknowledged + count)
            drawn = timedelta(milliseconds=self._rng.choice(self._timeouts_ms))
            outcomes = await asyncio.gather(
                *(
                    producer.send_async(
                        self._message_of(self._topic, self.name, number), timeout=timeout or drawn
                    )
                    for number in numbers
                ),
                return_exceptions=True,
            )
            good = [isinstance(outcome, SendResult) for outcome in outcomes]
            assert good == sorted(good, reverse=True), "none overtakes one that failed"
            self.acknowledged += sum(good)
            for number, outcome in zip(numbers, outcomes, strict=True):
                if isinstance(outcome, SendResult):
                    self._on_stored(number, outcome)
                else:
                    assert isinstance(outcome, MqError), outcome
                    self.failures[outcome.code] += 1
            if self._pause_s:
                await asyncio.sleep(self._pause_s)
