"""The floor of a lone send: a server on the broker's transport that only writes and syncs requests.

It answers a request when `pwrite` and `fdatasync` have run on a thread, as in a broker. A request
is a call of its own, or a message of a stream. `python -m bench.servers.durable_echo` prints its
port and serves until its standard input closes.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path
from typing import Any

from aerobee_broker.commit.worker_thread import WorkerThread
from aerobee_broker.disk import RealDisk, RealFile
from aerobee_chassis.rpc.call import Call
from aerobee_chassis.rpc.http2.loop import ServiceLoop
from aerobee_chassis.rpc.services import Method
from bench.servers.echo_transport import make_listener, never

UNARY, STREAM = "/bench.Durable/Unary", "/bench.Durable/Stream"
ANSWER = bytes(60)  # as long as the answer to a send
FILE_BYTES = 64 * 1024 * 1024  # written before the first request, so that no sync allocates blocks
SWITCH_INTERVAL_S = 0.0005  # as in a broker


class Request:
    """A request, which is not parsed."""

    @staticmethod
    def FromString(data: bytes) -> bytes:  # like a protobuf message
        return data


class DurableEcho:
    """Writes each request to a file, and answers it when the file is synced."""

    def __init__(self, file: RealFile, flusher: WorkerThread) -> None:
        self._file = file
        self._flusher = flusher
        self._end = 0

    async def run(self, _service: str, method: Method, request: Any, call: Call) -> Any:
        if not method.client_streams:
            return await self._stored(request)
        async for message in request:
            await call.write(await self._stored(message))
        return None

    async def _stored(self, request: bytes) -> bytes:
        at = self._end if self._end + len(request) <= FILE_BYTES else 0
        self._end = at + len(request)

        def write() -> None:
            self._file.pwrite(request, at)
            self._file.sync()

        await self._flusher(write)
        return ANSWER


async def serve(path: Path) -> None:
    file, flusher = RealDisk().open(path, create=True), WorkerThread("flusher")
    file.pwrite(bytes(FILE_BYTES), 0)
    file.sync()
    service = UNARY.split("/")[1]
    methods = tuple(
        Method(path.rpartition("/")[2], never, Request, server_streams=both, client_streams=both)
        for path, both in ((UNARY, False), (STREAM, True))
    )
    listener = make_listener(service, methods, DurableEcho(file, flusher).run)
    print(listener.bind("127.0.0.1:0"), flush=True)
    await listener.start()
    await asyncio.to_thread(sys.stdin.read)
    await listener.stop(0)
    flusher.close()


def main() -> None:
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    with (
        tempfile.TemporaryDirectory() as directory,
        asyncio.Runner(loop_factory=ServiceLoop) as runner,
    ):
        runner.run(serve(Path(directory, "file")))


if __name__ == "__main__":
    main()
