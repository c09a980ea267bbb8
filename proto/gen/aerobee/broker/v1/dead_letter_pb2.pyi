from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class LetterAction(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    LETTER_ACTION_UNSPECIFIED: _ClassVar[LetterAction]
    LETTER_REDRIVE: _ClassVar[LetterAction]
    LETTER_DISMISS: _ClassVar[LetterAction]

class LetterState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    LETTER_OPEN: _ClassVar[LetterState]
    LETTER_REDRIVEN: _ClassVar[LetterState]
    LETTER_CONSUMED: _ClassVar[LetterState]
    LETTER_DEAD_AGAIN: _ClassVar[LetterState]
    LETTER_DISMISSED: _ClassVar[LetterState]

class LetterJobState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    LETTER_JOB_UNSPECIFIED: _ClassVar[LetterJobState]
    LETTER_JOB_RUNNING: _ClassVar[LetterJobState]
    LETTER_JOB_DONE: _ClassVar[LetterJobState]
    LETTER_JOB_CANCELLED: _ClassVar[LetterJobState]
LETTER_ACTION_UNSPECIFIED: LetterAction
LETTER_REDRIVE: LetterAction
LETTER_DISMISS: LetterAction
LETTER_OPEN: LetterState
LETTER_REDRIVEN: LetterState
LETTER_CONSUMED: LetterState
LETTER_DEAD_AGAIN: LetterState
LETTER_DISMISSED: LetterState
LETTER_JOB_UNSPECIFIED: LetterJobState
LETTER_JOB_RUNNING: LetterJobState
LETTER_JOB_DONE: LetterJobState
LETTER_JOB_CANCELLED: LetterJobState

class LetterOffsets(_message.Message):
    __slots__ = ("queue_id", "queue_offsets")
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    QUEUE_OFFSETS_FIELD_NUMBER: _ClassVar[int]
    queue_id: int
    queue_offsets: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, queue_id: _Optional[int] = ..., queue_offsets: _Optional[_Iterable[int]] = ...) -> None: ...

class LetterSelection(_message.Message):
    __slots__ = ("ids", "tag", "reason", "since_ms", "until_ms", "listed")
    IDS_FIELD_NUMBER: _ClassVar[int]
    TAG_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    SINCE_MS_FIELD_NUMBER: _ClassVar[int]
    UNTIL_MS_FIELD_NUMBER: _ClassVar[int]
    LISTED_FIELD_NUMBER: _ClassVar[int]
    ids: _containers.RepeatedScalarFieldContainer[str]
    tag: str
    reason: str
    since_ms: int
    until_ms: int
    listed: _containers.RepeatedCompositeFieldContainer[LetterOffsets]
    def __init__(self, ids: _Optional[_Iterable[str]] = ..., tag: _Optional[str] = ..., reason: _Optional[str] = ..., since_ms: _Optional[int] = ..., until_ms: _Optional[int] = ..., listed: _Optional[_Iterable[_Union[LetterOffsets, _Mapping]]] = ...) -> None: ...

class LetterJobSpec(_message.Message):
    __slots__ = ("consumer_group", "action", "target", "selection", "again", "limit", "rate", "note", "requested_by")
    CONSUMER_GROUP_FIELD_NUMBER: _ClassVar[int]
    ACTION_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    SELECTION_FIELD_NUMBER: _ClassVar[int]
    AGAIN_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    RATE_FIELD_NUMBER: _ClassVar[int]
    NOTE_FIELD_NUMBER: _ClassVar[int]
    REQUESTED_BY_FIELD_NUMBER: _ClassVar[int]
    consumer_group: str
    action: LetterAction
    target: str
    selection: LetterSelection
    again: bool
    limit: int
    rate: float
    note: str
    requested_by: str
    def __init__(self, consumer_group: _Optional[str] = ..., action: _Optional[_Union[LetterAction, str]] = ..., target: _Optional[str] = ..., selection: _Optional[_Union[LetterSelection, _Mapping]] = ..., again: _Optional[bool] = ..., limit: _Optional[int] = ..., rate: _Optional[float] = ..., note: _Optional[str] = ..., requested_by: _Optional[str] = ...) -> None: ...

class LetterCount(_message.Message):
    __slots__ = ("name", "letters")
    NAME_FIELD_NUMBER: _ClassVar[int]
    LETTERS_FIELD_NUMBER: _ClassVar[int]
    name: str
    letters: int
    def __init__(self, name: _Optional[str] = ..., letters: _Optional[int] = ...) -> None: ...

class PreviewLetterJobRequest(_message.Message):
    __slots__ = ("spec",)
    SPEC_FIELD_NUMBER: _ClassVar[int]
    spec: LetterJobSpec
    def __init__(self, spec: _Optional[_Union[LetterJobSpec, _Mapping]] = ...) -> None: ...

class PreviewLetterJobResponse(_message.Message):
    __slots__ = ("stored", "selected", "would_send", "body_bytes", "already_sent", "already_dismissed", "duplicates", "unreadable", "reasons", "topics", "failures", "missing_ids")
    STORED_FIELD_NUMBER: _ClassVar[int]
    SELECTED_FIELD_NUMBER: _ClassVar[int]
    WOULD_SEND_FIELD_NUMBER: _ClassVar[int]
    BODY_BYTES_FIELD_NUMBER: _ClassVar[int]
    ALREADY_SENT_FIELD_NUMBER: _ClassVar[int]
    ALREADY_DISMISSED_FIELD_NUMBER: _ClassVar[int]
    DUPLICATES_FIELD_NUMBER: _ClassVar[int]
    UNREADABLE_FIELD_NUMBER: _ClassVar[int]
    REASONS_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    FAILURES_FIELD_NUMBER: _ClassVar[int]
    MISSING_IDS_FIELD_NUMBER: _ClassVar[int]
    stored: int
    selected: int
    would_send: int
    body_bytes: int
    already_sent: int
    already_dismissed: int
    duplicates: int
    unreadable: int
    reasons: _containers.RepeatedCompositeFieldContainer[LetterCount]
    topics: _containers.RepeatedCompositeFieldContainer[LetterCount]
    failures: _containers.RepeatedCompositeFieldContainer[LetterCount]
    missing_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, stored: _Optional[int] = ..., selected: _Optional[int] = ..., would_send: _Optional[int] = ..., body_bytes: _Optional[int] = ..., already_sent: _Optional[int] = ..., already_dismissed: _Optional[int] = ..., duplicates: _Optional[int] = ..., unreadable: _Optional[int] = ..., reasons: _Optional[_Iterable[_Union[LetterCount, _Mapping]]] = ..., topics: _Optional[_Iterable[_Union[LetterCount, _Mapping]]] = ..., failures: _Optional[_Iterable[_Union[LetterCount, _Mapping]]] = ..., missing_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class LetterJob(_message.Message):
    __slots__ = ("job_id", "spec", "state", "started_ms", "ended_ms", "total", "examined", "sent", "failed", "already", "duplicates", "unreadable", "topics", "waits_for")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    SPEC_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    STARTED_MS_FIELD_NUMBER: _ClassVar[int]
    ENDED_MS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    EXAMINED_FIELD_NUMBER: _ClassVar[int]
    SENT_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    ALREADY_FIELD_NUMBER: _ClassVar[int]
    DUPLICATES_FIELD_NUMBER: _ClassVar[int]
    UNREADABLE_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    WAITS_FOR_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    spec: LetterJobSpec
    state: LetterJobState
    started_ms: int
    ended_ms: int
    total: int
    examined: int
    sent: int
    failed: int
    already: int
    duplicates: int
    unreadable: int
    topics: _containers.RepeatedScalarFieldContainer[str]
    waits_for: str
    def __init__(self, job_id: _Optional[str] = ..., spec: _Optional[_Union[LetterJobSpec, _Mapping]] = ..., state: _Optional[_Union[LetterJobState, str]] = ..., started_ms: _Optional[int] = ..., ended_ms: _Optional[int] = ..., total: _Optional[int] = ..., examined: _Optional[int] = ..., sent: _Optional[int] = ..., failed: _Optional[int] = ..., already: _Optional[int] = ..., duplicates: _Optional[int] = ..., unreadable: _Optional[int] = ..., topics: _Optional[_Iterable[str]] = ..., waits_for: _Optional[str] = ...) -> None: ...

class StartLetterJobRequest(_message.Message):
    __slots__ = ("job_id", "spec")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    SPEC_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    spec: LetterJobSpec
    def __init__(self, job_id: _Optional[str] = ..., spec: _Optional[_Union[LetterJobSpec, _Mapping]] = ...) -> None: ...

class StartLetterJobResponse(_message.Message):
    __slots__ = ("job", "started")
    JOB_FIELD_NUMBER: _ClassVar[int]
    STARTED_FIELD_NUMBER: _ClassVar[int]
    job: LetterJob
    started: bool
    def __init__(self, job: _Optional[_Union[LetterJob, _Mapping]] = ..., started: _Optional[bool] = ...) -> None: ...

class CancelLetterJobRequest(_message.Message):
    __slots__ = ("job_id",)
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    def __init__(self, job_id: _Optional[str] = ...) -> None: ...

class CancelLetterJobResponse(_message.Message):
    __slots__ = ("job", "cancelled")
    JOB_FIELD_NUMBER: _ClassVar[int]
    CANCELLED_FIELD_NUMBER: _ClassVar[int]
    job: LetterJob
    cancelled: bool
    def __init__(self, job: _Optional[_Union[LetterJob, _Mapping]] = ..., cancelled: _Optional[bool] = ...) -> None: ...

class ListLetterJobsRequest(_message.Message):
    __slots__ = ("consumer_group", "job_id")
    CONSUMER_GROUP_FIELD_NUMBER: _ClassVar[int]
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    consumer_group: str
    job_id: str
    def __init__(self, consumer_group: _Optional[str] = ..., job_id: _Optional[str] = ...) -> None: ...

class ListLetterJobsResponse(_message.Message):
    __slots__ = ("jobs",)
    JOBS_FIELD_NUMBER: _ClassVar[int]
    jobs: _containers.RepeatedCompositeFieldContainer[LetterJob]
    def __init__(self, jobs: _Optional[_Iterable[_Union[LetterJob, _Mapping]]] = ...) -> None: ...

class ListLetterFailuresRequest(_message.Message):
    __slots__ = ("job_id", "queue_id", "behind_offset", "max_letters")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    BEHIND_OFFSET_FIELD_NUMBER: _ClassVar[int]
    MAX_LETTERS_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    queue_id: int
    behind_offset: int
    max_letters: int
    def __init__(self, job_id: _Optional[str] = ..., queue_id: _Optional[int] = ..., behind_offset: _Optional[int] = ..., max_letters: _Optional[int] = ...) -> None: ...

class ListLetterFailuresResponse(_message.Message):
    __slots__ = ("letters", "more")
    LETTERS_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    letters: _containers.RepeatedCompositeFieldContainer[LetterStateEntry]
    more: bool
    def __init__(self, letters: _Optional[_Iterable[_Union[LetterStateEntry, _Mapping]]] = ..., more: _Optional[bool] = ...) -> None: ...

class ListLetterStatesRequest(_message.Message):
    __slots__ = ("consumer_group", "queue_id", "begin", "end")
    CONSUMER_GROUP_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    BEGIN_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    consumer_group: str
    queue_id: int
    begin: int
    end: int
    def __init__(self, consumer_group: _Optional[str] = ..., queue_id: _Optional[int] = ..., begin: _Optional[int] = ..., end: _Optional[int] = ...) -> None: ...

class LetterStateEntry(_message.Message):
    __slots__ = ("queue_offset", "state", "at_ms", "job_id", "requested_by", "target", "error", "queue_id")
    QUEUE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    AT_MS_FIELD_NUMBER: _ClassVar[int]
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    REQUESTED_BY_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    queue_offset: int
    state: LetterState
    at_ms: int
    job_id: str
    requested_by: str
    target: str
    error: str
    queue_id: int
    def __init__(self, queue_offset: _Optional[int] = ..., state: _Optional[_Union[LetterState, str]] = ..., at_ms: _Optional[int] = ..., job_id: _Optional[str] = ..., requested_by: _Optional[str] = ..., target: _Optional[str] = ..., error: _Optional[str] = ..., queue_id: _Optional[int] = ...) -> None: ...

class ListLetterStatesResponse(_message.Message):
    __slots__ = ("letters",)
    LETTERS_FIELD_NUMBER: _ClassVar[int]
    letters: _containers.RepeatedCompositeFieldContainer[LetterStateEntry]
    def __init__(self, letters: _Optional[_Iterable[_Union[LetterStateEntry, _Mapping]]] = ...) -> None: ...
