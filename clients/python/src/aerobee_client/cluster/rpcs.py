"""The RPCs that the client calls: path, request and response type of each. Knows no transport."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from aerobee.broker.v1 import admin_pb2 as admin
from aerobee.broker.v1 import client_pb2 as client
from aerobee.broker.v1 import message_pb2 as message
from aerobee.broker.v1 import offset_pb2 as offset
from aerobee.namesrv.v1 import namesrv_pb2 as namesrv
from google.protobuf.message import Message

from aerobee_client.cluster.encoded_send import EncodedSend


class Request(Protocol):
    """What can be put on the wire: a protobuf message, or bytes that one would make."""

    def SerializeToString(self) -> bytes: ...  # protobuf's name


Q = TypeVar("Q", bound=Request)
R = TypeVar("R", bound=Message)


@dataclass(frozen=True, slots=True)
class Rpc(Generic[Q, R]):
    """`request` is only there for the type checker and for fakes."""

    path: str
    request: type[Q]
    response: type[R]


_NAMESRV = "/aerobee.namesrv.v1.NamesrvService/"
_MESSAGE = "/aerobee.broker.v1.MessageService/"
_CLIENT = "/aerobee.broker.v1.ClientService/"
_OFFSET = "/aerobee.broker.v1.OffsetService/"
_ADMIN = "/aerobee.broker.v1.AdminService/"

GET_TOPIC_ROUTE = Rpc(
    _NAMESRV + "GetTopicRoute", namesrv.GetTopicRouteRequest, namesrv.GetTopicRouteResponse
)
LIST_TOPIC_NAMES = Rpc(
    _NAMESRV + "ListTopics", namesrv.ListTopicsRequest, namesrv.ListTopicsResponse
)
GET_CLUSTER_INFO = Rpc(
    _NAMESRV + "GetClusterInfo", namesrv.GetClusterInfoRequest, namesrv.GetClusterInfoResponse
)
DELETE_TOPIC_ROUTE = Rpc(
    _NAMESRV + "DeleteTopic", namesrv.DeleteTopicRequest, namesrv.DeleteTopicResponse
)

SEND = Rpc(_MESSAGE + "Send", EncodedSend, message.SendResponse)
PULL = Rpc(_MESSAGE + "Pull", message.PullRequest, message.PullResponse)
SEND_BACK = Rpc(_MESSAGE + "SendBack", message.SendBackRequest, message.SendBackResponse)
RECALL_MESSAGE = Rpc(
    _MESSAGE + "RecallMessage", message.RecallMessageRequest, message.RecallMessageResponse
)
GET_MESSAGE = Rpc(_MESSAGE + "GetMessage", message.GetMessageRequest, message.GetMessageResponse)
QUERY_MESSAGES = Rpc(
    _MESSAGE + "QueryMessages", message.QueryMessagesRequest, message.QueryMessagesResponse
)

HEARTBEAT = Rpc(_CLIENT + "Heartbeat", client.HeartbeatRequest, client.HeartbeatResponse)
WATCH_CLIENT = Rpc(_CLIENT + "WatchClient", client.WatchClientRequest, client.ClientNotice)
UNREGISTER_CLIENT = Rpc(
    _CLIENT + "UnregisterClient", client.UnregisterClientRequest, client.UnregisterClientResponse
)
LIST_GROUP_MEMBERS = Rpc(
    _CLIENT + "ListGroupMembers", client.ListGroupMembersRequest, client.ListGroupMembersResponse
)
LIST_CLIENTS = Rpc(_CLIENT + "ListClients", client.ListClientsRequest, client.ListClientsResponse)

QUERY_CONSUMER_OFFSETS = Rpc(
    _OFFSET + "QueryConsumerOffsets",
    offset.QueryConsumerOffsetsRequest,
    offset.QueryConsumerOffsetsResponse,
)
UPDATE_CONSUMER_OFFSETS = Rpc(
    _OFFSET + "UpdateConsumerOffsets",
    offset.UpdateConsumerOffsetsRequest,
    offset.UpdateConsumerOffsetsResponse,
)
RESET_CONSUMER_OFFSETS = Rpc(
    _OFFSET + "ResetConsumerOffsets",
    offset.ResetConsumerOffsetsRequest,
    offset.ResetConsumerOffsetsResponse,
)
GET_QUEUE_OFFSETS = Rpc(
    _OFFSET + "GetQueueOffsets", offset.GetQueueOffsetsRequest, offset.GetQueueOffsetsResponse
)
SEARCH_OFFSET = Rpc(
    _OFFSET + "SearchOffset", offset.SearchOffsetRequest, offset.SearchOffsetResponse
)
GET_CONSUME_STATS = Rpc(
    _OFFSET + "GetConsumeStats", offset.GetConsumeStatsRequest, offset.GetConsumeStatsResponse
)

PUT_TOPIC = Rpc(_ADMIN + "PutTopic", admin.PutTopicRequest, admin.PutTopicResponse)
DELETE_TOPIC = Rpc(_ADMIN + "DeleteTopic", admin.DeleteTopicRequest, admin.DeleteTopicResponse)
LIST_TOPICS = Rpc(_ADMIN + "ListTopics", admin.ListTopicsRequest, admin.ListTopicsResponse)
PUT_GROUP = Rpc(_ADMIN + "PutGroup", admin.PutGroupRequest, admin.PutGroupResponse)
DELETE_GROUP = Rpc(_ADMIN + "DeleteGroup", admin.DeleteGroupRequest, admin.DeleteGroupResponse)
GET_GROUP = Rpc(_ADMIN + "GetGroup", admin.GetGroupRequest, admin.GetGroupResponse)
LIST_GROUPS = Rpc(_ADMIN + "ListGroups", admin.ListGroupsRequest, admin.ListGroupsResponse)
GET_BROKER_STATUS = Rpc(
    _ADMIN + "GetBrokerStatus", admin.GetBrokerStatusRequest, admin.GetBrokerStatusResponse
)
