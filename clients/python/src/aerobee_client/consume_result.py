"""What a listener answers: consumed, consume again, or dead-letter."""

from __future__ import annotations

from datetime import timedelta
from enum import Enum

from aerobee_wire.status import Code, MqError

FIRST_DELAY_LEVEL = 1
LAST_DELAY_LEVEL = 18
DEAD_LETTER_LEVEL = -1
MAX_DELAY = timedelta(days=3)


class ConsumeResult(Enum):
    """What a listener may return. None means SUCCESS: a Python function without a return statement
    has succeeded. (In RocketMQ's Java client null means RECONSUME_LATER.)"""

    SUCCESS = 1
    # Redeliver after the delay of the group's retry policy; dead-letter once the attempts are used
    # up.
    RECONSUME_LATER = 2
    # To the dead-letter topic, now.
    DEAD_LETTER = 3


class ReconsumeLater(Exception):  # a verdict, not an error
    """Raised by a listener: redeliver the message later. The text becomes its failure description.

    `delay`: after this time, up to 3 days. `delay_level` (1 to 18) in its place: one of RocketMQ's
    delays. Without both: by the group's retry policy. `counted=False`: this was no attempt, so it
    brings the message no nearer to the dead-letter topic; for what the listener cannot do now,
    whatever the message.

    Raises INVALID_PARAMETER.
    """

    def __init__(
        self,
        description: str = "",
        *,
        delay: timedelta | None = None,
        delay_level: int = 0,
        counted: bool = True,
    ) -> None:
        if delay_level and not FIRST_DELAY_LEVEL <= delay_level <= LAST_DELAY_LEVEL:
            raise MqError(
                Code.INVALID_PARAMETER,
                f"delay_level is {delay_level}: give 1 to 18, or 0 for the policy's",
            )
        if delay is not None and delay_level:
            raise MqError(
                Code.INVALID_PARAMETER,
                f"delay is {delay} and delay_level {delay_level}: give one of them",
            )
        if delay is not None and not timedelta(0) <= delay <= MAX_DELAY:
            raise MqError(Code.INVALID_PARAMETER, f"delay is {delay}: give 0 to 3 days")
        super().__init__(description)
        self.delay = delay
        self.delay_level = delay_level
        self.counted = counted


class DeadLetter(Exception):  # a verdict, not an error
    """Raised by a listener: send the message to the dead-letter topic now. The text becomes its
    failure description."""
