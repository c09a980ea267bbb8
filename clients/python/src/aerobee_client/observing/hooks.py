"""Calls interceptors: in their order before, in the reverse order after, and none keeps another, or
what it is told of, from going on.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Self

from aerobee_client.errors import PartialSend
from aerobee_client.message import AddedProperty, Message, ReceivedMessage
from aerobee_client.message_queue import MessageQueue
from aerobee_client.observing.interceptors import Failure, Interceptor
from aerobee_client.send_result import SendResult
from aerobee_wire.status import MqError

log = logging.getLogger(__name__)


def guarded(interceptor: Interceptor, method: str, *arguments: object) -> None:
    """Calls a method of an interceptor; what it raises is logged."""
    try:
        getattr(interceptor, method)(*arguments)
    except Exception:
        log.exception("%s of the interceptor %r failed", method, interceptor)


class HookedSend:
    """A message on its way whose interceptors want to know its end. `told`: they, with what each
    was told of, in their order."""

    __slots__ = ("_told",)

    def __init__(self, told: Sequence[tuple[Interceptor, Message]]) -> None:
        self._told = told

    def stored(self, result: SendResult) -> SendResult:
        self.end(result, None)
        return result

    def end(self, result: SendResult | None, error: BaseException | None) -> None:
        for interceptor, message in reversed(self._told):
            try:
                interceptor.after_send(message, result, error)
            except Exception:
                log.exception("after_send of the interceptor %r failed", interceptor)


def begin_send(
    message: Message, interceptors: Sequence[Interceptor]
) -> tuple[Message, HookedSend | None]:
    """What is sent in place of a message, and who is told of its end; None: nobody.

    Raises what a `before_send` raises; the interceptors that follow the message by then are told of
    the failure.
    """
    message, added, send = begin_single_send(message, interceptors)
    return message if added is None else added.copied_to(message), send


def begin_single_send(
    message: Message, interceptors: Sequence[Interceptor]
) -> tuple[Message, AddedProperty | None, HookedSend | None]:
    """As `begin_send`, without the copy of the message that the property of the last interceptor
    would take. The message may have one of that name."""
    told: list[tuple[Interceptor, Message]] | None = None
    added: AddedProperty | None = None
    for interceptor in interceptors:
        if added is not None:
            message, added = added.copied_to(message), None
        try:
            given = interceptor.before_send(message)
        except BaseException as error:
            HookedSend(told or ()).end(None, error)
            raise
        if isinstance(given, AddedProperty):
            added = given
            continue
        if given is not None:
            message = given
        try:
            if interceptor.follows_send(message):
                told = told or []  # most sends have none: they are not sampled
                told.append((interceptor, message))
        except Exception:
            log.exception("follows_send of the interceptor %r failed", interceptor)
    return message, added, None if told is None else HookedSend(told)


class HookedBatch:
    """Several messages on their way. Raises what a `before_send` raises: then none is sent."""

    def __init__(self, messages: Sequence[Message], interceptors: Sequence[Interceptor]) -> None:
        self.messages: list[Message] = []
        self._sends: list[HookedSend | None] = []
        try:
            for given in messages:
                message, send = begin_send(given, interceptors)
                self.messages.append(message)
                self._sends.append(send)
        except BaseException as error:
            self._end([None] * len(self._sends), error)
            if isinstance(error, MqError):
                index = len(self._sends)
                error.add_context(f"message {index} of the batch, of which nothing was sent")
            raise

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
            if send is not None:
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
