"""Hold the messages that one call has leased, under one or several lease ids."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, islice
from typing import NamedTuple

from aerobee.broker.v1 import pop_pb2

from aerobee_client.leasing.leased_message import LeasedMessage
from aerobee_wire.handles.leases import handle_maker, handles_of
from aerobee_wire.handles.receipt_handle import ReceiptHandle
from aerobee_wire.record import CorruptRecord, iter_records
from aerobee_wire.status import Code, MqError


class Batch(NamedTuple):
    """Messages under one lease id.

    `pop` is the PopRequest that leased them, or an equivalent PopRequest for a lite topic.
    """

    pop: pop_pb2.PopRequest
    response: pop_pb2.PopResponse

    def messages(self, until_ms: int) -> Iterator[LeasedMessage]:
        """Yield the messages. Raises CorruptRecord if a record fails its check."""
        answer, handle = self.response, handle_maker(self.pop, self.response)
        for record, attempt in zip(
            iter_records(answer.records), answer.delivery_attempts, strict=True
        ):
            yield LeasedMessage(record, handle(record, attempt), until_ms)


class Answer:
    """The messages that one call has leased.

    `size` is the number of messages. `left_ms` is the remaining time of the shortest lease.
    """

    def __init__(self, batches: Sequence[Batch], now_ms: int | None = None) -> None:
        """Create an answer from its batches.

        `now_ms` is the time of the request by the broker's clock. The caller sets it if an earlier
        call may have leased the messages.
        """
        self._batches = batches
        self.size = sum(batch.response.message_count for batch in batches)
        self.left_ms = min(
            (_left_ms(batch.response, now_ms) for batch in batches if batch.response.message_count),
            default=0,
        )

    def messages(self, start: int, stop: int, until_ms: int) -> list[LeasedMessage]:
        """Return the messages from `start` to before `stop`.

        Raises MqError with the code MESSAGE_CORRUPTED if a record fails its check.
        """
        every = chain.from_iterable(batch.messages(until_ms) for batch in self._batches)
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
    """The messages from `start` to before `stop` of an answer of a source.

    The leases end at `until_ms` of the client's monotonic clock.
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
        """Return the messages.

        Raises MqError with the code MESSAGE_CORRUPTED if a record fails its check.
        """
        return self.answer.messages(self.start, self.stop, self.until_ms)

    def handles(self) -> list[ReceiptHandle]:
        return self.answer.handles(self.start, self.stop)

    def split(self, count: int) -> tuple[Popped, Popped]:
        """Split into the first `count` messages and the remaining messages."""
        middle = min(self.start + count, self.stop)
        return self._replace(stop=middle), self._replace(start=middle)


def _left_ms(answer: pop_pb2.PopResponse, now_ms: int | None) -> int:
    duration_ms = answer.invisible_duration_ms
    if now_ms is None:
        return duration_ms
    return min(duration_ms, answer.pop_time_ms + duration_ms - now_ms)
