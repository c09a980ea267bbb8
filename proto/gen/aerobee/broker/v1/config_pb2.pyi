from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class GetConfigRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetConfigResponse(_message.Message):
    __slots__ = ("options",)
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    options: _containers.RepeatedCompositeFieldContainer[ConfigOption]
    def __init__(self, options: _Optional[_Iterable[_Union[ConfigOption, _Mapping]]] = ...) -> None: ...

class ConfigOption(_message.Message):
    __slots__ = ("key", "value", "source", "changeable")
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    CHANGEABLE_FIELD_NUMBER: _ClassVar[int]
    key: str
    value: str
    source: str
    changeable: bool
    def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ..., source: _Optional[str] = ..., changeable: _Optional[bool] = ...) -> None: ...

class UpdateConfigRequest(_message.Message):
    __slots__ = ("entries", "unset")
    class EntriesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    UNSET_FIELD_NUMBER: _ClassVar[int]
    entries: _containers.ScalarMap[str, str]
    unset: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, entries: _Optional[_Mapping[str, str]] = ..., unset: _Optional[_Iterable[str]] = ...) -> None: ...

class UpdateConfigResponse(_message.Message):
    __slots__ = ("without_effect",)
    WITHOUT_EFFECT_FIELD_NUMBER: _ClassVar[int]
    without_effect: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, without_effect: _Optional[_Iterable[str]] = ...) -> None: ...
