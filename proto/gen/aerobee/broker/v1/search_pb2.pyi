from aerobee.broker.v1 import message_pb2 as _message_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class FindMessageRequest(_message.Message):
    __slots__ = ("unique_message_id",)
    UNIQUE_MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    unique_message_id: str
    def __init__(self, unique_message_id: _Optional[str] = ...) -> None: ...

class FindMessageResponse(_message.Message):
    __slots__ = ("copies", "damaged", "truncated")
    COPIES_FIELD_NUMBER: _ClassVar[int]
    DAMAGED_FIELD_NUMBER: _ClassVar[int]
    TRUNCATED_FIELD_NUMBER: _ClassVar[int]
    copies: _containers.RepeatedCompositeFieldContainer[_message_pb2.StoredMessage]
    damaged: _containers.RepeatedScalarFieldContainer[str]
    truncated: bool
    def __init__(self, copies: _Optional[_Iterable[_Union[_message_pb2.StoredMessage, _Mapping]]] = ..., damaged: _Optional[_Iterable[str]] = ..., truncated: _Optional[bool] = ...) -> None: ...

class SearchMessagesRequest(_message.Message):
    __slots__ = ("topic", "queues", "begin_timestamp_ms", "end_timestamp_ms", "subscription", "key", "text", "newest_first", "max_messages", "max_bytes", "max_scanned", "follow")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    BEGIN_TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
    END_TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    NEWEST_FIRST_FIELD_NUMBER: _ClassVar[int]
    MAX_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_SCANNED_FIELD_NUMBER: _ClassVar[int]
    FOLLOW_FIELD_NUMBER: _ClassVar[int]
    topic: str
    queues: _containers.RepeatedCompositeFieldContainer[QueueRange]
    begin_timestamp_ms: int
    end_timestamp_ms: int
    subscription: _message_pb2.Subscription
    key: str
    text: str
    newest_first: bool
    max_messages: int
    max_bytes: int
    max_scanned: int
    follow: bool
    def __init__(self, topic: _Optional[str] = ..., queues: _Optional[_Iterable[_Union[QueueRange, _Mapping]]] = ..., begin_timestamp_ms: _Optional[int] = ..., end_timestamp_ms: _Optional[int] = ..., subscription: _Optional[_Union[_message_pb2.Subscription, _Mapping]] = ..., key: _Optional[str] = ..., text: _Optional[str] = ..., newest_first: _Optional[bool] = ..., max_messages: _Optional[int] = ..., max_bytes: _Optional[int] = ..., max_scanned: _Optional[int] = ..., follow: _Optional[bool] = ...) -> None: ...

class QueueRange(_message.Message):
    __slots__ = ("queue_id", "begin_offset", "end_offset")
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    BEGIN_OFFSET_FIELD_NUMBER: _ClassVar[int]
    END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    queue_id: int
    begin_offset: int
    end_offset: int
    def __init__(self, queue_id: _Optional[int] = ..., begin_offset: _Optional[int] = ..., end_offset: _Optional[int] = ...) -> None: ...

class SearchMessagesResponse(_message.Message):
    __slots__ = ("messages", "progress", "end")
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    messages: _containers.RepeatedCompositeFieldContainer[_message_pb2.StoredMessage]
    progress: SearchProgress
    end: SearchEnd
    def __init__(self, messages: _Optional[_Iterable[_Union[_message_pb2.StoredMessage, _Mapping]]] = ..., progress: _Optional[_Union[SearchProgress, _Mapping]] = ..., end: _Optional[_Union[SearchEnd, _Mapping]] = ...) -> None: ...

class SearchProgress(_message.Message):
    __slots__ = ("scanned", "matched", "unreadable", "remaining")
    SCANNED_FIELD_NUMBER: _ClassVar[int]
    MATCHED_FIELD_NUMBER: _ClassVar[int]
    UNREADABLE_FIELD_NUMBER: _ClassVar[int]
    REMAINING_FIELD_NUMBER: _ClassVar[int]
    scanned: int
    matched: int
    unreadable: int
    remaining: int
    def __init__(self, scanned: _Optional[int] = ..., matched: _Optional[int] = ..., unreadable: _Optional[int] = ..., remaining: _Optional[int] = ...) -> None: ...

class SearchEnd(_message.Message):
    __slots__ = ("reason", "positions")
    class Reason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        REASON_UNSPECIFIED: _ClassVar[SearchEnd.Reason]
        COMPLETE: _ClassVar[SearchEnd.Reason]
        MESSAGE_LIMIT: _ClassVar[SearchEnd.Reason]
        BYTE_LIMIT: _ClassVar[SearchEnd.Reason]
        SCAN_LIMIT: _ClassVar[SearchEnd.Reason]
        BROKER_STOPS: _ClassVar[SearchEnd.Reason]
    REASON_UNSPECIFIED: SearchEnd.Reason
    COMPLETE: SearchEnd.Reason
    MESSAGE_LIMIT: SearchEnd.Reason
    BYTE_LIMIT: SearchEnd.Reason
    SCAN_LIMIT: SearchEnd.Reason
    BROKER_STOPS: SearchEnd.Reason
    REASON_FIELD_NUMBER: _ClassVar[int]
    POSITIONS_FIELD_NUMBER: _ClassVar[int]
    reason: SearchEnd.Reason
    positions: _containers.RepeatedCompositeFieldContainer[SearchPosition]
    def __init__(self, reason: _Optional[_Union[SearchEnd.Reason, str]] = ..., positions: _Optional[_Iterable[_Union[SearchPosition, _Mapping]]] = ...) -> None: ...

class SearchPosition(_message.Message):
    __slots__ = ("queue_id", "begin_offset", "end_offset", "queue_end")
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    BEGIN_OFFSET_FIELD_NUMBER: _ClassVar[int]
    END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    QUEUE_END_FIELD_NUMBER: _ClassVar[int]
    queue_id: int
    begin_offset: int
    end_offset: int
    queue_end: int
    def __init__(self, queue_id: _Optional[int] = ..., begin_offset: _Optional[int] = ..., end_offset: _Optional[int] = ..., queue_end: _Optional[int] = ...) -> None: ...
