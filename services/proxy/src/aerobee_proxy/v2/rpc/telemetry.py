"""Serve Telemetry, the stream on which a client sends its settings and receives commands.

The proxy usually answers settings at once. It repeats the answer a second later, because one SDK
misses an answer that arrives during its start.

To answer a push consumer, the proxy must know whether the group consumes all its topics in order.
The answer waits until brokers and name servers are available, because SDKs of push consumers use
only the first answer.

The stream stays open until the client ends it, with these exceptions:

    the caller is not admitted   the proxy sends one command with the status, and ends the stream
                                 with the same text, because Go's SDK ignores the command's status
    the user loses a right       the same, for a right that the settings of the client need
    the settings are refused     the proxy ends the stream with INVALID_ARGUMENT
    the proxy stops              the proxy ends the stream with OK, because Rust's SDK would loop
                                 without a pause after a reset
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from functools import partial
from typing import Any

import structlog
from aerobee_foreign.apache.rocketmq.v2.definition_pb2 import Settings
from aerobee_foreign.apache.rocketmq.v2.service_pb2 import TelemetryCommand

from aerobee_chassis.clock import Clock
from aerobee_chassis.rpc.call import Call
from aerobee_proxy.cluster.group_configs import GroupConfigCache, GroupPolicy
from aerobee_proxy.cluster.log_throttle import LogThrottle
from aerobee_proxy.config import CurrentOptions
from aerobee_proxy.counts import ProxyCounts
from aerobee_proxy.v2.lite_clients import LiteDepartures, check_binding
from aerobee_proxy.v2.resources import stored_name
from aerobee_proxy.v2.rpc.pipeline import Caller, NotAdmitted, Pipeline
from aerobee_proxy.v2.sessions import Session, Sessions, conflicts
from aerobee_proxy.v2.settings import PUSH_CONSUMERS, check_settings, negotiate
from aerobee_proxy.v2.status import status
from aerobee_wire.consume_order import ConsumeOrder
from aerobee_wire.status import MqError

RPC = "Telemetry"
REPEAT_AFTER_S = 1.0
RETRY_AFTER_S = 1.0  # between attempts to get a group's policy, while no broker answers
CONFLICT_LOG_EVERY_MS = 60_000
# Limits of the commands queued for a client that does not read. A command may contain a message.
MAX_QUEUED = 1_000
MAX_QUEUED_BYTES = 16 * 1024 * 1024


class TelemetryStream:
    """One telemetry stream of a client. Commands are queued, and one task writes them."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._queue: asyncio.Queue[TelemetryCommand | None] = asyncio.Queue(MAX_QUEUED)
        self._queued_bytes = 0
        self._drops = False  # since the client last took a command
        self._repetition: asyncio.TimerHandle | None = None

    def offer(self, command: TelemetryCommand) -> None:
        """Queue a command, or drop it if too much is queued."""
        size = command.ByteSize()
        # A command above the limit is queued when it is the only one.
        too_many = self._queued_bytes and self._queued_bytes + size > MAX_QUEUED_BYTES
        if too_many or self._queue.full():
            if not self._drops:  # a client that does not read may send settings without an end
                structlog.get_logger().warning("command_dropped", peer=self._call.peer)
            self._drops = True
            return
        self._queued_bytes += size
        self._queue.put_nowait(command)

    def offer_twice(self, command: TelemetryCommand) -> None:
        """Queue a command now, and once more REPEAT_AFTER_S later.

        An earlier repetition that is still pending is cancelled because it is out of date. This
        also limits the memory for a client that keeps sending settings.
        """
        self.offer(command)
        self.cancel_repetition()
        loop = asyncio.get_running_loop()
        self._repetition = loop.call_later(REPEAT_AFTER_S, self.offer, command)

    def cancel_repetition(self) -> None:
        if self._repetition is not None:
            self._repetition.cancel()

    def end(self) -> bool:
        """Make `write` return after it wrote the queued commands.

        Return False, without an effect, if the queue is full.
        """
        if self._queue.full():
            return False
        self._queue.put_nowait(None)
        return True

    async def write(self) -> None:
        while (command := await self._queue.get()) is not None:
            await self._call.write(command)
            self._queued_bytes -= command.ByteSize()
            self._drops = False


class Telemetry:
    """The telemetry streams.

    `announce` registers a client with the brokers. `answered` gets what clients send besides their
    settings: the answers to commands.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        sessions: Sessions,
        group_configs: GroupConfigCache,
        options: CurrentOptions,
        *,
        counts: ProxyCounts,
        clock: Clock,
        departures: LiteDepartures,
        announce: Callable[[Session, Call], Coroutine[Any, Any, None]],
        answered: Callable[[TelemetryCommand, Session], None] = lambda command, session: None,
    ) -> None:
        self._answered = answered
        self._departures = departures
        self._announce = announce
        self._pipeline = pipeline
        self._sessions = sessions
        self._group_configs = group_configs
        self._options = options
        self._counts = counts
        # Throttled by group, because every client repeats its settings.
        self._conflict_log = LogThrottle(clock, CONFLICT_LOG_EVERY_MS)
        self._open: set[asyncio.Task[object]] = set()
        self._closing = asyncio.Event()

    async def telemetry(self, requests: AsyncIterator[TelemetryCommand], call: Call) -> None:
        if self._closing.is_set() or (task := asyncio.current_task()) is None:
            return
        self._open.add(task)
        try:
            caller = self._pipeline.admit(call, RPC)
            with self._pipeline.hold(caller, lambda: caller.session.settings):
                await self._serve(requests, caller)
        except NotAdmitted as refusal:
            self._pipeline.note_refusal(RPC, refusal, call)
            await call.write(TelemetryCommand(status=status(refusal.code, refusal.message)))
            raise
        except asyncio.CancelledError:
            if not self._closing.is_set():
                raise
            task.uncancel()  # cancelled by `close`: the stream ends with OK
        finally:
            self._open.discard(task)

    def close(self) -> None:
        """End all open streams. Streams that clients open after this call end at once."""
        self._closing.set()
        for task in self._open:
            task.cancel()

    async def _serve(self, requests: AsyncIterator[TelemetryCommand], caller: Caller) -> None:
        call = caller.call
        stream = TelemetryStream(call)
        writer = asyncio.create_task(stream.write())
        later: asyncio.Task[None] | None = None
        serving = asyncio.current_task()
        assert serving is not None, "a handler runs in a task"
        caller.session.streams.add(stream)
        try:
            async for command in requests:
                # The client's session may have expired or ended meanwhile. Then `admit` creates a
                # new session.
                caller = self._pipeline.admit(call, RPC)
                caller.session.streams.add(stream)
                if command.WhichOneof("command") != "settings":
                    self._answered(command, caller.session)
                    continue
                if later is not None:
                    later.cancel()  # that answer would be out of date
                if not await self._answer(caller, command.settings, stream):
                    later = asyncio.create_task(
                        self._answer_later(caller, command.settings, stream)
                    )
                    later.add_done_callback(partial(_end_refused, serving))
            if stream.end():  # the client ended its requests, but still gets the queued commands
                await asyncio.wait([writer])
        except asyncio.CancelledError:
            if (refusal := _refusal(later)) is None:
                raise
            serving.uncancel()
            raise refusal from None
        finally:
            stream.cancel_repetition()
            tasks = [task for task in (writer, later) if task is not None]
            for task in tasks:
                task.cancel()
            # Before any wait: a client may cancel a stream while it ends.
            caller.session.streams.discard(stream)
            # The clients of a proxy that stops continue through another one.
            if not caller.session.streams and not self._closing.is_set():
                self._departures.left(caller.session)
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _answer(self, caller: Caller, settings: Settings, stream: TelemetryStream) -> bool:
        """Answer the client's settings on the stream.

        Return False if no server could report the group's policy or the type of a topic. Then no
        answer was sent.
        """
        self._pipeline.authorize(settings, caller)
        check_settings(settings)
        self._sessions.set_settings(caller.session, settings)
        found = await self._policy(settings)
        if found is None:
            return False
        policy, fifo = found
        if settings.WhichOneof("pub_sub") == "subscription":
            check_binding(settings, policy)
        answer = negotiate(settings, self._options(), policy, fifo=fifo)
        self._sessions.set_settings(caller.session, answer)
        caller.session.answer_fifo(fifo, first_counts=settings.client_type in PUSH_CONSUMERS)
        stream.offer_twice(TelemetryCommand(status=status(), settings=answer))
        self._departures.background.run(self._announce(caller.session, caller.call))
        self._departures.returned(caller.session)
        self._check_conflicts(caller)
        return True

    async def _answer_later(
        self, caller: Caller, settings: Settings, stream: TelemetryStream
    ) -> None:
        answered = False
        while not answered:
            await asyncio.sleep(RETRY_AFTER_S)
            answered = await self._answer(caller, settings, stream)

    async def _policy(self, settings: Settings) -> tuple[GroupPolicy, bool] | None:
        """Return the policy of a consumer's group, and whether it consumes all its topics in order.

        If no server answers, return None for a push consumer, because its answer must contain the
        order. For other clients, return the policy of a new group.
        """
        if settings.WhichOneof("pub_sub") != "subscription":
            return GroupPolicy(), False
        subscription, configs = settings.subscription, self._group_configs
        try:
            policy = await configs.policy(stored_name(subscription.group))
            ordered = [
                await configs.is_ordered(policy, stored_name(entry.topic))
                for entry in subscription.subscriptions
            ]
        except MqError as error:
            structlog.get_logger().warning("group_policy_unknown", reason=error.message)
            return None if settings.client_type in PUSH_CONSUMERS else (GroupPolicy(), False)
        # A group whose order is ON consumes in order even if the settings name no topic yet.
        return policy, policy.order is ConsumeOrder.ON or (bool(ordered) and all(ordered))

    def _check_conflicts(self, caller: Caller) -> None:
        """Count and log the topics to which members of the caller's group subscribe differently."""
        group = caller.session.consumer_group
        if not group:
            return
        found = conflicts(self._sessions.members(group))
        self._counts.subscription_conflicts += len(found)
        if not found or self._conflict_log.allow(group) is None:
            return
        for topic, expressions in found.items():
            structlog.get_logger().warning(
                "subscription_conflict", group=group, topic=topic, expressions=expressions
            )


def _refusal(later: asyncio.Task[None] | None) -> BaseException | None:
    """Return the exception with which a delayed answer to settings failed, or None."""
    return None if later is None or not later.done() or later.cancelled() else later.exception()


def _end_refused(serving: asyncio.Task[object], later: asyncio.Task[None]) -> None:
    """End the stream if a delayed answer to settings failed.

    The client then gets the same error as for settings that are refused at once.
    """
    if _refusal(later) is not None:
        serving.cancel()
