"""Calls interceptors: in their order before, in the reverse order after, and none keeps another, or
what it is told of, from going on.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Self

from aerobee_client.errors import PartialSend
from aerobee_client.message import Message, ReceivedMessage
from aerobee_client.message_queue import MessageQueue
from aerobee_client.observing.interceptors import Failure, Interceptor
from aerobee_client.send_result import SendResult

log = logging.getLogger(__name__)


def guarded(interceptor: Interceptor, method: str, *arguments: object) -> None:
    """Calls a method of an interceptor; what it raises is logged."""
    try:
        getattr(interceptor, method)(*arguments)
    except Exception:
        log.exception("%s of the interceptor %r failed", method, interceptor)


class HookedSend:
    """One message on its way through the interceptors, from construction on. `message`: what is
    sent. As a context manager it tells of what the block raises.

    Raises what a `before_send` raises; the interceptors that were told of the message by then are
    told of the failure.
    """

    __slots__ = ("_told", "message")

    def __init__(self, message: Message, interceptors: Sequence[Interceptor]) -> None:
        self._told: list[tuple[Interceptor, Message]] = []
        self.message = message
        for interceptor in interceptors:
            try:
                replaced = interceptor.before_send(self.message)
            except BaseException as error:
                self.end(None, error)
                raise
            if replaced is not None:
                self.message = replaced
            self._told.append((interceptor, self.message))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if error is not None:
            self.end(None, error)

    def stored(self, result: SendResult) -> SendResult:
        self.end(result, None)
        return result

    def end(self, result: SendResult | None, error: BaseException | None) -> None:
        for interceptor, message in reversed(self._told):
            try:
                interceptor.after_send(message, result, error)
            except Exception:
                log.exception("after_send of the interceptor %r failed", interceptor)


class HookedBatch:
    """Several messages on their way. Raises what a `before_send` raises: then none is sent."""

    def __init__(self, messages: Sequence[Message], interceptors: Sequence[Interceptor]) -> None:
        self._sends: list[HookedSend] = []
        try:
            for message in messages:
                self._sends.append(HookedSend(message, interceptors))
        except BaseException as error:
            self._end([None] * len(self._sends), error)
            raise
        self.messages = [send.message for send in self._sends]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, PartialSend):
            self._end(error.results, error.cause)
        elif error is not None:
            self._end([None] * len(self._sends), error)

    def stored(self, results: list[SendResult]) -> list[SendResult]:
        self._end(results, None)
        return results

    def _end(self, results: Sequence[SendResult | None], error: BaseException | None) -> None:
        for send, result in zip(self._sends, results, strict=True):
            send.end(result, None if result is not None else error)


def before_consume(
    interceptors: Sequence[Interceptor], group: str, messages: Sequence[ReceivedMessage]
) -> None:
    tell(interceptors, "before_consume", group, messages)


def after_consume(
    interceptors: Sequence[Interceptor],
    group: str,
    messages: Sequence[ReceivedMessage],
    failures: Sequence[Failure | None],
) -> None:
    tell(interceptors[::-1], "after_consume", group, messages, failures)


def tell(interceptors: Sequence[Interceptor], method: str, *arguments: object) -> None:
    """Tells each of something that happened."""
    for interceptor in interceptors:
        guarded(interceptor, method, *arguments)


OnRebalance = Callable[[frozenset[MessageQueue], frozenset[MessageQueue]], None]


def rebalance_listener(interceptors: Sequence[Interceptor], group: str) -> OnRebalance | None:
    """Told of the queues that were acquired and released; None: there are no interceptors."""
    if not interceptors:
        return None

    def changed(acquired: frozenset[MessageQueue], released: frozenset[MessageQueue]) -> None:
        tell(interceptors, "after_rebalance", group, acquired, released)

    return changed
