"""Call interceptors in their order before an event, and in reverse order after it.

Except in `before_send`, an exception of an interceptor does not stop the event or the next
interceptor.
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
    """Call a method of an interceptor, and log an exception that it raises."""
    try:
        getattr(interceptor, method)(*arguments)
    except Exception:
        log.exception("%s of the interceptor %r failed", method, interceptor)


class HookedSend:
    """A message in flight, and the interceptors to notify of the end of its send.

    `notified` lists these interceptors in order, each with the message that it has seen.
    """

    __slots__ = ("_notified",)

    def __init__(self, notified: Sequence[tuple[Interceptor, Message]]) -> None:
        self._notified = notified

    def stored(self, result: SendResult) -> SendResult:
        self.end(result, None)
        return result

    def end(self, result: SendResult | None, error: BaseException | None) -> None:
        for interceptor, message in reversed(self._notified):
            try:
                interceptor.after_send(message, result, error)
            except Exception:
                log.exception("after_send of the interceptor %r failed", interceptor)


def begin_send(
    message: Message, interceptors: Sequence[Interceptor]
) -> tuple[Message, HookedSend | None]:
    """Return the message to send, and a hook for the end of the send.

    The hook is None if no interceptor needs it. If a `before_send` raises, this function raises the
    same error, after it has notified the interceptors that already follow the message.
    """
    message, added, send = begin_single_send(message, interceptors)
    return message if added is None else added.copied_to(message), send


def begin_single_send(
    message: Message, interceptors: Sequence[Interceptor]
) -> tuple[Message, AddedProperty | None, HookedSend | None]:
    """Begin a send as `begin_send` does, but return the last added property separately.

    This saves a copy of the message. The message may already have a property of the same name.
    """
    notified: list[tuple[Interceptor, Message]] | None = None
    added: AddedProperty | None = None
    for interceptor in interceptors:
        if added is not None:
            message, added = added.copied_to(message), None
        try:
            given = interceptor.before_send(message)
        except BaseException as error:
            HookedSend(notified or ()).end(None, error)
            raise
        if isinstance(given, AddedProperty):
            added = given
            continue
        if given is not None:
            message = given
        try:
            if interceptor.follows_send(message):
                notified = notified or []  # for most sends there are none: these are not sampled
                notified.append((interceptor, message))
        except Exception:
            log.exception("follows_send of the interceptor %r failed", interceptor)
    return message, added, None if notified is None else HookedSend(notified)


class HookedBatch:
    """A batch of messages in flight, and the interceptors to notify of the end of each send.

    If a `before_send` raises, the constructor raises the same error, and no message is sent.
    """

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
    notify(interceptors, "before_consume", group, messages)


def after_consume(
    interceptors: Sequence[Interceptor],
    group: str,
    messages: Sequence[ReceivedMessage],
    failures: Sequence[Failure | None],
) -> None:
    notify(interceptors[::-1], "after_consume", group, messages, failures)


def notify(interceptors: Sequence[Interceptor], method: str, *arguments: object) -> None:
    """Notify each interceptor of an event."""
    for interceptor in interceptors:
        guarded(interceptor, method, *arguments)


OnRebalance = Callable[[frozenset[MessageQueue], frozenset[MessageQueue]], None]


def rebalance_listener(interceptors: Sequence[Interceptor], group: str) -> OnRebalance | None:
    """Return a function that reports acquired and released queues, or None without interceptors."""
    if not interceptors:
        return None

    def changed(acquired: frozenset[MessageQueue], released: frozenset[MessageQueue]) -> None:
        notify(interceptors, "after_rebalance", group, acquired, released)

    return changed
