"""Keep the journal of a redrive, from which an interrupted redrive resumes.

The journal is a file of JSON lines. For each dead letter, one line announces the send, and a later
line records its outcome.

    {"redrive": 1, "group": "billing", "target": "retry"}
    {"sending": MESSAGE_ID, "letter": OFFSET_MESSAGE_ID}     before the send
    {"sent": MESSAGE_ID}                                     after the send
    {"failed": MESSAGE_ID, "unknown": true}                  after the send; it may have been stored

Messages are sent in windows. The announcements of a window are on the disk before its first message
is sent. The outcomes of a window are written when all its answers have arrived,
before another window is announced.

A crash therefore damages only the end of the file: up to MAX_IN_FLIGHT announcements, and as many
outcomes. This torn end is cut off, and its messages count as in flight. An invalid line before the
torn end is damage. An invalid line is also damage if a later outcome belongs to a message that no
earlier line announces. In that case, the announcement was already on the disk, with all lines
before it.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Container, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Self

from aerobee_client.admin.redriving.message_ids import Claim, MessageIds
from aerobee_client.admin.redriving.outcome import Outcome, Status
from aerobee_client.admin.redriving.rules import Target
from aerobee_wire import files
from aerobee_wire.status import MqError, invalid_parameter

VERSION = 1
# The maximum number of messages that are announced and have no outcome yet.
MAX_IN_FLIGHT = 1_536
# The maximum number of lines, outcomes and announcements, that a crash may tear.
_TORN_LINES = 2 * MAX_IN_FLIGHT
_ROWS = 4_096  # rows passed to MessageIds at a time


class Journal:
    """The journal of a redrive.

    `open` loads the message ids of earlier runs into a MessageIds object.
    """

    def __init__(self, descriptor: int, path: Path) -> None:
        self._descriptor: int | None = descriptor
        self._path = path

    @classmethod
    def open(
        cls,
        path: Path,
        consumer_group: str,
        target: Target,
        ids: MessageIds,
        *,
        read_only: bool = False,
    ) -> Self:
        """Begin a journal, or resume the existing journal and load its message ids into `ids`.

        Set `read_only` for a dry run; a missing file is then an empty journal. Raises OSError, also
        if a dry run finds that the file cannot be written or made. Raises MqError with the code
        INVALID_PARAMETER for a journal of another group or target, or one that another redrive is
        writing. The same error is raised for a damaged journal and for another file.
        """
        header = {"redrive": VERSION, "group": consumer_group, "target": str(target)}
        flags = os.O_RDWR | os.O_APPEND | files.BINARY
        if not read_only:
            journal = cls(os.open(path, flags | os.O_CREAT, 0o644), path)
        elif path.exists():
            journal = cls(os.open(path, flags), path)
        else:
            _check_new(path)
            journal = cls(os.open(os.devnull, os.O_RDONLY), path)
        try:
            if read_only:
                journal._load(header, ids)
            else:
                journal._begin(header, ids)
        except BaseException:
            journal.close()
            raise
        return journal

    def _begin(self, header: dict[str, Any], ids: MessageIds) -> None:
        _lock(self._open, self._path)
        end = self._load(header, ids)
        os.ftruncate(self._open, end)
        if not end:
            self._write([json.dumps(header) + "\n"])
        self.sync()
        if not end:
            files.sync_directory(self._path.resolve().parent)

    @property
    def _open(self) -> int:
        assert self._descriptor is not None, "it was closed"
        return self._descriptor

    def close(self) -> None:
        """Close the file. May be called more than once."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def sending(self, letters: Iterable[tuple[str, str]]) -> None:
        """Announce the message ids and offset message ids of a window before it is sent.

        The caller must call `sync` before it sends. If this method raises OSError, no message of
        the window may be sent.
        """
        self._write(
            f'{{"sending": {_quoted(message_id)}, "letter": {_quoted(letter)}}}\n'
            for message_id, letter in letters
        )

    def finished(self, outcomes: Iterable[Outcome]) -> None:
        """Write the outcomes of a window. If it raises OSError, the window counts as in flight."""
        self._write(map(_line_after, outcomes))

    def sync(self) -> None:
        """Wait until all written lines are on the disk."""
        files.sync_data(self._open)

    def _write(self, lines: Iterable[str]) -> None:
        left = memoryview("".join(lines).encode())
        while left:
            left = left[os.write(self._open, left) :]

    def _load(self, header: dict[str, Any], ids: MessageIds) -> int:
        """Load a journal. Return the end of the last whole line, or 0 if there is none."""
        end = 0
        pending: dict[str, str] = {}  # announced ids without an outcome
        rows: list[tuple[str, str, Claim]] = []
        for number, (line, end_of_line) in enumerate(self._lines()):
            if number == 0:
                self._check_header(line, header)
            elif not _apply(line, pending, rows):
                self._check_torn(number + 1, pending)
                break
            end = end_of_line
            if len(rows) >= _ROWS:
                ids.load(rows)
                rows.clear()
        ids.load(rows)
        ids.load((*letter, Claim.UNKNOWN) for letter in pending.items())
        return end

    def _lines(self) -> Iterator[tuple[Any, int]]:
        """Yield each whole line as JSON (None for invalid JSON), with the offset of its end.

        A last line without a line feed is torn and left out. But if it is the only line and cannot
        be the beginning of a journal, yield None for it.
        """
        end = 0
        with os.fdopen(os.dup(self._open), "rb") as file:
            file.seek(0)
            for line in file:
                end += len(line)
                if line.endswith(b"\n"):
                    yield _json(line), end
                elif end == len(line) and not _HEADER_START.startswith(line[: len(_HEADER_START)]):
                    yield None, end

    def _check_header(self, line: Any, header: dict[str, Any]) -> None:
        if not isinstance(line, dict) or "redrive" not in line:
            raise self._refused("is not the journal of a redrive: give another file")
        if line.get("redrive") != VERSION:
            raise self._refused(
                f"is a journal of version {line['redrive']}, and this program writes {VERSION}: "
                "give another file, or continue with the program that wrote it"
            )
        for name in ("group", "target"):
            if line.get(name) != header[name]:
                raise self._refused(
                    f"is the journal of a redrive of the {name} {line.get(name)}, and this one has "
                    f"the {name} {header[name]}: give another file"
                )

    def _check_torn(self, number: int, pending: Container[str]) -> None:
        """Check that the lines from an invalid line on can result from a crash.

        Raises MqError with the code INVALID_PARAMETER if they are too many, or if they contain the
        outcome of a message that is not in `pending`.
        """
        after = 0
        announced_before = True
        for line, _ in islice(self._lines(), number, None):
            after += 1
            match line:
                case {"sent": str(message_id)} | {"failed": str(message_id)}:
                    announced_before = announced_before and message_id in pending
        if after > _TORN_LINES or not announced_before:
            raise self._refused(
                f"is damaged: line {number} is not a line of a journal, and {after:,} follow it; "
                "restore the file, or begin another one, which sends everything again"
            )

    def _refused(self, why: str) -> MqError:
        return invalid_parameter(f"{self._path} {why}", about="journal")


def _check_new(path: Path) -> None:
    """Raise OSError if the file `path`, which does not exist, cannot be made."""
    directory = path.parent
    if not directory.is_dir():
        number = errno.ENOTDIR if directory.exists() else errno.ENOENT
    elif not os.access(directory, os.W_OK | os.X_OK):
        number = errno.EACCES
    else:
        return
    raise OSError(number, os.strerror(number), str(path))


_HEADER_START = b'{"redrive": '


# Encodes a string as JSON in ASCII, in a quarter of the time of json.dumps.
_quoted = json.encoder.encode_basestring_ascii


def _line_after(outcome: Outcome) -> str:
    """Return the line for an outcome, or "" for a message that was not to be sent."""
    if outcome.status is Status.SENT:
        return f'{{"sent": {_quoted(outcome.message_id)}}}\n'
    if outcome.status is not Status.FAILED:
        return ""
    unknown = ', "unknown": true' if outcome.outcome_unknown else ""
    return f'{{"failed": {_quoted(outcome.message_id)}{unknown}}}\n'


def _json(line: bytes) -> Any:
    try:
        return json.loads(line)
    except ValueError:
        return None


def _apply(line: Any, pending: dict[str, str], rows: list[tuple[str, str, Claim]]) -> bool:
    """Apply one line of the journal. Return False if it is invalid after the preceding lines."""
    match line:
        case {"sending": str(message_id), "letter": str(letter)}:
            if message_id in pending:  # announced by a killed run; this send may fail
                rows.append((message_id, pending[message_id], Claim.UNKNOWN))
            pending[message_id] = letter
        case {"sent": str(message_id)} if message_id in pending:
            rows.append((message_id, pending.pop(message_id), Claim.SENT))
        case {"failed": str(message_id), "unknown": True} if message_id in pending:
            rows.append((message_id, pending.pop(message_id), Claim.UNKNOWN))
        case {"failed": str(message_id)} if message_id in pending:
            pending.pop(message_id)
        case _:
            return False
    return True


def _lock(descriptor: int, path: Path) -> None:
    if not files.lock(descriptor):
        raise invalid_parameter(
            f"another redrive is writing {path}: wait for its end, or give another file",
            about="journal",
        )
