"""What a commit asks of the replicas of this broker, and what it tells them.

`Replicas` is the interface; whoever replicates the log implements it and calls `Commit.advance`
when a replica has moved. `ALONE` is a broker without replicas: what is on its own disk counts.

Four watermarks, all physical offsets that never fall:

    sent      sends that end at or below may be acknowledged
    settled   so may everything else that a client waits for: leases, acknowledgements of messages,
              transactions that are rolled back. These go on where too few replicas are left for
              sends, so it may be ahead of `sent`
    flushed   what waits for the disk whatever the flush type counts below: it is durable here, and
              all replicas that are waited for have it
    visible   the confirm offset: everything below may be shown, for no failover takes it back. At
              most `flushed`; it stays behind where a replica may become master that is not waited
              for
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple, Protocol


class Watermarks(NamedTuple):
    sent: int
    settled: int
    flushed: int
    visible: int


class Replicas(Protocol):
    @property
    def ship_at_once(self) -> bool:
        """Whether what is written leaves at once. Then a write is told before it is synced, so that
        it is shipped meanwhile; else with its sync."""

    def written(self, end_offset: int) -> None:
        """The operating system has the log up to here: it may be shipped."""

    def watermarks(self, own: int, flushed: int) -> tuple[int, int, int, int]:
        """The four that count now, as Watermarks or as a plain tuple. `own`: what this broker
        holds as its flush type demands, `flushed` with synchronous flush, what is written with
        asynchronous flush; `flushed`: what is durable here.
        """

    def check_sends(self) -> None:
        """Before a message of a producer is stored. Raises TooFewReplicas: it is not stored."""

    def slaves_at(self, physical_offset: int) -> Collection[int]:
        """The ids, as name servers have them, of slaves that have the log at this place."""


class _Alone:
    ship_at_once = False

    def written(self, end_offset: int) -> None:
        pass

    def watermarks(self, own: int, flushed: int) -> tuple[int, int, int, int]:
        return own, own, flushed, flushed  # a named tuple takes 0.3 µs, at every flush

    def check_sends(self) -> None:
        pass

    def slaves_at(self, physical_offset: int) -> tuple[int, ...]:
        return ()


ALONE: Replicas = _Alone()
