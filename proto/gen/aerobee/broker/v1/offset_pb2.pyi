from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class QueueOffset(_message.Message):
    __slots__ = ("topic", "queue_id", "queue_offset")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    QUEUE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    topic: str
    queue_id: int
    queue_offset: int
    def __init__(self, topic: _Optional[str] = ..., queue_id: _Optional[int] = ..., queue_offset: _Optional[int] = ...) -> None: ...

class QueryConsumerOffsetsRequest(_message.Message):
    __slots__ = ("consumer_group", "topic", "client_id", "queue_ids")
    CONSUMER_GROUP_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    QUEUE_IDS_FIELD_NUMBER: _ClassVar[int]
    consumer_group: str
    topic: str
    client_id: str
    queue_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, consumer_group: _Optional[str] = ..., topic: _Optional[str] = ..., client_id: _Optional[str] = ..., queue_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class QueryConsumerOffsetsResponse(_message.Message):
    __slots__ = ("offsets", "held")
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    offsets: _containers.RepeatedCompositeFieldContainer[QueueOffset]
    held: _containers.RepeatedCompositeFieldContainer[HeldQueue]
    def __init__(self, offsets: _Optional[_Iterable[_Union[QueueOffset, _Mapping]]] = ..., held: _Optional[_Iterable[_Union[HeldQueue, _Mapping]]] = ...) -> None: ...

class HeldQueue(_message.Message):
    __slots__ = ("queue_id", "client_id")
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    queue_id: int
    client_id: str
    def __init__(self, queue_id: _Optional[int] = ..., client_id: _Optional[str] = ...) -> None: ...

class UpdateConsumerOffsetsRequest(_message.Message):
    __slots__ = ("consumer_group", "offsets", "client_id", "locked", "released")
    CONSUMER_GROUP_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    LOCKED_FIELD_NUMBER: _ClassVar[int]
    RELEASED_FIELD_NUMBER: _ClassVar[int]
    consumer_group: str
    offsets: _containers.RepeatedCompositeFieldContainer[QueueOffset]
    client_id: str
    locked: bool
    released: _containers.RepeatedCompositeFieldContainer[ReleasedQueue]
    def __init__(self, consumer_group: _Optional[str] = ..., offsets: _Optional[_Iterable[_Union[QueueOffset, _Mapping]]] = ..., client_id: _Optional[str] = ..., locked: _Optional[bool] = ..., released: _Optional[_Iterable[_Union[ReleasedQueue, _Mapping]]] = ...) -> None: ...

class ReleasedQueue(_message.Message):
    __slots__ = ("topic", "queue_id")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    topic: str
    queue_id: int
    def __init__(self, topic: _Optional[str] = ..., queue_id: _Optional[int] = ...) -> None: ...

class UpdateConsumerOffsetsResponse(_message.Message):
    __slots__ = ("beyond_end",)
    BEYOND_END_FIELD_NUMBER: _ClassVar[int]
    beyond_end: _containers.RepeatedCompositeFieldContainer[QueueOffset]
    def __init__(self, beyond_end: _Optional[_Iterable[_Union[QueueOffset, _Mapping]]] = ...) -> None: ...

class GetQueueOffsetsRequest(_message.Message):
    __slots__ = ("topic", "queue_ids", "without_timestamps")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_IDS_FIELD_NUMBER: _ClassVar[int]
    WITHOUT_TIMESTAMPS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    queue_ids: _containers.RepeatedScalarFieldContainer[int]
    without_timestamps: bool
    def __init__(self, topic: _Optional[str] = ..., queue_ids: _Optional[_Iterable[int]] = ..., without_timestamps: _Optional[bool] = ...) -> None: ...

class GetQueueOffsetsResponse(_message.Message):
    __slots__ = ("queues", "read_queue_count", "permission")
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    READ_QUEUE_COUNT_FIELD_NUMBER: _ClassVar[int]
    PERMISSION_FIELD_NUMBER: _ClassVar[int]
    queues: _containers.RepeatedCompositeFieldContainer[QueueBounds]
    read_queue_count: int
    permission: int
    def __init__(self, queues: _Optional[_Iterable[_Union[QueueBounds, _Mapping]]] = ..., read_queue_count: _Optional[int] = ..., permission: _Optional[int] = ...) -> None: ...

class QueueBounds(_message.Message):
    __slots__ = ("queue_id", "min_offset", "max_offset", "earliest_timestamp_ms", "latest_timestamp_ms")
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    MIN_OFFSET_FIELD_NUMBER: _ClassVar[int]
    MAX_OFFSET_FIELD_NUMBER: _ClassVar[int]
    EARLIEST_TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
    LATEST_TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
    queue_id: int
    min_offset: int
    max_offset: int
    earliest_timestamp_ms: int
    latest_timestamp_ms: int
    def __init__(self, queue_id: _Optional[int] = ..., min_offset: _Optional[int] = ..., max_offset: _Optional[int] = ..., earliest_timestamp_ms: _Optional[int] = ..., latest_timestamp_ms: _Optional[int] = ...) -> None: ...

class SearchOffsetRequest(_message.Message):
    __slots__ = ("topic", "queue_id", "timestamp_ms", "boundary")
    class Boundary(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        LOWER: _ClassVar[SearchOffsetRequest.Boundary]
        UPPER: _ClassVar[SearchOffsetRequest.Boundary]
    LOWER: SearchOffsetRequest.Boundary
    UPPER: SearchOffsetRequest.Boundary
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
    BOUNDARY_FIELD_NUMBER: _ClassVar[int]
    topic: str
    queue_id: int
    timestamp_ms: int
    boundary: SearchOffsetRequest.Boundary
    def __init__(self, topic: _Optional[str] = ..., queue_id: _Optional[int] = ..., timestamp_ms: _Optional[int] = ..., boundary: _Optional[_Union[SearchOffsetRequest.Boundary, str]] = ...) -> None: ...

class SearchOffsetResponse(_message.Message):
    __slots__ = ("queue_offset",)
    QUEUE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    queue_offset: int
    def __init__(self, queue_offset: _Optional[int] = ...) -> None: ...

class ResetConsumerOffsetsRequest(_message.Message):
    __slots__ = ("consumer_group", "topic", "timestamp_ms", "queue_offset", "queue_ids", "requested_by")
    CONSUMER_GROUP_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
    QUEUE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    QUEUE_IDS_FIELD_NUMBER: _ClassVar[int]
    REQUESTED_BY_FIELD_NUMBER: _ClassVar[int]
    consumer_group: str
    topic: str
    timestamp_ms: int
    queue_offset: int
    queue_ids: _containers.RepeatedScalarFieldContainer[int]
    requested_by: str
    def __init__(self, consumer_group: _Optional[str] = ..., topic: _Optional[str] = ..., timestamp_ms: _Optional[int] = ..., queue_offset: _Optional[int] = ..., queue_ids: _Optional[_Iterable[int]] = ..., requested_by: _Optional[str] = ...) -> None: ...

class ResetConsumerOffsetsResponse(_message.Message):
    __slots__ = ("offsets",)
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    offsets: _containers.RepeatedCompositeFieldContainer[QueueOffset]
    def __init__(self, offsets: _Optional[_Iterable[_Union[QueueOffset, _Mapping]]] = ...) -> None: ...

class ForgetConsumerOffsetsRequest(_message.Message):
    __slots__ = ("consumer_group", "topic", "dry_run")
    CONSUMER_GROUP_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    consumer_group: str
    topic: str
    dry_run: bool
    def __init__(self, consumer_group: _Optional[str] = ..., topic: _Optional[str] = ..., dry_run: _Optional[bool] = ...) -> None: ...

class ForgetConsumerOffsetsResponse(_message.Message):
    __slots__ = ("offsets",)
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    offsets: _containers.RepeatedCompositeFieldContainer[QueueOffset]
    def __init__(self, offsets: _Optional[_Iterable[_Union[QueueOffset, _Mapping]]] = ...) -> None: ...

class GetConsumeStatsRequest(_message.Message):
    __slots__ = ("consumer_group", "topic")
    CONSUMER_GROUP_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    consumer_group: str
    topic: str
    def __init__(self, consumer_group: _Optional[str] = ..., topic: _Optional[str] = ...) -> None: ...

class GetConsumeStatsResponse(_message.Message):
    __slots__ = ("queues",)
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    queues: _containers.RepeatedCompositeFieldContainer[QueueConsumeStats]
    def __init__(self, queues: _Optional[_Iterable[_Union[QueueConsumeStats, _Mapping]]] = ...) -> None: ...

class QueueConsumeStats(_message.Message):
    __slots__ = ("topic", "queue_id", "min_offset", "max_offset", "consumer_offset", "last_timestamp_ms", "client_id", "lag")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    MIN_OFFSET_FIELD_NUMBER: _ClassVar[int]
    MAX_OFFSET_FIELD_NUMBER: _ClassVar[int]
    CONSUMER_OFFSET_FIELD_NUMBER: _ClassVar[int]
    LAST_TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    LAG_FIELD_NUMBER: _ClassVar[int]
    topic: str
    queue_id: int
    min_offset: int
    max_offset: int
    consumer_offset: int
    last_timestamp_ms: int
    client_id: str
    lag: int
    def __init__(self, topic: _Optional[str] = ..., queue_id: _Optional[int] = ..., min_offset: _Optional[int] = ..., max_offset: _Optional[int] = ..., consumer_offset: _Optional[int] = ..., last_timestamp_ms: _Optional[int] = ..., client_id: _Optional[str] = ..., lag: _Optional[int] = ...) -> None: ...
