"""Keep a client registered with one broker through heartbeats and a stream of notices.

When the stream ends, the broker knows that the client has disconnected. A broken link is reopened
until the client closes it. Every connection starts with a heartbeat, because the broker has
unregistered the client in the meantime.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable
from contextlib import aclosing

from aerobee.broker.v1 import client_pb2

from aerobee_client.errors import BrokerUnreachable
from aerobee_client.runtime.clock import Clock
from aerobee_cluster.transport import Transport
from aerobee_wire import rpcs
from aerobee_wire.backoff import Backoff
from aerobee_wire.status import MqError

log = logging.getLogger(__name__)

# The arguments are the address of the broker and the notice.
OnNotice = Callable[[str, client_pb2.ClientNotice], None]
# The arguments are the address of the broker, and whether the link is up.
OnLink = Callable[[str, bool], None]


def ignore_link(_address: str, _is_up: bool) -> None: ...


FRESH_S = 5.0  # a heartbeat of this age is repeated when the stream opens
HEARTBEAT_INTERVAL_S = 30.0  # the broker unregisters a client after 120 s without one
CALL_TIMEOUT_S = 3.0
STEADY_S = 10.0  # a link that breaks sooner is reopened after increasing pauses


class BrokerLink:
    """Keeps a client registered with one broker.

    Args:
        address: The "host:port" of the broker.
        transport: The network.
        heartbeat: Makes each heartbeat request.
        on_notice: Called with each notice; None if the client needs no notices. The stream of
            notices opens after `watch` is called.
        on_link: Called when the stream opens and when it ends.
        clock: The clock of this client.

    Attributes:
        heartbeat: A function that returns the current heartbeat.
        on_notice: Called with each notice; None for a client without notices. The stream is not
            opened before `watch`.
        on_link: Called with the address and True when the stream is open, and with False when it
            has ended.
        refusal: The error of the last heartbeat; None if it succeeded.
        capabilities: The capabilities in the broker's last response.
        clock_ahead_ms: The broker's time minus this client's time, at the last heartbeat.
        is_watching: Whether the stream is open.
    """

    def __init__(
        self,
        address: str,
        transport: Transport,
        heartbeat: Callable[[], client_pb2.HeartbeatRequest],
        on_notice: OnNotice | None,
        on_link: OnLink = ignore_link,
        *,
        clock: Clock,
    ) -> None:
        self.address = address
        self.refusal: MqError | None = None
        self.capabilities: frozenset[int] = frozenset()
        self.clock_ahead_ms = 0
        self._clock = clock
        self._transport = transport
        self._heartbeat = heartbeat
        self._on_notice = on_notice
        self._on_link = on_link
        self._tried = asyncio.Event()
        self._watches = asyncio.Event()  # set when the stream is to be opened
        self._watch_tried = asyncio.Event()
        self.is_watching = False
        self._has_watched = False
        self._beaten_at = -math.inf  # the loop's time after the last heartbeat
        self._task = asyncio.create_task(self._run(), name=f"link to {address}")

    async def until_tried(self) -> None:
        """Wait until the first heartbeat has succeeded or failed, or the link has closed."""
        await self._tried.wait()

    def watch(self) -> None:
        """Open the stream of notices, and keep it open from now on."""
        self._watches.set()
        if self.refusal is not None:
            self._watch_tried.set()

    async def until_watching(self) -> None:
        """Wait until the stream is open (see `is_watching`) or has failed, or the link closes."""
        await self._watch_tried.wait()

    async def beat(self) -> None:
        """Send one heartbeat now. Raises MqError."""
        began_ms = self._clock.now_ms()
        response = await self._transport.call(
            self.address, rpcs.HEARTBEAT, self._heartbeat(), timeout_s=CALL_TIMEOUT_S
        )
        self._beaten_at = asyncio.get_running_loop().time()
        self.capabilities = frozenset(response.capabilities)
        if response.now_timestamp_ms:  # an older broker does not report it
            middle_ms = (began_ms + self._clock.now_ms()) // 2
            self.clock_ahead_ms = response.now_timestamp_ms - middle_ms

    async def close(self, unregister: client_pb2.UnregisterClientRequest | None) -> None:
        """Close the link. If `unregister` is given, send it to the broker if reachable."""
        self._task.cancel()
        self._tried.set()
        self._watch_tried.set()
        await asyncio.gather(self._task, return_exceptions=True)
        if unregister is None:
            return
        try:
            await self._transport.call(
                self.address, rpcs.UNREGISTER_CLIENT, unregister, timeout_s=CALL_TIMEOUT_S
            )
        except MqError as error:
            log.debug("not unregistered at %s: %s", self.address, error)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        backoff = Backoff(0.2, 2.0)
        said = ""
        while True:
            steady_at = math.inf
            try:
                await self.beat()
                self.refusal = None
                self._tried.set()
                steady_at = loop.time() + STEADY_S
                await self._hold_open()
            except MqError as error:
                if loop.time() >= steady_at:
                    backoff.reset()
                    said = ""
                if error.message != said:
                    log.warning("link to broker %s is down: %s", self.address, error)
                    said = error.message
                self.refusal = error
            except Exception:
                log.exception("link to broker %s failed", self.address)
            self._tried.set()
            if self._watches.is_set():
                self._watch_tried.set()
            await asyncio.sleep(backoff.next_s())

    async def _hold_open(self) -> None:
        """Keep the link open until it breaks, then raise MqError."""
        parts = [asyncio.create_task(self._beat_forever())]
        if self._on_notice is not None:
            parts.append(asyncio.create_task(self._watch(self._on_notice)))
        try:
            done, _ = await asyncio.wait(parts, return_when=asyncio.FIRST_COMPLETED)
            for part in done:
                part.result()
        finally:
            for part in parts:
                part.cancel()
            await asyncio.gather(*parts, return_exceptions=True)

    async def _beat_forever(self) -> None:
        while True:
            await asyncio.sleep(HEARTBEAT_INTERVAL_S)
            await self.beat()

    async def _watch(self, on_notice: OnNotice) -> None:
        await self._watches.wait()
        loop = asyncio.get_running_loop()
        request = client_pb2.WatchClientRequest(client_id=self._heartbeat().client_id)
        stream = self._transport.stream(self.address, rpcs.WATCH_CLIENT, request)
        async with aclosing(stream) as notices:
            try:
                async for notice in notices:
                    if notice.HasField("watching"):
                        if self._has_watched or loop.time() - self._beaten_at > FRESH_S:
                            # The broker forgets a client when its stream ends, or if it has none.
                            # It may have noticed the end of the previous stream only after the
                            # heartbeat of this connection.
                            await self.beat()
                        self._has_watched = self.is_watching = True
                        self._watch_tried.set()
                        self._on_link(self.address, True)
                    on_notice(self.address, notice)
            finally:  # before the broker notices
                self.is_watching = False
                self._on_link(self.address, False)
        raise BrokerUnreachable(self.address, "it ended the stream of notices")
