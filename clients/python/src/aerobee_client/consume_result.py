"""What a listener answers: consumed, consume again, or dead-letter."""

from __future__ import annotations

from enum import Enum

FIRST_DELAY_LEVEL = 1
LAST_DELAY_LEVEL = 18
DEAD_LETTER_LEVEL = -1


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
    """Raised by a listener: redeliver the message after `delay_level` (1 to 18; 0: by the group's
    retry policy). The text becomes the failure description of the message."""

    def __init__(self, description: str = "", *, delay_level: int = 0) -> None:
        if delay_level and not FIRST_DELAY_LEVEL <= delay_level <= LAST_DELAY_LEVEL:
            raise ValueError(f"delay_level is {delay_level}: give 1 to 18, or 0 for the policy's")
        super().__init__(description)
        self.delay_level = delay_level


class DeadLetter(Exception):  # a verdict, not an error
    """Raised by a listener: send the message to the dead-letter topic now. The text becomes its
    failure description."""
