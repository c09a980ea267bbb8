"""Replace values of named properties and JSON fields by short hashes.

Values are replaced before any file is written. Equal values have equal hashes, so keys stay
comparable within a report and between reports. Without a secret key, an attacker can guess a value
with few possibilities by hashing each possibility. This module does no I/O.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from aerobee_spark.reading.options import redacted_names
from aerobee_wire import properties as props
from aerobee_wire.record import COMPRESSED

DIGEST_BYTES = 6
# Marks hashes, to distinguish them from values.
MARK = "~"
# White space and byte order marks, which may precede the first character of JSON in UTF-8, UTF-16
# or UTF-32.
_NO_TEXT = b" \t\r\n\0\xff\xfe\xef\xbb\xbf"
# Columns that have the same value as a property.
_COLUMNS = {"tags": props.TAGS, "keys": props.KEYS, "msgId": props.UNIQUE_KEY}


@dataclass(frozen=True, slots=True)
class Redaction:
    """Redacts messages: replaces the values of some properties and JSON fields by hashes.

    `names` are the names of properties, and of fields at any depth of a JSON body. `secret` is the
    key of the hashes. Without a key, hashes can be compared with hashes of guessed values.
    """

    names: frozenset[str]
    secret: bytes = field(default=b"", repr=False)

    @classmethod
    def of(cls, names: Iterable[str], secret: bytes) -> Redaction:
        return cls(frozenset(redacted_names(names)), secret)

    def hash(self, value: str | bytes) -> str:
        """Return the hash of a value, which is "~" and twelve hexadecimal digits."""
        data = value.encode("utf-8", "surrogatepass") if isinstance(value, str) else value
        return MARK + hashlib.blake2b(data, key=self.secret, digest_size=DIGEST_BYTES).hexdigest()

    def property(self, name: str, value: str) -> str:
        """Redact one property.

        In KEYS, each key gets its own hash, so that keys stay separate. Descriptions that differ
        only in numbers and ids get one hash, so that clusters of causes stay together.
        """
        if name == props.KEYS:
            return " ".join(self.hash(word) for word in value.split(" ") if word)
        if name == props.DLQ_REASON_DESCRIPTION:
            value = masked(value)
        return self.hash(value)

    def body(self, body: bytes, *, is_readable: bool) -> bytes:
        """Redact one body.

        If a JSON body has fields to redact, it is serialized again with hashes in place of their
        values. A body that is not readable, or whose JSON is broken, becomes one hash, because it
        could contain such a field. A body that is not JSON is unchanged.
        """
        if not is_readable:
            return self.hash(body).encode()
        start = body.lstrip(_NO_TEXT)[:1]
        if start not in (b"{", b"[") or not self._may_name(body):
            return body
        try:
            loaded = json.loads(body)
            replaced, found = self._replaced(loaded)
        except (ValueError, RecursionError):
            return self.hash(body).encode()
        return json.dumps(replaced, separators=(",", ":")).encode() if found else body

    def _may_name(self, body: bytes) -> bool:
        """Return whether a JSON body may have a field to redact.

        Return True if one of the names occurs in the bytes, if escapes could hide a name, or if the
        text is not UTF-8.
        """
        is_plain = b"\\" not in body and b"\0" not in body
        return not is_plain or any(name.encode() in body for name in self.names)

    def _replaced(self, value: Any) -> tuple[Any, bool]:
        """Return a JSON value with its fields redacted, and whether any field was redacted."""
        if isinstance(value, list):
            parts = [self._replaced(each) for each in value]
            return [each for each, _ in parts], any(found for _, found in parts)
        if not isinstance(value, dict):
            return value, False
        replaced: dict[str, Any] = {}
        found = False
        for name, each in value.items():
            if name in self.names:
                replaced[name], found = self._field(each), True
            else:
                replaced[name], inside = self._replaced(each)
                found |= inside
        return replaced, found

    def _field(self, value: Any) -> str | None:
        """Redact the value of a JSON field: hash a string as it is, and any other value as JSON.

        Null stays null.
        """
        if value is None:
            return None
        text = value if isinstance(value, str) else json.dumps(value, sort_keys=True)
        return self.hash(text)


def redacted(rows: pa.RecordBatch, redaction: Redaction) -> pa.RecordBatch:
    """Return the rows with redacted properties and bodies.

    Columns that have the same value as a property are redacted too.
    """
    changed = {
        "properties": _properties(rows.column("properties"), redaction),
        "body": _bodies(rows, redaction),
    }
    for column, name in _COLUMNS.items():
        if name in redaction.names:
            changed[column] = _texts(rows, column, name, redaction)
    arrays = [changed.get(name, rows.column(name)) for name in rows.schema.names]
    return pa.RecordBatch.from_arrays(arrays, schema=rows.schema)


def _properties(maps: pa.MapArray, redaction: Redaction) -> pa.Array:
    if maps.null_count:  # the user excluded properties from the read
        return maps
    names, values = maps.keys, maps.items
    mask = pc.is_in(names, value_set=pa.array(redaction.names, pa.string()))
    found = zip(names.filter(mask).to_pylist(), values.filter(mask).to_pylist(), strict=True)
    hashes = [redaction.property(name, value) for name, value in found]
    replaced = pc.replace_with_mask(values, mask, pa.array(hashes, pa.string()))
    return pa.MapArray.from_arrays(maps.offsets, names, replaced)


def _texts(rows: pa.RecordBatch, column: str, name: str, redaction: Redaction) -> pa.Array:
    """Redact a text column that has the value of the property `name`.

    In msgId, an offset message id that replaces a missing unique id is unchanged.
    """
    places = rows.column("offsetMsgId").to_pylist()
    values = zip(rows.column(column).to_pylist(), places, strict=True)
    return pa.array(
        [
            value if value is None or value == place else redaction.property(name, value)
            for value, place in values
        ],
        pa.string(),
    )


def _bodies(rows: pa.RecordBatch, redaction: Redaction) -> pa.Array:
    bodies: pa.Array = rows.column("body")
    flags = np.asarray(rows.column("sysFlag"))
    packed: Collection[bool] = ((flags & COMPRESSED) != 0).tolist()
    return pa.array(
        [
            None if body is None else redaction.body(body, is_readable=not is_packed)
            for body, is_packed in zip(bodies.to_pylist(), packed, strict=True)
        ],
        pa.binary(),
    )


# ---- masking ----
#
# Mask the numbers and ids in the text of an exception, so that texts of one cause are equal.


MASK = "#"
# An id in hex with or without hyphens, or a number. The longer forms come first.
_VALUE = re.compile(
    r"\b0x[0-9a-fA-F]+\b"
    r"|\b[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}\b"
    r"|\b(?=[0-9a-fA-F]*[0-9])[0-9a-fA-F]{16,}\b"
    r"|\d+(?:[.,:]\d+)*"
)
# The hash of a redacted text.
_HASH = re.compile(r"~[0-9a-f]{12}")


def masked(text: str) -> str:
    """Return a text with its numbers and ids replaced by "#". A redacted text stays as it is."""
    return text if _HASH.fullmatch(text) else _VALUE.sub(MASK, text)
