"""Check the column `properties` of a DataFrame, and encode it as property strings.

A property string has the form name 0x01 value 0x02 name 0x01 value 0x02 …. The Python client
applies the same checks to messages. Reserved names are rejected. But in rows that a read returned,
they are left out, because brokers and clients have set them. This module does no I/O.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from aerobee_spark.errors import RowError
from aerobee_spark.writing import arrays
from aerobee_spark.writing.arrays import Coded, Ints, Mask
from aerobee_wire import properties as names

_SEPARATORS = (names.NAME_END_CODE, names.VALUE_END_CODE)
# Reserved names that are kept if a row that a read returned is written again.
_OF_THE_MESSAGE = (names.SHARDING_KEY, names.PRIORITY)
_NO_PRIORITY = arrays.NONE


@dataclass(frozen=True, slots=True)
class MapColumn:
    """The encoded column `properties`.

    `strings` is an array of pa.binary() with the encoded properties of each row. `groups` and
    `priorities` are the message groups and priorities among the properties. Only rows that a read
    returned can have them there.
    """

    strings: pa.Array
    groups: Coded
    priorities: Ints


def encode(column: pa.MapArray, rows: Ints, of_a_read: Mask, *, keep_group: bool) -> MapColumn:
    """Check and encode the column `properties`.

    Args:
        column: the maps of all rows.
        rows: the number of each row in the partition.
        of_a_read: True for each row that a read returned.
        keep_group: in such rows, keep the message group among the properties.

    Raises:
        RowError: a name or value is invalid.
    """
    entries = _Entries(column, rows)
    entries.check()
    names_of = Coded(*arrays.coded(entries.names))
    kept = _kept(names_of, entries, of_a_read, keep_group=keep_group)
    entries.check_values(kept)
    groups = entries.of(names_of, names.SHARDING_KEY, kept)
    priorities = np.full(len(column), _NO_PRIORITY, np.int64)
    found = entries.of(names_of, names.PRIORITY, kept)
    for code, value in enumerate(found.values):
        number = names.whole_number(bytes(value))
        priorities[found.codes == code] = _NO_PRIORITY if number is None else max(0, number)
    return MapColumn(entries.strings(kept), groups, priorities)


class _Entries:
    """The entries of the maps of all rows: names, values, and the row of each entry."""

    def __init__(self, column: pa.MapArray, rows: Ints) -> None:
        at = np.asarray(column.offsets).astype(np.int64)
        first, last = int(at[0]), int(at[-1])
        self.begins = at - first
        self.names = arrays.binary(column.keys.slice(first, last - first))
        self.values = arrays.binary(column.items.slice(first, last - first))
        self.row_of = np.repeat(np.arange(len(column)), np.diff(at))
        self._rows = rows

    def check(self) -> None:
        for what, array in (("name", self.names), ("value", self.values)):
            bad = arrays.first(arrays.sizes(array) == 0)  # the size of null is 0
            if bad is not None:
                raise self.error(bad, f"has an empty {what}: remove the entry")
            bad = arrays.first_with(array, _SEPARATORS)
            if bad is not None:
                raise self.error(bad, "has \\x01 or \\x02, which separate properties")

    def check_values(self, kept: Mask) -> None:
        """Raise RowError if a value to send has a control character, which brokers reject."""
        values = self.values if kept.all() else self.values.filter(pa.array(kept))
        bad = arrays.first_with_control(values)
        if bad is not None:
            raise self.error(
                int(np.flatnonzero(kept)[bad]),
                "has a control character: encode the value, or move it to the body",
            )

    def error(self, entry: int, problem: str) -> RowError:
        name = self.names[entry].as_py().decode("utf-8", "replace")
        row = int(self._rows[self.row_of[entry]])
        return RowError(row, f"the property {name!r} {problem}", "properties")

    def of(self, names_of: Coded, name: str, kept: Mask) -> Coded:
        """Return the value of the property `name` for each row, or nothing if a row lacks it.

        Entries of the maps for which `kept` is false are ignored.
        """
        count = len(self.begins) - 1
        encoded = name.encode()
        if encoded not in names_of.values:
            return arrays.nothing(count)
        is_it = (names_of.codes == list(names_of.values).index(encoded)) & kept
        found = np.flatnonzero(is_it)
        values = arrays.coded(self.values.take(pa.array(found)))
        codes = np.full(count, arrays.NONE, np.int64)
        codes[self.row_of[found]] = values.codes
        return Coded(values.values, codes)

    def strings(self, kept: Mask) -> pa.Array:
        """Return the encoded properties of each row. Leave out entries that are not kept."""
        entry_names, values, begins = self.names, self.values, self.begins
        if not kept.all():
            entry_names, values = (part.filter(pa.array(kept)) for part in (entry_names, values))
            before = np.zeros(len(kept) + 1, np.int64)
            np.cumsum(kept, out=before[1:])
            begins = before[begins]
        end, stop = names.NAME_END_BYTES, names.VALUE_END_BYTES
        encoded = arrays.joined(entry_names, end, values, stop)
        # The entries of a row are contiguous, and therefore their encoded bytes are too.
        return arrays.from_parts(arrays.contents(encoded), arrays.offsets(encoded)[begins])


def _name_problem(name: str) -> str:
    if name.isspace():
        return "has a blank name: give one"
    if names.has_control(name):
        return "has a control character in its name: use printable text"
    return ""


def _kept(names_of: Coded, entries: _Entries, of_a_read: Mask, *, keep_group: bool) -> Mask:
    """Return which entries are sent.

    Raise RowError if a name is illegal, or if a row that no read returned has a reserved name.
    """
    kept = np.ones(len(names_of.codes), np.bool_)
    for code, name in enumerate(names_of.values):
        text = bytes(name).decode("utf-8", "replace")
        if text not in names.RESERVED:
            problem = _name_problem(text)
            if problem:
                raise entries.error(int(np.argmax(names_of.codes == code)), problem)
            continue
        is_it = names_of.codes == code
        bad = arrays.first(is_it & ~of_a_read[entries.row_of])
        if bad is not None:
            raise entries.error(
                bad,
                "has a reserved name: choose another (in rows of a read such names are left out "
                "if the frame has the column queueOffset)",
            )
        if text not in _OF_THE_MESSAGE or (text == names.SHARDING_KEY and not keep_group):
            kept &= ~is_it
    return kept
