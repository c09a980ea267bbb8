"""A network in one virtual loop: streams between replicas that are slow, cut, half-open or broken.

A stream keeps the order of its messages. While the way from one replica to another is cut, what is
sent there waits, and neither side is told; when it is healed the messages arrive, as after TCP's
retransmissions. A stream that is broken ends for both sides, and what was on its way is lost.
"""

from __future__ import annotations

import asyncio
import contextvars
import random
from collections import deque
from typing import Any

from aerobee_broker.errors import StreamBroken

MOST_DELAY_MS = 5.0


class SimulatedNetwork:
    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._cut: set[tuple[int, int]] = set()
        self._streams: dict[Stream, None] = {}  # in the order of their begin

    def connect(self, source: int, target: int) -> Stream:
        """Raises StreamBroken when no connection comes about."""
        if not self.passes(source, target) or not self.passes(target, source):
            raise StreamBroken("the master cannot be reached")
        stream = Stream(self, source, target)
        self._streams[stream] = None
        return stream

    def passes(self, source: int, target: int) -> bool:
        return (source, target) not in self._cut

    def cut(self, source: int, target: int) -> None:
        self._cut.add((source, target))

    def part(self, one: int, *others: int) -> None:
        """Cut all that passes between one and each of the others."""
        for other in others:
            self._cut |= {(one, other), (other, one)}

    def heal(self) -> None:
        self._cut.clear()
        for stream in list(self._streams):
            stream.resume()

    def break_streams(self, *numbers: int) -> None:
        """Those of these replicas end, for both sides."""
        for stream in [s for s in self._streams if s.ends & set(numbers)]:
            self.forget(stream)
            stream.break_off()

    def streams(self) -> list[Stream]:
        return list(self._streams)

    def forget(self, stream: Stream) -> None:
        self._streams.pop(stream, None)

    def delay_s(self) -> float:
        return self._rng.uniform(0.1, MOST_DELAY_MS) / 1000


class Stream:
    """`near`: the end of who connected; `far`: that of who was called."""

    def __init__(self, network: SimulatedNetwork, source: int, target: int) -> None:
        self.way = source, target
        self.ends = {source, target}
        there, back = _Pipe(network, source, target), _Pipe(network, target, source)
        self.near, self.far = End(back, there), End(there, back)
        self._pipes = (there, back)

    @property
    def is_broken(self) -> bool:
        return self._pipes[0].is_closed

    def resume(self) -> None:
        for pipe in self._pipes:
            pipe.resume()

    def break_off(self) -> None:
        for pipe in self._pipes:
            pipe.close()


class End:
    """SlaveLink and MasterLink: whatever one end sends, the other receives."""

    def __init__(self, incoming: _Pipe, outgoing: _Pipe) -> None:
        self._incoming = incoming
        self._outgoing = outgoing

    async def receive(self) -> Any:
        return await self._incoming.receive()

    async def send(self, message: object) -> None:
        await self._outgoing.send(message)


class _Pipe:
    """One way."""

    def __init__(self, network: SimulatedNetwork, source: int, target: int) -> None:
        self._network = network
        self._way = source, target
        self._under_way: deque[object] = deque()  # in order; the first arrives first
        self._arrived: asyncio.Queue[object] = asyncio.Queue()
        self._last_arrival = 0.0
        self.is_closed = False

    async def send(self, message: object) -> None:
        if self.is_closed:
            raise StreamBroken("the stream is broken")
        self._under_way.append(message)
        self._plan()

    async def receive(self) -> Any:
        if self.is_closed and self._arrived.empty():
            return None
        message = await self._arrived.get()
        if message is None:
            self._arrived.put_nowait(None)  # the end stays
        return message

    def resume(self) -> None:
        for _ in self._under_way:
            self._plan()

    def close(self) -> None:
        self.is_closed = True
        self._under_way.clear()
        self._arrived.put_nowait(None)

    def _plan(self) -> None:
        loop = asyncio.get_running_loop()
        self._last_arrival = max(self._last_arrival, loop.time() + self._network.delay_s())
        # Of no process: what one has sent arrives, also where it has ended.
        loop.call_at(self._last_arrival, self._arrive, context=contextvars.Context())

    def _arrive(self) -> None:
        if self._under_way and self._network.passes(*self._way) and not self.is_closed:
            self._arrived.put_nowait(self._under_way.popleft())
