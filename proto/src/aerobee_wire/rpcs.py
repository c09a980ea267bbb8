"""Describe the RPCs between clients, proxy, broker and name server as values.

A value has the path and the types of request and response. The path comes from the protobuf
descriptors. This module does not know transports.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, NamedTuple, Protocol, TypeVar

from aerobee.access.v1 import access_pb2 as access
from aerobee.audit.v1 import audit_pb2 as audit
from aerobee.broker.v1 import admin_pb2 as admin
from aerobee.broker.v1 import client_pb2 as client
from aerobee.broker.v1 import config_pb2 as config
from aerobee.broker.v1 import dead_letter_pb2 as dead_letter
from aerobee.broker.v1 import lite_pb2 as lite
from aerobee.broker.v1 import message_pb2 as message
from aerobee.broker.v1 import offset_pb2 as offset
from aerobee.broker.v1 import pop_pb2 as pop
from aerobee.broker.v1 import replica_pb2 as replica
from aerobee.broker.v1 import replication_pb2 as replication
from aerobee.broker.v1 import search_pb2 as search
from aerobee.broker.v1 import transaction_pb2 as transaction
from aerobee.namesrv.v1 import namesrv_pb2 as namesrv
from aerobee.suite.v1 import suite_pb2 as suite
from google.protobuf.message import Message


class Request(Protocol):
    """A protobuf message, or an object that can encode itself as one."""

    def SerializeToString(self) -> bytes: ...  # protobuf's name


# ---- messages that encode themselves ----

_VARINT, _LENGTH_DELIMITED = 0, 2  # protobuf's wire types: of numbers; of bytes and messages
_LONGEST_VARINT = 10  # bytes; the time to read a longer one would grow with its square
_FIELD_NUMBER = 0x78  # the bits of the field number in a tag of one byte


def blob_tag(message: type[Message], field: str) -> bytes:
    """Return the tag byte of a protobuf field that contains bytes or a message.

    In an encoded message, the tag precedes the length of the field. The field number must be below
    16, so that the tag is one byte.
    """
    number = message.DESCRIPTOR.fields_by_name[field].number
    assert 0 < number < 16
    return bytes([number << 3 | _LENGTH_DELIMITED])


def varint(number: int) -> bytes:
    """Return protobuf's encoding of a number ≥ 0: 7 bits per byte, with the lowest bits first."""
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


class Blob(NamedTuple):
    """The place of a field in an encoded protobuf message.

    `at` is the position of its tag; `begin` and `end` are the limits of its content.
    """

    at: int
    begin: int
    end: int


def find_blob(encoded: bytes, begin: int, end: int, tag: bytes) -> Blob | None:
    """Find the first field with the tag `tag` in an encoded message.

    Return None if the message is cut off, does not have the field, or has an earlier field that is
    neither a number nor bytes.
    """
    at = begin
    try:
        while at < end and (kind := encoded[at] & ~_FIELD_NUMBER) in {_VARINT, _LENGTH_DELIMITED}:
            number, behind = _varint_at(encoded, at + 1)
            if encoded[at] == tag[0]:
                return Blob(at, behind, behind + number) if behind + number <= end else None
            at = behind + number if kind == _LENGTH_DELIMITED else behind
    except IndexError:
        return None
    return None


def _varint_at(encoded: bytes, at: int) -> tuple[int, int]:
    """Return the number at position `at`, and the position after it.

    Raises IndexError if the number is cut off, or longer than protobuf allows.
    """
    number = shift = 0
    while (byte := encoded[at]) > 0x7F:
        number |= (byte & 0x7F) << shift
        shift += 7
        if shift >= 7 * _LONGEST_VARINT:
            raise IndexError
        at += 1
    return number | byte << shift, at + 1


# ---- RPCs as values ----

Q = TypeVar("Q", bound=Request)
R = TypeVar("R", bound=Message)
M = TypeVar("M", bound=Message)


@dataclass(frozen=True, slots=True)
class Rpc(Generic[Q, R]):
    """An RPC with one request, and a response or a stream of responses.

    `path` is "/package.Service/Method", as in gRPC.
    """

    path: str
    request: type[Q]
    response: type[R]

    @property
    def method(self) -> str:
        return self.path.rpartition("/")[2]


def rpc(request: type[M], response: type[R], service_name: str = "") -> Rpc[M, R]:
    """Return the RPC with this request type. Each RPC of a service has its own request type.

    `service_name` chooses one of several services that share request types. Raises TypeError if
    there is no such RPC, or if its response has another type.
    """
    for service in request.DESCRIPTOR.file.services_by_name.values():
        if service_name not in ("", service.name):
            continue
        for method in service.methods:
            if method.input_type.full_name == request.DESCRIPTOR.full_name:
                if method.output_type.full_name != response.DESCRIPTOR.full_name:
                    raise TypeError(f"{method.full_name} answers with {method.output_type.name}")
                return Rpc(f"/{service.full_name}/{method.name}", request, response)
    raise TypeError(f"no RPC takes {request.DESCRIPTOR.full_name}")


# ---- name server ----

REGISTER_BROKER = rpc(namesrv.RegisterBrokerRequest, namesrv.RegisterBrokerResponse)
UNREGISTER_BROKER = rpc(namesrv.UnregisterBrokerRequest, namesrv.UnregisterBrokerResponse)
WATCH_REGISTRATION = rpc(namesrv.WatchRegistrationRequest, namesrv.BrokerNotice)
RECORD_LOGS = rpc(namesrv.RecordLogsRequest, namesrv.RecordLogsResponse)
GET_TOPIC_ROUTE = rpc(namesrv.GetTopicRouteRequest, namesrv.GetTopicRouteResponse)
LIST_TOPIC_ROUTES = rpc(namesrv.ListTopicsRequest, namesrv.ListTopicsResponse)
GET_CLUSTER_INFO = rpc(namesrv.GetClusterInfoRequest, namesrv.GetClusterInfoResponse)
WATCH_BROKERS = rpc(namesrv.WatchBrokersRequest, namesrv.WatchBrokersResponse)
REGISTER_PROXY = rpc(namesrv.RegisterProxyRequest, namesrv.RegisterProxyResponse)
UNREGISTER_PROXY = rpc(namesrv.UnregisterProxyRequest, namesrv.UnregisterProxyResponse)
GET_RUNTIME_CONFIG = rpc(namesrv.GetRuntimeConfigRequest, namesrv.GetRuntimeConfigResponse)
UPDATE_RUNTIME_CONFIG = rpc(namesrv.UpdateRuntimeConfigRequest, namesrv.UpdateRuntimeConfigResponse)
DELETE_TOPIC_ROUTE = rpc(namesrv.DeleteTopicRequest, namesrv.DeleteTopicResponse)

# ---- broker: messages ----

SEND = rpc(message.SendRequest, message.SendResponse)
PULL = rpc(message.PullRequest, message.PullResponse)
SEND_BACK = rpc(message.SendBackRequest, message.SendBackResponse)
RECALL_MESSAGE = rpc(message.RecallMessageRequest, message.RecallMessageResponse)
SEND_REPLY = rpc(message.SendReplyRequest, message.SendReplyResponse)
GET_MESSAGE = rpc(message.GetMessageRequest, message.GetMessageResponse)
QUERY_MESSAGES = rpc(message.QueryMessagesRequest, message.QueryMessagesResponse)
FIND_MESSAGE = rpc(search.FindMessageRequest, search.FindMessageResponse)
TRACK_MESSAGE = rpc(search.TrackMessageRequest, search.TrackMessageResponse)
SEARCH_MESSAGES = rpc(search.SearchMessagesRequest, search.SearchMessagesResponse)

# ---- broker: pop and transactions ----

SYNC_LITE_TOPICS = rpc(lite.SyncLiteTopicsRequest, lite.SyncLiteTopicsResponse)
LITE_POP = rpc(lite.LitePopRequest, lite.LitePopResponse)
LIST_LITE_TOPICS = rpc(lite.ListLiteTopicsRequest, lite.ListLiteTopicsResponse)
LIST_LITE_CLIENTS = rpc(lite.ListLiteClientsRequest, lite.ListLiteClientsResponse)
POP = rpc(pop.PopRequest, pop.PopResponse)
NOTIFICATION = rpc(pop.NotificationRequest, pop.NotificationResponse)
ACK = rpc(pop.AckRequest, pop.AckResponse)
CHANGE_INVISIBLE_DURATION = rpc(
    pop.ChangeInvisibleDurationRequest, pop.ChangeInvisibleDurationResponse
)
DEAD_LETTER = rpc(pop.DeadLetterRequest, pop.DeadLetterResponse)
LIST_BLOCKED_MESSAGE_GROUPS = rpc(
    pop.ListBlockedMessageGroupsRequest, pop.ListBlockedMessageGroupsResponse
)
SKIP_MESSAGE = rpc(pop.SkipMessageRequest, pop.SkipMessageResponse)
END_TRANSACTION = rpc(transaction.EndTransactionRequest, transaction.EndTransactionResponse)

# ---- broker: clients ----

HEARTBEAT = rpc(client.HeartbeatRequest, client.HeartbeatResponse)
WATCH_CLIENT = rpc(client.WatchClientRequest, client.ClientNotice)
UNREGISTER_CLIENT = rpc(client.UnregisterClientRequest, client.UnregisterClientResponse)
LIST_GROUP_MEMBERS = rpc(client.ListGroupMembersRequest, client.ListGroupMembersResponse)
LOCK_QUEUES = rpc(client.LockQueuesRequest, client.LockQueuesResponse)
UNLOCK_QUEUES = rpc(client.UnlockQueuesRequest, client.UnlockQueuesResponse)
LIST_CLIENTS = rpc(client.ListClientsRequest, client.ListClientsResponse)

# ---- broker: offsets ----

QUERY_CONSUMER_OFFSETS = rpc(
    offset.QueryConsumerOffsetsRequest, offset.QueryConsumerOffsetsResponse
)
UPDATE_CONSUMER_OFFSETS = rpc(
    offset.UpdateConsumerOffsetsRequest, offset.UpdateConsumerOffsetsResponse
)
RESET_CONSUMER_OFFSETS = rpc(
    offset.ResetConsumerOffsetsRequest, offset.ResetConsumerOffsetsResponse
)
FORGET_CONSUMER_OFFSETS = rpc(
    offset.ForgetConsumerOffsetsRequest, offset.ForgetConsumerOffsetsResponse
)
GET_QUEUE_OFFSETS = rpc(offset.GetQueueOffsetsRequest, offset.GetQueueOffsetsResponse)
SEARCH_OFFSET = rpc(offset.SearchOffsetRequest, offset.SearchOffsetResponse)
GET_CONSUME_STATS = rpc(offset.GetConsumeStatsRequest, offset.GetConsumeStatsResponse)

# ---- broker: administration ----

PUT_TOPIC = rpc(admin.PutTopicRequest, admin.PutTopicResponse)
UPDATE_TOPIC = rpc(admin.UpdateTopicRequest, admin.UpdateTopicResponse)
SPECIFY_MESSAGE_TYPE = rpc(admin.SpecifyMessageTypeRequest, admin.SpecifyMessageTypeResponse)
GET_TOPIC = rpc(admin.GetTopicRequest, admin.GetTopicResponse)
DELETE_TOPIC = rpc(admin.DeleteTopicRequest, admin.DeleteTopicResponse)
LIST_TOPICS = rpc(admin.ListTopicsRequest, admin.ListTopicsResponse)
DESCRIBE_TOPIC = rpc(admin.DescribeTopicRequest, admin.DescribeTopicResponse)
PUT_GROUP = rpc(admin.PutGroupRequest, admin.PutGroupResponse)
UPDATE_GROUP = rpc(admin.UpdateGroupRequest, admin.UpdateGroupResponse)
GET_GROUP = rpc(admin.GetGroupRequest, admin.GetGroupResponse)
DELETE_GROUP = rpc(admin.DeleteGroupRequest, admin.DeleteGroupResponse)
LIST_GROUPS = rpc(admin.ListGroupsRequest, admin.ListGroupsResponse)
DESCRIBE_GROUP = rpc(admin.DescribeGroupRequest, admin.DescribeGroupResponse)
GET_BROKER_STATUS = rpc(admin.GetBrokerStatusRequest, admin.GetBrokerStatusResponse)
GET_STATS = rpc(admin.GetStatsRequest, admin.GetStatsResponse)
WATCH_STATS = rpc(admin.WatchStatsRequest, admin.WatchStatsResponse)
LIST_LEASES = rpc(admin.ListLeasesRequest, admin.ListLeasesResponse)
RELEASE_LEASE = rpc(admin.ReleaseLeaseRequest, admin.ReleaseLeaseResponse)
LIST_TRANSACTIONS = rpc(admin.ListTransactionsRequest, admin.ListTransactionsResponse)
LIST_DELAYED = rpc(admin.ListDelayedRequest, admin.ListDelayedResponse)
SET_DRAINING = rpc(admin.SetDrainingRequest, admin.SetDrainingResponse)
GET_BACKLOG = rpc(admin.GetBacklogRequest, admin.GetBacklogResponse)

# ---- broker: dead letters ----

PREVIEW_LETTER_JOB = rpc(dead_letter.PreviewLetterJobRequest, dead_letter.PreviewLetterJobResponse)
START_LETTER_JOB = rpc(dead_letter.StartLetterJobRequest, dead_letter.StartLetterJobResponse)
CANCEL_LETTER_JOB = rpc(dead_letter.CancelLetterJobRequest, dead_letter.CancelLetterJobResponse)
LIST_LETTER_JOBS = rpc(dead_letter.ListLetterJobsRequest, dead_letter.ListLetterJobsResponse)
LIST_LETTER_FAILURES = rpc(
    dead_letter.ListLetterFailuresRequest, dead_letter.ListLetterFailuresResponse
)
LIST_LETTER_STATES = rpc(dead_letter.ListLetterStatesRequest, dead_letter.ListLetterStatesResponse)
GET_CONFIG = rpc(config.GetConfigRequest, config.GetConfigResponse, "ConfigService")
UPDATE_CONFIG = rpc(config.UpdateConfigRequest, config.UpdateConfigResponse, "ConfigService")
GET_PROXY_CONFIG = rpc(config.GetConfigRequest, config.GetConfigResponse, "ProxyConfigService")
UPDATE_PROXY_CONFIG = rpc(
    config.UpdateConfigRequest, config.UpdateConfigResponse, "ProxyConfigService"
)

# ---- broker: replication ----

FOLLOW = rpc(replication.FollowRequest, replication.FollowResponse)
GET_SNAPSHOT = rpc(replication.GetSnapshotRequest, replication.GetSnapshotResponse)
GET_REPLICATION_STATUS = rpc(
    replica.GetReplicationStatusRequest, replica.GetReplicationStatusResponse
)
PROMOTE = rpc(replica.PromoteRequest, replica.PromoteResponse)
HAND_OVER = rpc(replica.HandOverRequest, replica.HandOverResponse)
NOTE_EPOCH = rpc(replica.NoteEpochRequest, replica.NoteEpochResponse)
LIST_DIVERGED = rpc(replica.ListDivergedRequest, replica.ListDivergedResponse)
READ_DIVERGED = rpc(replica.ReadDivergedRequest, replica.ReadDivergedResponse)
READ_LOG = rpc(replica.ReadLogRequest, replica.ReadLogResponse)

# ---- users and policies ----


class AccessRpcs:
    """The RPCs of the access table, on one kind of server: the service named `service`."""

    def __init__(self, service: str) -> None:
        self.put_user = rpc(access.PutUserRequest, access.ChangeResponse, service)
        self.get_user = rpc(access.GetUserRequest, access.GetUserResponse, service)
        self.list_users = rpc(access.ListUsersRequest, access.ListUsersResponse, service)
        self.delete_user = rpc(access.DeleteUserRequest, access.ChangeResponse, service)
        self.put_acl = rpc(access.PutAclRequest, access.ChangeResponse, service)
        self.get_acl = rpc(access.GetAclRequest, access.GetAclResponse, service)
        self.list_acls = rpc(access.ListAclsRequest, access.ListAclsResponse, service)
        self.delete_acl = rpc(access.DeleteAclRequest, access.ChangeResponse, service)
        self.put_quota = rpc(access.PutQuotaRequest, access.ChangeResponse, service)
        self.list_quotas = rpc(access.ListQuotasRequest, access.ListQuotasResponse, service)
        self.delete_quota = rpc(access.DeleteQuotaRequest, access.ChangeResponse, service)
        self.test_access = rpc(access.TestAccessRequest, access.TestAccessResponse, service)
        self.list_table = rpc(access.ListTableRequest, access.ListTableResponse, service)
        self.watch = rpc(access.WatchRequest, access.TablePart, service)
        self.merge_table = rpc(access.MergeTableRequest, access.ChangeResponse, service)


NAMESRV_ACCESS = AccessRpcs("NamesrvAccessService")
BROKER_ACCESS = AccessRpcs("BrokerAccessService")
LOG_IN = rpc(access.LogInRequest, access.LogInResponse)

# ---- audit logs ----

NAMESRV_AUDIT = rpc(
    audit.ListAuditLinesRequest, audit.ListAuditLinesResponse, "NamesrvAuditService"
)
BROKER_AUDIT = rpc(audit.ListAuditLinesRequest, audit.ListAuditLinesResponse, "BrokerAuditService")

# ---- test control of a suite ----

GET_SUITE = rpc(suite.GetSuiteRequest, suite.GetSuiteResponse)
ADVANCE = rpc(suite.AdvanceRequest, suite.AdvanceResponse)
SETTLE = rpc(suite.SettleRequest, suite.SettleResponse)
KILL_BROKER = rpc(suite.KillBrokerRequest, suite.KillBrokerResponse)
RESTART_BROKER = rpc(suite.RestartBrokerRequest, suite.RestartBrokerResponse)
REFUSE = rpc(suite.RefuseRequest, suite.RefuseResponse)
