from aerobee.broker.v1 import replication_pb2 as _replication_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class GetReplicationStatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetReplicationStatusResponse(_message.Message):
    __slots__ = ("replica", "address", "role", "reason", "master_address", "synced_offset", "total_replicas", "elected", "following", "copying", "master_end_offset", "master", "learner", "coordinator_reachable", "set_at_coordinator", "has_its_log", "generation", "damaged_ranges", "damaged_bytes", "repaired_records", "scrubbed_timestamp_ms")
    REPLICA_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    MASTER_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    SYNCED_OFFSET_FIELD_NUMBER: _ClassVar[int]
    TOTAL_REPLICAS_FIELD_NUMBER: _ClassVar[int]
    ELECTED_FIELD_NUMBER: _ClassVar[int]
    FOLLOWING_FIELD_NUMBER: _ClassVar[int]
    COPYING_FIELD_NUMBER: _ClassVar[int]
    MASTER_END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    MASTER_FIELD_NUMBER: _ClassVar[int]
    LEARNER_FIELD_NUMBER: _ClassVar[int]
    COORDINATOR_REACHABLE_FIELD_NUMBER: _ClassVar[int]
    SET_AT_COORDINATOR_FIELD_NUMBER: _ClassVar[int]
    HAS_ITS_LOG_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    DAMAGED_RANGES_FIELD_NUMBER: _ClassVar[int]
    DAMAGED_BYTES_FIELD_NUMBER: _ClassVar[int]
    REPAIRED_RECORDS_FIELD_NUMBER: _ClassVar[int]
    SCRUBBED_TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
    replica: _replication_pb2.LogReplica
    address: str
    role: str
    reason: str
    master_address: str
    synced_offset: int
    total_replicas: int
    elected: bool
    following: bool
    copying: bool
    master_end_offset: int
    master: MasterStatus
    learner: bool
    coordinator_reachable: bool
    set_at_coordinator: _containers.RepeatedScalarFieldContainer[int]
    has_its_log: bool
    generation: int
    damaged_ranges: int
    damaged_bytes: int
    repaired_records: int
    scrubbed_timestamp_ms: int
    def __init__(self, replica: _Optional[_Union[_replication_pb2.LogReplica, _Mapping]] = ..., address: _Optional[str] = ..., role: _Optional[str] = ..., reason: _Optional[str] = ..., master_address: _Optional[str] = ..., synced_offset: _Optional[int] = ..., total_replicas: _Optional[int] = ..., elected: _Optional[bool] = ..., following: _Optional[bool] = ..., copying: _Optional[bool] = ..., master_end_offset: _Optional[int] = ..., master: _Optional[_Union[MasterStatus, _Mapping]] = ..., learner: _Optional[bool] = ..., coordinator_reachable: _Optional[bool] = ..., set_at_coordinator: _Optional[_Iterable[int]] = ..., has_its_log: _Optional[bool] = ..., generation: _Optional[int] = ..., damaged_ranges: _Optional[int] = ..., damaged_bytes: _Optional[int] = ..., repaired_records: _Optional[int] = ..., scrubbed_timestamp_ms: _Optional[int] = ...) -> None: ...

class MasterStatus(_message.Message):
    __slots__ = ("synchronous", "required_replicas", "in_sync", "followers")
    SYNCHRONOUS_FIELD_NUMBER: _ClassVar[int]
    REQUIRED_REPLICAS_FIELD_NUMBER: _ClassVar[int]
    IN_SYNC_FIELD_NUMBER: _ClassVar[int]
    FOLLOWERS_FIELD_NUMBER: _ClassVar[int]
    synchronous: bool
    required_replicas: int
    in_sync: _containers.RepeatedScalarFieldContainer[int]
    followers: _containers.RepeatedCompositeFieldContainer[FollowerStatus]
    def __init__(self, synchronous: _Optional[bool] = ..., required_replicas: _Optional[int] = ..., in_sync: _Optional[_Iterable[int]] = ..., followers: _Optional[_Iterable[_Union[FollowerStatus, _Mapping]]] = ...) -> None: ...

class FollowerStatus(_message.Message):
    __slots__ = ("replica_id", "store_id", "in_sync", "connected", "learner", "synced_offset", "lag_bytes", "behind_ms", "clock_offset_ms")
    REPLICA_ID_FIELD_NUMBER: _ClassVar[int]
    STORE_ID_FIELD_NUMBER: _ClassVar[int]
    IN_SYNC_FIELD_NUMBER: _ClassVar[int]
    CONNECTED_FIELD_NUMBER: _ClassVar[int]
    LEARNER_FIELD_NUMBER: _ClassVar[int]
    SYNCED_OFFSET_FIELD_NUMBER: _ClassVar[int]
    LAG_BYTES_FIELD_NUMBER: _ClassVar[int]
    BEHIND_MS_FIELD_NUMBER: _ClassVar[int]
    CLOCK_OFFSET_MS_FIELD_NUMBER: _ClassVar[int]
    replica_id: int
    store_id: str
    in_sync: bool
    connected: bool
    learner: bool
    synced_offset: int
    lag_bytes: int
    behind_ms: int
    clock_offset_ms: int
    def __init__(self, replica_id: _Optional[int] = ..., store_id: _Optional[str] = ..., in_sync: _Optional[bool] = ..., connected: _Optional[bool] = ..., learner: _Optional[bool] = ..., synced_offset: _Optional[int] = ..., lag_bytes: _Optional[int] = ..., behind_ms: _Optional[int] = ..., clock_offset_ms: _Optional[int] = ...) -> None: ...

class PromoteRequest(_message.Message):
    __slots__ = ("unclean",)
    UNCLEAN_FIELD_NUMBER: _ClassVar[int]
    unclean: bool
    def __init__(self, unclean: _Optional[bool] = ...) -> None: ...

class PromoteResponse(_message.Message):
    __slots__ = ("epoch", "handed_over", "was_master")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    HANDED_OVER_FIELD_NUMBER: _ClassVar[int]
    WAS_MASTER_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    handed_over: bool
    was_master: bool
    def __init__(self, epoch: _Optional[int] = ..., handed_over: _Optional[bool] = ..., was_master: _Optional[bool] = ...) -> None: ...

class HandOverRequest(_message.Message):
    __slots__ = ("epoch", "replica_id", "store_id")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    REPLICA_ID_FIELD_NUMBER: _ClassVar[int]
    STORE_ID_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    replica_id: int
    store_id: str
    def __init__(self, epoch: _Optional[int] = ..., replica_id: _Optional[int] = ..., store_id: _Optional[str] = ...) -> None: ...

class HandOverResponse(_message.Message):
    __slots__ = ("end_offset",)
    END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    end_offset: int
    def __init__(self, end_offset: _Optional[int] = ...) -> None: ...

class NoteEpochRequest(_message.Message):
    __slots__ = ("epoch",)
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    def __init__(self, epoch: _Optional[int] = ...) -> None: ...

class NoteEpochResponse(_message.Message):
    __slots__ = ("replica",)
    REPLICA_FIELD_NUMBER: _ClassVar[int]
    replica: _replication_pb2.LogReplica
    def __init__(self, replica: _Optional[_Union[_replication_pb2.LogReplica, _Mapping]] = ...) -> None: ...

class ListDivergedRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListDivergedResponse(_message.Message):
    __slots__ = ("files",)
    FILES_FIELD_NUMBER: _ClassVar[int]
    files: _containers.RepeatedCompositeFieldContainer[DivergedFile]
    def __init__(self, files: _Optional[_Iterable[_Union[DivergedFile, _Mapping]]] = ...) -> None: ...

class DivergedFile(_message.Message):
    __slots__ = ("name", "epoch", "begin_offset", "size")
    NAME_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    BEGIN_OFFSET_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    name: str
    epoch: int
    begin_offset: int
    size: int
    def __init__(self, name: _Optional[str] = ..., epoch: _Optional[int] = ..., begin_offset: _Optional[int] = ..., size: _Optional[int] = ...) -> None: ...

class ReadDivergedRequest(_message.Message):
    __slots__ = ("name", "position")
    NAME_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    name: str
    position: int
    def __init__(self, name: _Optional[str] = ..., position: _Optional[int] = ...) -> None: ...

class ReadDivergedResponse(_message.Message):
    __slots__ = ("data",)
    DATA_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    def __init__(self, data: _Optional[bytes] = ...) -> None: ...

class ReadLogRequest(_message.Message):
    __slots__ = ("replica", "ranges")
    REPLICA_FIELD_NUMBER: _ClassVar[int]
    RANGES_FIELD_NUMBER: _ClassVar[int]
    replica: _replication_pb2.LogReplica
    ranges: _containers.RepeatedCompositeFieldContainer[LogRange]
    def __init__(self, replica: _Optional[_Union[_replication_pb2.LogReplica, _Mapping]] = ..., ranges: _Optional[_Iterable[_Union[LogRange, _Mapping]]] = ...) -> None: ...

class LogRange(_message.Message):
    __slots__ = ("begin_offset", "end_offset")
    BEGIN_OFFSET_FIELD_NUMBER: _ClassVar[int]
    END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    begin_offset: int
    end_offset: int
    def __init__(self, begin_offset: _Optional[int] = ..., end_offset: _Optional[int] = ...) -> None: ...

class ReadLogResponse(_message.Message):
    __slots__ = ("pieces",)
    PIECES_FIELD_NUMBER: _ClassVar[int]
    pieces: _containers.RepeatedCompositeFieldContainer[LogPiece]
    def __init__(self, pieces: _Optional[_Iterable[_Union[LogPiece, _Mapping]]] = ...) -> None: ...

class LogPiece(_message.Message):
    __slots__ = ("begin_offset", "end_offset", "data")
    BEGIN_OFFSET_FIELD_NUMBER: _ClassVar[int]
    END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    begin_offset: int
    end_offset: int
    data: bytes
    def __init__(self, begin_offset: _Optional[int] = ..., end_offset: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...
