"""Finds and hashes the tags and keys of many messages at once, with arrays.

A key takes 0.3 µs instead of 3. A properties string is regular if its two separators alternate and
it ends with the second one. An irregular string has no keys, but the same tags code as in an
append.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from aerobee_broker.store.derived.record_columns import Ints, different, rows
from aerobee_broker.store.derived.topic_encoding import TAGS as TAGS_NAME
from aerobee_broker.store.derived.topic_encoding import TopicEncoding
from aerobee_wire.properties import (
    KEY_SEPARATOR,
    KEYS,
    NAME_END_BYTES,
    NAME_END_CODE,
    TAGS,
    UNIQUE_KEY,
    VALUE_END_BYTES,
    VALUE_END_CODE,
)
from aerobee_wire.properties import get as get_property
from aerobee_wire.tags import java_hash, tags_code

Hashes = npt.NDArray[np.uint32]

_SPACE = ord(KEY_SEPARATOR)
_SEPARATORS = NAME_END_BYTES + VALUE_END_BYTES
_MASK = 0xFFFF_FFFF
_MAX_INT = 0x7FFF_FFFF
_TOKENS = 1 << 16  # more than a properties string of 32 KB can contain


def is_regular(properties: bytes) -> bool:
    """Return whether names and values alternate up to the end of the string."""
    marks = bytes(byte for byte in properties if byte in _SEPARATORS)
    whole = not properties or properties[-1] == VALUE_END_CODE
    return whole and marks == _SEPARATORS * (len(marks) // 2)


@lru_cache(maxsize=256)
def _powers_of_31(count: int) -> Hashes:
    """Return the first `count` powers of 31 modulo 2^32, from the highest down to 1."""
    return np.array([pow(31, at, 1 << 32) for at in reversed(range(count))], dtype=np.uint32)


class Properties:
    """The properties strings of some records, concatenated in one array."""

    def __init__(self, joined: bytes, ends: Ints) -> None:
        """Create the object from concatenated strings.

        `ends[i]` is the end of the properties string of record i.

        `regular` is False if a string is irregular. The object is not usable then.
        """
        self.irregular: list[tuple[int, bytes]] = []
        self.joined = joined
        self.bytes = np.frombuffer(joined, dtype=np.uint8)
        self._name_ends: Ints = np.flatnonzero(self.bytes == NAME_END_CODE)
        self._value_ends: Ints = np.flatnonzero(self.bytes == VALUE_END_CODE)
        self.regular = self._is_regular(ends)
        if self.regular:
            self._starts = np.empty_like(self._value_ends)
            self._starts[:1] = 0
            self._starts[1:] = self._value_ends[:-1] + 1
            # One search for each record: a search for each property would take three times as long.
            bounds = np.searchsorted(self._value_ends, ends)
            counts = np.diff(bounds, prepend=0)
            self._records: Ints = np.repeat(np.arange(len(ends)), counts)

    @classmethod
    def of(cls, strings: Sequence[bytes]) -> Properties:
        """Create the object from one properties string for each record.

        An irregular string counts as empty, except for its tags.
        """
        lengths = np.fromiter(map(len, strings), dtype=np.int64, count=len(strings))
        result = cls(b"".join(strings), np.cumsum(lengths))
        if not result.regular:
            irregular = [(at, text) for at, text in enumerate(strings) if not is_regular(text)]
            result = cls.of([text if is_regular(text) else b"" for text in strings])
            result.irregular = irregular
        return result

    def _is_regular(self, ends: Ints) -> bool:
        names, values = self._name_ends, self._value_ends
        if len(names) != len(values):
            return False
        alternate = bool((names < values).all() and (values[:-1] < names[1:]).all())
        filled = ends[ends > 0]
        return alternate and bool((self.bytes[filled - 1] == VALUE_END_CODE).all())

    def values(self, name: str) -> tuple[Ints, Ints, Ints]:
        """Return the columns (record, start, end) of the values of a property.

        If a record has the property several times, only the first value counts. Records without the
        property, or with an empty value, are left out.
        """
        encoded = name.encode()
        candidates = np.flatnonzero(self._name_ends - self._starts == len(encoded))
        for at, byte in enumerate(encoded):
            candidates = candidates[self.bytes[self._starts[candidates] + at] == byte]
        records = self._records[candidates]
        if len(records) > 1 and (records[1:] == records[:-1]).any():
            is_first = np.concatenate(([True], records[1:] != records[:-1]))
            records, candidates = records[is_first], candidates[is_first]
        starts, ends = self._name_ends[candidates] + 1, self._value_ends[candidates]
        filled = starts < ends
        if filled.all():
            return records, starts, ends
        return records[filled], starts[filled], ends[filled]

    def tags_codes(self, count: int) -> Ints:
        """Return Java's hash of TAGS for each of `count` records, or 0 without TAGS."""
        codes = np.zeros(count, dtype=np.int64)
        records, starts, ends = self.values(TAGS)
        codes[records] = self.hashes(starts, ends).view(np.int32)
        for at, properties in self.irregular:
            tags = get_property(properties, TAGS_NAME)
            codes[at] = tags_code((tags or b"").decode("utf-8", "replace"))
        return codes

    def keys(self) -> tuple[Ints, Ints, Ints]:
        """Return the columns (record, start, end) of all keys, in the order of the records.

        The keys of a record are its unique id, and then each of its KEYS.
        """
        unique, unique_starts, unique_ends = self.values(UNIQUE_KEY)
        records, starts, ends = self.values(KEYS)
        single = self._single(starts, ends)
        parts = [
            (unique * _TOKENS, unique, unique_starts, unique_ends),
            (records[single] * _TOKENS + 1, records[single], starts[single], ends[single]),
        ]
        several = self._several(records[~single], starts[~single], ends[~single])
        order, of, begin, end = (
            np.concatenate(column) for column in zip(*parts, several, strict=True)
        )
        by_record = np.argsort(order, kind="stable")
        return of[by_record], begin[by_record], end[by_record]

    def _single(self, starts: Ints, ends: Ints) -> npt.NDArray[np.bool_]:
        """Return for each value whether it is one key, because it does not contain a space."""
        spaces = np.flatnonzero(self.bytes == _SPACE)
        found = np.searchsorted(spaces, ends) - np.searchsorted(spaces, starts)
        return np.asarray(found == 0)

    def _several(self, records: Ints, starts: Ints, ends: Ints) -> tuple[Ints, Ints, Ints, Ints]:
        """Return the columns (order, record, start, end) of the keys in values with spaces."""
        rows = []
        for of, start, end in zip(records.tolist(), starts.tolist(), ends.tolist(), strict=True):
            at = start
            for number, token in enumerate(self.joined[start:end].split(b" "), start=1):
                if token:
                    rows.append((of * _TOKENS + number, of, at, at + len(token)))
                at += len(token) + 1
        table = np.array(rows, dtype=np.int64).reshape(-1, 4)
        return table[:, 0], table[:, 1], table[:, 2], table[:, 3]

    def hashes(self, starts: Ints, ends: Ints, prefixes: Hashes | None = None) -> Hashes:
        """Return Java's hash of each text between `starts` and `ends`.

        With `prefixes`, return the hash of prefix and text. `prefixes` has the hash of each prefix.
        """
        lengths = ends - starts
        result = np.zeros(len(starts), dtype=np.uint32)
        for length in different(lengths):
            members = np.flatnonzero(lengths == length)
            powers = _powers_of_31(length + 1)
            texts = rows(self.joined, starts[members], length).astype(np.uint32)
            hashes = np.einsum("ij,j->i", texts, powers[1:])
            if prefixes is not None:
                hashes += prefixes[members] * powers[0]
            result[members] = hashes
        if len(self.bytes) and self.bytes.max() > 127:
            self._hash_wide(starts, ends, prefixes, result)
        return result

    def _hash_wide(self, starts: Ints, ends: Ints, prefixes: Hashes | None, result: Hashes) -> None:
        """Replace the hashes of texts that are not ASCII: Java hashes their UTF-16 code units."""
        for at, (start, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
            text = self.joined[start:end]
            if not text.isascii():
                units = text.decode("utf-8", "replace")
                power = pow(31, len(units.encode("utf-16-be", "surrogatepass")) // 2, 1 << 32)
                before: Any = int(prefixes[at]) if prefixes is not None else 0
                result[at] = (before * power + java_hash(units)) & _MASK


class Keys:
    """Keys for the index, as columns, in the order of the log.

    Each key has its hash, and the physical offset and store timestamp (ms) of its record.
    """

    __slots__ = ("hashes", "physical_offsets", "stored_ms")

    def __init__(self, hashes: Hashes, physical_offsets: Ints, stored_ms: Ints) -> None:
        """Create keys from Java's hashes of topic#key, and drop the sign as RocketMQ does."""
        signed = np.abs(hashes.view(np.int32).astype(np.int64))
        signed[signed > _MAX_INT] = 0
        self.hashes: Ints = signed
        self.physical_offsets = physical_offsets
        self.stored_ms = stored_ms

    @classmethod
    def of(cls, messages: Sequence[tuple[TopicEncoding, bytes, int, int]]) -> Keys:
        """Return the entries of the index for the message keys and unique ids of messages.

        Each message is (topic, properties string, physical offset, store timestamp in ms).
        """
        topics, strings, physical_offsets, stored_ms = zip(*messages, strict=True)
        properties = Properties.of(strings)
        of, starts, ends = properties.keys()
        prefixes = np.array([topic.key_hash for topic in topics], dtype=np.uint32)
        hashes = properties.hashes(starts, ends, prefixes[of])
        return cls(
            hashes, np.array(physical_offsets, np.int64)[of], np.array(stored_ms, np.int64)[of]
        )

    def __len__(self) -> int:
        return len(self.hashes)

    def add(self, other: Keys) -> None:
        for column in self.__slots__:
            setattr(self, column, np.concatenate((getattr(self, column), getattr(other, column))))

    def drop(self, count: int) -> None:
        """Remove the first `count` keys."""
        for column in self.__slots__:
            setattr(self, column, getattr(self, column)[count:])
