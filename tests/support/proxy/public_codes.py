"""The codes with which each RPC of the public protocol may answer, by RocketMQ's table."""

from __future__ import annotations

from typing import Any

from aerobee_foreign.apache.rocketmq.v2.definition_pb2 import Code

C = Code
ANY = {C.OK, C.UNAUTHORIZED, C.CLIENT_ID_REQUIRED, C.TOO_MANY_REQUESTS, C.NOT_IMPLEMENTED}
NAMES = {C.ILLEGAL_TOPIC, C.ILLEGAL_CONSUMER_GROUP, C.TOPIC_NOT_FOUND, C.CONSUMER_GROUP_NOT_FOUND}
# BAD_REQUEST: no such broker, or a number out of range.
ALLOWED: dict[str, set[Any]] = {
    "QueryRoute": {C.ILLEGAL_TOPIC, C.TOPIC_NOT_FOUND, C.ILLEGAL_ACCESS_POINT},
    "Heartbeat": {C.ILLEGAL_CONSUMER_GROUP, C.ILLEGAL_TOPIC, C.UNRECOGNIZED_CLIENT_TYPE},
    "SendMessage": {
        C.MULTIPLE_RESULTS,
        C.ILLEGAL_TOPIC,
        C.ILLEGAL_MESSAGE_TAG,
        C.ILLEGAL_MESSAGE_KEY,
        C.ILLEGAL_MESSAGE_GROUP,
        C.ILLEGAL_MESSAGE_PROPERTY_KEY,
        C.ILLEGAL_MESSAGE_ID,
        C.ILLEGAL_DELIVERY_TIME,
        C.ILLEGAL_LITE_TOPIC,
        C.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
        C.MESSAGE_CORRUPTED,
        C.FORBIDDEN,
        C.TOPIC_NOT_FOUND,
        C.MESSAGE_BODY_TOO_LARGE,
        C.MESSAGE_BODY_EMPTY,
        C.MESSAGE_PROPERTIES_TOO_LARGE,
        C.BAD_REQUEST,
    },
    "QueryAssignment": {*NAMES, C.ILLEGAL_ACCESS_POINT, C.FORBIDDEN},
    "ReceiveMessage": {
        *NAMES,
        C.ILLEGAL_FILTER_EXPRESSION,
        C.ILLEGAL_INVISIBLE_TIME,
        C.ILLEGAL_POLLING_TIME,
        C.FORBIDDEN,
        C.MESSAGE_NOT_FOUND,
        C.BAD_REQUEST,
    },
    "AckMessage": {*NAMES, C.MULTIPLE_RESULTS, C.INVALID_RECEIPT_HANDLE},
    "ForwardMessageToDeadLetterQueue": {*NAMES, C.INVALID_RECEIPT_HANDLE, C.MESSAGE_NOT_FOUND},
    "ChangeInvisibleDuration": {*NAMES, C.INVALID_RECEIPT_HANDLE, C.ILLEGAL_INVISIBLE_TIME},
    "PullMessage": {
        *NAMES,
        C.ILLEGAL_FILTER_EXPRESSION,
        C.ILLEGAL_OFFSET,
        C.ILLEGAL_POLLING_TIME,
        C.FORBIDDEN,
        C.MESSAGE_NOT_FOUND,
        C.BAD_REQUEST,
    },
    "UpdateOffset": {*NAMES, C.ILLEGAL_OFFSET, C.BAD_REQUEST},
    "GetOffset": {*NAMES, C.OFFSET_NOT_FOUND, C.BAD_REQUEST},
    "QueryOffset": {*NAMES, C.OFFSET_NOT_FOUND, C.BAD_REQUEST},
    "EndTransaction": {*NAMES, C.INVALID_TRANSACTION_ID, C.BAD_REQUEST},
    "Telemetry": {*NAMES, C.BAD_REQUEST, C.INVALID_CLIENT_PROPERTIES},
    "NotifyClientTermination": {C.ILLEGAL_CONSUMER_GROUP},
    "RecallMessage": {*NAMES, C.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE, C.BAD_REQUEST},
    "SyncLiteSubscription": {
        *NAMES,
        C.ILLEGAL_LITE_TOPIC,
        C.ILLEGAL_OFFSET,
        C.BAD_REQUEST,
        C.LITE_SUBSCRIPTION_QUOTA_EXCEEDED,
    },
}
# RocketMQ's answer to a request without entries.
UNKNOWN: dict[str, set[Any]] = {"AckMessage": {C.INTERNAL_SERVER_ERROR}}


def names(rpc: str) -> frozenset[str]:
    """Return the codes of an RPC by name."""
    allowed = ANY | ALLOWED[rpc] | UNKNOWN.get(rpc, set())
    return frozenset(Code.Name(code) for code in allowed)
