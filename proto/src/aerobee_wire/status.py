"""Define the response codes, and the only error type that is sent between processes.

A failed RPC carries a gRPC status whose details are the message. Its trailing metadata contains the
other data, which any language can read (`trailers_of`, `error_from`). Numbers are RocketMQ's
(ResponseCode, RemotingSysResponseCode); numbers from 1001 on are Aerobee's own. Services subclass
MqError; the receiver gets the code, but not the class.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import Any, Protocol

CODE_KEY = "aerobee-code"
CODE_NUMBER_KEY = "aerobee-code-number"
RETRYABLE_KEY = "aerobee-retryable"
RETRY_AFTER_KEY = "aerobee-retry-after-ms"
ABOUT_KEY = "aerobee-about"
MASTER_ADDRESS_KEY = "aerobee-master-address"


class Code(IntEnum):
    """The reason of a failure, with RocketMQ's number. `GRPC_STATUS` maps it to a gRPC status."""

    SUCCESS = 0
    SYSTEM_ERROR = 1
    SYSTEM_BUSY = 2
    REQUEST_CODE_NOT_SUPPORTED = 3
    FLUSH_DISK_TIMEOUT = 10
    SLAVE_NOT_AVAILABLE = 11
    FLUSH_SLAVE_TIMEOUT = 12
    MESSAGE_ILLEGAL = 13
    SERVICE_NOT_AVAILABLE = 14
    VERSION_NOT_SUPPORTED = 15
    NO_PERMISSION = 16
    TOPIC_NOT_EXIST = 17
    TOPIC_EXIST_ALREADY = 18
    PULL_NOT_FOUND = 19
    PULL_RETRY_IMMEDIATELY = 20
    PULL_OFFSET_MOVED = 21
    QUERY_NOT_FOUND = 22
    SUBSCRIPTION_PARSE_FAILED = 23
    SUBSCRIPTION_NOT_EXIST = 24
    SUBSCRIPTION_NOT_LATEST = 25
    SUBSCRIPTION_GROUP_NOT_EXIST = 26
    INVALID_PARAMETER = 29
    CONSUMER_NOT_ONLINE = 206
    NO_MESSAGE = 208
    POLLING_FULL = 209
    POLLING_TIMEOUT = 210
    BROKER_NOT_EXIST = 211
    FLOW_CONTROL = 215
    ILLEGAL_OPERATION = 604
    LITE_SUBSCRIPTION_QUOTA_EXCEEDED = 2018
    # ---- codes of Aerobee's own ----

    DISK_FULL = 1001
    MESSAGE_CORRUPTED = 1002
    NAMESRV_UNREACHABLE = 1003
    BROKER_UNREACHABLE = 1004
    REQUEST_TIMEOUT = 1005
    INVALID_RECEIPT_HANDLE = 1006
    INVALID_TRANSACTION_ID = 1007
    QUEUE_NOT_EXIST = 1008
    SUBSCRIPTION_GROUP_EXIST_ALREADY = 1009
    QUEUE_LOCK_NOT_HELD = 1010


# The gRPC status of each code; a code that is not listed is INTERNAL.
GRPC_STATUS: Mapping[Code, str] = {
    Code.SYSTEM_BUSY: "RESOURCE_EXHAUSTED",
    Code.REQUEST_CODE_NOT_SUPPORTED: "UNIMPLEMENTED",
    Code.FLUSH_DISK_TIMEOUT: "DEADLINE_EXCEEDED",
    Code.SLAVE_NOT_AVAILABLE: "UNAVAILABLE",
    Code.FLUSH_SLAVE_TIMEOUT: "DEADLINE_EXCEEDED",
    Code.MESSAGE_ILLEGAL: "INVALID_ARGUMENT",
    Code.SERVICE_NOT_AVAILABLE: "UNAVAILABLE",
    Code.NO_PERMISSION: "PERMISSION_DENIED",
    Code.TOPIC_NOT_EXIST: "NOT_FOUND",
    Code.TOPIC_EXIST_ALREADY: "ALREADY_EXISTS",
    Code.QUERY_NOT_FOUND: "NOT_FOUND",
    Code.SUBSCRIPTION_PARSE_FAILED: "INVALID_ARGUMENT",
    Code.SUBSCRIPTION_NOT_EXIST: "FAILED_PRECONDITION",
    Code.SUBSCRIPTION_NOT_LATEST: "FAILED_PRECONDITION",
    Code.SUBSCRIPTION_GROUP_NOT_EXIST: "NOT_FOUND",
    Code.INVALID_PARAMETER: "INVALID_ARGUMENT",
    Code.CONSUMER_NOT_ONLINE: "NOT_FOUND",
    Code.BROKER_NOT_EXIST: "NOT_FOUND",
    Code.FLOW_CONTROL: "RESOURCE_EXHAUSTED",
    Code.POLLING_FULL: "RESOURCE_EXHAUSTED",
    Code.ILLEGAL_OPERATION: "FAILED_PRECONDITION",
    Code.LITE_SUBSCRIPTION_QUOTA_EXCEEDED: "RESOURCE_EXHAUSTED",
    Code.DISK_FULL: "RESOURCE_EXHAUSTED",
    Code.MESSAGE_CORRUPTED: "DATA_LOSS",
    Code.NAMESRV_UNREACHABLE: "UNAVAILABLE",
    Code.BROKER_UNREACHABLE: "UNAVAILABLE",
    Code.REQUEST_TIMEOUT: "DEADLINE_EXCEEDED",
    Code.INVALID_RECEIPT_HANDLE: "INVALID_ARGUMENT",
    Code.INVALID_TRANSACTION_ID: "INVALID_ARGUMENT",
    Code.QUEUE_NOT_EXIST: "OUT_OF_RANGE",
    Code.SUBSCRIPTION_GROUP_EXIST_ALREADY: "ALREADY_EXISTS",
    Code.QUEUE_LOCK_NOT_HELD: "FAILED_PRECONDITION",
}

# The same request may succeed later, or on another broker.
RETRYABLE = frozenset(
    {
        Code.SYSTEM_BUSY,
        Code.SLAVE_NOT_AVAILABLE,
        Code.SERVICE_NOT_AVAILABLE,
        Code.FLOW_CONTROL,
        Code.POLLING_FULL,
        Code.DISK_FULL,
        Code.NAMESRV_UNREACHABLE,
        Code.BROKER_UNREACHABLE,
        Code.REQUEST_TIMEOUT,
    }
)


class MqError(Exception):
    """A failure, with the information that the caller needs to react.

    - `message` is one sentence that says what is wrong and how to solve it.
    - `retryable` is True if the same request may succeed later, or on another broker.
    - `retry_after_ms` is a sensible wait before the retry, if known.
    - `about` names the thing to change: a field, a property, an option or the path of a file; "" if
      none of these applies.
    - `master_address` is the "host:port" of the broker that can serve the request, if this broker
      cannot but knows it.
    - `broker_name` is the broker that failed, if the error comes from a call to one broker.
    """

    def __init__(
        self,
        code: Code,
        message: str,
        *,
        retryable: bool | None = None,
        retry_after_ms: int | None = None,
        about: str = "",
        master_address: str = "",
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.retryable = code in RETRYABLE if retryable is None else retryable
        self.retry_after_ms = retry_after_ms
        self.about = about
        self.master_address = master_address
        self.broker_name = ""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.code.name}, {self.message!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the whole state, because subclasses take other arguments.

        With this, a pool of processes can return an error unchanged.
        """
        return _restored, (type(self), self.args, self.__dict__)

    def add_context(self, where: str) -> None:
        """Put `where`, the place of the error, in front of the message."""
        self.message = f"{where}: {self.message}"
        self.args = (self.message,)

    def at_broker(self, broker_name: str) -> None:
        """Record the name of the broker that failed."""
        self.broker_name = broker_name


def invalid_parameter(message: str, *, about: str = "") -> MqError:
    """Return the error for an argument, an option or a field that is not valid."""
    return MqError(Code.INVALID_PARAMETER, message, about=about)


def illegal_operation(message: str, *, about: str = "") -> MqError:
    """Return the error for a call that is not allowed now, such as a change after the start."""
    return MqError(Code.ILLEGAL_OPERATION, message, about=about)


def _restored(kind: type[MqError], args: tuple[object, ...], state: dict[str, object]) -> MqError:
    error: MqError = kind.__new__(kind, *args)
    error.__dict__.update(state)
    return error


def grpc_status_of(code: Code) -> str:
    """Return the name of the gRPC status for `code`."""
    return GRPC_STATUS.get(code, "INTERNAL")


def trailers_of(error: MqError) -> tuple[tuple[str, str], ...]:
    """Return the trailing metadata for a failed RPC."""
    trailers = [
        (CODE_KEY, error.code.name),
        (CODE_NUMBER_KEY, str(int(error.code))),
        (RETRYABLE_KEY, "true" if error.retryable else "false"),
    ]
    if error.retry_after_ms is not None:
        trailers.append((RETRY_AFTER_KEY, str(error.retry_after_ms)))
    if error.about and error.about.isascii() and error.about.isprintable():  # required for metadata
        trailers.append((ABOUT_KEY, error.about))
    if error.master_address:
        trailers.append((MASTER_ADDRESS_KEY, error.master_address))
    return tuple(trailers)


def error_from(message: str, trailers: Iterable[tuple[str, str | bytes]]) -> MqError | None:
    """Return the error that `trailers_of` wrote, or None if these trailers do not contain one."""
    values = {key: value for key, value in trailers if isinstance(value, str)}
    number = values.get(CODE_NUMBER_KEY, "")
    if not number.isdigit():
        return None
    try:
        code = Code(int(number))
    except ValueError:  # from a newer peer: put the code's name into the message
        code, message = Code.SYSTEM_ERROR, f"{values.get(CODE_KEY, number)}: {message}"
    wait = values.get(RETRY_AFTER_KEY, "")
    return MqError(
        code,
        message,
        retryable=values.get(RETRYABLE_KEY) == "true",
        retry_after_ms=int(wait) if wait.isdigit() else None,
        about=values.get(ABOUT_KEY, ""),
        master_address=values.get(MASTER_ADDRESS_KEY, ""),
    )


class EntryResult(Protocol):
    """The result of one entry of a request."""

    code: int
    message: str


def failure_of(result: EntryResult) -> MqError | None:
    """Return the failure of one entry, or None if the entry succeeded."""
    if result.code == Code.SUCCESS:
        return None
    try:
        code = Code(result.code)
    except ValueError:  # from a newer broker
        code = Code.SYSTEM_ERROR
    return MqError(code, result.message)
