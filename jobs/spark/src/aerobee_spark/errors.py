"""Define the errors of reads, writes and reports. Commands print each error as one line.

MqError
├─ OptionError      an option of the data source is unknown, missing, or has an invalid value
├─ DataLossError    messages in the range to read no longer exist
├─ CheckpointError  the offsets of a checkpoint do not belong to this stream
├─ MissingPackageError  the Python of a task lacks packages
├─ RowError         a row cannot be written
├─ WriteError       a task of a write failed; carries the number of messages that it sent
└─ ReportError      the report cannot be made; says what to do
"""

from __future__ import annotations

from collections.abc import Sequence

from aerobee_wire.status import Code, MqError

__all__ = [
    "CheckpointError",
    "Code",
    "DataLossError",
    "MissingPackageError",
    "MqError",
    "OptionError",
    "ReportError",
    "RowError",
    "WriteError",
]


class OptionError(MqError):
    """An option or a column is invalid. `about` names it."""

    def __init__(self, message: str, about: str) -> None:
        super().__init__(Code.INVALID_PARAMETER, message, about=about)


class DataLossError(MqError):
    """Messages of a queue are missing. `about` names the queue, and `lost` is the offset range."""

    def __init__(
        self, message: str, about: str, lost: range, code: Code = Code.PULL_OFFSET_MOVED
    ) -> None:
        super().__init__(code, message, retryable=False, about=about)
        self.lost = lost


class CheckpointError(MqError):
    def __init__(self, message: str) -> None:
        super().__init__(Code.ILLEGAL_OPERATION, message, about="checkpoint")


class RowError(MqError):
    """A row cannot be written. `row` is the number of the row in its partition, from 0."""

    def __init__(self, row: int, reason: str, about: str) -> None:
        super().__init__(Code.MESSAGE_ILLEGAL, f"row {row}: {reason}", about=about)
        self.row = row


class WriteError(MqError):
    """A task of a write failed. It may have sent messages before.

    `sent` is the number of messages of the task that brokers acknowledged. Brokers may have stored
    up to `unknown` further messages.
    """

    def __init__(self, cause: MqError, partition: int, sent: int, unknown: int) -> None:
        done = (
            f"{sent} messages of this task were sent before and remain stored"
            if sent
            else "none was sent"
        )
        perhaps = f"; {unknown} more may be stored" if unknown else ""
        super().__init__(
            cause.code,
            f"partition {partition}, {cause.message} ({done}{perhaps})",
            retryable=cause.retryable,
            about=cause.about,
        )
        self.sent = sent


class MissingPackageError(MqError):
    """The Python at `where` (program and host) lacks `packages`, which the user must install."""

    def __init__(self, packages: Sequence[str], where: str) -> None:
        named = " and ".join(packages)
        problem = (
            f"the Python of this task, {where}, lacks {named}: pip install {' '.join(packages)}"
        )
        super().__init__(Code.ILLEGAL_OPERATION, f"{problem} there", about=named)


class ReportError(MqError):
    def __init__(self, message: str, about: str = "") -> None:
        super().__init__(Code.INVALID_PARAMETER, message, about=about)
