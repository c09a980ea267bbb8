"""Decide whether a stored message meets the conditions of a search."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from aerobee_broker.filter.filter import Filter
from aerobee_wire import properties as props
from aerobee_wire.compression import decompress
from aerobee_wire.record import Record
from aerobee_wire.status import MqError

# Decompressing this takes about 10 ms of the event loop.
MAX_TEXT_BODY_BYTES = 4 * 1024 * 1024


class BodyUnreadable(Exception):
    """The body cannot be decompressed, or is too large when decompressed."""


@dataclass(frozen=True, slots=True)
class Conditions:
    """The conditions of a search. Times are store times in milliseconds since the epoch."""

    filter: Filter
    key: str = ""
    text: bytes = b""
    begin_ms: int = 0
    end_ms: int = (1 << 63) - 1

    @property
    def everything(self) -> bool:
        """Return whether every message within the bounds of time matches."""
        return self.filter.everything and not self.key and not self.text

    def matches(self, record: Record, count: Callable[[int], None]) -> bool:
        """Return whether a message matches. Raises BodyUnreadable.

        Calls `count` with the bytes of a body that is decompressed and searched.
        """
        if not self.begin_ms <= record.store_timestamp_ms <= self.end_ms:
            return False
        if self.everything:
            return True
        if self.key and not has_key(record, self.key):
            return False
        # Decoding properties takes several microseconds, and an empty filter needs none.
        if not self.filter.everything and not self.filter.matches(record.properties):
            return False
        return not self.text or self._has_text(record, count)

    def _has_text(self, record: Record, count: Callable[[int], None]) -> bool:
        try:
            body = decompress(record.body, record.sys_flag, MAX_TEXT_BODY_BYTES)
        except MqError as error:
            count(MAX_TEXT_BODY_BYTES)  # at most this was decompressed
            raise BodyUnreadable from error
        count(len(body))
        return self.text in body


def has_key(record: Record, key: str) -> bool:
    """Return whether a message has this key or unique message id."""
    if record.unique_message_id == key:
        return True
    return key in record.properties.get(props.KEYS, "").split(props.KEY_SEPARATOR)
