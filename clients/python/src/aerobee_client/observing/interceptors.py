"""Define interceptors, which observe messages and may refuse or change them before a send."""

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
    """The reason why a consumed message was rejected.

    Attributes:
        reason: The class of an exception, or the verdict that the listener returned.
        description: The text of the exception.
    """

    reason: str
    description: str


class Interceptor:
    """Observes messages. The methods do nothing; a subclass overrides those that it needs.

    The methods are plain functions. They run where the message is sent or consumed, so they must
    not block for long. If a client uses several threads, they run on several threads.

    An exception of `before_send` refuses the send. Exceptions of other methods are logged and
    change nothing.
    """

    def before_send(self, message: Message) -> Message | AddedProperty | None:
        """Inspect a message before its send. Called once per send, even if the send is retried.

        It runs on the thread and in the context of the sender. An MqError that it raises reaches
        the sender unchanged.

        Args:
            message: The message to send.

        Returns:
            None to send the message itself. A message to send that one instead (see
            Message.with_properties). An AddedProperty to send the message with that property; then
            `after_send` is not called.
        """

    def follows_send(self, message: Message) -> bool:
        """Return whether to call `after_send` for a message.

        A send costs less if this method returns False.

        Args:
            message: The message that `before_send` returned, or its argument if that returned None.

        Returns:
            True by default.
        """
        return True

    def after_send(
        self, message: Message, result: SendResult | None, error: BaseException | None
    ) -> None:
        """Observe the end of a send.

        For a one-way send, whose outcome is unknown, `result` and `error` are None.

        Args:
            message: The message that `before_send` returned, or its argument if that returned None.
            result: The result; None if the send failed.
            error: The error; None if the send succeeded.
        """

    def after_send_request(
        self, topic: str, message_count: int, elapsed_s: float, error: BaseException | None
    ) -> None:
        """Observe the end of a request that sent messages. Runs on the event loop.

        One request may carry several messages. A message that the client refuses does not cause a
        request.

        Args:
            topic: The topic of the messages.
            message_count: The number of messages in the request.
            elapsed_s: The time that the request took, in seconds.
            error: The error of the last attempt; None if the request succeeded.
        """

    def before_consume(self, consumer_group: str, messages: Sequence[ReceivedMessage]) -> None:
        """Observe messages before the listener gets them. Runs on the listener's thread or task.

        Args:
            consumer_group: The group of the consumer.
            messages: The messages.
        """

    def after_consume(
        self,
        consumer_group: str,
        messages: Sequence[ReceivedMessage],
        failures: Sequence[Failure | None],
    ) -> None:
        """Observe messages after the listener has returned or raised.

        Args:
            consumer_group: The group of the consumer.
            messages: The messages.
            failures: The failure of each message; None for a consumed message.
        """

    def after_settle(
        self,
        consumer_group: str,
        operation: str,
        messages: Sequence[ReceivedMessage],
        elapsed_s: float,
        error: BaseException | None,
    ) -> None:
        """Observe the end of a call that settles messages at the broker.

        Args:
            consumer_group: The group of the consumer.
            operation: "send_back" by a push consumer; "ack", "change_invisible_duration" or
                "dead_letter" by a simple consumer.
            messages: The messages.
            elapsed_s: The time of the call, including waiting, in seconds.
            error: The error if the broker could not be notified; None on success.
        """

    def after_receive(
        self, consumer_group: str, messages: Sequence[ReceivedMessage], elapsed_s: float
    ) -> None:
        """Observe messages that a consumer without a listener has returned to its caller.

        Args:
            consumer_group: The group of the consumer.
            messages: The messages.
            elapsed_s: The time of the call (`receive`, `poll` or a step of a loop), including
                waiting, in seconds.
        """

    def end_transaction(
        self, message_id: str, resolution: str, error: BaseException | None
    ) -> None:
        """Observe the end of a transaction.

        Args:
            message_id: The message id of the half message.
            resolution: "COMMIT", "ROLLBACK" or "UNKNOWN". After UNKNOWN, the check decides, and its
                decision is reported as one of the other two.
            error: The error if the broker could not be notified; None on success.
        """

    def after_rebalance(
        self,
        consumer_group: str,
        acquired: frozenset[MessageQueue],
        released: frozenset[MessageQueue],
    ) -> None:
        """Observe a rebalance that changed which queues this member owns.

        Args:
            consumer_group: The group of the consumer.
            acquired: The queues that this member owns in addition.
            released: The queues that this member no longer owns.
        """
