"""Read ranges of queues from their brokers in chunks of records, with retries and gap checks.

Messages are read with the Browse RPC, which does not register a consumer group or commit offsets.
The next chunk is fetched while the current chunk is decoded.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from aerobee_spark.errors import Code, DataLossError, MqError
from aerobee_spark.reading.offsets import OffsetRange
from aerobee_spark.reading.options import ReadOptions

if TYPE_CHECKING:
    from aerobee_client import AdminClient
    from aerobee_client.admin.descriptions import Browsed

log = logging.getLogger(__name__)

FIRST_DELAY_S = 0.1
LONGEST_DELAY_S = 2.0
NOWHERE: Mapping[str, str] = MappingProxyType({})
# A name server returns these codes while the broker of a planned range is unavailable.
AWAY = frozenset({Code.TOPIC_NOT_EXIST, Code.BROKER_NOT_EXIST})


@dataclass(frozen=True, slots=True)
class Chunk:
    """Concatenated records of one queue, and the queue offset to read next."""

    records: bytes
    next_offset: int


def read_ranges(
    admin: AdminClient,
    ranges: Iterable[OffsetRange],
    options: ReadOptions,
    addresses: Mapping[str, str] = NOWHERE,
) -> Iterator[tuple[OffsetRange, Chunk]]:
    """Yield the records of the ranges in order, up to pullBatchSize at a time.

    Args:
        admin: the client that reads messages from brokers.
        ranges: the ranges to read.
        options: the options of the read.
        addresses: broker name → address at planning time. The first request uses this address,
            without asking a name server.

    Raises:
        DataLossError: messages are missing, unless failOnDataLoss is false.
        MqError: a broker did not answer within pullTimeoutMs. If failOnUnreachableBroker is
            false, its range ends there instead.
    """
    chunks = _chunks(admin, ranges, options, addresses)
    with ThreadPoolExecutor(1, "aerobee pull") as ahead:
        pending = ahead.submit(next, chunks, None)
        while (found := pending.result()) is not None:
            pending = ahead.submit(next, chunks, None)
            yield found


def _chunks(
    admin: AdminClient,
    ranges: Iterable[OffsetRange],
    options: ReadOptions,
    addresses: Mapping[str, str],
) -> Iterator[tuple[OffsetRange, Chunk]]:
    for wanted in ranges:
        pull = Pull(admin, wanted, options, addresses.get(wanted.queue.broker_name))
        offset = wanted.start
        while offset < wanted.end:
            try:
                chunk = pull.chunk(offset)
            except MqError as error:
                if isinstance(error, DataLossError) or options.fail_on_unreachable_broker:
                    raise
                log.warning("stopped reading %s before its end: %s", wanted.queue, error.message)
                break
            offset = chunk.next_offset
            yield wanted, chunk


@dataclass(frozen=True, slots=True)
class Pull:
    """Pulls the chunks of one range in order, and checks that no message is missing."""

    admin: AdminClient
    wanted: OffsetRange
    options: ReadOptions
    address: str | None = None
    sleep: Callable[[float], None] = time.sleep
    monotonic: Callable[[], float] = time.monotonic

    def chunk(self, offset: int) -> Chunk:
        """Return the chunk that starts at `offset`.

        Brokers limit the size of a response. The chunk combines small responses, because decoding
        by columns is faster for many records.
        """
        most_messages, most_bytes = self.options.pull_batch_size, self.options.max_bytes_per_pull
        parts, messages, size = [], 0, 0
        while offset < self.wanted.end and messages < most_messages and size < most_bytes:
            answer = self._browse(offset, most_messages - messages)
            offset = self._check(offset, answer)
            parts.append(answer.records)
            messages += answer.message_count
            size += len(answer.records)
        return Chunk(b"".join(parts), offset)

    def _browse(self, offset: int, most: int) -> Browsed:
        """Return up to `most` messages from `offset` on, with retries for up to pullTimeoutMs.

        Retry if an error is retryable, or if no name server knows the broker at the moment. Raise
        MqError for any other error, and after pullTimeoutMs.
        """
        deadline = self.monotonic() + self.options.pull_timeout_ms / 1000
        delay = FIRST_DELAY_S
        address = self.address
        while True:
            try:
                return self.admin.browse(
                    *self.wanted.queue,
                    offset,
                    max_messages=min(most, self.wanted.end - offset),
                    max_bytes=self.options.max_bytes_per_pull,
                    address=address,
                )
            except MqError as error:
                may_come_back = error.retryable or error.code in AWAY
                if not may_come_back or self.monotonic() + delay >= deadline:
                    raise
                address = None  # the broker may have moved: look up its route again
                log.info("%s: retrying in %.1f s: %s", self.wanted.queue, delay, error)
            self.sleep(delay)
            delay = min(2 * delay, LONGEST_DELAY_S)

    def _check(self, offset: int, answer: Browsed) -> int:
        """Return the offset to read after `answer`. Raise DataLossError if messages are missing.

        If failOnDataLoss is false, log missing messages instead.
        """
        lost = self._loss(offset, answer)
        if lost and self.options.fail_on_data_loss:
            raise lost
        if lost:
            log.warning("%s", lost)
        if offset < answer.min_offset:
            return answer.min_offset
        if offset >= answer.max_offset:
            return self.wanted.end
        if answer.next_begin_offset <= offset:
            raise MqError(
                Code.SYSTEM_ERROR,
                f"{self.wanted.queue}: the broker returned the next offset "
                f"{answer.next_begin_offset} for queue offset {offset}, which makes no progress: "
                "check the broker's log",
            )
        return answer.next_begin_offset

    def _loss(self, offset: int, answer: Browsed) -> DataLossError | None:
        queue, low, high = self.wanted.queue, answer.min_offset, answer.max_offset
        code, lost = Code.PULL_OFFSET_MOVED, range(0)
        if offset < low:
            lost = range(offset, low)
            what = (
                f"wanted queue offset {offset}, but the min offset is {low}: {len(lost)} messages "
                "were deleted"
            )
        elif offset >= high:
            lost = range(offset, self.wanted.end)
            what = (
                f"wanted queue offset {offset}, but the max offset is {high} (min offset {low}): "
                "the end of the queue is missing"
            )
        elif (missing := answer.next_begin_offset - offset - answer.message_count) > 0:
            code, lost = Code.MESSAGE_CORRUPTED, range(offset, answer.next_begin_offset)
            what = (
                f"{missing} records from queue offset {offset} up to {lost.stop} are missing: "
                f"{answer.corrupted_count} of them because their checksum is wrong (min offset "
                f"{low}); the broker's log names file and physical offset"
            )
        else:
            return None
        advice = "set failOnDataLoss to false to read the remaining messages"
        return DataLossError(f"{queue}: {what}; {advice}", str(queue), lost, code)
