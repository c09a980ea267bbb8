"""Define the verdicts of a listener: the message is consumed, retried later, or dead-lettered."""

from __future__ import annotations

from datetime import timedelta
from enum import Enum

from aerobee_client.runtime.kinds import checked_class
from aerobee_wire.status import invalid_parameter

FIRST_DELAY_LEVEL = 1
LAST_DELAY_LEVEL = 18
DEAD_LETTER_LEVEL = -1
MAX_DELAY = timedelta(days=3)


class ConsumeResult(Enum):
    """A verdict that a listener may return. If it returns None, the verdict is SUCCESS.

    A Python function without a return statement therefore succeeds. (In RocketMQ's Java client,
    null means RECONSUME_LATER.)
    """

    SUCCESS = 1
    # Redeliver after the delay of the group's retry policy. Dead-letter after the last attempt.
    RECONSUME_LATER = 2
    # Move the message to the dead-letter topic now.
    DEAD_LETTER = 3


@checked_class
class ReconsumeLater(Exception):  # a verdict, not an error
    """Raised by a listener to redeliver the message later.

    The text of the exception becomes the failure description of the message. Without `delay` and
    `delay_level`, the group's retry policy determines the delay.

    Args:
        description: The failure description.
        delay: The time until redelivery, up to 3 days.
        delay_level: One of RocketMQ's delays, 1 to 18. Do not combine it with `delay`.
        reason: The failure reason, such as "OutOfStock". The default is the name of the class.
        counted: False if this delivery does not count as an attempt, so that it does not bring the
            message nearer to the dead-letter topic. Use False if the listener currently cannot
            process any message.

    Raises:
        MqError: INVALID_PARAMETER if a delay is out of bounds, or if both delays are given.

    Example:
        def listener(message):
            if database.is_down():
                raise ReconsumeLater("no database", delay=timedelta(minutes=1), counted=False)
    """

    def __init__(
        self,
        description: str = "",
        *,
        delay: timedelta | None = None,
        delay_level: int = 0,
        counted: bool = True,
        reason: str = "",
    ) -> None:
        if delay_level and not FIRST_DELAY_LEVEL <= delay_level <= LAST_DELAY_LEVEL:
            raise invalid_parameter(
                f"delay_level is {delay_level}: give 1 to 18, or 0 for the policy's"
            )
        if delay is not None and delay_level:
            raise invalid_parameter(
                f"delay is {delay} and delay_level {delay_level}: give one of them"
            )
        if delay is not None and not timedelta(0) <= delay <= MAX_DELAY:
            raise invalid_parameter(f"delay is {delay}: give 0 to 3 days")
        super().__init__(description)
        self.delay = delay
        self.delay_level = delay_level
        self.counted = counted
        self.reason = reason


class DeadLetter(Exception):  # a verdict, not an error
    """Raised by a listener to move the message to the dead-letter topic now.

    The text of the exception becomes the failure description of the message. Raise it `from`
    another exception to keep that one as the cause.

    Args:
        description: The failure description.
        reason: The failure reason, by which lists and reports group dead letters. The default is
            the name of the class.

    Example:
        def listener(message):
            if is_fraud(message):
                raise DeadLetter("the card is stolen", reason="FraudSuspected")
    """

    reason = ""  # of a subclass that does not call this constructor

    def __init__(self, description: str = "", *, reason: str = "") -> None:
        super().__init__(description)
        self.reason = reason
