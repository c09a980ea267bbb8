"""Count the messages that a simple consumer received, settled, and still has on lease.

Counts are kept per pop, not per message. A lease that ends unsettled is removed at its end.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from aerobee_client.leasing.leased_message import LeasedMessage
from aerobee_client.observing.statistics import ConsumerStatistics, Tally
from aerobee_client.runtime.clock import Clock
from aerobee_wire.handles.receipt_handle import ReceiptHandle

FORGET_INTERVAL_MS = 10_000  # between two checks for leases that have ended


@dataclass(slots=True)
class _Pop:
    """Messages of one pop that are on lease.

    Times are of the monotonic clock. `until_ms` is the end of the last lease.
    """

    since_ms: int
    until_ms: int
    received: int = 0
    received_bytes: int = 0
    settled: int = 0

    @property
    def left(self) -> int:
        return max(self.received - self.settled, 0)

    @property
    def left_bytes(self) -> int:
        """The remaining bytes, as if all messages had the same size."""
        return self.received_bytes * self.left // self.received


class OnLease:
    def __init__(self, clock: Clock) -> None:
        self.tally = Tally(clock)
        self._clock = clock
        self._sent_back = 0
        self._pops: dict[tuple[str, int], _Pop] = {}  # by broker name and lease id
        self._forgot_ms = clock.monotonic_ms()

    def received(self, messages: Sequence[LeasedMessage]) -> None:
        """Count messages of one pop, which may be split among several receives."""
        first, now_ms = messages[0], self._clock.monotonic_ms()
        if now_ms - self._forgot_ms >= FORGET_INTERVAL_MS:
            self._forgot_ms = now_ms
            self._pops = {key: pop for key, pop in self._pops.items() if pop.until_ms > now_ms}
        pop = self._pops.setdefault(_key(first.handle), _Pop(now_ms, first.until_ms))
        pop.received += len(messages)
        pop.received_bytes += sum(message.store_size for message in messages)

    def extended(self, handle: ReceiptHandle, until_ms: int) -> None:
        """Note that a lease now ends at `until_ms`."""
        pop = self._pops.get(_key(handle))
        if pop is not None:
            pop.until_ms = max(pop.until_ms, until_ms)

    def consumed(self, handles: Iterable[ReceiptHandle]) -> None:
        """Count acknowledged messages."""
        elapsed_ms, calls = self._settled(handles)
        self.tally.add(calls, 0, elapsed_ms, calls=calls)

    def failed(self, handles: Iterable[ReceiptHandle], *, sent_back: bool) -> None:
        """Count messages that were not consumed.

        They were returned for another attempt or dead-lettered (`sent_back`), or their lease had
        ended before they were settled.
        """
        elapsed_ms, calls = self._settled(handles)
        self.tally.add(0, calls, elapsed_ms, calls=calls)
        self._sent_back += calls if sent_back else 0

    def changed(
        self, handles: Iterable[ReceiptHandle], *, duration_ms: int | None, counted: bool
    ) -> None:
        """Count messages with a changed invisible duration.

        With a duration above 0 they are still on lease. Returned without counting, they are neither
        consumed nor failed.
        """
        if not duration_ms:
            if counted:
                self.failed(handles, sent_back=True)
            else:
                self._settled(handles)

    def statistics(self, failed_requests: int) -> ConsumerStatistics:
        now_ms = self._clock.monotonic_ms()
        held = [pop for pop in self._pops.values() if pop.until_ms > now_ms]
        consumed_per_second, failed_per_second, average_ms = self.tally.rates()
        return ConsumerStatistics(
            consumed=self.tally.succeeded,
            failed=self.tally.failed,
            sent_back=self._sent_back,
            consumed_per_second=consumed_per_second,
            failed_per_second=failed_per_second,
            average_ms=average_ms,
            waiting=sum(pop.left for pop in held),
            waiting_bytes=sum(pop.left_bytes for pop in held),
            failed_requests=failed_requests,
        )

    def _settled(self, handles: Iterable[ReceiptHandle]) -> tuple[int, int]:
        """Remove settled messages.

        Returns the sum of milliseconds since their receipt, and their number. A message that
        another process received adds 0 ms.
        """
        now_ms, elapsed_ms, count = self._clock.monotonic_ms(), 0, 0
        for handle in handles:
            count += 1
            key = _key(handle)
            pop = self._pops.get(key)
            if pop is not None:
                pop.settled += 1
                elapsed_ms += now_ms - pop.since_ms
                if not pop.left:
                    del self._pops[key]
        return elapsed_ms, count


def _key(handle: ReceiptHandle) -> tuple[str, int]:
    return handle.broker_name, handle.lease_id
