"""The presence of a client at one broker: heartbeats, and the stream of notices that tells the
broker that the client lives.

A link that breaks is made anew until it is closed; the broker has then forgotten the client, so a
heartbeat always comes first.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import aclosing

from aerobee.broker.v1 import client_pb2

from aerobee_client.backoff import Backoff
from aerobee_client.cluster import rpcs
from aerobee_client.cluster.transport import Transport
from aerobee_client.errors import BrokerUnreachable
from aerobee_wire.status import MqError

log = logging.getLogger(__name__)

HEARTBEAT_INTERVAL_S = 30.0  # the broker forgets a client after 120 s of silence
CALL_TIMEOUT_S = 3.0


class BrokerLink:
    """`heartbeat` makes the current heartbeat; `on_notice`: None for a client that needs no notices
    (then no stream is held open)."""

    def __init__(
        self,
        address: str,
        transport: Transport,
        heartbeat: Callable[[], client_pb2.HeartbeatRequest],
        on_notice: Callable[[client_pb2.ClientNotice], None] | None,
    ) -> None:
        self.address = address
        self.refusal: MqError | None = None
        self._transport = transport
        self._heartbeat = heartbeat
        self._on_notice = on_notice
        self._tried = asyncio.Event()
        self._task = asyncio.create_task(self._run(), name=f"link to {address}")

    async def tried(self) -> None:
        """Returns after the first heartbeat, whatever became of it (see `refusal`), or when it is
        closed."""
        await self._tried.wait()

    async def beat(self) -> None:
        """One heartbeat now. Raises MqError."""
        await self._transport.call(
            self.address, rpcs.HEARTBEAT, self._heartbeat(), timeout_s=CALL_TIMEOUT_S
        )

    async def close(self, unregister: client_pb2.UnregisterClientRequest | None) -> None:
        """Ends the link; with `unregister`, tells the broker, if it can be reached."""
        self._task.cancel()
        self._tried.set()
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
        backoff = Backoff(0.2, 2.0)
        while True:
            try:
                await self.beat()
                self.refusal = None
                self._tried.set()
                backoff.reset()
                await self._live()
            except MqError as error:
                if self.refusal is None or self.refusal.message != error.message:
                    log.warning("link to broker %s is down: %s", self.address, error)
                self.refusal = error
                self._tried.set()
            except Exception:
                log.exception("link to broker %s failed", self.address)
                self._tried.set()
            await asyncio.sleep(backoff.next_s())

    async def _live(self) -> None:
        """Until the link breaks: raises MqError."""
        parts = [asyncio.create_task(self._beat_on())]
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

    async def _beat_on(self) -> None:
        while True:
            await asyncio.sleep(HEARTBEAT_INTERVAL_S)
            await self.beat()

    async def _watch(self, on_notice: Callable[[client_pb2.ClientNotice], None]) -> None:
        request = client_pb2.WatchClientRequest(client_id=self._heartbeat().client_id)
        stream = self._transport.stream(self.address, rpcs.WATCH_CLIENT, request)
        async with aclosing(stream) as notices:
            async for notice in notices:
                on_notice(notice)
        raise BrokerUnreachable(self.address, "it ended the stream of notices")
