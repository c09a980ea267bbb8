from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class PullStatus(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PULL_STATUS_UNSPECIFIED: _ClassVar[PullStatus]
    FOUND: _ClassVar[PullStatus]
    NO_NEW_MESSAGE: _ClassVar[PullStatus]
    NO_MATCHED_MESSAGE: _ClassVar[PullStatus]
    OFFSET_MOVED: _ClassVar[PullStatus]
PULL_STATUS_UNSPECIFIED: PullStatus
FOUND: PullStatus
NO_NEW_MESSAGE: PullStatus
NO_MATCHED_MESSAGE: PullStatus
OFFSET_MOVED: PullStatus

class Message(_message.Message):
    __slots__ = ("topic", "queue_id", "body", "properties", "flag", "sys_flag", "born_timestamp_ms", "born_host", "reconsume_times", "encoded_properties")
    class PropertiesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    BODY_FIELD_NUMBER: _ClassVar[int]
    PROPERTIES_FIELD_NUMBER: _ClassVar[int]
    FLAG_FIELD_NUMBER: _ClassVar[int]
    SYS_FLAG_FIELD_NUMBER: _ClassVar[int]
    BORN_TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
    BORN_HOST_FIELD_NUMBER: _ClassVar[int]
    RECONSUME_TIMES_FIELD_NUMBER: _ClassVar[int]
    ENCODED_PROPERTIES_FIELD_NUMBER: _ClassVar[int]
    topic: str
    queue_id: int
    body: bytes
    properties: _containers.ScalarMap[str, str]
    flag: int
    sys_flag: int
    born_timestamp_ms: int
    born_host: str
    reconsume_times: int
    encoded_properties: bytes
    def __init__(self, topic: _Optional[str] = ..., queue_id: _Optional[int] = ..., body: _Optional[bytes] = ..., properties: _Optional[_Mapping[str, str]] = ..., flag: _Optional[int] = ..., sys_flag: _Optional[int] = ..., born_timestamp_ms: _Optional[int] = ..., born_host: _Optional[str] = ..., reconsume_times: _Optional[int] = ..., encoded_properties: _Optional[bytes] = ...) -> None: ...

class MessageBatch(_message.Message):
    __slots__ = ("topic", "queue_id", "body_sizes", "bodies", "properties_sizes", "properties", "flags", "sys_flag", "born_timestamp_ms", "born_host")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    BODY_SIZES_FIELD_NUMBER: _ClassVar[int]
    BODIES_FIELD_NUMBER: _ClassVar[int]
    PROPERTIES_SIZES_FIELD_NUMBER: _ClassVar[int]
    PROPERTIES_FIELD_NUMBER: _ClassVar[int]
    FLAGS_FIELD_NUMBER: _ClassVar[int]
    SYS_FLAG_FIELD_NUMBER: _ClassVar[int]
    BORN_TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
    BORN_HOST_FIELD_NUMBER: _ClassVar[int]
    topic: str
    queue_id: int
    body_sizes: _containers.RepeatedScalarFieldContainer[int]
    bodies: bytes
    properties_sizes: _containers.RepeatedScalarFieldContainer[int]
    properties: bytes
    flags: _containers.RepeatedScalarFieldContainer[int]
    sys_flag: int
    born_timestamp_ms: int
    born_host: str
    def __init__(self, topic: _Optional[str] = ..., queue_id: _Optional[int] = ..., body_sizes: _Optional[_Iterable[int]] = ..., bodies: _Optional[bytes] = ..., properties_sizes: _Optional[_Iterable[int]] = ..., properties: _Optional[bytes] = ..., flags: _Optional[_Iterable[int]] = ..., sys_flag: _Optional[int] = ..., born_timestamp_ms: _Optional[int] = ..., born_host: _Optional[str] = ...) -> None: ...

class SendRequest(_message.Message):
    __slots__ = ("producer_group", "messages", "batch", "default_queue_count", "brief")
    PRODUCER_GROUP_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_QUEUE_COUNT_FIELD_NUMBER: _ClassVar[int]
    BRIEF_FIELD_NUMBER: _ClassVar[int]
    producer_group: str
    messages: _containers.RepeatedCompositeFieldContainer[Message]
    batch: MessageBatch
    default_queue_count: int
    brief: bool
    def __init__(self, producer_group: _Optional[str] = ..., messages: _Optional[_Iterable[_Union[Message, _Mapping]]] = ..., batch: _Optional[_Union[MessageBatch, _Mapping]] = ..., default_queue_count: _Optional[int] = ..., brief: _Optional[bool] = ...) -> None: ...

class SendResponse(_message.Message):
    __slots__ = ("results", "batch_result", "broker_name", "store_host", "queue_offsets")
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    BATCH_RESULT_FIELD_NUMBER: _ClassVar[int]
    BROKER_NAME_FIELD_NUMBER: _ClassVar[int]
    STORE_HOST_FIELD_NUMBER: _ClassVar[int]
    QUEUE_OFFSETS_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[SendResult]
    batch_result: BatchSendResult
    broker_name: str
    store_host: str
    queue_offsets: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, results: _Optional[_Iterable[_Union[SendResult, _Mapping]]] = ..., batch_result: _Optional[_Union[BatchSendResult, _Mapping]] = ..., broker_name: _Optional[str] = ..., store_host: _Optional[str] = ..., queue_offsets: _Optional[_Iterable[int]] = ...) -> None: ...

class SendResult(_message.Message):
    __slots__ = ("queue_id", "queue_offset", "physical_offset", "offset_message_id", "unique_message_id", "transaction_id", "recall_handle")
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    QUEUE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    PHYSICAL_OFFSET_FIELD_NUMBER: _ClassVar[int]
    OFFSET_MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    UNIQUE_MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    TRANSACTION_ID_FIELD_NUMBER: _ClassVar[int]
    RECALL_HANDLE_FIELD_NUMBER: _ClassVar[int]
    queue_id: int
    queue_offset: int
    physical_offset: int
    offset_message_id: str
    unique_message_id: str
    transaction_id: str
    recall_handle: str
    def __init__(self, queue_id: _Optional[int] = ..., queue_offset: _Optional[int] = ..., physical_offset: _Optional[int] = ..., offset_message_id: _Optional[str] = ..., unique_message_id: _Optional[str] = ..., transaction_id: _Optional[str] = ..., recall_handle: _Optional[str] = ...) -> None: ...

class SendReplyRequest(_message.Message):
    __slots__ = ("client_id", "correlation_id", "body", "properties")
    class PropertiesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    CORRELATION_ID_FIELD_NUMBER: _ClassVar[int]
    BODY_FIELD_NUMBER: _ClassVar[int]
    PROPERTIES_FIELD_NUMBER: _ClassVar[int]
    client_id: str
    correlation_id: str
    body: bytes
    properties: _containers.ScalarMap[str, str]
    def __init__(self, client_id: _Optional[str] = ..., correlation_id: _Optional[str] = ..., body: _Optional[bytes] = ..., properties: _Optional[_Mapping[str, str]] = ...) -> None: ...

class SendReplyResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RecallMessageRequest(_message.Message):
    __slots__ = ("topic", "recall_handle")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    RECALL_HANDLE_FIELD_NUMBER: _ClassVar[int]
    topic: str
    recall_handle: str
    def __init__(self, topic: _Optional[str] = ..., recall_handle: _Optional[str] = ...) -> None: ...

class RecallMessageResponse(_message.Message):
    __slots__ = ("unique_message_id",)
    UNIQUE_MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    unique_message_id: str
    def __init__(self, unique_message_id: _Optional[str] = ...) -> None: ...

class BatchSendResult(_message.Message):
    __slots__ = ("queue_id", "first_queue_offset", "physical_offsets")
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    FIRST_QUEUE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    PHYSICAL_OFFSETS_FIELD_NUMBER: _ClassVar[int]
    queue_id: int
    first_queue_offset: int
    physical_offsets: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, queue_id: _Optional[int] = ..., first_queue_offset: _Optional[int] = ..., physical_offsets: _Optional[_Iterable[int]] = ...) -> None: ...

class Subscription(_message.Message):
    __slots__ = ("topic", "expression", "expression_type", "version")
    class ExpressionType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        TAG: _ClassVar[Subscription.ExpressionType]
        SQL92: _ClassVar[Subscription.ExpressionType]
    TAG: Subscription.ExpressionType
    SQL92: Subscription.ExpressionType
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    EXPRESSION_FIELD_NUMBER: _ClassVar[int]
    EXPRESSION_TYPE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    topic: str
    expression: str
    expression_type: Subscription.ExpressionType
    version: int
    def __init__(self, topic: _Optional[str] = ..., expression: _Optional[str] = ..., expression_type: _Optional[_Union[Subscription.ExpressionType, str]] = ..., version: _Optional[int] = ...) -> None: ...

class PullRequest(_message.Message):
    __slots__ = ("consumer_group", "topic", "queue_id", "queue_offset", "max_messages", "max_bytes", "commit_offset", "suspend_timeout_ms", "subscription", "plain", "browse", "client_id", "locked")
    CONSUMER_GROUP_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    QUEUE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    MAX_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    COMMIT_OFFSET_FIELD_NUMBER: _ClassVar[int]
    SUSPEND_TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
    PLAIN_FIELD_NUMBER: _ClassVar[int]
    BROWSE_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    LOCKED_FIELD_NUMBER: _ClassVar[int]
    consumer_group: str
    topic: str
    queue_id: int
    queue_offset: int
    max_messages: int
    max_bytes: int
    commit_offset: int
    suspend_timeout_ms: int
    subscription: Subscription
    plain: bool
    browse: bool
    client_id: str
    locked: bool
    def __init__(self, consumer_group: _Optional[str] = ..., topic: _Optional[str] = ..., queue_id: _Optional[int] = ..., queue_offset: _Optional[int] = ..., max_messages: _Optional[int] = ..., max_bytes: _Optional[int] = ..., commit_offset: _Optional[int] = ..., suspend_timeout_ms: _Optional[int] = ..., subscription: _Optional[_Union[Subscription, _Mapping]] = ..., plain: _Optional[bool] = ..., browse: _Optional[bool] = ..., client_id: _Optional[str] = ..., locked: _Optional[bool] = ...) -> None: ...

class PullResponse(_message.Message):
    __slots__ = ("status", "next_begin_offset", "min_offset", "max_offset", "records", "messages", "message_count", "suggested_broker_id", "corrupted_count")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    NEXT_BEGIN_OFFSET_FIELD_NUMBER: _ClassVar[int]
    MIN_OFFSET_FIELD_NUMBER: _ClassVar[int]
    MAX_OFFSET_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_COUNT_FIELD_NUMBER: _ClassVar[int]
    SUGGESTED_BROKER_ID_FIELD_NUMBER: _ClassVar[int]
    CORRUPTED_COUNT_FIELD_NUMBER: _ClassVar[int]
    status: PullStatus
    next_begin_offset: int
    min_offset: int
    max_offset: int
    records: bytes
    messages: _containers.RepeatedCompositeFieldContainer[StoredMessage]
    message_count: int
    suggested_broker_id: int
    corrupted_count: int
    def __init__(self, status: _Optional[_Union[PullStatus, str]] = ..., next_begin_offset: _Optional[int] = ..., min_offset: _Optional[int] = ..., max_offset: _Optional[int] = ..., records: _Optional[bytes] = ..., messages: _Optional[_Iterable[_Union[StoredMessage, _Mapping]]] = ..., message_count: _Optional[int] = ..., suggested_broker_id: _Optional[int] = ..., corrupted_count: _Optional[int] = ...) -> None: ...

class StoredMessage(_message.Message):
    __slots__ = ("topic", "queue_id", "queue_offset", "physical_offset", "store_size", "body", "properties", "flag", "sys_flag", "born_timestamp_ms", "born_host", "store_timestamp_ms", "store_host", "reconsume_times", "prepared_transaction_offset", "body_crc", "offset_message_id", "unique_message_id")
    class PropertiesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    QUEUE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    PHYSICAL_OFFSET_FIELD_NUMBER: _ClassVar[int]
    STORE_SIZE_FIELD_NUMBER: _ClassVar[int]
    BODY_FIELD_NUMBER: _ClassVar[int]
    PROPERTIES_FIELD_NUMBER: _ClassVar[int]
    FLAG_FIELD_NUMBER: _ClassVar[int]
    SYS_FLAG_FIELD_NUMBER: _ClassVar[int]
    BORN_TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
    BORN_HOST_FIELD_NUMBER: _ClassVar[int]
    STORE_TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
    STORE_HOST_FIELD_NUMBER: _ClassVar[int]
    RECONSUME_TIMES_FIELD_NUMBER: _ClassVar[int]
    PREPARED_TRANSACTION_OFFSET_FIELD_NUMBER: _ClassVar[int]
    BODY_CRC_FIELD_NUMBER: _ClassVar[int]
    OFFSET_MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    UNIQUE_MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    store_size: int
    body: bytes
    properties: _containers.ScalarMap[str, str]
    flag: int
    sys_flag: int
    born_timestamp_ms: int
    born_host: str
    store_timestamp_ms: int
    store_host: str
    reconsume_times: int
    prepared_transaction_offset: int
    body_crc: int
    offset_message_id: str
    unique_message_id: str
    def __init__(self, topic: _Optional[str] = ..., queue_id: _Optional[int] = ..., queue_offset: _Optional[int] = ..., physical_offset: _Optional[int] = ..., store_size: _Optional[int] = ..., body: _Optional[bytes] = ..., properties: _Optional[_Mapping[str, str]] = ..., flag: _Optional[int] = ..., sys_flag: _Optional[int] = ..., born_timestamp_ms: _Optional[int] = ..., born_host: _Optional[str] = ..., store_timestamp_ms: _Optional[int] = ..., store_host: _Optional[str] = ..., reconsume_times: _Optional[int] = ..., prepared_transaction_offset: _Optional[int] = ..., body_crc: _Optional[int] = ..., offset_message_id: _Optional[str] = ..., unique_message_id: _Optional[str] = ...) -> None: ...

class SendBackRequest(_message.Message):
    __slots__ = ("consumer_group", "entries", "client_id")
    CONSUMER_GROUP_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    consumer_group: str
    entries: _containers.RepeatedCompositeFieldContainer[SendBackEntry]
    client_id: str
    def __init__(self, consumer_group: _Optional[str] = ..., entries: _Optional[_Iterable[_Union[SendBackEntry, _Mapping]]] = ..., client_id: _Optional[str] = ...) -> None: ...

class SendBackEntry(_message.Message):
    __slots__ = ("physical_offset", "origin_topic", "origin_message_id", "delay_level", "max_reconsume_times", "failure", "delay_ms", "uncounted", "reconsume_times")
    PHYSICAL_OFFSET_FIELD_NUMBER: _ClassVar[int]
    ORIGIN_TOPIC_FIELD_NUMBER: _ClassVar[int]
    ORIGIN_MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    DELAY_LEVEL_FIELD_NUMBER: _ClassVar[int]
    MAX_RECONSUME_TIMES_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    DELAY_MS_FIELD_NUMBER: _ClassVar[int]
    UNCOUNTED_FIELD_NUMBER: _ClassVar[int]
    RECONSUME_TIMES_FIELD_NUMBER: _ClassVar[int]
    physical_offset: int
    origin_topic: str
    origin_message_id: str
    delay_level: int
    max_reconsume_times: int
    failure: Failure
    delay_ms: int
    uncounted: bool
    reconsume_times: int
    def __init__(self, physical_offset: _Optional[int] = ..., origin_topic: _Optional[str] = ..., origin_message_id: _Optional[str] = ..., delay_level: _Optional[int] = ..., max_reconsume_times: _Optional[int] = ..., failure: _Optional[_Union[Failure, _Mapping]] = ..., delay_ms: _Optional[int] = ..., uncounted: _Optional[bool] = ..., reconsume_times: _Optional[int] = ...) -> None: ...

class Failure(_message.Message):
    __slots__ = ("reason", "description", "cause", "stack_trace", "consumer")
    REASON_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    STACK_TRACE_FIELD_NUMBER: _ClassVar[int]
    CONSUMER_FIELD_NUMBER: _ClassVar[int]
    reason: str
    description: str
    cause: str
    stack_trace: str
    consumer: str
    def __init__(self, reason: _Optional[str] = ..., description: _Optional[str] = ..., cause: _Optional[str] = ..., stack_trace: _Optional[str] = ..., consumer: _Optional[str] = ...) -> None: ...

class SendBackResponse(_message.Message):
    __slots__ = ("results",)
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[SendBackResult]
    def __init__(self, results: _Optional[_Iterable[_Union[SendBackResult, _Mapping]]] = ...) -> None: ...

class SendBackResult(_message.Message):
    __slots__ = ("code", "message", "dead_lettered")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    DEAD_LETTERED_FIELD_NUMBER: _ClassVar[int]
    code: int
    message: str
    dead_lettered: bool
    def __init__(self, code: _Optional[int] = ..., message: _Optional[str] = ..., dead_lettered: _Optional[bool] = ...) -> None: ...

class GetMessageRequest(_message.Message):
    __slots__ = ("physical_offset", "offset_message_id")
    PHYSICAL_OFFSET_FIELD_NUMBER: _ClassVar[int]
    OFFSET_MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    physical_offset: int
    offset_message_id: str
    def __init__(self, physical_offset: _Optional[int] = ..., offset_message_id: _Optional[str] = ...) -> None: ...

class GetMessageResponse(_message.Message):
    __slots__ = ("message",)
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    message: StoredMessage
    def __init__(self, message: _Optional[_Union[StoredMessage, _Mapping]] = ...) -> None: ...

class QueryMessagesRequest(_message.Message):
    __slots__ = ("topic", "key", "unique", "max_messages", "begin_timestamp_ms", "end_timestamp_ms")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    UNIQUE_FIELD_NUMBER: _ClassVar[int]
    MAX_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    BEGIN_TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
    END_TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    key: str
    unique: bool
    max_messages: int
    begin_timestamp_ms: int
    end_timestamp_ms: int
    def __init__(self, topic: _Optional[str] = ..., key: _Optional[str] = ..., unique: _Optional[bool] = ..., max_messages: _Optional[int] = ..., begin_timestamp_ms: _Optional[int] = ..., end_timestamp_ms: _Optional[int] = ...) -> None: ...

class QueryMessagesResponse(_message.Message):
    __slots__ = ("messages", "damaged")
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    DAMAGED_FIELD_NUMBER: _ClassVar[int]
    messages: _containers.RepeatedCompositeFieldContainer[StoredMessage]
    damaged: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, messages: _Optional[_Iterable[_Union[StoredMessage, _Mapping]]] = ..., damaged: _Optional[_Iterable[str]] = ...) -> None: ...
