"""The RPCs of name servers and brokers that the proxy calls, as values. Knows no transport."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from aerobee.broker.v1 import (
    admin_pb2,
    client_pb2,
    message_pb2,
    offset_pb2,
    pop_pb2,
    transaction_pb2,
)
from aerobee.namesrv.v1 import namesrv_pb2
from google.protobuf.message import Message

Q = TypeVar("Q", bound=Message)
R = TypeVar("R", bound=Message)

_NAMESRV = "aerobee.namesrv.v1.NamesrvService"
_MESSAGES = "aerobee.broker.v1.MessageService"
_OFFSETS = "aerobee.broker.v1.OffsetService"
_CLIENTS = "aerobee.broker.v1.ClientService"
_POP = "aerobee.broker.v1.PopService"
_TRANSACTIONS = "aerobee.broker.v1.TransactionService"
_ADMIN = "aerobee.broker.v1.AdminService"


@dataclass(frozen=True, slots=True)
class Rpc(Generic[Q, R]):
    """An RPC: what goes in and what comes out, once or as a stream."""

    service: str
    method: str
    request: type[Q]
    response: type[R]

    @property
    def path(self) -> str:
        return f"/{self.service}/{self.method}"


GET_TOPIC_ROUTE = Rpc(
    _NAMESRV,
    "GetTopicRoute",
    namesrv_pb2.GetTopicRouteRequest,
    namesrv_pb2.GetTopicRouteResponse,
)
GET_CLUSTER_INFO = Rpc(
    _NAMESRV,
    "GetClusterInfo",
    namesrv_pb2.GetClusterInfoRequest,
    namesrv_pb2.GetClusterInfoResponse,
)
SEND = Rpc(_MESSAGES, "Send", message_pb2.SendRequest, message_pb2.SendResponse)
PULL = Rpc(_MESSAGES, "Pull", message_pb2.PullRequest, message_pb2.PullResponse)
RECALL_MESSAGE = Rpc(
    _MESSAGES,
    "RecallMessage",
    message_pb2.RecallMessageRequest,
    message_pb2.RecallMessageResponse,
)
QUERY_MESSAGES = Rpc(
    _MESSAGES,
    "QueryMessages",
    message_pb2.QueryMessagesRequest,
    message_pb2.QueryMessagesResponse,
)
QUERY_CONSUMER_OFFSETS = Rpc(
    _OFFSETS,
    "QueryConsumerOffsets",
    offset_pb2.QueryConsumerOffsetsRequest,
    offset_pb2.QueryConsumerOffsetsResponse,
)
UPDATE_CONSUMER_OFFSETS = Rpc(
    _OFFSETS,
    "UpdateConsumerOffsets",
    offset_pb2.UpdateConsumerOffsetsRequest,
    offset_pb2.UpdateConsumerOffsetsResponse,
)
GET_QUEUE_OFFSETS = Rpc(
    _OFFSETS,
    "GetQueueOffsets",
    offset_pb2.GetQueueOffsetsRequest,
    offset_pb2.GetQueueOffsetsResponse,
)
SEARCH_OFFSET = Rpc(
    _OFFSETS, "SearchOffset", offset_pb2.SearchOffsetRequest, offset_pb2.SearchOffsetResponse
)
HEARTBEAT = Rpc(_CLIENTS, "Heartbeat", client_pb2.HeartbeatRequest, client_pb2.HeartbeatResponse)
WATCH_CLIENT = Rpc(_CLIENTS, "WatchClient", client_pb2.WatchClientRequest, client_pb2.ClientNotice)
LIST_CLIENTS = Rpc(
    _CLIENTS, "ListClients", client_pb2.ListClientsRequest, client_pb2.ListClientsResponse
)
UNREGISTER_CLIENT = Rpc(
    _CLIENTS,
    "UnregisterClient",
    client_pb2.UnregisterClientRequest,
    client_pb2.UnregisterClientResponse,
)
PUT_TOPIC = Rpc(_ADMIN, "PutTopic", admin_pb2.PutTopicRequest, admin_pb2.PutTopicResponse)
GET_GROUP = Rpc(_ADMIN, "GetGroup", admin_pb2.GetGroupRequest, admin_pb2.GetGroupResponse)
POP = Rpc(_POP, "Pop", pop_pb2.PopRequest, pop_pb2.PopResponse)
ACK = Rpc(_POP, "Ack", pop_pb2.AckRequest, pop_pb2.AckResponse)
CHANGE_INVISIBLE_DURATION = Rpc(
    _POP,
    "ChangeInvisibleDuration",
    pop_pb2.ChangeInvisibleDurationRequest,
    pop_pb2.ChangeInvisibleDurationResponse,
)
DEAD_LETTER = Rpc(_POP, "DeadLetter", pop_pb2.DeadLetterRequest, pop_pb2.DeadLetterResponse)
END_TRANSACTION = Rpc(
    _TRANSACTIONS,
    "EndTransaction",
    transaction_pb2.EndTransactionRequest,
    transaction_pb2.EndTransactionResponse,
)
