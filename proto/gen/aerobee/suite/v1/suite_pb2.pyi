from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class GetSuiteRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetSuiteResponse(_message.Message):
    __slots__ = ("namesrv", "broker", "proxy", "now_timestamp_ms")
    NAMESRV_FIELD_NUMBER: _ClassVar[int]
    BROKER_FIELD_NUMBER: _ClassVar[int]
    PROXY_FIELD_NUMBER: _ClassVar[int]
    NOW_TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
    namesrv: str
    broker: str
    proxy: str
    now_timestamp_ms: int
    def __init__(self, namesrv: _Optional[str] = ..., broker: _Optional[str] = ..., proxy: _Optional[str] = ..., now_timestamp_ms: _Optional[int] = ...) -> None: ...

class AdvanceRequest(_message.Message):
    __slots__ = ("duration_ms", "without_settling", "settle_timeout_ms")
    DURATION_MS_FIELD_NUMBER: _ClassVar[int]
    WITHOUT_SETTLING_FIELD_NUMBER: _ClassVar[int]
    SETTLE_TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    duration_ms: int
    without_settling: bool
    settle_timeout_ms: int
    def __init__(self, duration_ms: _Optional[int] = ..., without_settling: _Optional[bool] = ..., settle_timeout_ms: _Optional[int] = ...) -> None: ...

class AdvanceResponse(_message.Message):
    __slots__ = ("now_timestamp_ms", "offset_ms", "steps")
    NOW_TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
    OFFSET_MS_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    now_timestamp_ms: int
    offset_ms: int
    steps: int
    def __init__(self, now_timestamp_ms: _Optional[int] = ..., offset_ms: _Optional[int] = ..., steps: _Optional[int] = ...) -> None: ...

class SettleRequest(_message.Message):
    __slots__ = ("consumer_group", "timeout_ms")
    CONSUMER_GROUP_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    consumer_group: str
    timeout_ms: int
    def __init__(self, consumer_group: _Optional[str] = ..., timeout_ms: _Optional[int] = ...) -> None: ...

class SettleResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class KillBrokerRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class KillBrokerResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RestartBrokerRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RestartBrokerResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RefuseRequest(_message.Message):
    __slots__ = ("rpc", "code", "times")
    RPC_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    TIMES_FIELD_NUMBER: _ClassVar[int]
    rpc: str
    code: int
    times: int
    def __init__(self, rpc: _Optional[str] = ..., code: _Optional[int] = ..., times: _Optional[int] = ...) -> None: ...

class RefuseResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
