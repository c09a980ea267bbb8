"""The encoding that all records of a topic share, and the tags codes of messages."""

from __future__ import annotations

from collections.abc import Callable

from aerobee_wire import record
from aerobee_wire.properties import NAME_END_BYTES
from aerobee_wire.tags import java_hash, tags_code

TAGS = b"TAGS" + NAME_END_BYTES
_CACHED_TAGS = 10_000  # a full cache is cleared

TagsCode = Callable[[bytes, int], int]  # properties, store timestamp (ms) → tags code


class TopicEncoding:
    """The topic field, magic code and hash that all records of a topic share, computed once."""

    __slots__ = ("field", "key_hash", "magic", "name", "tags_code")

    def __init__(self, name: str, tags_code: TagsCode | None) -> None:
        encoded = name.encode()
        wide = len(encoded) > record.V1_TOPIC_BYTES
        self.name = name
        self.magic = record.MAGIC_V2 if wide else record.MAGIC_V1
        self.field = len(encoded).to_bytes(2 if wide else 1, "big") + encoded
        self.tags_code = tags_code
        # Java's hash of "topic#". The hash of "topic#key" continues from it.
        self.key_hash = java_hash(name + "#") & 0xFFFF_FFFF


class TagsCodes(dict[bytes | None, int]):
    """A cache that maps the value of the property TAGS to its tags code."""

    def __missing__(self, tags: bytes | None) -> int:
        if len(self) >= _CACHED_TAGS:
            self.clear()
        code = self[tags] = tags_code((tags or b"").decode("utf-8", "replace"))
        return code
