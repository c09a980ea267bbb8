from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class CallFrame(_message.Message):
    __slots__ = ("id", "path", "request", "timeout_ms", "metadata", "cancel")
    class MetadataEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    ID_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    CANCEL_FIELD_NUMBER: _ClassVar[int]
    id: int
    path: str
    request: bytes
    timeout_ms: int
    metadata: _containers.ScalarMap[str, str]
    cancel: bool
    def __init__(self, id: _Optional[int] = ..., path: _Optional[str] = ..., request: _Optional[bytes] = ..., timeout_ms: _Optional[int] = ..., metadata: _Optional[_Mapping[str, str]] = ..., cancel: _Optional[bool] = ...) -> None: ...

class AnswerFrame(_message.Message):
    __slots__ = ("id", "response", "failure")
    ID_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    id: int
    response: bytes
    failure: CallFailure
    def __init__(self, id: _Optional[int] = ..., response: _Optional[bytes] = ..., failure: _Optional[_Union[CallFailure, _Mapping]] = ...) -> None: ...

class CallFailure(_message.Message):
    __slots__ = ("status", "message", "trailers")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    TRAILERS_FIELD_NUMBER: _ClassVar[int]
    status: str
    message: str
    trailers: _containers.RepeatedCompositeFieldContainer[CallTrailer]
    def __init__(self, status: _Optional[str] = ..., message: _Optional[str] = ..., trailers: _Optional[_Iterable[_Union[CallTrailer, _Mapping]]] = ...) -> None: ...

class CallTrailer(_message.Message):
    __slots__ = ("key", "value")
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    key: str
    value: str
    def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
