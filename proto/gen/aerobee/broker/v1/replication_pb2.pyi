from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class GetSnapshotRequest(_message.Message):
    __slots__ = ("epoch", "log_begin")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    LOG_BEGIN_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    log_begin: int
    def __init__(self, epoch: _Optional[int] = ..., log_begin: _Optional[int] = ...) -> None: ...

class GetSnapshotResponse(_message.Message):
    __slots__ = ("piece", "end")
    PIECE_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    piece: SnapshotPiece
    end: SnapshotEnd
    def __init__(self, piece: _Optional[_Union[SnapshotPiece, _Mapping]] = ..., end: _Optional[_Union[SnapshotEnd, _Mapping]] = ...) -> None: ...

class SnapshotPiece(_message.Message):
    __slots__ = ("name", "data")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    name: str
    data: bytes
    def __init__(self, name: _Optional[str] = ..., data: _Optional[bytes] = ...) -> None: ...

class SnapshotEnd(_message.Message):
    __slots__ = ("position",)
    POSITION_FIELD_NUMBER: _ClassVar[int]
    position: int
    def __init__(self, position: _Optional[int] = ...) -> None: ...

class LogEpoch(_message.Message):
    __slots__ = ("epoch", "store_id", "start_offset", "copies", "required")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    STORE_ID_FIELD_NUMBER: _ClassVar[int]
    START_OFFSET_FIELD_NUMBER: _ClassVar[int]
    COPIES_FIELD_NUMBER: _ClassVar[int]
    REQUIRED_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    store_id: str
    start_offset: int
    copies: int
    required: int
    def __init__(self, epoch: _Optional[int] = ..., store_id: _Optional[str] = ..., start_offset: _Optional[int] = ..., copies: _Optional[int] = ..., required: _Optional[int] = ...) -> None: ...

class LogReplica(_message.Message):
    __slots__ = ("protocol_version", "cluster", "broker_name", "replica_id", "store_id", "epoch", "epochs", "lowest_offset", "end_offset", "confirmed_offset", "file_size", "settings", "build_version", "features", "required_features", "settled_epoch", "dropped_quorums")
    class SettingsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class FeaturesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    BROKER_NAME_FIELD_NUMBER: _ClassVar[int]
    REPLICA_ID_FIELD_NUMBER: _ClassVar[int]
    STORE_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    EPOCHS_FIELD_NUMBER: _ClassVar[int]
    LOWEST_OFFSET_FIELD_NUMBER: _ClassVar[int]
    END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    CONFIRMED_OFFSET_FIELD_NUMBER: _ClassVar[int]
    FILE_SIZE_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    BUILD_VERSION_FIELD_NUMBER: _ClassVar[int]
    FEATURES_FIELD_NUMBER: _ClassVar[int]
    REQUIRED_FEATURES_FIELD_NUMBER: _ClassVar[int]
    SETTLED_EPOCH_FIELD_NUMBER: _ClassVar[int]
    DROPPED_QUORUMS_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    cluster: str
    broker_name: str
    replica_id: int
    store_id: str
    epoch: int
    epochs: _containers.RepeatedCompositeFieldContainer[LogEpoch]
    lowest_offset: int
    end_offset: int
    confirmed_offset: int
    file_size: int
    settings: _containers.ScalarMap[str, str]
    build_version: str
    features: _containers.ScalarMap[str, str]
    required_features: _containers.RepeatedScalarFieldContainer[str]
    settled_epoch: int
    dropped_quorums: _containers.RepeatedCompositeFieldContainer[LogQuorum]
    def __init__(self, protocol_version: _Optional[int] = ..., cluster: _Optional[str] = ..., broker_name: _Optional[str] = ..., replica_id: _Optional[int] = ..., store_id: _Optional[str] = ..., epoch: _Optional[int] = ..., epochs: _Optional[_Iterable[_Union[LogEpoch, _Mapping]]] = ..., lowest_offset: _Optional[int] = ..., end_offset: _Optional[int] = ..., confirmed_offset: _Optional[int] = ..., file_size: _Optional[int] = ..., settings: _Optional[_Mapping[str, str]] = ..., build_version: _Optional[str] = ..., features: _Optional[_Mapping[str, str]] = ..., required_features: _Optional[_Iterable[str]] = ..., settled_epoch: _Optional[int] = ..., dropped_quorums: _Optional[_Iterable[_Union[LogQuorum, _Mapping]]] = ...) -> None: ...

class LogQuorum(_message.Message):
    __slots__ = ("copies", "required")
    COPIES_FIELD_NUMBER: _ClassVar[int]
    REQUIRED_FIELD_NUMBER: _ClassVar[int]
    copies: int
    required: int
    def __init__(self, copies: _Optional[int] = ..., required: _Optional[int] = ...) -> None: ...

class FollowRequest(_message.Message):
    __slots__ = ("hello", "report")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    REPORT_FIELD_NUMBER: _ClassVar[int]
    hello: FollowHello
    report: FollowReport
    def __init__(self, hello: _Optional[_Union[FollowHello, _Mapping]] = ..., report: _Optional[_Union[FollowReport, _Mapping]] = ...) -> None: ...

class FollowHello(_message.Message):
    __slots__ = ("slave", "from_last_file", "learner", "process_id")
    SLAVE_FIELD_NUMBER: _ClassVar[int]
    FROM_LAST_FILE_FIELD_NUMBER: _ClassVar[int]
    LEARNER_FIELD_NUMBER: _ClassVar[int]
    PROCESS_ID_FIELD_NUMBER: _ClassVar[int]
    slave: LogReplica
    from_last_file: bool
    learner: bool
    process_id: str
    def __init__(self, slave: _Optional[_Union[LogReplica, _Mapping]] = ..., from_last_file: _Optional[bool] = ..., learner: _Optional[bool] = ..., process_id: _Optional[str] = ...) -> None: ...

class FollowReport(_message.Message):
    __slots__ = ("epoch", "written_offset", "synced_offset", "time_ms")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    WRITTEN_OFFSET_FIELD_NUMBER: _ClassVar[int]
    SYNCED_OFFSET_FIELD_NUMBER: _ClassVar[int]
    TIME_MS_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    written_offset: int
    synced_offset: int
    time_ms: int
    def __init__(self, epoch: _Optional[int] = ..., written_offset: _Optional[int] = ..., synced_offset: _Optional[int] = ..., time_ms: _Optional[int] = ...) -> None: ...

class FollowResponse(_message.Message):
    __slots__ = ("welcome", "chunk")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    welcome: FollowWelcome
    chunk: FollowChunk
    def __init__(self, welcome: _Optional[_Union[FollowWelcome, _Mapping]] = ..., chunk: _Optional[_Union[FollowChunk, _Mapping]] = ...) -> None: ...

class FollowWelcome(_message.Message):
    __slots__ = ("master", "crc32")
    MASTER_FIELD_NUMBER: _ClassVar[int]
    CRC32_FIELD_NUMBER: _ClassVar[int]
    master: LogReplica
    crc32: int
    def __init__(self, master: _Optional[_Union[LogReplica, _Mapping]] = ..., crc32: _Optional[int] = ...) -> None: ...

class FollowChunk(_message.Message):
    __slots__ = ("epoch", "physical_offset", "data", "crc32", "confirmed_offset", "end_offset", "lowest_offset")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    PHYSICAL_OFFSET_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    CRC32_FIELD_NUMBER: _ClassVar[int]
    CONFIRMED_OFFSET_FIELD_NUMBER: _ClassVar[int]
    END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    LOWEST_OFFSET_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    physical_offset: int
    data: bytes
    crc32: int
    confirmed_offset: int
    end_offset: int
    lowest_offset: int
    def __init__(self, epoch: _Optional[int] = ..., physical_offset: _Optional[int] = ..., data: _Optional[bytes] = ..., crc32: _Optional[int] = ..., confirmed_offset: _Optional[int] = ..., end_offset: _Optional[int] = ..., lowest_offset: _Optional[int] = ...) -> None: ...
