"""The errors of a read. All are MqError, so that the command can print them as one line.

MqError
├─ OptionError      an option of the data source is unknown, missing, or has a bad value
├─ DataLossError    messages that were to be read no longer exist
├─ CheckpointError  the offsets of a checkpoint are not those of this stream
└─ ReportError      the report cannot be made; says what to do
"""

from __future__ import annotations

from aerobee_wire.status import Code, MqError

__all__ = ["CheckpointError", "Code", "DataLossError", "MqError", "OptionError", "ReportError"]


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


class ReportError(MqError):
    def __init__(self, message: str, about: str = "") -> None:
        super().__init__(Code.INVALID_PARAMETER, message, about=about)
