"""Define the lines of an audit log, and check that none was changed, removed or inserted.

A line is a JSON object. Its last three fields link it to the line before: `number` counts the
lines, `previous` is the `hash` of the line before, and `hash` is the SHA-256 of the line up to this
field. The links continue in the next file after a rotation. This module does no I/O.

The links need no key. Who can write all files can also compute all hashes again, and who removes
the last lines leaves no trace: compare with a copy elsewhere.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

START_HASH = "0" * 64  # `previous` of line 1
_HASH_FIELD = b', "hash": "'

# Events. A change has two lines: CHANGE before it is made, and RESULT after it.
OPENED, CLOSED = "opened", "closed"
CHANGE, RESULT = "change", "result"
REJECTED, READ, LOGIN = "rejected", "read", "login"
DAMAGED = "damaged"  # of a page: a line that was changed


@dataclass(frozen=True, slots=True)
class Link:
    """The number and the hash of a line, to which the next line is linked."""

    number: int = 0
    hash: str = START_HASH


class BrokenLine(Exception):
    """A line is not what was written, or does not follow the line before."""


def linked(record: Mapping[str, Any], last: Link) -> tuple[bytes, Link]:
    """Return the line for a record, with its line feed, and the link to it.

    Args:
        record: The fields of the line. Text of any kind is escaped.
        last: The link to the line before.
    """
    number = last.number + 1
    content = {**record, "number": number, "previous": last.hash}
    head = json.dumps(content).encode()[:-1]
    digest = hashlib.sha256(head).hexdigest()
    return head + _HASH_FIELD + digest.encode() + b'"}\n', Link(number, digest)


def parsed(line: bytes) -> dict[str, Any]:
    """Return the fields of a line after a check of its own hash.

    Raises:
        BrokenLine: The line is incomplete, or was changed.
    """
    if not line.endswith(b"\n"):
        raise BrokenLine(
            f"the line is incomplete ({len(line)} bytes): its process was stopped while it wrote; "
            "the next start removes it, and says so in its first line"
        )
    head, found, tail = line.rpartition(_HASH_FIELD)
    try:
        record = json.loads(line)
        is_line = isinstance(record["number"], int) and isinstance(record["previous"], str)
    except (ValueError, KeyError, TypeError):
        is_line = False
    if not is_line:
        raise BrokenLine("the line was changed: it is not a line of an audit log")
    if not found or tail != hashlib.sha256(head).hexdigest().encode() + b'"}\n':
        raise BrokenLine("the line was changed: its hash does not match")
    checked: dict[str, Any] = record
    return checked


def link_of(record: Mapping[str, Any]) -> Link:
    """Return the link to a line that was read."""
    return Link(record["number"], record["hash"])


@dataclass(slots=True)
class Chain:
    """Check lines in their order.

    Attributes:
        first: The number of the first line, or 0 before it.
        last: The link to the last line that was checked.
    """

    first: int = 0
    last: Link = Link()

    def check(self, lines: Iterable[bytes]) -> Iterable[dict[str, Any]]:
        """Yield the fields of each line after its check. Call it again for the next file.

        The first line of all may have any number, because a rotation deletes old files.

        Raises:
            BrokenLine: A line was changed, or lines before it were removed, inserted or moved.
        """
        for line in lines:
            record = parsed(line)
            number = record["number"]
            if self.first == 0:
                self.first = number
            elif number != self.last.number + 1:
                raise BrokenLine(
                    f"line number {number} follows number {self.last.number}: lines between them "
                    "were removed, or lines were moved"
                )
            elif record["previous"] != self.last.hash:
                raise BrokenLine(
                    f"line number {number} does not continue number {self.last.number}: one of "
                    "them was replaced"
                )
            self.last = link_of(record)
            yield record


# ---- reading recent lines ----

SLACK_MS = 3_600_000  # how far the clock of a process may have been set back between two lines


@dataclass(frozen=True, slots=True)
class AuditQuery:
    """Which lines to read. Empty filters match each line.

    Attributes:
        limit: The number of lines after which a page ends.
        from_ms: Only lines since this time, in milliseconds since the epoch.
        to_ms: Only lines before this time; 0: no limit.
        event: The event of a line.
        user: The user, the claimed user, or the URI of the certificate.
        rpc: "AdminService/DeleteTopic", or "DeleteTopic".
        resource: A resource; a * at the end stands for any text.
        result: "OK", or the code of an error.
    """

    limit: int
    from_ms: int = 0
    to_ms: int = 0
    event: str = ""
    user: str = ""
    rpc: str = ""
    resource: str = ""
    result: str = ""

    def matches(self, record: Mapping[str, Any]) -> bool:
        """Return whether the filters match the fields of a line, besides its time."""
        rpc = record.get("rpc", "")
        return (
            self.event in ("", record.get("event"))
            and self.result in ("", record.get("result"))
            and self.rpc in ("", rpc, rpc.rpartition("/")[2])
            and (not self.user or self.user in _names(record))
            and (not self.resource or any(map(self._is_asked, record.get("resources", ()))))
        )

    def _is_asked(self, resource: str) -> bool:
        if self.resource.endswith("*"):
            return resource.startswith(self.resource[:-1])
        return resource == self.resource


@dataclass(frozen=True, slots=True)
class AuditPage:
    """Lines that match a query, the newest first.

    A change is one line, with the event "change" and its result; without one if it is not known.
    A line that was changed, and a place where lines were removed, is a line "damaged" in each page.

    Attributes:
        records: The fields of the lines.
        complete_from_ms: All matching lines since this time are in the page; 0: there are no older
            ones.
        last: The link to the last line of the log.
    """

    records: list[dict[str, Any]]
    complete_from_ms: int
    last: Link


def page_of(query: AuditQuery, lines: Iterable[bytes], last: Link, *, most_lines: int) -> AuditPage:
    """Return the page of a query.

    Args:
        query: The query.
        lines: Lines of the log, the newest first. If the query has `to_ms`, they may begin later:
            the result of a change before that time may have been written after it.
        last: The link to the last line of the log.
        most_lines: The number of lines after which the page ends.
    """
    found: list[dict[str, Any]] = []
    ended: set[str] = set()  # changes whose result was read, and whose first line follows
    time_ms, read = 0, 0
    newer: dict[str, Any] | None = None
    for line in lines:
        record = _readable(line, time_ms)
        if (gap := _gap(record, newer)) and query.from_ms <= time_ms < (query.to_ms or time_ms + 1):
            found.append({"timestamp_ms": time_ms, "event": DAMAGED, "reason": gap})
        newer = record
        former_ms, time_ms = time_ms, record["timestamp_ms"]
        is_result = record["event"] == RESULT
        if is_result:
            ended.add(record["request_id"])
        if query.to_ms and time_ms >= query.to_ms:
            continue
        if time_ms < query.from_ms - SLACK_MS:
            break
        is_full = len(found) >= query.limit or read >= most_lines
        if is_full and time_ms < former_ms:
            return AuditPage(found, former_ms, last)
        read += 1
        if not is_result and record.get("request_id") in ended:
            ended.discard(record["request_id"])
            continue
        if is_result:
            record["event"] = CHANGE
        # A damaged line may have been any line.
        if time_ms >= query.from_ms and (record["event"] == DAMAGED or query.matches(record)):
            found.append(record)
    return AuditPage(found, 0, last)


def _readable(line: bytes, time_ms: int) -> dict[str, Any]:
    """Return the fields of a line; of a damaged one, the reason, with the time of the next line."""
    try:
        record = parsed(line)
        if isinstance(record["timestamp_ms"], int) and isinstance(record["event"], str):
            return record
        reason = "the line is of another program"
    except BrokenLine as error:
        reason = str(error)
    except KeyError as error:
        reason = f"the line has no field {error}"
    return {"timestamp_ms": time_ms, "event": DAMAGED, "reason": reason}


def _gap(record: Mapping[str, Any], newer: Mapping[str, Any] | None) -> str:
    """Return why a line is not the one before a newer line; "" if it is, or is itself damaged."""
    if newer is None or DAMAGED in (record["event"], newer["event"]):
        return ""
    number, next_number = record["number"], newer["number"]
    if number + 1 != next_number:
        return f"line {next_number} follows line {number}: lines were removed or moved"
    if newer["previous"] != record["hash"]:
        return f"line {next_number} does not continue line {number}: one of them was replaced"
    return ""


def _names(record: Mapping[str, Any]) -> tuple[Any, ...]:
    return record.get("user"), record.get("claimed_user"), record.get("certificate")
