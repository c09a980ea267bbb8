from aerobee.broker.v1 import client_pb2 as _client_pb2
from aerobee.broker.v1 import offset_pb2 as _offset_pb2
from aerobee.namesrv.v1 import namesrv_pb2 as _namesrv_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class TopicOrder(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TOPIC_ORDER_NAME: _ClassVar[TopicOrder]
    TOPIC_ORDER_STORED_MESSAGES: _ClassVar[TopicOrder]
    TOPIC_ORDER_MESSAGES_IN_RATE: _ClassVar[TopicOrder]
    TOPIC_ORDER_MESSAGES_OUT_RATE: _ClassVar[TopicOrder]
    TOPIC_ORDER_LAG: _ClassVar[TopicOrder]

class ConsumeOrder(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CONSUME_ORDER_AUTO: _ClassVar[ConsumeOrder]
    CONSUME_ORDER_ON: _ClassVar[ConsumeOrder]
    CONSUME_ORDER_OFF: _ClassVar[ConsumeOrder]

class GroupOrder(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    GROUP_ORDER_NAME: _ClassVar[GroupOrder]
    GROUP_ORDER_LAG: _ClassVar[GroupOrder]
    GROUP_ORDER_MESSAGES_OUT_RATE: _ClassVar[GroupOrder]
    GROUP_ORDER_MEMBERS: _ClassVar[GroupOrder]
    GROUP_ORDER_RETRIES: _ClassVar[GroupOrder]
    GROUP_ORDER_DEAD_LETTERS: _ClassVar[GroupOrder]
    GROUP_ORDER_IN_FLIGHT: _ClassVar[GroupOrder]

class StatsPeriod(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    STATS_PERIOD_SECOND: _ClassVar[StatsPeriod]
    STATS_PERIOD_MINUTE: _ClassVar[StatsPeriod]
    STATS_PERIOD_HOUR: _ClassVar[StatsPeriod]
TOPIC_ORDER_NAME: TopicOrder
TOPIC_ORDER_STORED_MESSAGES: TopicOrder
TOPIC_ORDER_MESSAGES_IN_RATE: TopicOrder
TOPIC_ORDER_MESSAGES_OUT_RATE: TopicOrder
TOPIC_ORDER_LAG: TopicOrder
CONSUME_ORDER_AUTO: ConsumeOrder
CONSUME_ORDER_ON: ConsumeOrder
CONSUME_ORDER_OFF: ConsumeOrder
GROUP_ORDER_NAME: GroupOrder
GROUP_ORDER_LAG: GroupOrder
GROUP_ORDER_MESSAGES_OUT_RATE: GroupOrder
GROUP_ORDER_MEMBERS: GroupOrder
GROUP_ORDER_RETRIES: GroupOrder
GROUP_ORDER_DEAD_LETTERS: GroupOrder
GROUP_ORDER_IN_FLIGHT: GroupOrder
STATS_PERIOD_SECOND: StatsPeriod
STATS_PERIOD_MINUTE: StatsPeriod
STATS_PERIOD_HOUR: StatsPeriod

class PutTopicRequest(_message.Message):
    __slots__ = ("topic", "only_new")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    ONLY_NEW_FIELD_NUMBER: _ClassVar[int]
    topic: _namesrv_pb2.TopicConfig
    only_new: bool
    def __init__(self, topic: _Optional[_Union[_namesrv_pb2.TopicConfig, _Mapping]] = ..., only_new: _Optional[bool] = ...) -> None: ...

class PutTopicResponse(_message.Message):
    __slots__ = ("created", "unreachable_namesrvs", "topic")
    CREATED_FIELD_NUMBER: _ClassVar[int]
    UNREACHABLE_NAMESRVS_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    created: bool
    unreachable_namesrvs: _containers.RepeatedScalarFieldContainer[str]
    topic: _namesrv_pb2.TopicConfig
    def __init__(self, created: _Optional[bool] = ..., unreachable_namesrvs: _Optional[_Iterable[str]] = ..., topic: _Optional[_Union[_namesrv_pb2.TopicConfig, _Mapping]] = ...) -> None: ...

class UpdateTopicRequest(_message.Message):
    __slots__ = ("topic", "fields", "dry_run", "force", "allow_missing")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    FIELDS_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    FORCE_FIELD_NUMBER: _ClassVar[int]
    ALLOW_MISSING_FIELD_NUMBER: _ClassVar[int]
    topic: _namesrv_pb2.TopicConfig
    fields: _containers.RepeatedScalarFieldContainer[str]
    dry_run: bool
    force: bool
    allow_missing: bool
    def __init__(self, topic: _Optional[_Union[_namesrv_pb2.TopicConfig, _Mapping]] = ..., fields: _Optional[_Iterable[str]] = ..., dry_run: _Optional[bool] = ..., force: _Optional[bool] = ..., allow_missing: _Optional[bool] = ...) -> None: ...

class UpdateTopicResponse(_message.Message):
    __slots__ = ("before", "after", "unreadable", "unreachable_namesrvs")
    class UnreadableQueue(_message.Message):
        __slots__ = ("queue_id", "messages")
        QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
        MESSAGES_FIELD_NUMBER: _ClassVar[int]
        queue_id: int
        messages: int
        def __init__(self, queue_id: _Optional[int] = ..., messages: _Optional[int] = ...) -> None: ...
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    UNREADABLE_FIELD_NUMBER: _ClassVar[int]
    UNREACHABLE_NAMESRVS_FIELD_NUMBER: _ClassVar[int]
    before: _namesrv_pb2.TopicConfig
    after: _namesrv_pb2.TopicConfig
    unreadable: _containers.RepeatedCompositeFieldContainer[UpdateTopicResponse.UnreadableQueue]
    unreachable_namesrvs: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, before: _Optional[_Union[_namesrv_pb2.TopicConfig, _Mapping]] = ..., after: _Optional[_Union[_namesrv_pb2.TopicConfig, _Mapping]] = ..., unreadable: _Optional[_Iterable[_Union[UpdateTopicResponse.UnreadableQueue, _Mapping]]] = ..., unreachable_namesrvs: _Optional[_Iterable[str]] = ...) -> None: ...

class SpecifyMessageTypeRequest(_message.Message):
    __slots__ = ("topic", "message_type")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_TYPE_FIELD_NUMBER: _ClassVar[int]
    topic: str
    message_type: str
    def __init__(self, topic: _Optional[str] = ..., message_type: _Optional[str] = ...) -> None: ...

class SpecifyMessageTypeResponse(_message.Message):
    __slots__ = ("message_type",)
    MESSAGE_TYPE_FIELD_NUMBER: _ClassVar[int]
    message_type: str
    def __init__(self, message_type: _Optional[str] = ...) -> None: ...

class DeleteTopicRequest(_message.Message):
    __slots__ = ("topic",)
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    topic: str
    def __init__(self, topic: _Optional[str] = ...) -> None: ...

class DeleteTopicResponse(_message.Message):
    __slots__ = ("deleted",)
    DELETED_FIELD_NUMBER: _ClassVar[int]
    deleted: bool
    def __init__(self, deleted: _Optional[bool] = ...) -> None: ...

class GetTopicRequest(_message.Message):
    __slots__ = ("topic",)
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    topic: str
    def __init__(self, topic: _Optional[str] = ...) -> None: ...

class GetTopicResponse(_message.Message):
    __slots__ = ("topic",)
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    topic: _namesrv_pb2.TopicConfig
    def __init__(self, topic: _Optional[_Union[_namesrv_pb2.TopicConfig, _Mapping]] = ...) -> None: ...

class ListTopicsRequest(_message.Message):
    __slots__ = ("include_system", "name_part", "message_types", "exclude_derived", "with_statistics", "order", "descending", "offset", "limit", "with_names", "with_values", "only")
    INCLUDE_SYSTEM_FIELD_NUMBER: _ClassVar[int]
    NAME_PART_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_TYPES_FIELD_NUMBER: _ClassVar[int]
    EXCLUDE_DERIVED_FIELD_NUMBER: _ClassVar[int]
    WITH_STATISTICS_FIELD_NUMBER: _ClassVar[int]
    ORDER_FIELD_NUMBER: _ClassVar[int]
    DESCENDING_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    WITH_NAMES_FIELD_NUMBER: _ClassVar[int]
    WITH_VALUES_FIELD_NUMBER: _ClassVar[int]
    ONLY_FIELD_NUMBER: _ClassVar[int]
    include_system: bool
    name_part: str
    message_types: _containers.RepeatedScalarFieldContainer[str]
    exclude_derived: bool
    with_statistics: bool
    order: TopicOrder
    descending: bool
    offset: int
    limit: int
    with_names: bool
    with_values: bool
    only: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, include_system: _Optional[bool] = ..., name_part: _Optional[str] = ..., message_types: _Optional[_Iterable[str]] = ..., exclude_derived: _Optional[bool] = ..., with_statistics: _Optional[bool] = ..., order: _Optional[_Union[TopicOrder, str]] = ..., descending: _Optional[bool] = ..., offset: _Optional[int] = ..., limit: _Optional[int] = ..., with_names: _Optional[bool] = ..., with_values: _Optional[bool] = ..., only: _Optional[_Iterable[str]] = ...) -> None: ...

class ListTopicsResponse(_message.Message):
    __slots__ = ("topics", "statistics", "total", "names", "values")
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    STATISTICS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    NAMES_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    topics: _containers.RepeatedCompositeFieldContainer[_namesrv_pb2.TopicConfig]
    statistics: _containers.RepeatedCompositeFieldContainer[TopicStatistics]
    total: int
    names: _containers.RepeatedScalarFieldContainer[str]
    values: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, topics: _Optional[_Iterable[_Union[_namesrv_pb2.TopicConfig, _Mapping]]] = ..., statistics: _Optional[_Iterable[_Union[TopicStatistics, _Mapping]]] = ..., total: _Optional[int] = ..., names: _Optional[_Iterable[str]] = ..., values: _Optional[_Iterable[float]] = ...) -> None: ...

class TopicStatistics(_message.Message):
    __slots__ = ("messages_in", "bytes_in", "messages_out", "bytes_out", "messages_in_rate", "bytes_in_rate", "messages_out_rate", "bytes_out_rate", "stored_messages", "lag", "groups", "members")
    MESSAGES_IN_FIELD_NUMBER: _ClassVar[int]
    BYTES_IN_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_OUT_FIELD_NUMBER: _ClassVar[int]
    BYTES_OUT_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_IN_RATE_FIELD_NUMBER: _ClassVar[int]
    BYTES_IN_RATE_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_OUT_RATE_FIELD_NUMBER: _ClassVar[int]
    BYTES_OUT_RATE_FIELD_NUMBER: _ClassVar[int]
    STORED_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    LAG_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    messages_in: int
    bytes_in: int
    messages_out: int
    bytes_out: int
    messages_in_rate: float
    bytes_in_rate: float
    messages_out_rate: float
    bytes_out_rate: float
    stored_messages: int
    lag: int
    groups: int
    members: int
    def __init__(self, messages_in: _Optional[int] = ..., bytes_in: _Optional[int] = ..., messages_out: _Optional[int] = ..., bytes_out: _Optional[int] = ..., messages_in_rate: _Optional[float] = ..., bytes_in_rate: _Optional[float] = ..., messages_out_rate: _Optional[float] = ..., bytes_out_rate: _Optional[float] = ..., stored_messages: _Optional[int] = ..., lag: _Optional[int] = ..., groups: _Optional[int] = ..., members: _Optional[int] = ...) -> None: ...

class DescribeTopicRequest(_message.Message):
    __slots__ = ("topic",)
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    topic: str
    def __init__(self, topic: _Optional[str] = ...) -> None: ...

class DescribeTopicResponse(_message.Message):
    __slots__ = ("topic", "statistics", "queues", "groups", "producers")
    class Group(_message.Message):
        __slots__ = ("consumer_group", "lag", "oldest_timestamp_ms", "members", "messages_out")
        CONSUMER_GROUP_FIELD_NUMBER: _ClassVar[int]
        LAG_FIELD_NUMBER: _ClassVar[int]
        OLDEST_TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
        MEMBERS_FIELD_NUMBER: _ClassVar[int]
        MESSAGES_OUT_FIELD_NUMBER: _ClassVar[int]
        consumer_group: str
        lag: int
        oldest_timestamp_ms: int
        members: int
        messages_out: int
        def __init__(self, consumer_group: _Optional[str] = ..., lag: _Optional[int] = ..., oldest_timestamp_ms: _Optional[int] = ..., members: _Optional[int] = ..., messages_out: _Optional[int] = ...) -> None: ...
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    STATISTICS_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    PRODUCERS_FIELD_NUMBER: _ClassVar[int]
    topic: _namesrv_pb2.TopicConfig
    statistics: TopicStatistics
    queues: _containers.RepeatedCompositeFieldContainer[_offset_pb2.QueueBounds]
    groups: _containers.RepeatedCompositeFieldContainer[DescribeTopicResponse.Group]
    producers: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, topic: _Optional[_Union[_namesrv_pb2.TopicConfig, _Mapping]] = ..., statistics: _Optional[_Union[TopicStatistics, _Mapping]] = ..., queues: _Optional[_Iterable[_Union[_offset_pb2.QueueBounds, _Mapping]]] = ..., groups: _Optional[_Iterable[_Union[DescribeTopicResponse.Group, _Mapping]]] = ..., producers: _Optional[_Iterable[str]] = ...) -> None: ...

class GroupConfig(_message.Message):
    __slots__ = ("consumer_group", "consume_enable", "consume_from_min_enable", "consume_broadcast_enable", "consume_message_orderly", "retry_queue_count", "retry_max_times", "retry_delays_ms", "broker_id", "which_broker_when_consume_slowly", "notify_consumer_ids_changed_enable", "consume_timeout_minutes", "attributes", "order", "exponential_retry")
    class AttributesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    CONSUMER_GROUP_FIELD_NUMBER: _ClassVar[int]
    CONSUME_ENABLE_FIELD_NUMBER: _ClassVar[int]
    CONSUME_FROM_MIN_ENABLE_FIELD_NUMBER: _ClassVar[int]
    CONSUME_BROADCAST_ENABLE_FIELD_NUMBER: _ClassVar[int]
    CONSUME_MESSAGE_ORDERLY_FIELD_NUMBER: _ClassVar[int]
    RETRY_QUEUE_COUNT_FIELD_NUMBER: _ClassVar[int]
    RETRY_MAX_TIMES_FIELD_NUMBER: _ClassVar[int]
    RETRY_DELAYS_MS_FIELD_NUMBER: _ClassVar[int]
    BROKER_ID_FIELD_NUMBER: _ClassVar[int]
    WHICH_BROKER_WHEN_CONSUME_SLOWLY_FIELD_NUMBER: _ClassVar[int]
    NOTIFY_CONSUMER_IDS_CHANGED_ENABLE_FIELD_NUMBER: _ClassVar[int]
    CONSUME_TIMEOUT_MINUTES_FIELD_NUMBER: _ClassVar[int]
    ATTRIBUTES_FIELD_NUMBER: _ClassVar[int]
    ORDER_FIELD_NUMBER: _ClassVar[int]
    EXPONENTIAL_RETRY_FIELD_NUMBER: _ClassVar[int]
    consumer_group: str
    consume_enable: bool
    consume_from_min_enable: bool
    consume_broadcast_enable: bool
    consume_message_orderly: bool
    retry_queue_count: int
    retry_max_times: int
    retry_delays_ms: _containers.RepeatedScalarFieldContainer[int]
    broker_id: int
    which_broker_when_consume_slowly: int
    notify_consumer_ids_changed_enable: bool
    consume_timeout_minutes: int
    attributes: _containers.ScalarMap[str, str]
    order: ConsumeOrder
    exponential_retry: ExponentialRetry
    def __init__(self, consumer_group: _Optional[str] = ..., consume_enable: _Optional[bool] = ..., consume_from_min_enable: _Optional[bool] = ..., consume_broadcast_enable: _Optional[bool] = ..., consume_message_orderly: _Optional[bool] = ..., retry_queue_count: _Optional[int] = ..., retry_max_times: _Optional[int] = ..., retry_delays_ms: _Optional[_Iterable[int]] = ..., broker_id: _Optional[int] = ..., which_broker_when_consume_slowly: _Optional[int] = ..., notify_consumer_ids_changed_enable: _Optional[bool] = ..., consume_timeout_minutes: _Optional[int] = ..., attributes: _Optional[_Mapping[str, str]] = ..., order: _Optional[_Union[ConsumeOrder, str]] = ..., exponential_retry: _Optional[_Union[ExponentialRetry, _Mapping]] = ...) -> None: ...

class ExponentialRetry(_message.Message):
    __slots__ = ("initial_ms", "max_ms", "multiplier")
    INITIAL_MS_FIELD_NUMBER: _ClassVar[int]
    MAX_MS_FIELD_NUMBER: _ClassVar[int]
    MULTIPLIER_FIELD_NUMBER: _ClassVar[int]
    initial_ms: int
    max_ms: int
    multiplier: int
    def __init__(self, initial_ms: _Optional[int] = ..., max_ms: _Optional[int] = ..., multiplier: _Optional[int] = ...) -> None: ...

class PutGroupRequest(_message.Message):
    __slots__ = ("group", "only_new")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    ONLY_NEW_FIELD_NUMBER: _ClassVar[int]
    group: GroupConfig
    only_new: bool
    def __init__(self, group: _Optional[_Union[GroupConfig, _Mapping]] = ..., only_new: _Optional[bool] = ...) -> None: ...

class PutGroupResponse(_message.Message):
    __slots__ = ("created", "group")
    CREATED_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    created: bool
    group: GroupConfig
    def __init__(self, created: _Optional[bool] = ..., group: _Optional[_Union[GroupConfig, _Mapping]] = ...) -> None: ...

class UpdateGroupRequest(_message.Message):
    __slots__ = ("group", "fields", "dry_run", "allow_missing")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    FIELDS_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    ALLOW_MISSING_FIELD_NUMBER: _ClassVar[int]
    group: GroupConfig
    fields: _containers.RepeatedScalarFieldContainer[str]
    dry_run: bool
    allow_missing: bool
    def __init__(self, group: _Optional[_Union[GroupConfig, _Mapping]] = ..., fields: _Optional[_Iterable[str]] = ..., dry_run: _Optional[bool] = ..., allow_missing: _Optional[bool] = ...) -> None: ...

class UpdateGroupResponse(_message.Message):
    __slots__ = ("before", "after")
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    before: GroupConfig
    after: GroupConfig
    def __init__(self, before: _Optional[_Union[GroupConfig, _Mapping]] = ..., after: _Optional[_Union[GroupConfig, _Mapping]] = ...) -> None: ...

class DeleteGroupRequest(_message.Message):
    __slots__ = ("consumer_group", "remove_offsets")
    CONSUMER_GROUP_FIELD_NUMBER: _ClassVar[int]
    REMOVE_OFFSETS_FIELD_NUMBER: _ClassVar[int]
    consumer_group: str
    remove_offsets: bool
    def __init__(self, consumer_group: _Optional[str] = ..., remove_offsets: _Optional[bool] = ...) -> None: ...

class DeleteGroupResponse(_message.Message):
    __slots__ = ("deleted",)
    DELETED_FIELD_NUMBER: _ClassVar[int]
    deleted: bool
    def __init__(self, deleted: _Optional[bool] = ...) -> None: ...

class GetGroupRequest(_message.Message):
    __slots__ = ("consumer_group",)
    CONSUMER_GROUP_FIELD_NUMBER: _ClassVar[int]
    consumer_group: str
    def __init__(self, consumer_group: _Optional[str] = ...) -> None: ...

class GetGroupResponse(_message.Message):
    __slots__ = ("group",)
    GROUP_FIELD_NUMBER: _ClassVar[int]
    group: GroupConfig
    def __init__(self, group: _Optional[_Union[GroupConfig, _Mapping]] = ...) -> None: ...

class ListGroupsRequest(_message.Message):
    __slots__ = ("include_system", "name_part", "consume_types", "with_statistics", "order", "descending", "offset", "limit", "with_names", "with_values", "only")
    INCLUDE_SYSTEM_FIELD_NUMBER: _ClassVar[int]
    NAME_PART_FIELD_NUMBER: _ClassVar[int]
    CONSUME_TYPES_FIELD_NUMBER: _ClassVar[int]
    WITH_STATISTICS_FIELD_NUMBER: _ClassVar[int]
    ORDER_FIELD_NUMBER: _ClassVar[int]
    DESCENDING_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    WITH_NAMES_FIELD_NUMBER: _ClassVar[int]
    WITH_VALUES_FIELD_NUMBER: _ClassVar[int]
    ONLY_FIELD_NUMBER: _ClassVar[int]
    include_system: bool
    name_part: str
    consume_types: _containers.RepeatedScalarFieldContainer[_client_pb2.ConsumeType]
    with_statistics: bool
    order: GroupOrder
    descending: bool
    offset: int
    limit: int
    with_names: bool
    with_values: bool
    only: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, include_system: _Optional[bool] = ..., name_part: _Optional[str] = ..., consume_types: _Optional[_Iterable[_Union[_client_pb2.ConsumeType, str]]] = ..., with_statistics: _Optional[bool] = ..., order: _Optional[_Union[GroupOrder, str]] = ..., descending: _Optional[bool] = ..., offset: _Optional[int] = ..., limit: _Optional[int] = ..., with_names: _Optional[bool] = ..., with_values: _Optional[bool] = ..., only: _Optional[_Iterable[str]] = ...) -> None: ...

class ListGroupsResponse(_message.Message):
    __slots__ = ("groups", "statistics", "total", "names", "values")
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    STATISTICS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    NAMES_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    groups: _containers.RepeatedCompositeFieldContainer[GroupConfig]
    statistics: _containers.RepeatedCompositeFieldContainer[GroupStatistics]
    total: int
    names: _containers.RepeatedScalarFieldContainer[str]
    values: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, groups: _Optional[_Iterable[_Union[GroupConfig, _Mapping]]] = ..., statistics: _Optional[_Iterable[_Union[GroupStatistics, _Mapping]]] = ..., total: _Optional[int] = ..., names: _Optional[_Iterable[str]] = ..., values: _Optional[_Iterable[float]] = ...) -> None: ...

class GroupStatistics(_message.Message):
    __slots__ = ("messages_out", "bytes_out", "dead_lettered", "messages_out_rate", "bytes_out_rate", "dead_lettered_rate", "lag", "retries", "dead_letters", "members", "consume_types", "broadcasting", "topics", "in_flight")
    MESSAGES_OUT_FIELD_NUMBER: _ClassVar[int]
    BYTES_OUT_FIELD_NUMBER: _ClassVar[int]
    DEAD_LETTERED_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_OUT_RATE_FIELD_NUMBER: _ClassVar[int]
    BYTES_OUT_RATE_FIELD_NUMBER: _ClassVar[int]
    DEAD_LETTERED_RATE_FIELD_NUMBER: _ClassVar[int]
    LAG_FIELD_NUMBER: _ClassVar[int]
    RETRIES_FIELD_NUMBER: _ClassVar[int]
    DEAD_LETTERS_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    CONSUME_TYPES_FIELD_NUMBER: _ClassVar[int]
    BROADCASTING_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    messages_out: int
    bytes_out: int
    dead_lettered: int
    messages_out_rate: float
    bytes_out_rate: float
    dead_lettered_rate: float
    lag: int
    retries: int
    dead_letters: int
    members: int
    consume_types: _containers.RepeatedScalarFieldContainer[_client_pb2.ConsumeType]
    broadcasting: bool
    topics: int
    in_flight: int
    def __init__(self, messages_out: _Optional[int] = ..., bytes_out: _Optional[int] = ..., dead_lettered: _Optional[int] = ..., messages_out_rate: _Optional[float] = ..., bytes_out_rate: _Optional[float] = ..., dead_lettered_rate: _Optional[float] = ..., lag: _Optional[int] = ..., retries: _Optional[int] = ..., dead_letters: _Optional[int] = ..., members: _Optional[int] = ..., consume_types: _Optional[_Iterable[_Union[_client_pb2.ConsumeType, str]]] = ..., broadcasting: _Optional[bool] = ..., topics: _Optional[int] = ..., in_flight: _Optional[int] = ...) -> None: ...

class DescribeGroupRequest(_message.Message):
    __slots__ = ("consumer_group",)
    CONSUMER_GROUP_FIELD_NUMBER: _ClassVar[int]
    consumer_group: str
    def __init__(self, consumer_group: _Optional[str] = ...) -> None: ...

class DescribeGroupResponse(_message.Message):
    __slots__ = ("group", "statistics", "queues", "members", "blocked_message_groups", "leased", "waiting")
    class Queue(_message.Message):
        __slots__ = ("progress", "oldest_timestamp_ms")
        PROGRESS_FIELD_NUMBER: _ClassVar[int]
        OLDEST_TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
        progress: _offset_pb2.QueueConsumeStats
        oldest_timestamp_ms: int
        def __init__(self, progress: _Optional[_Union[_offset_pb2.QueueConsumeStats, _Mapping]] = ..., oldest_timestamp_ms: _Optional[int] = ...) -> None: ...
    GROUP_FIELD_NUMBER: _ClassVar[int]
    STATISTICS_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    BLOCKED_MESSAGE_GROUPS_FIELD_NUMBER: _ClassVar[int]
    LEASED_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    group: GroupConfig
    statistics: GroupStatistics
    queues: _containers.RepeatedCompositeFieldContainer[DescribeGroupResponse.Queue]
    members: _containers.RepeatedCompositeFieldContainer[_client_pb2.ClientInfo]
    blocked_message_groups: int
    leased: int
    waiting: int
    def __init__(self, group: _Optional[_Union[GroupConfig, _Mapping]] = ..., statistics: _Optional[_Union[GroupStatistics, _Mapping]] = ..., queues: _Optional[_Iterable[_Union[DescribeGroupResponse.Queue, _Mapping]]] = ..., members: _Optional[_Iterable[_Union[_client_pb2.ClientInfo, _Mapping]]] = ..., blocked_message_groups: _Optional[int] = ..., leased: _Optional[int] = ..., waiting: _Optional[int] = ...) -> None: ...

class GetBrokerStatusRequest(_message.Message):
    __slots__ = ("physical_offsets",)
    PHYSICAL_OFFSETS_FIELD_NUMBER: _ClassVar[int]
    physical_offsets: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, physical_offsets: _Optional[_Iterable[int]] = ...) -> None: ...

class GetBrokerStatusResponse(_message.Message):
    __slots__ = ("cluster", "broker_name", "broker_id", "broker_address", "version", "start_timestamp_ms", "min_physical_offset", "max_physical_offset", "flushed_physical_offset", "read_only_reason", "messages_in_total", "messages_out_total", "dead_letters_total", "corrupted_records_total", "store_path", "disk_free_bytes", "disk_total_bytes", "parked_pulls", "delayed_messages", "resident_memory_bytes", "parked_pops", "draining_since_ms", "now_timestamp_ms", "disk_max_used_percent", "disk_full_percent", "disk_min_free_bytes", "memory_limit_bytes", "file_reserved_time_ms", "delete_when", "commit_log_file_bytes", "expiry_timestamps_ms", "damaged_ranges", "damaged_bytes")
    class DelayedMessagesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    BROKER_NAME_FIELD_NUMBER: _ClassVar[int]
    BROKER_ID_FIELD_NUMBER: _ClassVar[int]
    BROKER_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    START_TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
    MIN_PHYSICAL_OFFSET_FIELD_NUMBER: _ClassVar[int]
    MAX_PHYSICAL_OFFSET_FIELD_NUMBER: _ClassVar[int]
    FLUSHED_PHYSICAL_OFFSET_FIELD_NUMBER: _ClassVar[int]
    READ_ONLY_REASON_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_IN_TOTAL_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_OUT_TOTAL_FIELD_NUMBER: _ClassVar[int]
    DEAD_LETTERS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    CORRUPTED_RECORDS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    STORE_PATH_FIELD_NUMBER: _ClassVar[int]
    DISK_FREE_BYTES_FIELD_NUMBER: _ClassVar[int]
    DISK_TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    PARKED_PULLS_FIELD_NUMBER: _ClassVar[int]
    DELAYED_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    RESIDENT_MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    PARKED_POPS_FIELD_NUMBER: _ClassVar[int]
    DRAINING_SINCE_MS_FIELD_NUMBER: _ClassVar[int]
    NOW_TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
    DISK_MAX_USED_PERCENT_FIELD_NUMBER: _ClassVar[int]
    DISK_FULL_PERCENT_FIELD_NUMBER: _ClassVar[int]
    DISK_MIN_FREE_BYTES_FIELD_NUMBER: _ClassVar[int]
    MEMORY_LIMIT_BYTES_FIELD_NUMBER: _ClassVar[int]
    FILE_RESERVED_TIME_MS_FIELD_NUMBER: _ClassVar[int]
    DELETE_WHEN_FIELD_NUMBER: _ClassVar[int]
    COMMIT_LOG_FILE_BYTES_FIELD_NUMBER: _ClassVar[int]
    EXPIRY_TIMESTAMPS_MS_FIELD_NUMBER: _ClassVar[int]
    DAMAGED_RANGES_FIELD_NUMBER: _ClassVar[int]
    DAMAGED_BYTES_FIELD_NUMBER: _ClassVar[int]
    cluster: str
    broker_name: str
    broker_id: int
    broker_address: str
    version: str
    start_timestamp_ms: int
    min_physical_offset: int
    max_physical_offset: int
    flushed_physical_offset: int
    read_only_reason: str
    messages_in_total: int
    messages_out_total: int
    dead_letters_total: int
    corrupted_records_total: int
    store_path: str
    disk_free_bytes: int
    disk_total_bytes: int
    parked_pulls: int
    delayed_messages: _containers.ScalarMap[str, int]
    resident_memory_bytes: int
    parked_pops: int
    draining_since_ms: int
    now_timestamp_ms: int
    disk_max_used_percent: int
    disk_full_percent: int
    disk_min_free_bytes: int
    memory_limit_bytes: int
    file_reserved_time_ms: int
    delete_when: _containers.RepeatedScalarFieldContainer[int]
    commit_log_file_bytes: int
    expiry_timestamps_ms: _containers.RepeatedScalarFieldContainer[int]
    damaged_ranges: int
    damaged_bytes: int
    def __init__(self, cluster: _Optional[str] = ..., broker_name: _Optional[str] = ..., broker_id: _Optional[int] = ..., broker_address: _Optional[str] = ..., version: _Optional[str] = ..., start_timestamp_ms: _Optional[int] = ..., min_physical_offset: _Optional[int] = ..., max_physical_offset: _Optional[int] = ..., flushed_physical_offset: _Optional[int] = ..., read_only_reason: _Optional[str] = ..., messages_in_total: _Optional[int] = ..., messages_out_total: _Optional[int] = ..., dead_letters_total: _Optional[int] = ..., corrupted_records_total: _Optional[int] = ..., store_path: _Optional[str] = ..., disk_free_bytes: _Optional[int] = ..., disk_total_bytes: _Optional[int] = ..., parked_pulls: _Optional[int] = ..., delayed_messages: _Optional[_Mapping[str, int]] = ..., resident_memory_bytes: _Optional[int] = ..., parked_pops: _Optional[int] = ..., draining_since_ms: _Optional[int] = ..., now_timestamp_ms: _Optional[int] = ..., disk_max_used_percent: _Optional[int] = ..., disk_full_percent: _Optional[int] = ..., disk_min_free_bytes: _Optional[int] = ..., memory_limit_bytes: _Optional[int] = ..., file_reserved_time_ms: _Optional[int] = ..., delete_when: _Optional[_Iterable[int]] = ..., commit_log_file_bytes: _Optional[int] = ..., expiry_timestamps_ms: _Optional[_Iterable[int]] = ..., damaged_ranges: _Optional[int] = ..., damaged_bytes: _Optional[int] = ...) -> None: ...

class SetDrainingRequest(_message.Message):
    __slots__ = ("draining",)
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    draining: bool
    def __init__(self, draining: _Optional[bool] = ...) -> None: ...

class SetDrainingResponse(_message.Message):
    __slots__ = ("changed", "unreachable_namesrvs")
    CHANGED_FIELD_NUMBER: _ClassVar[int]
    UNREACHABLE_NAMESRVS_FIELD_NUMBER: _ClassVar[int]
    changed: bool
    unreachable_namesrvs: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, changed: _Optional[bool] = ..., unreachable_namesrvs: _Optional[_Iterable[str]] = ...) -> None: ...

class GetBacklogRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetBacklogResponse(_message.Message):
    __slots__ = ("draining_since_ms", "lags", "in_flight", "delayed_messages", "half_messages", "dead_letters", "unread_topics")
    class GroupLag(_message.Message):
        __slots__ = ("consumer_group", "topic", "messages")
        CONSUMER_GROUP_FIELD_NUMBER: _ClassVar[int]
        TOPIC_FIELD_NUMBER: _ClassVar[int]
        MESSAGES_FIELD_NUMBER: _ClassVar[int]
        consumer_group: str
        topic: str
        messages: int
        def __init__(self, consumer_group: _Optional[str] = ..., topic: _Optional[str] = ..., messages: _Optional[int] = ...) -> None: ...
    class DelayedMessagesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class HalfMessagesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class DeadLettersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class UnreadTopicsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    DRAINING_SINCE_MS_FIELD_NUMBER: _ClassVar[int]
    LAGS_FIELD_NUMBER: _ClassVar[int]
    IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    DELAYED_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    HALF_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    DEAD_LETTERS_FIELD_NUMBER: _ClassVar[int]
    UNREAD_TOPICS_FIELD_NUMBER: _ClassVar[int]
    draining_since_ms: int
    lags: _containers.RepeatedCompositeFieldContainer[GetBacklogResponse.GroupLag]
    in_flight: int
    delayed_messages: _containers.ScalarMap[str, int]
    half_messages: _containers.ScalarMap[str, int]
    dead_letters: _containers.ScalarMap[str, int]
    unread_topics: _containers.ScalarMap[str, int]
    def __init__(self, draining_since_ms: _Optional[int] = ..., lags: _Optional[_Iterable[_Union[GetBacklogResponse.GroupLag, _Mapping]]] = ..., in_flight: _Optional[int] = ..., delayed_messages: _Optional[_Mapping[str, int]] = ..., half_messages: _Optional[_Mapping[str, int]] = ..., dead_letters: _Optional[_Mapping[str, int]] = ..., unread_topics: _Optional[_Mapping[str, int]] = ...) -> None: ...

class GetStatsRequest(_message.Message):
    __slots__ = ("period", "topics", "groups")
    PERIOD_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    period: StatsPeriod
    topics: _containers.RepeatedScalarFieldContainer[str]
    groups: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, period: _Optional[_Union[StatsPeriod, str]] = ..., topics: _Optional[_Iterable[str]] = ..., groups: _Optional[_Iterable[str]] = ...) -> None: ...

class StatsSeries(_message.Message):
    __slots__ = ("figure", "values")
    FIGURE_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    figure: str
    values: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, figure: _Optional[str] = ..., values: _Optional[_Iterable[float]] = ...) -> None: ...

class StatsSubject(_message.Message):
    __slots__ = ("name", "series")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SERIES_FIELD_NUMBER: _ClassVar[int]
    name: str
    series: _containers.RepeatedCompositeFieldContainer[StatsSeries]
    def __init__(self, name: _Optional[str] = ..., series: _Optional[_Iterable[_Union[StatsSeries, _Mapping]]] = ...) -> None: ...

class GetStatsResponse(_message.Message):
    __slots__ = ("end_timestamp_ms", "period_ms", "broker", "topics", "groups", "omitted")
    END_TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
    PERIOD_MS_FIELD_NUMBER: _ClassVar[int]
    BROKER_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    OMITTED_FIELD_NUMBER: _ClassVar[int]
    end_timestamp_ms: int
    period_ms: int
    broker: StatsSubject
    topics: _containers.RepeatedCompositeFieldContainer[StatsSubject]
    groups: _containers.RepeatedCompositeFieldContainer[StatsSubject]
    omitted: int
    def __init__(self, end_timestamp_ms: _Optional[int] = ..., period_ms: _Optional[int] = ..., broker: _Optional[_Union[StatsSubject, _Mapping]] = ..., topics: _Optional[_Iterable[_Union[StatsSubject, _Mapping]]] = ..., groups: _Optional[_Iterable[_Union[StatsSubject, _Mapping]]] = ..., omitted: _Optional[int] = ...) -> None: ...

class WatchStatsRequest(_message.Message):
    __slots__ = ("topics", "groups", "busiest_topics", "busiest_groups")
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    BUSIEST_TOPICS_FIELD_NUMBER: _ClassVar[int]
    BUSIEST_GROUPS_FIELD_NUMBER: _ClassVar[int]
    topics: _containers.RepeatedScalarFieldContainer[str]
    groups: _containers.RepeatedScalarFieldContainer[str]
    busiest_topics: int
    busiest_groups: int
    def __init__(self, topics: _Optional[_Iterable[str]] = ..., groups: _Optional[_Iterable[str]] = ..., busiest_topics: _Optional[int] = ..., busiest_groups: _Optional[int] = ...) -> None: ...

class WatchStatsResponse(_message.Message):
    __slots__ = ("end_timestamp_ms", "broker", "topics", "groups", "omitted")
    class Row(_message.Message):
        __slots__ = ("name", "values")
        NAME_FIELD_NUMBER: _ClassVar[int]
        VALUES_FIELD_NUMBER: _ClassVar[int]
        name: str
        values: _containers.RepeatedScalarFieldContainer[float]
        def __init__(self, name: _Optional[str] = ..., values: _Optional[_Iterable[float]] = ...) -> None: ...
    END_TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
    BROKER_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    OMITTED_FIELD_NUMBER: _ClassVar[int]
    end_timestamp_ms: int
    broker: WatchStatsResponse.Row
    topics: _containers.RepeatedCompositeFieldContainer[WatchStatsResponse.Row]
    groups: _containers.RepeatedCompositeFieldContainer[WatchStatsResponse.Row]
    omitted: int
    def __init__(self, end_timestamp_ms: _Optional[int] = ..., broker: _Optional[_Union[WatchStatsResponse.Row, _Mapping]] = ..., topics: _Optional[_Iterable[_Union[WatchStatsResponse.Row, _Mapping]]] = ..., groups: _Optional[_Iterable[_Union[WatchStatsResponse.Row, _Mapping]]] = ..., omitted: _Optional[int] = ...) -> None: ...

class ListLeasesRequest(_message.Message):
    __slots__ = ("consumer_group", "topic", "client_id", "limit", "message_id")
    CONSUMER_GROUP_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    consumer_group: str
    topic: str
    client_id: str
    limit: int
    message_id: str
    def __init__(self, consumer_group: _Optional[str] = ..., topic: _Optional[str] = ..., client_id: _Optional[str] = ..., limit: _Optional[int] = ..., message_id: _Optional[str] = ...) -> None: ...

class HeldLease(_message.Message):
    __slots__ = ("topic", "queue_id", "queue_offset", "message_id", "lease_id", "attempt", "message_group", "client_id", "since_timestamp_ms", "expires_timestamp_ms")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    QUEUE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_GROUP_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    SINCE_TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    queue_id: int
    queue_offset: int
    message_id: str
    lease_id: int
    attempt: int
    message_group: str
    client_id: str
    since_timestamp_ms: int
    expires_timestamp_ms: int
    def __init__(self, topic: _Optional[str] = ..., queue_id: _Optional[int] = ..., queue_offset: _Optional[int] = ..., message_id: _Optional[str] = ..., lease_id: _Optional[int] = ..., attempt: _Optional[int] = ..., message_group: _Optional[str] = ..., client_id: _Optional[str] = ..., since_timestamp_ms: _Optional[int] = ..., expires_timestamp_ms: _Optional[int] = ...) -> None: ...

class ListLeasesResponse(_message.Message):
    __slots__ = ("leases", "total", "lite_leases")
    LEASES_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    LITE_LEASES_FIELD_NUMBER: _ClassVar[int]
    leases: _containers.RepeatedCompositeFieldContainer[HeldLease]
    total: int
    lite_leases: int
    def __init__(self, leases: _Optional[_Iterable[_Union[HeldLease, _Mapping]]] = ..., total: _Optional[int] = ..., lite_leases: _Optional[int] = ...) -> None: ...

class ReleaseLeaseRequest(_message.Message):
    __slots__ = ("consumer_group", "topic", "queue_id", "queue_offset", "lease_id")
    CONSUMER_GROUP_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    QUEUE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    consumer_group: str
    topic: str
    queue_id: int
    queue_offset: int
    lease_id: int
    def __init__(self, consumer_group: _Optional[str] = ..., topic: _Optional[str] = ..., queue_id: _Optional[int] = ..., queue_offset: _Optional[int] = ..., lease_id: _Optional[int] = ...) -> None: ...

class ReleaseLeaseResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListTransactionsRequest(_message.Message):
    __slots__ = ("topic", "producer_group", "limit", "transaction_id")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_GROUP_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    TRANSACTION_ID_FIELD_NUMBER: _ClassVar[int]
    topic: str
    producer_group: str
    limit: int
    transaction_id: str
    def __init__(self, topic: _Optional[str] = ..., producer_group: _Optional[str] = ..., limit: _Optional[int] = ..., transaction_id: _Optional[str] = ...) -> None: ...

class OpenTransaction(_message.Message):
    __slots__ = ("topic", "producer_group", "transaction_id", "queue_offset", "stored_timestamp_ms", "checks")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_GROUP_FIELD_NUMBER: _ClassVar[int]
    TRANSACTION_ID_FIELD_NUMBER: _ClassVar[int]
    QUEUE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    STORED_TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
    CHECKS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    producer_group: str
    transaction_id: str
    queue_offset: int
    stored_timestamp_ms: int
    checks: int
    def __init__(self, topic: _Optional[str] = ..., producer_group: _Optional[str] = ..., transaction_id: _Optional[str] = ..., queue_offset: _Optional[int] = ..., stored_timestamp_ms: _Optional[int] = ..., checks: _Optional[int] = ...) -> None: ...

class ListTransactionsResponse(_message.Message):
    __slots__ = ("transactions", "total")
    TRANSACTIONS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    transactions: _containers.RepeatedCompositeFieldContainer[OpenTransaction]
    total: int
    def __init__(self, transactions: _Optional[_Iterable[_Union[OpenTransaction, _Mapping]]] = ..., total: _Optional[int] = ...) -> None: ...

class ListDelayedRequest(_message.Message):
    __slots__ = ("topic", "limit")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    topic: str
    limit: int
    def __init__(self, topic: _Optional[str] = ..., limit: _Optional[int] = ...) -> None: ...

class DelayedMessage(_message.Message):
    __slots__ = ("topic", "message_id", "due_timestamp_ms", "delay", "stored_timestamp_ms", "body_size")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    DUE_TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
    DELAY_FIELD_NUMBER: _ClassVar[int]
    STORED_TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
    BODY_SIZE_FIELD_NUMBER: _ClassVar[int]
    topic: str
    message_id: str
    due_timestamp_ms: int
    delay: str
    stored_timestamp_ms: int
    body_size: int
    def __init__(self, topic: _Optional[str] = ..., message_id: _Optional[str] = ..., due_timestamp_ms: _Optional[int] = ..., delay: _Optional[str] = ..., stored_timestamp_ms: _Optional[int] = ..., body_size: _Optional[int] = ...) -> None: ...

class ListDelayedResponse(_message.Message):
    __slots__ = ("messages", "total", "examined")
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    EXAMINED_FIELD_NUMBER: _ClassVar[int]
    messages: _containers.RepeatedCompositeFieldContainer[DelayedMessage]
    total: int
    examined: int
    def __init__(self, messages: _Optional[_Iterable[_Union[DelayedMessage, _Mapping]]] = ..., total: _Optional[int] = ..., examined: _Optional[int] = ...) -> None: ...
