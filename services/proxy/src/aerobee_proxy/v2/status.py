"""Map each exception to the status that a client gets.

    TooMuchInFlight       raised by the chassis; becomes TOO_MANY_REQUESTS
    Refused               raised by the proxy, with a code of the public protocol
    MqError               from a broker, a name server or `cluster`; TRANSLATION maps its code
    MessageTypeConflict,
    BrokerAway            subclasses of MqError that have their own codes in the public protocol

The response contains the status. Any other exception is a defect: the client gets
INTERNAL_SERVER_ERROR, and the proxy logs the traceback.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import structlog
from aerobee_foreign.apache.rocketmq.v2.definition_pb2 import Code, Status

from aerobee_chassis.rpc.in_flight import TooMuchInFlight
from aerobee_proxy.cluster.leasing.acknowledge import BrokerAway
from aerobee_proxy.cluster.topic_route import MessageTypeConflict
from aerobee_wire.status import Code as BrokerCode
from aerobee_wire.status import MqError

INTERNAL_MESSAGE = "internal error: see the log of the proxy"


class Refused(Exception):
    """A request that the proxy refuses. `message` states the problem and what to do."""

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


# Code of a broker or name server → code of the public protocol. If one broker refused a message
# but another broker may accept it, SDKs get a code at which they resend at once. If the cluster is
# overloaded, SDKs get TOO_MANY_REQUESTS, and most of them wait before they resend.
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


# Protobuf looks up the values of an enum in Python code. Do it here once, not for every response.
_KEPT_AS_THEY_ARE = frozenset({Code.OK, Code.ILLEGAL_INVISIBLE_TIME})


def status(code: Code = Code.OK, message: str = "") -> Status:
    """Return a Status. The default of `message` is the name of the code."""
    return Status(code=code, message=message or Code.Name(code))


def status_for(rpc: str, error: Exception) -> Status:
    """Return the status that the client gets for an exception.

    An unexpected exception is logged with its traceback, and the client does not get its details.
    """
    if isinstance(error, Refused):
        return status(error.code, error.message)
    if isinstance(error, TooMuchInFlight):
        return status(Code.TOO_MANY_REQUESTS, str(error))
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

    Some SDKs show users only the message, and users search it for the name of the code. The status
    ILLEGAL_INVISIBLE_TIME is unchanged, because users search for RocketMQ's text of it.
    """
    if found.code in _KEPT_AS_THEY_ARE:
        return found
    name = Code.Name(found.code)
    return found if found.message == name else status(found.code, f"{name}: {found.message}")


def overall(entries: Iterable[Status]) -> Status:
    """Combine the statuses of the entries of a response into the status of the response.

    If all entries have the same code, return the status of the last entry. The code is
    MULTIPLE_RESULTS if the codes of the entries differ, and INTERNAL_SERVER_ERROR without entries.
    The message begins with the name of the code (`named`).
    """
    by_code = {entry.code: entry for entry in entries}
    if len(by_code) == 1:
        return named(next(iter(by_code.values())))
    if by_code:
        return named(
            status(Code.MULTIPLE_RESULTS, "the entries have different codes: read each status")
        )
    return named(status(Code.INTERNAL_SERVER_ERROR, "the request has no entry: send one"))
