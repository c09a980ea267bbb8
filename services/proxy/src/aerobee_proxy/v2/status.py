"""The status of a response: maps each failure to the code for the client. The only such place.

    TooMuchInFlight       from the chassis: TOO_MANY_REQUESTS
    Refused               from the proxy itself: a code of the public protocol and a sentence
    MqError               from a broker, a name server or `cluster`; its code is translated here
    MessageTypeConflict,
    BrokerAway            MqErrors with their own codes in the public protocol

Each travels as a Status inside the response. Any other exception is a defect: the client gets
INTERNAL_SERVER_ERROR, and the traceback is logged.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import structlog
from apache.rocketmq.v2.definition_pb2 import Code, Status

from aerobee_chassis.rpc.in_flight import TooMuchInFlight
from aerobee_proxy.cluster.leasing.acknowledge import BrokerAway
from aerobee_proxy.cluster.topic_route import MessageTypeConflict
from aerobee_wire.status import Code as BrokerCode
from aerobee_wire.status import MqError

TOO_MUCH = (
    "the proxy holds as many bytes of requests and answers as it may: send again in a moment, or "
    "raise maxInFlightBytes"
)
INTERNAL_MESSAGE = "internal error: see the log of the proxy"


class Refused(Exception):
    """A request that the proxy refuses. `message` states the problem and what to do."""

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


# Code of a broker or name server → code of the public protocol. If another broker may accept the
# message that this one refused, SDKs get a code at which they resend at once. If the cluster is
# overloaded, they get TOO_MANY_REQUESTS, at which most SDKs wait before they resend.
TRANSLATION: Mapping[BrokerCode, Code] = {
    BrokerCode.SUCCESS: Code.OK,
    BrokerCode.SYSTEM_ERROR: Code.INTERNAL_SERVER_ERROR,
    BrokerCode.SYSTEM_BUSY: Code.TOO_MANY_REQUESTS,
    BrokerCode.REQUEST_CODE_NOT_SUPPORTED: Code.NOT_IMPLEMENTED,
    BrokerCode.FLUSH_DISK_TIMEOUT: Code.MASTER_PERSISTENCE_TIMEOUT,
    BrokerCode.SLAVE_NOT_AVAILABLE: Code.HA_NOT_AVAILABLE,
    BrokerCode.FLUSH_SLAVE_TIMEOUT: Code.SLAVE_PERSISTENCE_TIMEOUT,
    BrokerCode.MESSAGE_ILLEGAL: Code.BAD_REQUEST,
    BrokerCode.SERVICE_NOT_AVAILABLE: Code.HA_NOT_AVAILABLE,
    BrokerCode.VERSION_NOT_SUPPORTED: Code.VERSION_UNSUPPORTED,
    BrokerCode.NO_PERMISSION: Code.FORBIDDEN,
    BrokerCode.TOPIC_NOT_EXIST: Code.TOPIC_NOT_FOUND,
    BrokerCode.TOPIC_EXIST_ALREADY: Code.BAD_REQUEST,
    BrokerCode.PULL_NOT_FOUND: Code.MESSAGE_NOT_FOUND,
    BrokerCode.PULL_RETRY_IMMEDIATELY: Code.MESSAGE_NOT_FOUND,
    BrokerCode.PULL_OFFSET_MOVED: Code.ILLEGAL_OFFSET,
    BrokerCode.QUERY_NOT_FOUND: Code.MESSAGE_NOT_FOUND,
    BrokerCode.SUBSCRIPTION_PARSE_FAILED: Code.ILLEGAL_FILTER_EXPRESSION,
    BrokerCode.SUBSCRIPTION_NOT_EXIST: Code.BAD_REQUEST,
    BrokerCode.SUBSCRIPTION_NOT_LATEST: Code.BAD_REQUEST,
    BrokerCode.SUBSCRIPTION_GROUP_NOT_EXIST: Code.CONSUMER_GROUP_NOT_FOUND,
    BrokerCode.INVALID_PARAMETER: Code.BAD_REQUEST,
    BrokerCode.CONSUMER_NOT_ONLINE: Code.NOT_FOUND,
    BrokerCode.NO_MESSAGE: Code.MESSAGE_NOT_FOUND,
    BrokerCode.POLLING_FULL: Code.TOO_MANY_REQUESTS,
    BrokerCode.POLLING_TIMEOUT: Code.MESSAGE_NOT_FOUND,
    BrokerCode.BROKER_NOT_EXIST: Code.BAD_REQUEST,
    BrokerCode.FLOW_CONTROL: Code.TOO_MANY_REQUESTS,
    BrokerCode.ILLEGAL_OPERATION: Code.BAD_REQUEST,
    BrokerCode.LITE_SUBSCRIPTION_QUOTA_EXCEEDED: Code.LITE_SUBSCRIPTION_QUOTA_EXCEEDED,
    BrokerCode.DISK_FULL: Code.HA_NOT_AVAILABLE,
    BrokerCode.MESSAGE_CORRUPTED: Code.INTERNAL_SERVER_ERROR,
    BrokerCode.NAMESRV_UNREACHABLE: Code.PROXY_TIMEOUT,
    BrokerCode.BROKER_UNREACHABLE: Code.PROXY_TIMEOUT,
    BrokerCode.REQUEST_TIMEOUT: Code.PROXY_TIMEOUT,
    BrokerCode.INVALID_RECEIPT_HANDLE: Code.INVALID_RECEIPT_HANDLE,
    BrokerCode.INVALID_TRANSACTION_ID: Code.INVALID_TRANSACTION_ID,
    BrokerCode.QUEUE_NOT_EXIST: Code.BAD_REQUEST,
    BrokerCode.SUBSCRIPTION_GROUP_EXIST_ALREADY: Code.BAD_REQUEST,
    BrokerCode.QUEUE_LOCK_NOT_HELD: Code.PRECONDITION_FAILED,
}


# Names of an enum are looked up in Python code. Do it here once, not for every response.
_KEPT_AS_THEY_ARE = frozenset({Code.OK, Code.ILLEGAL_INVISIBLE_TIME})


def status(code: Code = Code.OK, message: str = "") -> Status:
    """Return a Status; its message defaults to the name of the code."""
    return Status(code=code, message=message or Code.Name(code))


def status_for(rpc: str, error: Exception) -> Status:
    """Return the status of any exception.

    A defect is logged with its traceback; the client does not get its details.
    """
    if isinstance(error, Refused):
        return status(error.code, error.message)
    if isinstance(error, TooMuchInFlight):
        return status(Code.TOO_MANY_REQUESTS, TOO_MUCH)
    if isinstance(error, MessageTypeConflict):
        return status(Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE, error.message)
    if isinstance(error, BrokerAway):
        return status(Code.HA_NOT_AVAILABLE, error.message)
    if isinstance(error, MqError):
        return status(TRANSLATION.get(error.code, Code.INTERNAL_SERVER_ERROR), error.message)
    structlog.get_logger().error("rpc_failed", rpc=rpc, exc_info=error)
    return status(Code.INTERNAL_SERVER_ERROR, INTERNAL_MESSAGE)


def named(found: Status) -> Status:
    """Return the status with the name of its code at the start of the message.

    Some SDKs show users only the message, and users look for the name in it. The exception is
    RocketMQ's text about invisible durations, which users look for without the name.
    """
    if found.code in _KEPT_AS_THEY_ARE:
        return found
    name = Code.Name(found.code)
    return found if found.message == name else status(found.code, f"{name}: {found.message}")


def overall(entries: Iterable[Status]) -> Status:
    """Return the status of a response with these entries, `named`.

    The code is the common one of all entries. It is MULTIPLE_RESULTS if their codes differ, and
    INTERNAL_SERVER_ERROR without entries.
    """
    by_code = {entry.code: entry for entry in entries}
    if len(by_code) == 1:
        return named(next(iter(by_code.values())))
    if by_code:
        return named(status(Code.MULTIPLE_RESULTS, "the entries have different codes"))
    return named(status(Code.INTERNAL_SERVER_ERROR, "the request has no entry"))
