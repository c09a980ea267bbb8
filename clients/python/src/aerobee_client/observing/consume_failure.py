"""Define the failed delivery that `on_error` of a push consumer receives."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aerobee_client.message import ReceivedMessage


@dataclass(frozen=True, slots=True)
class ConsumeFailure:
    """A delivery that failed, or the death of a message.

    Attributes:
        message: The message.
        error: The exception of the listener, with its traceback. If the listener returned a value
            of a wrong type, a TypeError. None if the listener returned RECONSUME_LATER or
            DEAD_LETTER, or ran longer than `consume_timeout`.
        reason: The class of the exception, "RECONSUME_LATER", "DEAD_LETTER" or "ConsumeTimeout".
            A dead letter keeps it as `failure_reason`.
        description: The text of the exception, or the explanation of another reason.
        attempt: The number of this delivery, starting at 1.
        died: True if the group does not get the message again. The broker has moved it to the
            dead-letter topic, because its attempts are used up or the listener asked for it. With
            MessageModel.BROADCASTING, the message was skipped. False if it is redelivered.
    """

    message: ReceivedMessage
    error: BaseException | None
    reason: str
    description: str
    attempt: int
    died: bool


OnError = Callable[[ConsumeFailure], Awaitable[None] | None]
