from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Expect(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    EXPECT_ANY: _ClassVar[Expect]
    EXPECT_ABSENT: _ClassVar[Expect]
    EXPECT_PRESENT: _ClassVar[Expect]
EXPECT_ANY: Expect
EXPECT_ABSENT: Expect
EXPECT_PRESENT: Expect

class Version(_message.Message):
    __slots__ = ("time_ms", "node")
    TIME_MS_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    time_ms: int
    node: str
    def __init__(self, time_ms: _Optional[int] = ..., node: _Optional[str] = ...) -> None: ...

class Policy(_message.Message):
    __slots__ = ("resource", "actions", "source_ips", "deny", "is_default")
    RESOURCE_FIELD_NUMBER: _ClassVar[int]
    ACTIONS_FIELD_NUMBER: _ClassVar[int]
    SOURCE_IPS_FIELD_NUMBER: _ClassVar[int]
    DENY_FIELD_NUMBER: _ClassVar[int]
    IS_DEFAULT_FIELD_NUMBER: _ClassVar[int]
    resource: str
    actions: _containers.RepeatedScalarFieldContainer[str]
    source_ips: _containers.RepeatedScalarFieldContainer[str]
    deny: bool
    is_default: bool
    def __init__(self, resource: _Optional[str] = ..., actions: _Optional[_Iterable[str]] = ..., source_ips: _Optional[_Iterable[str]] = ..., deny: _Optional[bool] = ..., is_default: _Optional[bool] = ...) -> None: ...

class UserInfo(_message.Message):
    __slots__ = ("username", "enabled", "super", "secrets")
    USERNAME_FIELD_NUMBER: _ClassVar[int]
    ENABLED_FIELD_NUMBER: _ClassVar[int]
    SUPER_FIELD_NUMBER: _ClassVar[int]
    SECRETS_FIELD_NUMBER: _ClassVar[int]
    username: str
    enabled: bool
    super: bool
    secrets: int
    def __init__(self, username: _Optional[str] = ..., enabled: _Optional[bool] = ..., super: _Optional[bool] = ..., secrets: _Optional[int] = ...) -> None: ...

class Quota(_message.Message):
    __slots__ = ("subject", "calls", "messages_in", "bytes_in", "messages_out", "bytes_out")
    SUBJECT_FIELD_NUMBER: _ClassVar[int]
    CALLS_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_IN_FIELD_NUMBER: _ClassVar[int]
    BYTES_IN_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_OUT_FIELD_NUMBER: _ClassVar[int]
    BYTES_OUT_FIELD_NUMBER: _ClassVar[int]
    subject: str
    calls: int
    messages_in: int
    bytes_in: int
    messages_out: int
    bytes_out: int
    def __init__(self, subject: _Optional[str] = ..., calls: _Optional[int] = ..., messages_in: _Optional[int] = ..., bytes_in: _Optional[int] = ..., messages_out: _Optional[int] = ..., bytes_out: _Optional[int] = ...) -> None: ...

class TableRecord(_message.Message):
    __slots__ = ("version", "deleted", "username", "user", "policy", "quota")
    class User(_message.Message):
        __slots__ = ("secrets", "enabled", "super")
        SECRETS_FIELD_NUMBER: _ClassVar[int]
        ENABLED_FIELD_NUMBER: _ClassVar[int]
        SUPER_FIELD_NUMBER: _ClassVar[int]
        secrets: _containers.RepeatedScalarFieldContainer[str]
        enabled: bool
        super: bool
        def __init__(self, secrets: _Optional[_Iterable[str]] = ..., enabled: _Optional[bool] = ..., super: _Optional[bool] = ...) -> None: ...
    VERSION_FIELD_NUMBER: _ClassVar[int]
    DELETED_FIELD_NUMBER: _ClassVar[int]
    USERNAME_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    QUOTA_FIELD_NUMBER: _ClassVar[int]
    version: Version
    deleted: bool
    username: str
    user: TableRecord.User
    policy: Policy
    quota: Quota
    def __init__(self, version: _Optional[_Union[Version, _Mapping]] = ..., deleted: _Optional[bool] = ..., username: _Optional[str] = ..., user: _Optional[_Union[TableRecord.User, _Mapping]] = ..., policy: _Optional[_Union[Policy, _Mapping]] = ..., quota: _Optional[_Union[Quota, _Mapping]] = ...) -> None: ...

class ChangeResponse(_message.Message):
    __slots__ = ("written",)
    WRITTEN_FIELD_NUMBER: _ClassVar[int]
    written: _containers.RepeatedCompositeFieldContainer[RecordVersion]
    def __init__(self, written: _Optional[_Iterable[_Union[RecordVersion, _Mapping]]] = ...) -> None: ...

class PutUserRequest(_message.Message):
    __slots__ = ("username", "expect", "secret", "keep_former_secret", "drop_former_secret", "enabled", "super")
    USERNAME_FIELD_NUMBER: _ClassVar[int]
    EXPECT_FIELD_NUMBER: _ClassVar[int]
    SECRET_FIELD_NUMBER: _ClassVar[int]
    KEEP_FORMER_SECRET_FIELD_NUMBER: _ClassVar[int]
    DROP_FORMER_SECRET_FIELD_NUMBER: _ClassVar[int]
    ENABLED_FIELD_NUMBER: _ClassVar[int]
    SUPER_FIELD_NUMBER: _ClassVar[int]
    username: str
    expect: Expect
    secret: str
    keep_former_secret: bool
    drop_former_secret: bool
    enabled: bool
    super: bool
    def __init__(self, username: _Optional[str] = ..., expect: _Optional[_Union[Expect, str]] = ..., secret: _Optional[str] = ..., keep_former_secret: _Optional[bool] = ..., drop_former_secret: _Optional[bool] = ..., enabled: _Optional[bool] = ..., super: _Optional[bool] = ...) -> None: ...

class GetUserRequest(_message.Message):
    __slots__ = ("username",)
    USERNAME_FIELD_NUMBER: _ClassVar[int]
    username: str
    def __init__(self, username: _Optional[str] = ...) -> None: ...

class GetUserResponse(_message.Message):
    __slots__ = ("user",)
    USER_FIELD_NUMBER: _ClassVar[int]
    user: UserInfo
    def __init__(self, user: _Optional[_Union[UserInfo, _Mapping]] = ...) -> None: ...

class ListUsersRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListUsersResponse(_message.Message):
    __slots__ = ("users",)
    USERS_FIELD_NUMBER: _ClassVar[int]
    users: _containers.RepeatedCompositeFieldContainer[UserInfo]
    def __init__(self, users: _Optional[_Iterable[_Union[UserInfo, _Mapping]]] = ...) -> None: ...

class DeleteUserRequest(_message.Message):
    __slots__ = ("username",)
    USERNAME_FIELD_NUMBER: _ClassVar[int]
    username: str
    def __init__(self, username: _Optional[str] = ...) -> None: ...

class PutAclRequest(_message.Message):
    __slots__ = ("username", "policies", "expect")
    USERNAME_FIELD_NUMBER: _ClassVar[int]
    POLICIES_FIELD_NUMBER: _ClassVar[int]
    EXPECT_FIELD_NUMBER: _ClassVar[int]
    username: str
    policies: _containers.RepeatedCompositeFieldContainer[Policy]
    expect: Expect
    def __init__(self, username: _Optional[str] = ..., policies: _Optional[_Iterable[_Union[Policy, _Mapping]]] = ..., expect: _Optional[_Union[Expect, str]] = ...) -> None: ...

class GetAclRequest(_message.Message):
    __slots__ = ("username",)
    USERNAME_FIELD_NUMBER: _ClassVar[int]
    username: str
    def __init__(self, username: _Optional[str] = ...) -> None: ...

class GetAclResponse(_message.Message):
    __slots__ = ("policies",)
    POLICIES_FIELD_NUMBER: _ClassVar[int]
    policies: _containers.RepeatedCompositeFieldContainer[Policy]
    def __init__(self, policies: _Optional[_Iterable[_Union[Policy, _Mapping]]] = ...) -> None: ...

class ListAclsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListAclsResponse(_message.Message):
    __slots__ = ("acls",)
    class Acl(_message.Message):
        __slots__ = ("username", "policies")
        USERNAME_FIELD_NUMBER: _ClassVar[int]
        POLICIES_FIELD_NUMBER: _ClassVar[int]
        username: str
        policies: _containers.RepeatedCompositeFieldContainer[Policy]
        def __init__(self, username: _Optional[str] = ..., policies: _Optional[_Iterable[_Union[Policy, _Mapping]]] = ...) -> None: ...
    ACLS_FIELD_NUMBER: _ClassVar[int]
    acls: _containers.RepeatedCompositeFieldContainer[ListAclsResponse.Acl]
    def __init__(self, acls: _Optional[_Iterable[_Union[ListAclsResponse.Acl, _Mapping]]] = ...) -> None: ...

class DeleteAclRequest(_message.Message):
    __slots__ = ("username", "resource", "is_default")
    USERNAME_FIELD_NUMBER: _ClassVar[int]
    RESOURCE_FIELD_NUMBER: _ClassVar[int]
    IS_DEFAULT_FIELD_NUMBER: _ClassVar[int]
    username: str
    resource: str
    is_default: bool
    def __init__(self, username: _Optional[str] = ..., resource: _Optional[str] = ..., is_default: _Optional[bool] = ...) -> None: ...

class TestAccessRequest(_message.Message):
    __slots__ = ("username", "resource", "action", "source_ip")
    USERNAME_FIELD_NUMBER: _ClassVar[int]
    RESOURCE_FIELD_NUMBER: _ClassVar[int]
    ACTION_FIELD_NUMBER: _ClassVar[int]
    SOURCE_IP_FIELD_NUMBER: _ClassVar[int]
    username: str
    resource: str
    action: str
    source_ip: str
    def __init__(self, username: _Optional[str] = ..., resource: _Optional[str] = ..., action: _Optional[str] = ..., source_ip: _Optional[str] = ...) -> None: ...

class TestAccessResponse(_message.Message):
    __slots__ = ("allowed", "deciding", "enabled", "super")
    ALLOWED_FIELD_NUMBER: _ClassVar[int]
    DECIDING_FIELD_NUMBER: _ClassVar[int]
    ENABLED_FIELD_NUMBER: _ClassVar[int]
    SUPER_FIELD_NUMBER: _ClassVar[int]
    allowed: bool
    deciding: Policy
    enabled: bool
    super: bool
    def __init__(self, allowed: _Optional[bool] = ..., deciding: _Optional[_Union[Policy, _Mapping]] = ..., enabled: _Optional[bool] = ..., super: _Optional[bool] = ...) -> None: ...

class PutQuotaRequest(_message.Message):
    __slots__ = ("quota",)
    QUOTA_FIELD_NUMBER: _ClassVar[int]
    quota: Quota
    def __init__(self, quota: _Optional[_Union[Quota, _Mapping]] = ...) -> None: ...

class ListQuotasRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListQuotasResponse(_message.Message):
    __slots__ = ("quotas",)
    QUOTAS_FIELD_NUMBER: _ClassVar[int]
    quotas: _containers.RepeatedCompositeFieldContainer[Quota]
    def __init__(self, quotas: _Optional[_Iterable[_Union[Quota, _Mapping]]] = ...) -> None: ...

class DeleteQuotaRequest(_message.Message):
    __slots__ = ("subject",)
    SUBJECT_FIELD_NUMBER: _ClassVar[int]
    subject: str
    def __init__(self, subject: _Optional[str] = ...) -> None: ...

class ListTableRequest(_message.Message):
    __slots__ = ("keys",)
    KEYS_FIELD_NUMBER: _ClassVar[int]
    keys: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, keys: _Optional[_Iterable[str]] = ...) -> None: ...

class RecordVersion(_message.Message):
    __slots__ = ("key", "version", "deleted")
    KEY_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    DELETED_FIELD_NUMBER: _ClassVar[int]
    key: str
    version: Version
    deleted: bool
    def __init__(self, key: _Optional[str] = ..., version: _Optional[_Union[Version, _Mapping]] = ..., deleted: _Optional[bool] = ...) -> None: ...

class ListTableResponse(_message.Message):
    __slots__ = ("records",)
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    records: _containers.RepeatedCompositeFieldContainer[RecordVersion]
    def __init__(self, records: _Optional[_Iterable[_Union[RecordVersion, _Mapping]]] = ...) -> None: ...

class WatchRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class TablePart(_message.Message):
    __slots__ = ("records", "complete", "is_stale", "is_exchanged")
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    COMPLETE_FIELD_NUMBER: _ClassVar[int]
    IS_STALE_FIELD_NUMBER: _ClassVar[int]
    IS_EXCHANGED_FIELD_NUMBER: _ClassVar[int]
    records: _containers.RepeatedCompositeFieldContainer[TableRecord]
    complete: bool
    is_stale: bool
    is_exchanged: bool
    def __init__(self, records: _Optional[_Iterable[_Union[TableRecord, _Mapping]]] = ..., complete: _Optional[bool] = ..., is_stale: _Optional[bool] = ..., is_exchanged: _Optional[bool] = ...) -> None: ...

class MergeTableRequest(_message.Message):
    __slots__ = ("records", "complete", "is_last")
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    COMPLETE_FIELD_NUMBER: _ClassVar[int]
    IS_LAST_FIELD_NUMBER: _ClassVar[int]
    records: _containers.RepeatedCompositeFieldContainer[TableRecord]
    complete: bool
    is_last: bool
    def __init__(self, records: _Optional[_Iterable[_Union[TableRecord, _Mapping]]] = ..., complete: _Optional[bool] = ..., is_last: _Optional[bool] = ...) -> None: ...

class LogInRequest(_message.Message):
    __slots__ = ("visitor",)
    VISITOR_FIELD_NUMBER: _ClassVar[int]
    visitor: str
    def __init__(self, visitor: _Optional[str] = ...) -> None: ...

class LogInResponse(_message.Message):
    __slots__ = ("username",)
    USERNAME_FIELD_NUMBER: _ClassVar[int]
    username: str
    def __init__(self, username: _Optional[str] = ...) -> None: ...
