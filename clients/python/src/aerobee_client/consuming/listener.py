"""Call the application's listener, and convert its result to one verdict per message.

A listener is a function or coroutine function that gets one message or, as a batch listener, a
list. This module does no I/O itself.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import Any, cast

from aerobee_client.consume_result import (
    DEAD_LETTER_LEVEL,
    ConsumeResult,
    DeadLetter,
    ReconsumeLater,
)
from aerobee_client.consuming.failure_details import causes_of, stack_trace_of, text_of
from aerobee_client.consuming.send_back import Rejection
from aerobee_client.message import ReceivedMessage
from aerobee_client.message.received_message import has_request
from aerobee_client.observing.hooks import after_consume, before_consume
from aerobee_client.observing.interceptors import Failure, Interceptor
from aerobee_client.requesting import is_past_ttl
from aerobee_client.runtime.clock import Clock, SystemClock
from aerobee_wire.status import invalid_parameter

log = logging.getLogger(__name__)

Answer = ConsumeResult | None
BatchAnswer = ConsumeResult | None | Sequence[ConsumeResult]
Listener = Callable[[ReceivedMessage], Answer | Awaitable[Answer]]
BatchListener = Callable[[list[ReceivedMessage]], BatchAnswer | Awaitable[BatchAnswer]]

# One verdict per message; None if it is consumed.
Verdicts = list[Rejection | None]

_RECONSUME_LATER = Rejection(
    "RECONSUME_LATER", "the listener returned RECONSUME_LATER", is_verdict=True
)
_DEAD_LETTER = Rejection(
    "DEAD_LETTER", "the listener returned DEAD_LETTER", DEAD_LETTER_LEVEL, is_verdict=True
)
_BY_RESULT = {
    ConsumeResult.SUCCESS: None,
    ConsumeResult.RECONSUME_LATER: _RECONSUME_LATER,
    ConsumeResult.DEAD_LETTER: _DEAD_LETTER,
}


class Consume:
    """Calls the listener with messages.

    Use `call_async` if the listener is a coroutine function (`is_coroutine`), otherwise `call`.
    """

    def __init__(
        self,
        listener: Listener | None,
        batch_listener: BatchListener | None,
        clock: Clock | None = None,
    ) -> None:
        self._clock = clock or SystemClock()
        self._now_ms_at: Callable[[str], int] = lambda _: self._clock.now_ms()
        if (listener is None) == (batch_listener is None):
            raise invalid_parameter("give a consumer either a listener or a batch_listener")
        self._single = batch_listener is None
        self._function = cast(Callable[[Any], Any], listener or batch_listener)
        call = getattr(self._function, "__call__", None)  # noqa: B004  # an object with async __call__
        self.is_coroutine = inspect.iscoroutinefunction(self._function) or (
            inspect.iscoroutinefunction(call)
        )

    def use_time_of(self, now_ms_at: Callable[[str], int]) -> None:
        """Set the function that returns a broker's time of day. Call before the first message."""
        self._now_ms_at = now_ms_at

    def call(self, given: list[ReceivedMessage]) -> Verdicts:
        """Call the listener in the current thread. Never raises.

        A request whose producer no longer waits for a reply counts as consumed without a call.
        """
        try:
            messages = self._awaited(given)
        except Exception as error:  # otherwise the thread would end unnoticed
            return self._failed(given, error)
        if len(messages) < len(given):
            return self._spread(given, messages, self._call(messages) if messages else [])
        return self._call(messages)

    async def call_async(self, given: list[ReceivedMessage]) -> Verdicts:
        """Call the listener on the event loop, as `call` does in a thread.

        Raises CancelledError if the running task is cancelled.
        """
        try:
            messages = self._awaited(given)
        except Exception as error:
            return self._failed(given, error)
        if len(messages) < len(given):
            answer = await self._call_async(messages) if messages else []
            return self._spread(given, messages, answer)
        return await self._call_async(messages)

    def _call(self, messages: list[ReceivedMessage]) -> Verdicts:
        argument = messages[0] if self._single else list(messages)  # a separate list
        try:
            return verdicts(self._function(argument), len(messages))
        except BaseException as error:  # also SystemExit: the message is not consumed
            return self._failed(messages, error)

    async def _call_async(self, messages: list[ReceivedMessage]) -> Verdicts:
        argument = messages[0] if self._single else list(messages)  # a separate list
        try:
            return verdicts(await self._function(argument), len(messages))
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            return self._failed(messages, error)  # a task inside the listener was cancelled
        except Exception as error:
            return self._failed(messages, error)

    def _awaited(self, messages: list[ReceivedMessage]) -> list[ReceivedMessage]:
        """Return `messages` without requests past their TTL. Raises MqError if one is damaged."""
        if not has_request(messages):
            return messages
        now_ms_at = self._now_ms_at
        return [
            message
            for message in messages
            if not is_past_ttl(message, now_ms_at(message.broker_name))
        ]

    @staticmethod
    def _spread(
        given: list[ReceivedMessage], called: list[ReceivedMessage], answer: Verdicts
    ) -> Verdicts:
        """Return one verdict for each message in `given`.

        `answer` holds the verdicts for `called`, the messages that the listener got. The other
        messages count as consumed.
        """
        log.debug("%d requests were past their TTL", len(given) - len(called))
        by_message = dict(zip(called, answer, strict=True))
        return [by_message.get(message) for message in given]

    @property
    def name(self) -> str:
        """The name of the listener, for the log."""
        function = self._function
        name = getattr(function, "__qualname__", None)
        return repr(function) if name is None else f"{function.__module__}.{name}"

    @staticmethod
    def _failed(messages: list[ReceivedMessage], error: BaseException) -> Verdicts:
        return [rejection_of(error)] * len(messages)


class InterceptedConsume(Consume):
    """A Consume that also notifies interceptors, in the thread or task of the listener."""

    def __init__(
        self,
        listener: Listener | None,
        batch_listener: BatchListener | None,
        consumer_group: str,
        interceptors: Sequence[Interceptor],
    ) -> None:
        super().__init__(listener, batch_listener)
        self._consumer_group = consumer_group
        self._interceptors = interceptors

    def _call(self, messages: list[ReceivedMessage]) -> Verdicts:
        before_consume(self._interceptors, self._consumer_group, messages)
        return self._observed(messages, super()._call(messages))

    async def _call_async(self, messages: list[ReceivedMessage]) -> Verdicts:
        before_consume(self._interceptors, self._consumer_group, messages)
        try:
            given = await super()._call_async(messages)
        except asyncio.CancelledError as error:
            self._observed(messages, [rejection_of(error)] * len(messages))
            raise
        return self._observed(messages, given)

    def _observed(self, messages: list[ReceivedMessage], given: Verdicts) -> Verdicts:
        failures = [
            None if rejection is None else Failure(rejection.reason, rejection.description)
            for rejection in given
        ]
        after_consume(self._interceptors, self._consumer_group, messages, failures)
        return given


def consume_of(
    listener: Listener | None,
    batch_listener: BatchListener | None,
    consumer_group: str,
    interceptors: Sequence[Interceptor],
) -> Consume:
    """Return a Consume for a listener; it notifies `interceptors` if there are any."""
    if interceptors:
        return InterceptedConsume(listener, batch_listener, consumer_group, interceptors)
    return Consume(listener, batch_listener)


def verdicts(answer: object, count: int) -> Verdicts:
    """Convert a listener's result for `count` messages to verdicts.

    Raises TypeError if the result has the wrong type or length.
    """
    if answer is None:
        return [None] * count
    if isinstance(answer, ConsumeResult):
        return [_BY_RESULT[answer]] * count
    if isinstance(answer, Sequence) and len(answer) == count:
        listed = [_BY_RESULT[result] for result in answer if isinstance(result, ConsumeResult)]
        if len(listed) == count:
            return listed
    raise TypeError(
        f"the listener returned {type(answer).__name__}: it returns None, a ConsumeResult, or (a "
        f"batch listener) one ConsumeResult for each of the {count} messages"
    )


def rejection_of(error: BaseException) -> Rejection:
    """Return the rejection for an exception: its reason, text and trace, and the requested delay.

    The reason is the class of the exception, or the one that a verdict names.
    """
    reason, description = type(error).__name__, text_of(error)
    details: dict[str, Any] = {
        "error": error,
        "cause": causes_of(error),
        "stack_trace": stack_trace_of(error),
    }
    if isinstance(error, ReconsumeLater):
        delay_ms = None if error.delay is None else -(-error.delay // timedelta(milliseconds=1))
        return Rejection(
            error.reason or reason,
            description,
            error.delay_level,
            delay_ms,
            error.counted,
            is_verdict=True,
            **details,
        )
    if isinstance(error, DeadLetter):
        return Rejection(
            error.reason or reason, description, DEAD_LETTER_LEVEL, is_verdict=True, **details
        )
    return Rejection(reason, description, **details)
