"""Keep the offsets of a broadcasting member in a file.

The format is the one of RocketMQ's offsets.json. A member can therefore move between this client
and a Java client.

    {"offsetTable":{{"brokerName":"broker-a","queueId":0,"topic":"orders"}:17, …}}

RocketMQ writes an object in the place of a key, which is not valid JSON. This module therefore
reads and writes the parts one by one with `json`. The file is always replaced as a whole. A lock on
FILE.lock prevents two consumers from using the file at the same time. FILE.lock is never deleted.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from aerobee_client.message_queue import MessageQueue
from aerobee_wire import files
from aerobee_wire.status import MqError, illegal_operation, invalid_parameter

_OPENING = '{"offsetTable":{'


class OffsetFile:
    """A file of offsets. Its methods block, so call them in a thread.

    They raise MqError: with the code INVALID_PARAMETER if the file cannot be read or written, and
    ILLEGAL_OPERATION if another consumer uses it.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._lock: int | None = None

    def open(self) -> dict[MessageQueue, int]:
        """Lock the file and return its offsets. Return an empty mapping if there is no file yet."""
        try:
            self._take_lock()
            return decode(self.path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            if not self.path.parent.is_dir():
                self.close()
                raise self._unusable(f"there is no directory {self.path.parent}") from None
            return {}
        except (OSError, ValueError) as error:
            self.close()
            raise self._unusable(str(error)) from None

    def write(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Replace the file. After a crash, it holds either the old or the new offsets."""
        beside = self.path.with_name(self.path.name + ".tmp")
        try:
            with beside.open("w", encoding="utf-8") as file:
                file.write(encode(offsets))
                file.flush()
                files.sync(file.fileno())
            beside.replace(self.path)
            files.sync_directory(self.path.parent)
        except OSError as error:
            raise self._unusable(str(error)) from None

    def close(self) -> None:
        """Unlock the file. May be called more than once."""
        lock, self._lock = self._lock, None
        if lock is not None:
            files.unlock(lock)
            os.close(lock)

    def _take_lock(self) -> None:
        self._lock = os.open(f"{self.path}.lock", os.O_RDWR | os.O_CREAT, 0o644)
        if not files.lock(self._lock):
            os.close(self._lock)
            self._lock = None
            raise illegal_operation(
                f"another consumer keeps its offsets in {self.path}: give each its own offset_file"
            )

    def _unusable(self, why: str) -> MqError:
        return invalid_parameter(
            f"the offset_file {self.path} cannot be used: {why}; give another path, or move the "
            "file away to start as consume_from_where says"
        )


def encode(offsets: Mapping[MessageQueue, int]) -> str:
    rows = []
    for queue, queue_offset in sorted(offsets.items()):
        key = {"brokerName": queue.broker_name, "queueId": queue.queue_id, "topic": queue.topic}
        rows.append(f"{json.dumps(key, ensure_ascii=False, separators=(',', ':'))}:{queue_offset}")
    return _OPENING + ",".join(rows) + "}}"


def decode(text: str) -> dict[MessageQueue, int]:
    """Decode the text of an offset file. Raises ValueError if it is invalid.

    The text may have spaces between the parts, keys in quotes, and other members beside
    `offsetTable`.
    """
    parts = _Parts(text)
    found: dict[MessageQueue, int] = {}
    for name in parts.names():
        if name != "offsetTable":
            parts.value()
            continue
        for key in parts.names():
            queue_offset = parts.value()
            row = json.loads(key) if isinstance(key, str) else key
            try:
                queue = MessageQueue(row["topic"], row["brokerName"], row["queueId"])
            except (KeyError, TypeError):
                raise ValueError(f"{key!r} names no message queue") from None
            if not isinstance(queue_offset, int) or queue_offset < 0:
                raise ValueError(f"the offset of {queue} is {queue_offset!r}")
            found[queue] = queue_offset
    parts.end()
    return found


class _Parts:
    """Reads the parts of a JSON-like text one after the other, from its start."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._decoder = json.JSONDecoder()

    def names(self) -> Any:
        """Yield the names in the object at the current position.

        The caller must read the value of each name before it asks for the next.
        """
        self._take("{")
        if self._next() == "}":
            self._take("}")
            return
        while True:
            yield self.value()
            if self._next() == "}":
                self._take("}")
                return
            self._take(",")

    def value(self) -> Any:
        """Return the key or value at the current position, and skip the colon after a key."""
        self._next()
        found, self._at = self._decoder.raw_decode(self._text, self._at)
        if self._next() == ":":
            self._take(":")
        return found

    def end(self) -> None:
        if self._next():
            raise ValueError(f"something follows at character {self._at + 1}")

    def _next(self) -> str:
        while self._text[self._at : self._at + 1].isspace():
            self._at += 1
        return self._text[self._at : self._at + 1]

    def _take(self, expected: str) -> None:
        if self._next() != expected:
            raise ValueError(f"{expected!r} is missing at character {self._at + 1}")
        self._at += 1
