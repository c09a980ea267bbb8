"""Messages by their place or by their key: for tools and reports, not for consumers."""

from __future__ import annotations

from aerobee_broker.errors import InvalidParameter, MessageCorrupted
from aerobee_broker.store.message_store import MessageStore
from aerobee_wire.message_id import parse_offset_message_id
from aerobee_wire.record import Record

DEFAULT_MESSAGES = 32
MAX_MESSAGES = 64
_FOREVER_MS = (1 << 63) - 1


class Archive:
    def __init__(self, store: MessageStore) -> None:
        self._store = store

    def at(self, physical_offset: int) -> Record:
        """Raises MessageNotFound, MessageCorrupted."""
        return self._store.get(physical_offset)

    def by_offset_message_id(self, message_id: str) -> Record:
        """Of a message of this broker; the host in the id is not looked at: it may have moved."""
        return self.at(parse_offset_message_id(message_id)[1])

    def query(
        self,
        topic: str,
        key: str,
        *,
        max_messages: int,
        begin_ms: int,
        end_ms: int,
        unique: bool,
    ) -> tuple[list[Record], list[MessageCorrupted]]:
        """Messages with a token of KEYS, or with a unique id, newest first; and why records that
        the index names could not be read."""
        if not topic or not key:
            raise InvalidParameter("give a topic and a key")
        if max_messages < 0:
            raise InvalidParameter(f"max_messages {max_messages} is below 0")
        damaged: list[MessageCorrupted] = []
        found = self._store.query(
            topic,
            key,
            max_messages=min(max_messages or DEFAULT_MESSAGES, MAX_MESSAGES),
            begin_ms=begin_ms,
            end_ms=end_ms or _FOREVER_MS,
            unique=unique,
            damaged=damaged,
        )
        return found, damaged
