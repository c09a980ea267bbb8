from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ListAuditLinesRequest(_message.Message):
    __slots__ = ("page_size", "from_ms", "to_ms", "event", "user", "rpc", "resource", "result")
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    FROM_MS_FIELD_NUMBER: _ClassVar[int]
    TO_MS_FIELD_NUMBER: _ClassVar[int]
    EVENT_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    RPC_FIELD_NUMBER: _ClassVar[int]
    RESOURCE_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    from_ms: int
    to_ms: int
    event: str
    user: str
    rpc: str
    resource: str
    result: str
    def __init__(self, page_size: _Optional[int] = ..., from_ms: _Optional[int] = ..., to_ms: _Optional[int] = ..., event: _Optional[str] = ..., user: _Optional[str] = ..., rpc: _Optional[str] = ..., resource: _Optional[str] = ..., result: _Optional[str] = ...) -> None: ...

class ListAuditLinesResponse(_message.Message):
    __slots__ = ("lines", "complete_from_ms", "enabled", "last_number", "last_hash")
    LINES_FIELD_NUMBER: _ClassVar[int]
    COMPLETE_FROM_MS_FIELD_NUMBER: _ClassVar[int]
    ENABLED_FIELD_NUMBER: _ClassVar[int]
    LAST_NUMBER_FIELD_NUMBER: _ClassVar[int]
    LAST_HASH_FIELD_NUMBER: _ClassVar[int]
    lines: _containers.RepeatedCompositeFieldContainer[AuditLine]
    complete_from_ms: int
    enabled: bool
    last_number: int
    last_hash: str
    def __init__(self, lines: _Optional[_Iterable[_Union[AuditLine, _Mapping]]] = ..., complete_from_ms: _Optional[int] = ..., enabled: _Optional[bool] = ..., last_number: _Optional[int] = ..., last_hash: _Optional[str] = ...) -> None: ...

class AuditLine(_message.Message):
    __slots__ = ("number", "time_ms", "event", "request_id", "user", "claimed_user", "proof", "certificate", "address", "visitor", "rpc", "resources", "further_resources", "before", "after", "result", "reason", "count")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    TIME_MS_FIELD_NUMBER: _ClassVar[int]
    EVENT_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    CLAIMED_USER_FIELD_NUMBER: _ClassVar[int]
    PROOF_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATE_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    VISITOR_FIELD_NUMBER: _ClassVar[int]
    RPC_FIELD_NUMBER: _ClassVar[int]
    RESOURCES_FIELD_NUMBER: _ClassVar[int]
    FURTHER_RESOURCES_FIELD_NUMBER: _ClassVar[int]
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    number: int
    time_ms: int
    event: str
    request_id: str
    user: str
    claimed_user: str
    proof: str
    certificate: str
    address: str
    visitor: str
    rpc: str
    resources: _containers.RepeatedScalarFieldContainer[str]
    further_resources: int
    before: str
    after: str
    result: str
    reason: str
    count: int
    def __init__(self, number: _Optional[int] = ..., time_ms: _Optional[int] = ..., event: _Optional[str] = ..., request_id: _Optional[str] = ..., user: _Optional[str] = ..., claimed_user: _Optional[str] = ..., proof: _Optional[str] = ..., certificate: _Optional[str] = ..., address: _Optional[str] = ..., visitor: _Optional[str] = ..., rpc: _Optional[str] = ..., resources: _Optional[_Iterable[str]] = ..., further_resources: _Optional[int] = ..., before: _Optional[str] = ..., after: _Optional[str] = ..., result: _Optional[str] = ..., reason: _Optional[str] = ..., count: _Optional[int] = ...) -> None: ...
