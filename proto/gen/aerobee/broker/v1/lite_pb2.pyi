from aerobee.broker.v1 import pop_pb2 as _pop_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class LiteSync(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    LITE_SYNC_ADD: _ClassVar[LiteSync]
    LITE_SYNC_REMOVE: _ClassVar[LiteSync]
    LITE_SYNC_REPLACE: _ClassVar[LiteSync]
    LITE_SYNC_LEAVE: _ClassVar[LiteSync]
    LITE_SYNC_KEEP: _ClassVar[LiteSync]
LITE_SYNC_ADD: LiteSync
LITE_SYNC_REMOVE: LiteSync
LITE_SYNC_REPLACE: LiteSync
LITE_SYNC_LEAVE: LiteSync
LITE_SYNC_KEEP: LiteSync

class SyncLiteTopicsRequest(_message.Message):
    __slots__ = ("consumer_group", "parent", "client_id", "action", "lite_topics", "first", "end", "number", "tail", "stored_since_ms", "may_return")
    CONSUMER_GROUP_FIELD_NUMBER: _ClassVar[int]
    PARENT_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    ACTION_FIELD_NUMBER: _ClassVar[int]
    LITE_TOPICS_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    TAIL_FIELD_NUMBER: _ClassVar[int]
    STORED_SINCE_MS_FIELD_NUMBER: _ClassVar[int]
    MAY_RETURN_FIELD_NUMBER: _ClassVar[int]
    consumer_group: str
    parent: str
    client_id: str
    action: LiteSync
    lite_topics: _containers.RepeatedScalarFieldContainer[str]
    first: bool
    end: bool
    number: int
    tail: int
    stored_since_ms: int
    may_return: bool
    def __init__(self, consumer_group: _Optional[str] = ..., parent: _Optional[str] = ..., client_id: _Optional[str] = ..., action: _Optional[_Union[LiteSync, str]] = ..., lite_topics: _Optional[_Iterable[str]] = ..., first: _Optional[bool] = ..., end: _Optional[bool] = ..., number: _Optional[int] = ..., tail: _Optional[int] = ..., stored_since_ms: _Optional[int] = ..., may_return: _Optional[bool] = ...) -> None: ...

class SyncLiteTopicsResponse(_message.Message):
    __slots__ = ("lost",)
    LOST_FIELD_NUMBER: _ClassVar[int]
    lost: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, lost: _Optional[_Iterable[str]] = ...) -> None: ...

class LitePopRequest(_message.Message):
    __slots__ = ("consumer_group", "parent", "client_id", "max_messages", "max_bytes", "invisible_duration_ms", "poll_duration_ms", "attempt_id")
    CONSUMER_GROUP_FIELD_NUMBER: _ClassVar[int]
    PARENT_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    MAX_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    INVISIBLE_DURATION_MS_FIELD_NUMBER: _ClassVar[int]
    POLL_DURATION_MS_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_ID_FIELD_NUMBER: _ClassVar[int]
    consumer_group: str
    parent: str
    client_id: str
    max_messages: int
    max_bytes: int
    invisible_duration_ms: int
    poll_duration_ms: int
    attempt_id: str
    def __init__(self, consumer_group: _Optional[str] = ..., parent: _Optional[str] = ..., client_id: _Optional[str] = ..., max_messages: _Optional[int] = ..., max_bytes: _Optional[int] = ..., invisible_duration_ms: _Optional[int] = ..., poll_duration_ms: _Optional[int] = ..., attempt_id: _Optional[str] = ...) -> None: ...

class LitePopResponse(_message.Message):
    __slots__ = ("batches", "lost")
    BATCHES_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    batches: _containers.RepeatedCompositeFieldContainer[LiteMessages]
    lost: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, batches: _Optional[_Iterable[_Union[LiteMessages, _Mapping]]] = ..., lost: _Optional[_Iterable[str]] = ...) -> None: ...

class LiteMessages(_message.Message):
    __slots__ = ("lite_topic", "queue_id", "messages")
    LITE_TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    lite_topic: str
    queue_id: int
    messages: _pop_pb2.PopResponse
    def __init__(self, lite_topic: _Optional[str] = ..., queue_id: _Optional[int] = ..., messages: _Optional[_Union[_pop_pb2.PopResponse, _Mapping]] = ...) -> None: ...

class ListLiteTopicsRequest(_message.Message):
    __slots__ = ("parent", "consumer_group", "limit", "lite_topic")
    PARENT_FIELD_NUMBER: _ClassVar[int]
    CONSUMER_GROUP_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    LITE_TOPIC_FIELD_NUMBER: _ClassVar[int]
    parent: str
    consumer_group: str
    limit: int
    lite_topic: str
    def __init__(self, parent: _Optional[str] = ..., consumer_group: _Optional[str] = ..., limit: _Optional[int] = ..., lite_topic: _Optional[str] = ...) -> None: ...

class ListLiteTopicsResponse(_message.Message):
    __slots__ = ("lite_topics", "total")
    LITE_TOPICS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    lite_topics: _containers.RepeatedCompositeFieldContainer[LiteTopicInfo]
    total: int
    def __init__(self, lite_topics: _Optional[_Iterable[_Union[LiteTopicInfo, _Mapping]]] = ..., total: _Optional[int] = ...) -> None: ...

class LiteTopicInfo(_message.Message):
    __slots__ = ("lite_topic", "queue_id", "messages", "lag", "oldest_timestamp_ms", "newest_timestamp_ms", "subscribers")
    LITE_TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    LAG_FIELD_NUMBER: _ClassVar[int]
    OLDEST_TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
    NEWEST_TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIBERS_FIELD_NUMBER: _ClassVar[int]
    lite_topic: str
    queue_id: int
    messages: int
    lag: int
    oldest_timestamp_ms: int
    newest_timestamp_ms: int
    subscribers: int
    def __init__(self, lite_topic: _Optional[str] = ..., queue_id: _Optional[int] = ..., messages: _Optional[int] = ..., lag: _Optional[int] = ..., oldest_timestamp_ms: _Optional[int] = ..., newest_timestamp_ms: _Optional[int] = ..., subscribers: _Optional[int] = ...) -> None: ...

class ListLiteClientsRequest(_message.Message):
    __slots__ = ("parent", "lite_topic")
    PARENT_FIELD_NUMBER: _ClassVar[int]
    LITE_TOPIC_FIELD_NUMBER: _ClassVar[int]
    parent: str
    lite_topic: str
    def __init__(self, parent: _Optional[str] = ..., lite_topic: _Optional[str] = ...) -> None: ...

class ListLiteClientsResponse(_message.Message):
    __slots__ = ("clients",)
    CLIENTS_FIELD_NUMBER: _ClassVar[int]
    clients: _containers.RepeatedCompositeFieldContainer[LiteClientInfo]
    def __init__(self, clients: _Optional[_Iterable[_Union[LiteClientInfo, _Mapping]]] = ...) -> None: ...

class LiteClientInfo(_message.Message):
    __slots__ = ("consumer_group", "client_id", "lite_topics", "wildcard", "ready", "silent_ms")
    CONSUMER_GROUP_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    LITE_TOPICS_FIELD_NUMBER: _ClassVar[int]
    WILDCARD_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    SILENT_MS_FIELD_NUMBER: _ClassVar[int]
    consumer_group: str
    client_id: str
    lite_topics: int
    wildcard: bool
    ready: int
    silent_ms: int
    def __init__(self, consumer_group: _Optional[str] = ..., client_id: _Optional[str] = ..., lite_topics: _Optional[int] = ..., wildcard: _Optional[bool] = ..., ready: _Optional[int] = ..., silent_ms: _Optional[int] = ...) -> None: ...
