"""The audit logs of name servers and brokers: who changed what, and which calls were rejected."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from aerobee_client.admin.audit import AuditLine, AuditPage
from aerobee_console.reading.source import NOT_REGISTERED, PAGE_ROWS, Answer, Silent, Source
from aerobee_wire.audit import CHANGE, CLOSED, DAMAGED, LOGIN, OPENED, READ, REJECTED
from aerobee_wire.status import MqError

EVENTS = (CHANGE, REJECTED, LOGIN, READ, OPENED, CLOSED, DAMAGED)
RECENT = 10  # changes on the overview
SHOWN_DIFFERENCES = 8
LONGEST_VALUE = 120  # characters of a value in a difference


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRow:
    """A line of an audit log. `caller` is who made the call, as far as it is proven.

    `differences` are texts about what a change has changed, as far as that is known.
    """

    line: AuditLine
    caller: str
    differences: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LogEnd:
    """The number and the hash of the last line of a log. `server` is its name server or broker."""

    server: str
    number: int
    hash: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditList(Answer):
    """Lines of audit logs, the newest first.

    `older_before_ms` is the time before which older lines may match; None if there are none.
    `damaged` counts the lines whose hash, or whose link to the line before, is wrong.
    """

    rows: tuple[AuditRow, ...]
    older_before_ms: int | None
    without_log: tuple[str, ...]
    logs: tuple[LogEnd, ...]
    damaged: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RecentChanges:
    """The last changes of the cluster.

    `problem` is the reason if they are not known at all. `unknown` says which changes are missing:
    of servers that have no audit log or did not answer, or older ones.
    """

    rows: tuple[AuditRow, ...]
    unknown: tuple[str, ...]
    problem: str


async def audit_list(
    source: Source,
    *,
    server: str = "",
    event: str = "",
    user: str = "",
    rpc: str = "",
    resource: str = "",
    result: str = "",
    since_ms: int = 0,
    until_ms: int = 0,
) -> AuditList:
    """Return lines of audit logs, with one call to each name server and replica.

    Raises MqError like `AsyncAdminClient.audit_page`.

    Args:
        source: The cluster.
        server: Only this server: its address, or the name of a broker.
        event: Only lines with this event: one of EVENTS.
        user: Only lines with this user, or this URI of a certificate.
        rpc: Only lines with this RPC.
        resource: Only lines with this resource. A * at the end stands for any text.
        result: Only lines with this result.
        since_ms: Only lines since this time, in milliseconds since the epoch; 0 for all.
        until_ms: Only lines before this time; 0 for all.
    """
    asking = await source.ask()
    found = await source.admin.audit_page(
        server=server,
        event=event,
        user=user,
        rpc=rpc,
        resource=resource,
        result=result,
        begin_timestamp_ms=since_ms,
        end_timestamp_ms=until_ms,
        limit=PAGE_ROWS,
    )
    return AuditList(
        rows=tuple(map(_row, found.lines)),
        older_before_ms=found.complete_from_ms,
        without_log=found.without_log,
        logs=tuple(LogEnd(name, *last) for name, last in sorted(found.last.items())),
        damaged=sum(line.event == DAMAGED for line in found.lines),
        silent=(
            *(Silent(name, reason) for name, reason in sorted(found.unanswered.items())),
            *(Silent(name, NOT_REGISTERED) for name in asking.cluster.away if not server),
        ),
        asked_at_ms=asking.at_ms,
    )


async def recent_changes(source: Source) -> RecentChanges:
    """Return the last changes, with one call to each name server and replica."""
    try:
        found: AuditPage = await source.admin.audit_page(event=CHANGE, limit=RECENT)
    except MqError as error:
        return RecentChanges(rows=(), unknown=(), problem=error.message)
    lines = [line for line in found.lines if line.event == CHANGE]
    unknown = [f"{name} has no audit log: set auditLogPath" for name in found.without_log]
    unknown += [f"{name}: {reason}" for name, reason in sorted(found.unanswered.items())]
    if len(lines) < RECENT and found.complete_from_ms is not None:
        unknown.append("only the newest lines of the logs were searched")
    return RecentChanges(
        rows=tuple(map(_row, lines[:RECENT])),
        unknown=tuple(unknown),
        problem=""
        if found.last or found.unanswered
        else "no name server or broker has an audit log: set auditLogPath",
    )


def _row(line: AuditLine) -> AuditRow:
    return AuditRow(
        line=line,
        caller=line.user or line.certificate,
        differences=tuple(differences(line.before, line.after)),
    )


def differences(before: Any, after: Any) -> list[str]:
    """Return texts about the fields that differ between two states. None is an unknown state."""
    if not isinstance(before, Mapping) or not isinstance(after, Mapping):
        return []
    found = [
        f"{name}: {_value(before, name, after)} → {_value(after, name, before)}"
        for name in dict.fromkeys((*before, *after))
        if before.get(name) != after.get(name)
    ]
    more = len(found) - SHOWN_DIFFERENCES
    return [*found[:SHOWN_DIFFERENCES], f"{more} more"] if more > 0 else found


def _value(state: Mapping[str, Any], name: str, other: Mapping[str, Any]) -> str:
    if name not in state:  # a line leaves out what is false
        return "false" if other[name] is True else "none"
    value = state[name]
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= LONGEST_VALUE else f"{text[:LONGEST_VALUE]}…"
