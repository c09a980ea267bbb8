from aerobee.broker.v1 import message_pb2 as _message_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ConsumeType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CONSUME_TYPE_UNSPECIFIED: _ClassVar[ConsumeType]
    PULL: _ClassVar[ConsumeType]
    PUSH: _ClassVar[ConsumeType]
    POP: _ClassVar[ConsumeType]

class MessageModel(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    MESSAGE_MODEL_UNSPECIFIED: _ClassVar[MessageModel]
    CLUSTERING: _ClassVar[MessageModel]
    BROADCASTING: _ClassVar[MessageModel]

class ConsumeFromWhere(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CONSUME_FROM_LAST_OFFSET: _ClassVar[ConsumeFromWhere]
    CONSUME_FROM_FIRST_OFFSET: _ClassVar[ConsumeFromWhere]
    CONSUME_FROM_TIMESTAMP: _ClassVar[ConsumeFromWhere]

class Capability(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CAPABILITY_UNSPECIFIED: _ClassVar[Capability]
    SEND_BACK_DELAY: _ClassVar[Capability]
    REPLIES: _ClassVar[Capability]
CONSUME_TYPE_UNSPECIFIED: ConsumeType
PULL: ConsumeType
PUSH: ConsumeType
POP: ConsumeType
MESSAGE_MODEL_UNSPECIFIED: MessageModel
CLUSTERING: MessageModel
BROADCASTING: MessageModel
CONSUME_FROM_LAST_OFFSET: ConsumeFromWhere
CONSUME_FROM_FIRST_OFFSET: ConsumeFromWhere
CONSUME_FROM_TIMESTAMP: ConsumeFromWhere
CAPABILITY_UNSPECIFIED: Capability
SEND_BACK_DELAY: Capability
REPLIES: Capability

class ConsumerData(_message.Message):
    __slots__ = ("consumer_group", "consume_type", "message_model", "consume_from_where", "subscriptions", "strategy", "statistics")
    CONSUMER_GROUP_FIELD_NUMBER: _ClassVar[int]
    CONSUME_TYPE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_MODEL_FIELD_NUMBER: _ClassVar[int]
    CONSUME_FROM_WHERE_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTIONS_FIELD_NUMBER: _ClassVar[int]
    STRATEGY_FIELD_NUMBER: _ClassVar[int]
    STATISTICS_FIELD_NUMBER: _ClassVar[int]
    consumer_group: str
    consume_type: ConsumeType
    message_model: MessageModel
    consume_from_where: ConsumeFromWhere
    subscriptions: _containers.RepeatedCompositeFieldContainer[_message_pb2.Subscription]
    strategy: str
    statistics: ConsumerStatistics
    def __init__(self, consumer_group: _Optional[str] = ..., consume_type: _Optional[_Union[ConsumeType, str]] = ..., message_model: _Optional[_Union[MessageModel, str]] = ..., consume_from_where: _Optional[_Union[ConsumeFromWhere, str]] = ..., subscriptions: _Optional[_Iterable[_Union[_message_pb2.Subscription, _Mapping]]] = ..., strategy: _Optional[str] = ..., statistics: _Optional[_Union[ConsumerStatistics, _Mapping]] = ...) -> None: ...

class ConsumerStatistics(_message.Message):
    __slots__ = ("consumed", "failed", "sent_back", "passed_over", "consumed_per_second", "failed_per_second", "average_ms", "waiting", "waiting_bytes", "queues", "lag", "failed_requests")
    CONSUMED_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    SENT_BACK_FIELD_NUMBER: _ClassVar[int]
    PASSED_OVER_FIELD_NUMBER: _ClassVar[int]
    CONSUMED_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    FAILED_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    AVERAGE_MS_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    WAITING_BYTES_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    LAG_FIELD_NUMBER: _ClassVar[int]
    FAILED_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    consumed: int
    failed: int
    sent_back: int
    passed_over: int
    consumed_per_second: float
    failed_per_second: float
    average_ms: float
    waiting: int
    waiting_bytes: int
    queues: int
    lag: int
    failed_requests: int
    def __init__(self, consumed: _Optional[int] = ..., failed: _Optional[int] = ..., sent_back: _Optional[int] = ..., passed_over: _Optional[int] = ..., consumed_per_second: _Optional[float] = ..., failed_per_second: _Optional[float] = ..., average_ms: _Optional[float] = ..., waiting: _Optional[int] = ..., waiting_bytes: _Optional[int] = ..., queues: _Optional[int] = ..., lag: _Optional[int] = ..., failed_requests: _Optional[int] = ...) -> None: ...

class ProducerStatistics(_message.Message):
    __slots__ = ("sent", "failed", "retries", "sent_per_second", "failed_per_second", "average_ms", "waiting", "waiting_bytes")
    SENT_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    RETRIES_FIELD_NUMBER: _ClassVar[int]
    SENT_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    FAILED_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    AVERAGE_MS_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    WAITING_BYTES_FIELD_NUMBER: _ClassVar[int]
    sent: int
    failed: int
    retries: int
    sent_per_second: float
    failed_per_second: float
    average_ms: float
    waiting: int
    waiting_bytes: int
    def __init__(self, sent: _Optional[int] = ..., failed: _Optional[int] = ..., retries: _Optional[int] = ..., sent_per_second: _Optional[float] = ..., failed_per_second: _Optional[float] = ..., average_ms: _Optional[float] = ..., waiting: _Optional[int] = ..., waiting_bytes: _Optional[int] = ...) -> None: ...

class HeartbeatRequest(_message.Message):
    __slots__ = ("client_id", "producer_groups", "consumers", "language", "version", "address", "proxy", "published_topics", "producer_statistics", "user", "watches")
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_GROUPS_FIELD_NUMBER: _ClassVar[int]
    CONSUMERS_FIELD_NUMBER: _ClassVar[int]
    LANGUAGE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    PROXY_FIELD_NUMBER: _ClassVar[int]
    PUBLISHED_TOPICS_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_STATISTICS_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    WATCHES_FIELD_NUMBER: _ClassVar[int]
    client_id: str
    producer_groups: _containers.RepeatedScalarFieldContainer[str]
    consumers: _containers.RepeatedCompositeFieldContainer[ConsumerData]
    language: str
    version: str
    address: str
    proxy: str
    published_topics: _containers.RepeatedScalarFieldContainer[str]
    producer_statistics: ProducerStatistics
    user: str
    watches: bool
    def __init__(self, client_id: _Optional[str] = ..., producer_groups: _Optional[_Iterable[str]] = ..., consumers: _Optional[_Iterable[_Union[ConsumerData, _Mapping]]] = ..., language: _Optional[str] = ..., version: _Optional[str] = ..., address: _Optional[str] = ..., proxy: _Optional[str] = ..., published_topics: _Optional[_Iterable[str]] = ..., producer_statistics: _Optional[_Union[ProducerStatistics, _Mapping]] = ..., user: _Optional[str] = ..., watches: _Optional[bool] = ...) -> None: ...

class HeartbeatResponse(_message.Message):
    __slots__ = ("capabilities", "now_timestamp_ms")
    CAPABILITIES_FIELD_NUMBER: _ClassVar[int]
    NOW_TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
    capabilities: _containers.RepeatedScalarFieldContainer[Capability]
    now_timestamp_ms: int
    def __init__(self, capabilities: _Optional[_Iterable[_Union[Capability, str]]] = ..., now_timestamp_ms: _Optional[int] = ...) -> None: ...

class UnregisterClientRequest(_message.Message):
    __slots__ = ("client_id", "producer_group", "consumer_group", "publishing")
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_GROUP_FIELD_NUMBER: _ClassVar[int]
    CONSUMER_GROUP_FIELD_NUMBER: _ClassVar[int]
    PUBLISHING_FIELD_NUMBER: _ClassVar[int]
    client_id: str
    producer_group: str
    consumer_group: str
    publishing: bool
    def __init__(self, client_id: _Optional[str] = ..., producer_group: _Optional[str] = ..., consumer_group: _Optional[str] = ..., publishing: _Optional[bool] = ...) -> None: ...

class UnregisterClientResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class WatchClientRequest(_message.Message):
    __slots__ = ("client_id",)
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    client_id: str
    def __init__(self, client_id: _Optional[str] = ...) -> None: ...

class ClientNotice(_message.Message):
    __slots__ = ("group_members_changed", "watching", "transaction_check", "reply")
    GROUP_MEMBERS_CHANGED_FIELD_NUMBER: _ClassVar[int]
    WATCHING_FIELD_NUMBER: _ClassVar[int]
    TRANSACTION_CHECK_FIELD_NUMBER: _ClassVar[int]
    REPLY_FIELD_NUMBER: _ClassVar[int]
    group_members_changed: GroupMembersChanged
    watching: Watching
    transaction_check: TransactionCheck
    reply: Reply
    def __init__(self, group_members_changed: _Optional[_Union[GroupMembersChanged, _Mapping]] = ..., watching: _Optional[_Union[Watching, _Mapping]] = ..., transaction_check: _Optional[_Union[TransactionCheck, _Mapping]] = ..., reply: _Optional[_Union[Reply, _Mapping]] = ...) -> None: ...

class GroupMembersChanged(_message.Message):
    __slots__ = ("consumer_group",)
    CONSUMER_GROUP_FIELD_NUMBER: _ClassVar[int]
    consumer_group: str
    def __init__(self, consumer_group: _Optional[str] = ...) -> None: ...

class Watching(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class TransactionCheck(_message.Message):
    __slots__ = ("producer_group", "transaction_id", "queue_offset", "message", "check_number")
    PRODUCER_GROUP_FIELD_NUMBER: _ClassVar[int]
    TRANSACTION_ID_FIELD_NUMBER: _ClassVar[int]
    QUEUE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    CHECK_NUMBER_FIELD_NUMBER: _ClassVar[int]
    producer_group: str
    transaction_id: str
    queue_offset: int
    message: _message_pb2.StoredMessage
    check_number: int
    def __init__(self, producer_group: _Optional[str] = ..., transaction_id: _Optional[str] = ..., queue_offset: _Optional[int] = ..., message: _Optional[_Union[_message_pb2.StoredMessage, _Mapping]] = ..., check_number: _Optional[int] = ...) -> None: ...

class Reply(_message.Message):
    __slots__ = ("correlation_id", "body", "properties")
    class PropertiesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    CORRELATION_ID_FIELD_NUMBER: _ClassVar[int]
    BODY_FIELD_NUMBER: _ClassVar[int]
    PROPERTIES_FIELD_NUMBER: _ClassVar[int]
    correlation_id: str
    body: bytes
    properties: _containers.ScalarMap[str, str]
    def __init__(self, correlation_id: _Optional[str] = ..., body: _Optional[bytes] = ..., properties: _Optional[_Mapping[str, str]] = ...) -> None: ...

class ListGroupMembersRequest(_message.Message):
    __slots__ = ("consumer_group",)
    CONSUMER_GROUP_FIELD_NUMBER: _ClassVar[int]
    consumer_group: str
    def __init__(self, consumer_group: _Optional[str] = ...) -> None: ...

class ListGroupMembersResponse(_message.Message):
    __slots__ = ("client_ids",)
    CLIENT_IDS_FIELD_NUMBER: _ClassVar[int]
    client_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, client_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class LockedQueue(_message.Message):
    __slots__ = ("topic", "queue_id")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    topic: str
    queue_id: int
    def __init__(self, topic: _Optional[str] = ..., queue_id: _Optional[int] = ...) -> None: ...

class LockQueuesRequest(_message.Message):
    __slots__ = ("consumer_group", "client_id", "queues")
    CONSUMER_GROUP_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    consumer_group: str
    client_id: str
    queues: _containers.RepeatedCompositeFieldContainer[LockedQueue]
    def __init__(self, consumer_group: _Optional[str] = ..., client_id: _Optional[str] = ..., queues: _Optional[_Iterable[_Union[LockedQueue, _Mapping]]] = ...) -> None: ...

class LockQueuesResponse(_message.Message):
    __slots__ = ("locks", "max_reconsume_times")
    LOCKS_FIELD_NUMBER: _ClassVar[int]
    MAX_RECONSUME_TIMES_FIELD_NUMBER: _ClassVar[int]
    locks: _containers.RepeatedCompositeFieldContainer[QueueLock]
    max_reconsume_times: int
    def __init__(self, locks: _Optional[_Iterable[_Union[QueueLock, _Mapping]]] = ..., max_reconsume_times: _Optional[int] = ...) -> None: ...

class QueueLock(_message.Message):
    __slots__ = ("client_id", "epoch")
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    client_id: str
    epoch: int
    def __init__(self, client_id: _Optional[str] = ..., epoch: _Optional[int] = ...) -> None: ...

class UnlockQueuesRequest(_message.Message):
    __slots__ = ("consumer_group", "client_id", "queues")
    CONSUMER_GROUP_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    consumer_group: str
    client_id: str
    queues: _containers.RepeatedCompositeFieldContainer[LockedQueue]
    def __init__(self, consumer_group: _Optional[str] = ..., client_id: _Optional[str] = ..., queues: _Optional[_Iterable[_Union[LockedQueue, _Mapping]]] = ...) -> None: ...

class UnlockQueuesResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListClientsRequest(_message.Message):
    __slots__ = ("group", "text", "topic", "user", "proxy", "offset", "limit", "with_names")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    PROXY_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    WITH_NAMES_FIELD_NUMBER: _ClassVar[int]
    group: str
    text: str
    topic: str
    user: str
    proxy: str
    offset: int
    limit: int
    with_names: bool
    def __init__(self, group: _Optional[str] = ..., text: _Optional[str] = ..., topic: _Optional[str] = ..., user: _Optional[str] = ..., proxy: _Optional[str] = ..., offset: _Optional[int] = ..., limit: _Optional[int] = ..., with_names: _Optional[bool] = ...) -> None: ...

class ListClientsResponse(_message.Message):
    __slots__ = ("clients", "total", "names")
    CLIENTS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    NAMES_FIELD_NUMBER: _ClassVar[int]
    clients: _containers.RepeatedCompositeFieldContainer[ClientInfo]
    total: int
    names: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, clients: _Optional[_Iterable[_Union[ClientInfo, _Mapping]]] = ..., total: _Optional[int] = ..., names: _Optional[_Iterable[str]] = ...) -> None: ...

class ClientInfo(_message.Message):
    __slots__ = ("client_id", "address", "language", "version", "last_update_timestamp_ms", "producer_groups", "consumers", "silent_ms", "proxy", "published_topics", "since_timestamp_ms", "queues", "producer_statistics", "user")
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    LANGUAGE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    LAST_UPDATE_TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_GROUPS_FIELD_NUMBER: _ClassVar[int]
    CONSUMERS_FIELD_NUMBER: _ClassVar[int]
    SILENT_MS_FIELD_NUMBER: _ClassVar[int]
    PROXY_FIELD_NUMBER: _ClassVar[int]
    PUBLISHED_TOPICS_FIELD_NUMBER: _ClassVar[int]
    SINCE_TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_STATISTICS_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    client_id: str
    address: str
    language: str
    version: str
    last_update_timestamp_ms: int
    producer_groups: _containers.RepeatedScalarFieldContainer[str]
    consumers: _containers.RepeatedCompositeFieldContainer[ConsumerData]
    silent_ms: int
    proxy: str
    published_topics: _containers.RepeatedScalarFieldContainer[str]
    since_timestamp_ms: int
    queues: _containers.RepeatedCompositeFieldContainer[PulledQueue]
    producer_statistics: ProducerStatistics
    user: str
    def __init__(self, client_id: _Optional[str] = ..., address: _Optional[str] = ..., language: _Optional[str] = ..., version: _Optional[str] = ..., last_update_timestamp_ms: _Optional[int] = ..., producer_groups: _Optional[_Iterable[str]] = ..., consumers: _Optional[_Iterable[_Union[ConsumerData, _Mapping]]] = ..., silent_ms: _Optional[int] = ..., proxy: _Optional[str] = ..., published_topics: _Optional[_Iterable[str]] = ..., since_timestamp_ms: _Optional[int] = ..., queues: _Optional[_Iterable[_Union[PulledQueue, _Mapping]]] = ..., producer_statistics: _Optional[_Union[ProducerStatistics, _Mapping]] = ..., user: _Optional[str] = ...) -> None: ...

class PulledQueue(_message.Message):
    __slots__ = ("consumer_group", "topic", "queue_id", "locked")
    CONSUMER_GROUP_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    LOCKED_FIELD_NUMBER: _ClassVar[int]
    consumer_group: str
    topic: str
    queue_id: int
    locked: bool
    def __init__(self, consumer_group: _Optional[str] = ..., topic: _Optional[str] = ..., queue_id: _Optional[int] = ..., locked: _Optional[bool] = ...) -> None: ...
