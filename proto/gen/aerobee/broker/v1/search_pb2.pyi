from aerobee.broker.v1 import message_pb2 as _message_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class MessagePlace(_message.Message):
    __slots__ = ("topic", "queue_id", "queue_offset")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    QUEUE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    topic: str
    queue_id: int
    queue_offset: int
    def __init__(self, topic: _Optional[str] = ..., queue_id: _Optional[int] = ..., queue_offset: _Optional[int] = ...) -> None: ...

class TrackMessageRequest(_message.Message):
    __slots__ = ("unique_message_id", "place", "consumer_groups")
    UNIQUE_MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    PLACE_FIELD_NUMBER: _ClassVar[int]
    CONSUMER_GROUPS_FIELD_NUMBER: _ClassVar[int]
    unique_message_id: str
    place: MessagePlace
    consumer_groups: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, unique_message_id: _Optional[str] = ..., place: _Optional[_Union[MessagePlace, _Mapping]] = ..., consumer_groups: _Optional[_Iterable[str]] = ...) -> None: ...

class TrackMessageResponse(_message.Message):
    __slots__ = ("messages",)
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    messages: _containers.RepeatedCompositeFieldContainer[TrackedMessage]
    def __init__(self, messages: _Optional[_Iterable[_Union[TrackedMessage, _Mapping]]] = ...) -> None: ...

class TrackedMessage(_message.Message):
    __slots__ = ("place", "message", "groups", "due_timestamp_ms", "uncommitted")
    PLACE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    DUE_TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
    UNCOMMITTED_FIELD_NUMBER: _ClassVar[int]
    place: MessagePlace
    message: _message_pb2.StoredMessage
    groups: _containers.RepeatedCompositeFieldContainer[GroupState]
    due_timestamp_ms: int
    uncommitted: bool
    def __init__(self, place: _Optional[_Union[MessagePlace, _Mapping]] = ..., message: _Optional[_Union[_message_pb2.StoredMessage, _Mapping]] = ..., groups: _Optional[_Iterable[_Union[GroupState, _Mapping]]] = ..., due_timestamp_ms: _Optional[int] = ..., uncommitted: _Optional[bool] = ...) -> None: ...

class GroupState(_message.Message):
    __slots__ = ("consumer_group", "state", "reason", "client_id", "since_timestamp_ms", "at_timestamp_ms", "until_timestamp_ms", "attempt", "ahead", "place", "failure")
    class State(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        UNKNOWN: _ClassVar[GroupState.State]
        NOT_YET: _ClassVar[GroupState.State]
        READY: _ClassVar[GroupState.State]
        ON_LEASE: _ClassVar[GroupState.State]
        RETRYING: _ClassVar[GroupState.State]
        CONSUMED: _ClassVar[GroupState.State]
        FILTERED: _ClassVar[GroupState.State]
        SKIPPED: _ClassVar[GroupState.State]
        DEAD_LETTERED: _ClassVar[GroupState.State]
        EXPIRED: _ClassVar[GroupState.State]
    UNKNOWN: GroupState.State
    NOT_YET: GroupState.State
    READY: GroupState.State
    ON_LEASE: GroupState.State
    RETRYING: GroupState.State
    CONSUMED: GroupState.State
    FILTERED: GroupState.State
    SKIPPED: GroupState.State
    DEAD_LETTERED: GroupState.State
    EXPIRED: GroupState.State
    CONSUMER_GROUP_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    SINCE_TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
    AT_TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
    UNTIL_TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    AHEAD_FIELD_NUMBER: _ClassVar[int]
    PLACE_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    consumer_group: str
    state: GroupState.State
    reason: str
    client_id: str
    since_timestamp_ms: int
    at_timestamp_ms: int
    until_timestamp_ms: int
    attempt: int
    ahead: int
    place: MessagePlace
    failure: _message_pb2.Failure
    def __init__(self, consumer_group: _Optional[str] = ..., state: _Optional[_Union[GroupState.State, str]] = ..., reason: _Optional[str] = ..., client_id: _Optional[str] = ..., since_timestamp_ms: _Optional[int] = ..., at_timestamp_ms: _Optional[int] = ..., until_timestamp_ms: _Optional[int] = ..., attempt: _Optional[int] = ..., ahead: _Optional[int] = ..., place: _Optional[_Union[MessagePlace, _Mapping]] = ..., failure: _Optional[_Union[_message_pb2.Failure, _Mapping]] = ...) -> None: ...

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
