"""Telemetry: the stream over which a client says what it is and hears what it shall do.

Settings are answered at once, and the same answer again a second later: one SDK misses an answer
that comes while it still starts. A push consumer is answered once a broker has said whether its
group is ordered: SDKs heed the first answer only, and one that took an ordered group for another
would consume it out of order until it ends. The stream stays open until the client ends it. A
caller who may not call is told so in one command, and the stream ends; settings that cannot be
accepted end it with INVALID_ARGUMENT.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import structlog
from apache.rocketmq.v2.definition_pb2 import Settings
from apache.rocketmq.v2.service_pb2 import TelemetryCommand

from aerobee_chassis.rpc.call import Call
from aerobee_proxy.cluster.group_configs import GroupPolicy
from aerobee_proxy.v2.context import Parts
from aerobee_proxy.v2.errors import status
from aerobee_proxy.v2.resources import stored_name
from aerobee_proxy.v2.rpc.pipeline import Caller, NotAdmitted, authorize, caller_of
from aerobee_proxy.v2.sessions import conflicts
from aerobee_proxy.v2.settings import PUSH_CONSUMERS, check_settings, negotiate
from aerobee_wire.status import MqError

REPEAT_AFTER_S = 1.0
ASK_AGAIN_S = 1.0  # brokers about a group, while none answers
TELL_AGAIN_MS = 60_000
# Commands to a client that does not read. One may hold a whole message.
MAX_WAITING = 1_000
MAX_WAITING_BYTES = 16 * 1024 * 1024


class TelemetryStream:
    """One stream of a client: commands in line for it, written by one task."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._line: asyncio.Queue[TelemetryCommand | None] = asyncio.Queue(MAX_WAITING)
        self._waiting_bytes = 0
        self._again: asyncio.TimerHandle | None = None

    def offer(self, command: TelemetryCommand) -> None:
        size = command.ByteSize()
        # One that is larger than all may be goes when it is alone.
        too_many = self._waiting_bytes and self._waiting_bytes + size > MAX_WAITING_BYTES
        if too_many or self._line.full():
            structlog.get_logger().warning(
                "client does not read its commands", peer=self._call.peer
            )
            return
        self._waiting_bytes += size
        self._line.put_nowait(command)

    def offer_twice(self, command: TelemetryCommand) -> None:
        """Now and a moment later. What was to be said again before is not: it is out of date, and
        a client that sends settings without end must not fill the memory."""
        self.offer(command)
        self.hush()
        self._again = asyncio.get_running_loop().call_later(REPEAT_AFTER_S, self.offer, command)

    def hush(self) -> None:
        """Says nothing again."""
        if self._again is not None:
            self._again.cancel()

    def end(self) -> bool:
        """`write` ends behind what is in line. False: too much is."""
        if self._line.full():
            return False
        self._line.put_nowait(None)
        return True

    async def write(self) -> None:
        while (command := await self._line.get()) is not None:
            await self._call.write(command)
            self._waiting_bytes -= command.ByteSize()


class Telemetry:
    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._told: dict[str, int] = {}  # groups whose members subscribe differently

    async def telemetry(self, requests: AsyncIterator[TelemetryCommand], call: Call) -> None:
        try:
            await self._serve(requests, call)
        except NotAdmitted as refusal:
            await call.write(TelemetryCommand(status=status(refusal.code, refusal.message)))

    async def _serve(self, requests: AsyncIterator[TelemetryCommand], call: Call) -> None:
        caller = caller_of(self._parts, call)
        stream = TelemetryStream(call)
        writer = asyncio.create_task(stream.write())
        later: asyncio.Task[None] | None = None
        caller.session.streams.add(stream)
        try:
            async for command in requests:
                # A client may have been forgotten meanwhile, or said goodbye and come back.
                caller = caller_of(self._parts, call)
                caller.session.streams.add(stream)
                if command.WhichOneof("command") != "settings":
                    continue
                if later is not None:
                    later.cancel()  # that answer would be out of date
                if not await self._answer(caller, command.settings, stream):
                    later = asyncio.create_task(
                        self._answer_later(caller, command.settings, stream)
                    )
            if stream.end():  # one that says no more still hears what it is owed
                await asyncio.wait([writer])
        finally:
            stream.hush()
            tasks = [task for task in (writer, later) if task is not None]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            caller.session.streams.discard(stream)

    async def _answer(self, caller: Caller, settings: Settings, stream: TelemetryStream) -> bool:
        """False: not yet."""
        authorize(self._parts, settings, caller)
        check_settings(settings)
        self._parts.sessions.declare(caller.session, settings)
        policy = await self._policy(settings)
        if policy is None:
            return False
        answer = negotiate(settings, self._parts.options, policy)
        self._parts.sessions.declare(caller.session, answer)
        command = TelemetryCommand(status=status(), settings=answer)
        stream.offer_twice(command)
        self._warn_of_conflicts(caller)
        return True

    async def _answer_later(
        self, caller: Caller, settings: Settings, stream: TelemetryStream
    ) -> None:
        answered = False
        while not answered:
            await asyncio.sleep(ASK_AGAIN_S)
            answered = await self._answer(caller, settings, stream)

    async def _policy(self, settings: Settings) -> GroupPolicy | None:
        """Of a consumer's group; while no broker answers None for a push consumer, to whom it
        matters, and that of a new group for others."""
        if settings.WhichOneof("pub_sub") != "subscription":
            return GroupPolicy()
        try:
            return await self._parts.groups.policy(stored_name(settings.subscription.group))
        except MqError as error:
            structlog.get_logger().warning("group policy unknown", reason=error.message)
            return None if settings.client_type in PUSH_CONSUMERS else GroupPolicy()

    def _warn_of_conflicts(self, caller: Caller) -> None:
        group = caller.session.consumer_group
        if not group:
            return
        found = conflicts(self._parts.sessions.members(group))
        self._parts.counts.subscription_conflicts += len(found)
        if not found or not self._is_news(group):
            return
        for topic, wanted in found.items():
            structlog.get_logger().warning(
                "members of a group subscribe differently", group=group, topic=topic, wanted=wanted
            )

    def _is_news(self, group: str) -> bool:
        """Whether a group's conflict was not told lately: every client repeats its settings."""
        now_ms = self._parts.clock.monotonic_ms()
        for known, told_ms in list(self._told.items()):
            if now_ms - told_ms >= TELL_AGAIN_MS:
                del self._told[known]
        if group in self._told:
            return False
        self._told[group] = now_ms
        return True
