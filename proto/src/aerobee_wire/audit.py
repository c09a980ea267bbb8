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
        link = Link(record["number"], record["hash"])
    except (ValueError, KeyError, TypeError):
        raise BrokenLine("the line was changed: it is not a line of an audit log") from None
    expected = hashlib.sha256(head).hexdigest()
    if not found or link.hash != expected or tail != expected.encode() + b'"}\n':
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
