"""The errors of reads and writes. All are MqError, so that the command can print them as one line.

MqError
├─ OptionError      an option of the data source is unknown, missing, or has a bad value
├─ DataLossError    messages that were to be read no longer exist
├─ CheckpointError  the offsets of a checkpoint are not those of this stream
├─ MissingPackageError  the Python of a task lacks packages
├─ RowError         a row cannot be written
├─ WriteError       a task of a write has failed; says how many messages it has sent
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
    """`about`: the option, or the column of a schema."""

    def __init__(self, message: str, about: str) -> None:
        super().__init__(Code.INVALID_PARAMETER, message, about=about)


class DataLossError(MqError):
    """`about`: the queue. `lost`: the queue offsets among which messages are missing."""

    def __init__(
        self, message: str, about: str, lost: range, code: Code = Code.PULL_OFFSET_MOVED
    ) -> None:
        super().__init__(code, message, retryable=False, about=about)
        self.lost = lost


class CheckpointError(MqError):
    def __init__(self, message: str) -> None:
        super().__init__(Code.ILLEGAL_OPERATION, message, about="checkpoint")


class RowError(MqError):
    """`row`: its number in the partition, from 0."""

    def __init__(self, row: int, reason: str, about: str) -> None:
        super().__init__(Code.MESSAGE_ILLEGAL, f"row {row}: {reason}", about=about)
        self.row = row


class WriteError(MqError):
    """`sent`: messages of the task that brokers have acknowledged; up to `unknown` further ones may
    be stored too."""

    def __init__(self, cause: MqError, partition: int, sent: int, unknown: int) -> None:
        done = (
            f"{sent} messages of this task were sent before, and stay" if sent else "none is sent"
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
    """`packages`: what to install. `where`: program and host of the Python that lacks them."""

    def __init__(self, packages: Sequence[str], where: str) -> None:
        named = " and ".join(packages)
        problem = (
            f"the Python of this task, {where}, lacks {named}: pip install {' '.join(packages)}"
        )
        super().__init__(Code.ILLEGAL_OPERATION, f"{problem} there", about=named)


class ReportError(MqError):
    def __init__(self, message: str, about: str = "") -> None:
        super().__init__(Code.INVALID_PARAMETER, message, about=about)
