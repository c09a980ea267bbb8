"""Represent the messages that one pop request leased, under one or several lease ids."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from aerobee.broker.v1 import pop_pb2

from aerobee_client.leasing.leased_message import LeasedMessage
from aerobee_wire.handles.leases import handle_for, handles_of
from aerobee_wire.handles.receipt_handle import ReceiptHandle
from aerobee_wire.record import CorruptRecord, iter_records
from aerobee_wire.status import Code, MqError


class Batch(NamedTuple):
    """The messages of one lease id: a pop request and its response.

    For lite topics, `pop` is an equivalent request, because the real request has another type.
    """

    pop: pop_pb2.PopRequest
    response: pop_pb2.PopResponse

    def messages(self, until_ms: int) -> Iterator[LeasedMessage]:
        """Decode and yield the messages, whose lease ends at `until_ms`. Raises CorruptRecord."""
        answer = self.response
        records = zip(iter_records(answer.records), answer.delivery_attempts, strict=True)
        for record, attempt in records:
            yield LeasedMessage(record, handle_for(record, attempt, self.pop, answer), until_ms)


class Answer:
    """The messages that one pop request leased.

    `size` is the number of messages. `left_ms` is the remaining time of the lease that ends first.
    """

    def __init__(self, batches: Sequence[Batch], now_ms: int | None = None) -> None:
        """Make an answer.

        If an earlier request may have leased the messages already, `now_ms` is the current time by
        the broker's clock. Otherwise it is None.
        """
        self._batches = batches
        self.size = sum(batch.response.message_count for batch in batches)
        self.left_ms = min(
            (_left_ms(batch.response, now_ms) for batch in batches if batch.response.message_count),
            default=0,
        )

    def messages(self, start: int, stop: int, until_ms: int) -> list[LeasedMessage]:
        """Return the messages with the indexes `start` to `stop` - 1.

        Raises MqError with the code MESSAGE_CORRUPTED if a record fails its check.
        """
        every = (message for batch in self._batches for message in batch.messages(until_ms))
        try:
            return list(islice(every, start, stop))
        except CorruptRecord as error:
            raise MqError(
                Code.MESSAGE_CORRUPTED,
                f"broker {self._batches[0].response.broker_name} answered with a record that fails "
                f"its check: {error.reason}",
            ) from None

    def handles(self, start: int, stop: int) -> list[ReceiptHandle]:
        return [handle for batch in self._batches for handle in handles_of(*batch)][start:stop]


class Source(NamedTuple):
    topic: str
    broker_name: str


class Popped(NamedTuple):
    """Messages on lease: those of `answer` with the indexes `start` to `stop` - 1.

    The lease ends at `until_ms`, a time of the client's monotonic clock.
    """

    source: Source
    answer: Answer
    until_ms: int
    start: int
    stop: int

    @property
    def size(self) -> int:
        return self.stop - self.start

    def messages(self) -> list[LeasedMessage]:
        """Decode the messages. Raises MqError with the code MESSAGE_CORRUPTED."""
        return self.answer.messages(self.start, self.stop, self.until_ms)

    def handles(self) -> list[ReceiptHandle]:
        return self.answer.handles(self.start, self.stop)

    def split(self, count: int) -> tuple[Popped, Popped]:
        """Return the first `count` messages and the remaining messages."""
        middle = min(self.start + count, self.stop)
        return self._replace(stop=middle), self._replace(start=middle)


def _left_ms(answer: pop_pb2.PopResponse, now_ms: int | None) -> int:
    duration_ms = answer.invisible_duration_ms
    if now_ms is None:
        return duration_ms
    return min(duration_ms, answer.pop_time_ms + duration_ms - now_ms)
