"""Interceptors: what a program of the user is told of, message by message, and may refuse or change
before a send.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aerobee_client.message import AddedProperty, Message, ReceivedMessage
    from aerobee_client.message_queue import MessageQueue
    from aerobee_client.send_result import SendResult


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a consumed message was rejected: the class and the text of an exception, or what the
    listener returned."""

    reason: str
    description: str


class Interceptor:
    """Does nothing; a subclass writes the methods that it wants. They are plain functions, called
    where the message is sent or consumed, so they must not block for long; on several threads if
    the client's are.

    What `before_send` raises refuses the send. Whatever else is raised is logged and changes
    nothing.
    """

    def before_send(self, message: Message) -> Message | AddedProperty | None:
        """Before a message is sent, once, however often it is tried; on the thread and in the
        context of its sender. A message that is returned is sent in its place
        (Message.with_properties). With an AddedProperty the message itself is sent, with that
        property, and `after_send` is not called. None: the message itself. An MqError that is
        raised reaches the sender as it is."""

    def follows_send(self, message: Message) -> bool:
        """Whether `after_send` is to be told of `message`, which is what `before_send` gave. An
        interceptor that observes few of the sends pays little for the others."""
        return True

    def after_send(
        self, message: Message, result: SendResult | None, error: BaseException | None
    ) -> None:
        """After the send of what `before_send` gave; when that was None, of what it was told of.
        `result`: None when it failed with `error`;
        both are None for a one-way send, whose outcome nobody knows."""

    def after_send_request(
        self, topic: str, message_count: int, elapsed_s: float, error: BaseException | None
    ) -> None:
        """After a request with `message_count` messages of one topic was answered, or failed with
        `error` in its last attempt; on the loop. Messages that travel together are one request.
        What was refused before it left is in none."""

    def before_consume(self, consumer_group: str, messages: Sequence[ReceivedMessage]) -> None:
        """Before the listener gets these messages, where it runs: on its thread, in its task."""

    def after_consume(
        self,
        consumer_group: str,
        messages: Sequence[ReceivedMessage],
        failures: Sequence[Failure | None],
    ) -> None:
        """After the listener, also when it raised. `failures`: of each message; None: consumed."""

    def after_settle(
        self,
        consumer_group: str,
        operation: str,
        messages: Sequence[ReceivedMessage],
        elapsed_s: float,
        error: BaseException | None,
    ) -> None:
        """After the broker was told what became of messages: "send_back" by a push consumer, "ack",
        "change_invisible_duration" or "dead_letter" by a simple consumer. `elapsed_s`: of the call,
        waiting included. `error`: why the broker was not told."""

    def after_receive(
        self, consumer_group: str, messages: Sequence[ReceivedMessage], elapsed_s: float
    ) -> None:
        """After a consumer without a listener was given messages, by a call (`receive`, `poll`, the
        step of a loop) that took so long, waiting included."""

    def end_transaction(
        self, message_id: str, resolution: str, error: BaseException | None
    ) -> None:
        """After a transaction was ended. `resolution`: "COMMIT", "ROLLBACK" or "UNKNOWN" (it is
        left to the check-back, and what a check answers is told by the other two); `error`: why the
        broker was not told."""

    def after_rebalance(
        self,
        consumer_group: str,
        acquired: frozenset[MessageQueue],
        released: frozenset[MessageQueue],
    ) -> None:
        """After a rebalance that changed which queues this member owns."""
