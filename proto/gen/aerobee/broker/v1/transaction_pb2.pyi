from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Resolution(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    RESOLUTION_UNSPECIFIED: _ClassVar[Resolution]
    COMMIT: _ClassVar[Resolution]
    ROLLBACK: _ClassVar[Resolution]
RESOLUTION_UNSPECIFIED: Resolution
COMMIT: Resolution
ROLLBACK: Resolution

class TransactionEnd(_message.Message):
    __slots__ = ("transaction_id", "queue_offset", "producer_group", "resolution")
    TRANSACTION_ID_FIELD_NUMBER: _ClassVar[int]
    QUEUE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_GROUP_FIELD_NUMBER: _ClassVar[int]
    RESOLUTION_FIELD_NUMBER: _ClassVar[int]
    transaction_id: str
    queue_offset: int
    producer_group: str
    resolution: Resolution
    def __init__(self, transaction_id: _Optional[str] = ..., queue_offset: _Optional[int] = ..., producer_group: _Optional[str] = ..., resolution: _Optional[_Union[Resolution, str]] = ...) -> None: ...

class EndTransactionRequest(_message.Message):
    __slots__ = ("ends",)
    ENDS_FIELD_NUMBER: _ClassVar[int]
    ends: _containers.RepeatedCompositeFieldContainer[TransactionEnd]
    def __init__(self, ends: _Optional[_Iterable[_Union[TransactionEnd, _Mapping]]] = ...) -> None: ...

class EndTransactionResponse(_message.Message):
    __slots__ = ("results",)
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[EndTransactionResult]
    def __init__(self, results: _Optional[_Iterable[_Union[EndTransactionResult, _Mapping]]] = ...) -> None: ...

class EndTransactionResult(_message.Message):
    __slots__ = ("code", "message")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    code: int
    message: str
    def __init__(self, code: _Optional[int] = ..., message: _Optional[str] = ...) -> None: ...
