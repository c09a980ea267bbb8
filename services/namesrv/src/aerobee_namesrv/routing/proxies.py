"""Keep the proxies of the cluster: those with an open stream, and those that are missing.

A proxy is one process, or several workers that share a name. It is missing if its last stream ended
and no process said that it stops. The table is in memory only, because proxies register again.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from aerobee_chassis.clock import Clock

MOST_AWAY = 64
FORGET_AFTER_MS = 24 * 3_600_000
# A process that stops opens no stream. One that it opened before may arrive this much later.
IGNORE_MS = 60_000
MOST_STOPPED = 1_024


@dataclass(frozen=True, slots=True, order=True)
class ProxyProcess:
    """A process of a proxy. `admin_address` is empty if it has no port for administration."""

    name: str
    admin_address: str
    process_id: str
    version: str = ""
    start_timestamp_ms: int = 0


class ProxyTable:
    """The proxies that registered since this name server started."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._streams: dict[object, ProxyProcess] = {}
        # Processes that said so, and when, in monotonic ms: until their streams end, and for
        # IGNORE_MS.
        self._stopped: dict[str, int] = {}
        self._away: dict[str, tuple[int, int]] = {}  # name → since: timestamp and monotonic ms

    @contextmanager
    def register(self, process: ProxyProcess) -> Iterator[None]:
        """Keep a process registered while the block runs. A process may have two streams.

        A process that has said that it stops is not registered again.
        """
        stopped_ms = self._stopped.get(process.process_id)
        if stopped_ms is not None and self._clock.monotonic_ms() - stopped_ms < IGNORE_MS:
            yield
            return
        stream = object()
        self._streams[stream] = process
        self._away.pop(process.name, None)
        try:
            yield
        finally:
            del self._streams[stream]
            self._ended(process)

    def unregister(self, name: str, process_id: str) -> None:
        """Note that a process stops: its proxy is not missing when the stream ends."""
        open_ids = {each.process_id for each in self._streams.values()}
        now_ms = self._clock.monotonic_ms()
        self._stopped = {
            each: since_ms
            for each, since_ms in self._stopped.items()
            if each in open_ids or now_ms - since_ms < IGNORE_MS
        }
        self._stopped[process_id] = now_ms
        for each in list(self._stopped)[:-MOST_STOPPED]:
            del self._stopped[each]
        if process_id not in open_ids and not self._is_open(name):
            self._away.pop(name, None)

    def open(self) -> list[ProxyProcess]:
        """Return the processes with an open stream, sorted, each once."""
        return sorted(set(self._streams.values()))

    def away(self) -> list[tuple[str, int]]:
        """Return the name of each proxy that is missing, and since when, sorted by name."""
        limit_ms = self._clock.monotonic_ms() - FORGET_AFTER_MS
        for name in [name for name, (_, since_ms) in self._away.items() if since_ms < limit_ms]:
            del self._away[name]
        return sorted((name, timestamp_ms) for name, (timestamp_ms, _) in self._away.items())

    def _ended(self, process: ProxyProcess) -> None:
        remaining = [each.process_id for each in self._streams.values()]
        if process.process_id in remaining:
            return
        if process.process_id in self._stopped or self._is_open(process.name):
            return
        self._away.pop(process.name, None)
        self._away[process.name] = self._clock.now_ms(), self._clock.monotonic_ms()
        for name in list(self._away)[:-MOST_AWAY]:
            del self._away[name]

    def _is_open(self, name: str) -> bool:
        return any(each.name == name for each in self._streams.values())
