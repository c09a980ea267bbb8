"""redis-py where each message in flight has a caller of its own, which takes a connection."""

from __future__ import annotations

from collections.abc import Iterator

from bench.peers.clients.program import Client, main
from bench.peers.clients.redis import RedisStreams


class Callers(RedisStreams):
    title = "redis-py, callers"
    prefix = "callers_"
    how = {"send": "an XADD by each caller, on a connection of a pool"}  # noqa: RUF012

    async def send(self, queue: str, numbers: Iterator[int], in_flight: int, end: float) -> int:
        return await Client.send(self, queue, numbers, in_flight, end)


if __name__ == "__main__":
    main(Callers)
