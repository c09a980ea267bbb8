"""Send trace records in the background, in batches.

A record is queued by any thread, and dropped if the queue is full. No caller waits, and a failure
to send is only logged.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress

from aerobee_client.message import Message
from aerobee_client.trace_topic.records import TraceRecord, bodies
from aerobee_wire.status import Code, MqError
from aerobee_wire.topics import TRACE_TOPIC

log = logging.getLogger(__name__)

# RocketMQ's limits, except for the keys: a broker accepts 31,743 bytes of properties.
MAX_QUEUED = 2_048
BATCH = 10  # records that end the wait for further ones
INTERVAL_S = 5.0  # the maximum wait of a record for further ones
MAX_BODY_BYTES = 128_000
MAX_KEY_BYTES = 16_000
PAUSE_S = 5.0  # after a failed send, so that a broken cluster is not flooded
CLOSE_TIMEOUT_S = 5.0  # for the records that are queued at the end
WARN_INTERVAL_S = 60.0

Send = Callable[[Message], Awaitable[object]]


class TraceDispatcher:
    """A queue of trace records, and the task that sends them with `send`.

    `dropped` counts records that were not sent.
    """

    def __init__(self, send: Send) -> None:
        self._send = send
        self._queue: deque[TraceRecord] = deque()
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._some = asyncio.Event()
        self._enough = asyncio.Event()
        self._warned_s: float | None = None
        self.dropped = 0

    def put(self, record: TraceRecord) -> None:
        """Queue a record. May be called on any thread, also before the start."""
        with self._lock:
            queued = len(self._queue)
            if queued >= MAX_QUEUED:
                self.dropped += 1
                return
            self._queue.append(record)
        loop = self._loop
        if loop is not None and queued + 1 in (1, BATCH):
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(self._notice)

    def _notice(self) -> None:
        self._some.set()
        if len(self._queue) >= BATCH:
            self._enough.set()

    def start(self) -> None:
        """Start to send. Call it on the event loop of `send`."""
        self._loop = asyncio.get_running_loop()
        self._some, self._enough = asyncio.Event(), asyncio.Event()
        if self._queue:
            self._notice()
        self._task = asyncio.create_task(self._run(), name="message traces")

    async def close(self) -> None:
        """Send what is queued, for at most CLOSE_TIMEOUT_S, and stop."""
        task, self._task, self._loop = self._task, None, None
        if task is None:
            return
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await self._flush()
        with self._lock:
            self.dropped += len(self._queue)
            self._queue.clear()

    async def _run(self) -> None:
        while True:
            await self._some.wait()
            with suppress(TimeoutError):
                async with asyncio.timeout(INTERVAL_S):
                    await self._enough.wait()
            self._some.clear()
            self._enough.clear()
            if not await self._flush():
                await asyncio.sleep(PAUSE_S)
            if self._queue:
                self._notice()

    async def _flush(self) -> bool:
        """Send all queued records. Return False if a send failed; its records are dropped."""
        with self._lock:
            records = list(self._queue)
            self._queue.clear()
        try:
            made = bodies(records, max_bytes=MAX_BODY_BYTES, max_key_bytes=MAX_KEY_BYTES)
            while made:
                await self._send(Message(TRACE_TOPIC, made[0].body, keys=made[0].keys))
                del made[0]
        except Exception as error:
            self._failed(sum(each.records for each in made), error)
            return False
        except asyncio.CancelledError:
            # `close` sends again what it interrupts. RocketMQ's readers accept repeated records.
            left = sum(each.records for each in made)
            with self._lock:
                self._queue.extendleft(reversed(records[len(records) - left :]))
            raise
        return True

    def _failed(self, records: int, error: Exception) -> None:
        self.dropped += records
        now_s = asyncio.get_running_loop().time()
        if self._warned_s is not None and now_s - self._warned_s < WARN_INTERVAL_S:
            return
        self._warned_s = now_s
        advice = "see the error"
        if isinstance(error, MqError) and error.code is Code.TOPIC_NOT_EXIST:
            advice = "set traceTopicEnable=true at a broker, or do not set enable_trace"
        log.warning("%d message traces were dropped: %s: %s", self.dropped, error, advice)
