from aerobee.broker.v1 import message_pb2 as _message_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class PopStart(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    POP_START_AUTOMATIC: _ClassVar[PopStart]
    POP_START_EARLIEST: _ClassVar[PopStart]
    POP_START_LATEST: _ClassVar[PopStart]
POP_START_AUTOMATIC: PopStart
POP_START_EARLIEST: PopStart
POP_START_LATEST: PopStart

class PopRequest(_message.Message):
    __slots__ = ("consumer_group", "topic", "queue_id", "max_messages", "max_bytes", "invisible_duration_ms", "poll_duration_ms", "subscription", "fifo", "attempt_id", "start", "client_id")
    CONSUMER_GROUP_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    MAX_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    INVISIBLE_DURATION_MS_FIELD_NUMBER: _ClassVar[int]
    POLL_DURATION_MS_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
    FIFO_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_ID_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    consumer_group: str
    topic: str
    queue_id: int
    max_messages: int
    max_bytes: int
    invisible_duration_ms: int
    poll_duration_ms: int
    subscription: _message_pb2.Subscription
    fifo: bool
    attempt_id: str
    start: PopStart
    client_id: str
    def __init__(self, consumer_group: _Optional[str] = ..., topic: _Optional[str] = ..., queue_id: _Optional[int] = ..., max_messages: _Optional[int] = ..., max_bytes: _Optional[int] = ..., invisible_duration_ms: _Optional[int] = ..., poll_duration_ms: _Optional[int] = ..., subscription: _Optional[_Union[_message_pb2.Subscription, _Mapping]] = ..., fifo: _Optional[bool] = ..., attempt_id: _Optional[str] = ..., start: _Optional[_Union[PopStart, str]] = ..., client_id: _Optional[str] = ...) -> None: ...

class PopResponse(_message.Message):
    __slots__ = ("records", "message_count", "delivery_attempts", "lease_id", "pop_time_ms", "invisible_duration_ms", "broker_name")
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_COUNT_FIELD_NUMBER: _ClassVar[int]
    DELIVERY_ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    POP_TIME_MS_FIELD_NUMBER: _ClassVar[int]
    INVISIBLE_DURATION_MS_FIELD_NUMBER: _ClassVar[int]
    BROKER_NAME_FIELD_NUMBER: _ClassVar[int]
    records: bytes
    message_count: int
    delivery_attempts: _containers.RepeatedScalarFieldContainer[int]
    lease_id: int
    pop_time_ms: int
    invisible_duration_ms: int
    broker_name: str
    def __init__(self, records: _Optional[bytes] = ..., message_count: _Optional[int] = ..., delivery_attempts: _Optional[_Iterable[int]] = ..., lease_id: _Optional[int] = ..., pop_time_ms: _Optional[int] = ..., invisible_duration_ms: _Optional[int] = ..., broker_name: _Optional[str] = ...) -> None: ...

class NotificationRequest(_message.Message):
    __slots__ = ("consumer_group", "topic", "poll_duration_ms", "subscription", "attempt_id")
    CONSUMER_GROUP_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    POLL_DURATION_MS_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_ID_FIELD_NUMBER: _ClassVar[int]
    consumer_group: str
    topic: str
    poll_duration_ms: int
    subscription: _message_pb2.Subscription
    attempt_id: str
    def __init__(self, consumer_group: _Optional[str] = ..., topic: _Optional[str] = ..., poll_duration_ms: _Optional[int] = ..., subscription: _Optional[_Union[_message_pb2.Subscription, _Mapping]] = ..., attempt_id: _Optional[str] = ...) -> None: ...

class NotificationResponse(_message.Message):
    __slots__ = ("has_message", "is_repeated")
    HAS_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    IS_REPEATED_FIELD_NUMBER: _ClassVar[int]
    has_message: bool
    is_repeated: bool
    def __init__(self, has_message: _Optional[bool] = ..., is_repeated: _Optional[bool] = ...) -> None: ...

class Lease(_message.Message):
    __slots__ = ("consumer_group", "topic", "queue_id", "queue_offset", "lease_id", "expires_timestamp_ms")
    CONSUMER_GROUP_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    QUEUE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
    consumer_group: str
    topic: str
    queue_id: int
    queue_offset: int
    lease_id: int
    expires_timestamp_ms: int
    def __init__(self, consumer_group: _Optional[str] = ..., topic: _Optional[str] = ..., queue_id: _Optional[int] = ..., queue_offset: _Optional[int] = ..., lease_id: _Optional[int] = ..., expires_timestamp_ms: _Optional[int] = ...) -> None: ...

class LeaseSet(_message.Message):
    __slots__ = ("consumer_group", "topic", "queue_id", "lease_id", "expires_timestamp_ms", "queue_offsets")
    CONSUMER_GROUP_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
    QUEUE_OFFSETS_FIELD_NUMBER: _ClassVar[int]
    consumer_group: str
    topic: str
    queue_id: int
    lease_id: int
    expires_timestamp_ms: int
    queue_offsets: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, consumer_group: _Optional[str] = ..., topic: _Optional[str] = ..., queue_id: _Optional[int] = ..., lease_id: _Optional[int] = ..., expires_timestamp_ms: _Optional[int] = ..., queue_offsets: _Optional[_Iterable[int]] = ...) -> None: ...

class AckRequest(_message.Message):
    __slots__ = ("leases", "lease_sets")
    LEASES_FIELD_NUMBER: _ClassVar[int]
    LEASE_SETS_FIELD_NUMBER: _ClassVar[int]
    leases: _containers.RepeatedCompositeFieldContainer[Lease]
    lease_sets: _containers.RepeatedCompositeFieldContainer[LeaseSet]
    def __init__(self, leases: _Optional[_Iterable[_Union[Lease, _Mapping]]] = ..., lease_sets: _Optional[_Iterable[_Union[LeaseSet, _Mapping]]] = ...) -> None: ...

class AckResponse(_message.Message):
    __slots__ = ("results", "failures", "lease_sets")
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    FAILURES_FIELD_NUMBER: _ClassVar[int]
    LEASE_SETS_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[LeaseResult]
    failures: _containers.RepeatedCompositeFieldContainer[AckFailure]
    lease_sets: int
    def __init__(self, results: _Optional[_Iterable[_Union[LeaseResult, _Mapping]]] = ..., failures: _Optional[_Iterable[_Union[AckFailure, _Mapping]]] = ..., lease_sets: _Optional[int] = ...) -> None: ...

class AckFailure(_message.Message):
    __slots__ = ("lease_set", "place", "result")
    LEASE_SET_FIELD_NUMBER: _ClassVar[int]
    PLACE_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    lease_set: int
    place: int
    result: LeaseResult
    def __init__(self, lease_set: _Optional[int] = ..., place: _Optional[int] = ..., result: _Optional[_Union[LeaseResult, _Mapping]] = ...) -> None: ...

class LeaseResult(_message.Message):
    __slots__ = ("code", "message")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    code: int
    message: str
    def __init__(self, code: _Optional[int] = ..., message: _Optional[str] = ...) -> None: ...

class ChangeInvisibleDurationRequest(_message.Message):
    __slots__ = ("changes",)
    CHANGES_FIELD_NUMBER: _ClassVar[int]
    changes: _containers.RepeatedCompositeFieldContainer[InvisibleChange]
    def __init__(self, changes: _Optional[_Iterable[_Union[InvisibleChange, _Mapping]]] = ...) -> None: ...

class InvisibleChange(_message.Message):
    __slots__ = ("lease", "invisible_duration_ms", "by_retry_policy", "uncounted", "unless_changed", "rejected", "failure")
    LEASE_FIELD_NUMBER: _ClassVar[int]
    INVISIBLE_DURATION_MS_FIELD_NUMBER: _ClassVar[int]
    BY_RETRY_POLICY_FIELD_NUMBER: _ClassVar[int]
    UNCOUNTED_FIELD_NUMBER: _ClassVar[int]
    UNLESS_CHANGED_FIELD_NUMBER: _ClassVar[int]
    REJECTED_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    lease: Lease
    invisible_duration_ms: int
    by_retry_policy: bool
    uncounted: bool
    unless_changed: bool
    rejected: bool
    failure: _message_pb2.Failure
    def __init__(self, lease: _Optional[_Union[Lease, _Mapping]] = ..., invisible_duration_ms: _Optional[int] = ..., by_retry_policy: _Optional[bool] = ..., uncounted: _Optional[bool] = ..., unless_changed: _Optional[bool] = ..., rejected: _Optional[bool] = ..., failure: _Optional[_Union[_message_pb2.Failure, _Mapping]] = ...) -> None: ...

class ChangeInvisibleDurationResponse(_message.Message):
    __slots__ = ("results",)
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[InvisibleChangeResult]
    def __init__(self, results: _Optional[_Iterable[_Union[InvisibleChangeResult, _Mapping]]] = ...) -> None: ...

class InvisibleChangeResult(_message.Message):
    __slots__ = ("code", "message", "pop_time_ms", "invisible_duration_ms")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    POP_TIME_MS_FIELD_NUMBER: _ClassVar[int]
    INVISIBLE_DURATION_MS_FIELD_NUMBER: _ClassVar[int]
    code: int
    message: str
    pop_time_ms: int
    invisible_duration_ms: int
    def __init__(self, code: _Optional[int] = ..., message: _Optional[str] = ..., pop_time_ms: _Optional[int] = ..., invisible_duration_ms: _Optional[int] = ...) -> None: ...

class DeadLetterRequest(_message.Message):
    __slots__ = ("entries",)
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    entries: _containers.RepeatedCompositeFieldContainer[DeadLetterEntry]
    def __init__(self, entries: _Optional[_Iterable[_Union[DeadLetterEntry, _Mapping]]] = ...) -> None: ...

class DeadLetterEntry(_message.Message):
    __slots__ = ("lease", "failure")
    LEASE_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    lease: Lease
    failure: _message_pb2.Failure
    def __init__(self, lease: _Optional[_Union[Lease, _Mapping]] = ..., failure: _Optional[_Union[_message_pb2.Failure, _Mapping]] = ...) -> None: ...

class DeadLetterResponse(_message.Message):
    __slots__ = ("results",)
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[LeaseResult]
    def __init__(self, results: _Optional[_Iterable[_Union[LeaseResult, _Mapping]]] = ...) -> None: ...

class ListBlockedMessageGroupsRequest(_message.Message):
    __slots__ = ("consumer_group", "max_groups")
    CONSUMER_GROUP_FIELD_NUMBER: _ClassVar[int]
    MAX_GROUPS_FIELD_NUMBER: _ClassVar[int]
    consumer_group: str
    max_groups: int
    def __init__(self, consumer_group: _Optional[str] = ..., max_groups: _Optional[int] = ...) -> None: ...

class ListBlockedMessageGroupsResponse(_message.Message):
    __slots__ = ("groups", "total")
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    groups: _containers.RepeatedCompositeFieldContainer[BlockedMessageGroup]
    total: int
    def __init__(self, groups: _Optional[_Iterable[_Union[BlockedMessageGroup, _Mapping]]] = ..., total: _Optional[int] = ...) -> None: ...

class BlockedMessageGroup(_message.Message):
    __slots__ = ("topic", "queue_id", "message_group", "queue_offset", "message_id", "attempt", "waiting", "since_ms", "next_try_ms", "client_id")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_GROUP_FIELD_NUMBER: _ClassVar[int]
    QUEUE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    SINCE_MS_FIELD_NUMBER: _ClassVar[int]
    NEXT_TRY_MS_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    topic: str
    queue_id: int
    message_group: str
    queue_offset: int
    message_id: str
    attempt: int
    waiting: int
    since_ms: int
    next_try_ms: int
    client_id: str
    def __init__(self, topic: _Optional[str] = ..., queue_id: _Optional[int] = ..., message_group: _Optional[str] = ..., queue_offset: _Optional[int] = ..., message_id: _Optional[str] = ..., attempt: _Optional[int] = ..., waiting: _Optional[int] = ..., since_ms: _Optional[int] = ..., next_try_ms: _Optional[int] = ..., client_id: _Optional[str] = ...) -> None: ...

class SkipMessageRequest(_message.Message):
    __slots__ = ("consumer_group", "topic", "queue_id", "queue_offset", "failure")
    CONSUMER_GROUP_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    QUEUE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    consumer_group: str
    topic: str
    queue_id: int
    queue_offset: int
    failure: _message_pb2.Failure
    def __init__(self, consumer_group: _Optional[str] = ..., topic: _Optional[str] = ..., queue_id: _Optional[int] = ..., queue_offset: _Optional[int] = ..., failure: _Optional[_Union[_message_pb2.Failure, _Mapping]] = ...) -> None: ...

class SkipMessageResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
