"""Define the errors of the client: MqError with a code of the wire protocol, and its subclasses.

MqError                  code, message, retryable, retry_after_ms
├─ NamesrvUnreachable    no name server of the list answers
├─ BrokerUnreachable     a broker (or one name server) is unreachable, or the connection broke
├─ RequestTimeout        no answer in time; the request may or may not have been executed
├─ ClientClosed          the client is not started, or was closed before or during the call
├─ PartialSend           some messages of a batch were stored and others were not
├─ LeaseFailures         some of several leases were not settled or changed
└─ AlreadyExists         a topic or group exists with other settings (in `admin/descriptions.py`)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from aerobee_wire.status import Code, MqError

if TYPE_CHECKING:
    from aerobee_client.send_result import SendResult

__all__ = [
    "BrokerUnreachable",
    "ClientClosed",
    "Code",
    "LeaseFailures",
    "MqError",
    "NamesrvUnreachable",
    "PartialSend",
    "RequestTimeout",
]


class NamesrvUnreachable(MqError):
    """No name server of the list answers."""

    def __init__(self, addresses: Sequence[str], reason: str) -> None:
        super().__init__(
            Code.NAMESRV_UNREACHABLE,
            f"no name server answers at {'; '.join(addresses)} ({reason}): "
            "start one, or correct NAMESRV_ADDR or namesrv",
        )


class BrokerUnreachable(MqError):
    """A broker or one name server is unreachable, or the connection broke."""

    def __init__(self, address: str, reason: str) -> None:
        super().__init__(
            Code.BROKER_UNREACHABLE,
            f"{address} cannot be reached ({reason}): check that the process runs there",
        )
        self.reason = reason


class RequestTimeout(MqError):
    """The server did not answer in time. The request may or may not have been executed."""

    def __init__(self, address: str, timeout_s: float) -> None:
        super().__init__(
            Code.REQUEST_TIMEOUT,
            f"{address} did not answer within {timeout_s:.3g} s: it may or may not have carried "
            "the request out; retry or allow more time",
        )
        self.timeout_s = timeout_s


class ClientClosed(MqError):
    """The client is not started, or it was closed before or during the call."""

    def __init__(self, what: str) -> None:
        super().__init__(
            Code.ILLEGAL_OPERATION,
            f"the {what} is not running: call start() first, or use it inside a with block",
        )


class PartialSend(MqError):
    """Some messages of a batch were stored and others were not.

    The code of this error is the code of `cause`.

    Attributes:
        results: One entry per message of the batch, in order; None for a message that failed.
        cause: The first failure.
    """

    def __init__(self, results: Sequence[SendResult | None], cause: MqError) -> None:
        missing = sum(result is None for result in results)
        super().__init__(
            cause.code,
            f"{missing} of {len(results)} messages were not stored: send again those whose entry "
            f"in `results` is None. The first failure: {cause.message}",
            retryable=cause.retryable,
            retry_after_ms=cause.retry_after_ms,
        )
        self.results = results
        self.cause = cause


class LeaseFailures(MqError):
    """A call about several leases failed for some of them.

    The code of this error is the code of `cause`.

    Attributes:
        failures: One entry per message of the call, in order; None for a message that succeeded.
        cause: The first failure.
    """

    def __init__(self, failures: Sequence[MqError | None]) -> None:
        found = [failure for failure in failures if failure is not None]
        cause = found[0]
        super().__init__(
            cause.code,
            f"{len(found)} of {len(failures)} failed: see `failures`. The first: {cause.message}",
            retryable=any(failure.retryable for failure in found),
            retry_after_ms=cause.retry_after_ms,
        )
        self.failures = failures
        self.cause = cause
