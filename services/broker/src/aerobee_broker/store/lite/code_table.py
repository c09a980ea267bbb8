"""A hash table that maps each code to a few numbers. It uses arrays instead of objects.

An entry takes 8 bytes for its code and 8 for each number. At most 4/5 of the slots are used. With
two numbers, an entry takes 30 to 60 bytes, and an entry of a dict of tuples takes 250. A code is a
hash, so its lowest bits choose the slot. If that slot is used, the entry takes the next free one
(linear probing).
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence

FREE = 0  # a code is never 0
_FEWEST_SLOTS = 64
_CODE = "q"
CODE_BYTES = array(_CODE).itemsize
assert CODE_BYTES == 8


class CodeTable:
    """Maps codes, which are signed 64-bit numbers except 0, to numbers.

    `columns[n][slot]` is the number in column n of the code in this slot.
    """

    def __init__(self, column_count: int) -> None:
        self._codes = _zeros(_FEWEST_SLOTS)
        self.columns = [_zeros(_FEWEST_SLOTS) for _ in range(column_count)]
        self._mask = _FEWEST_SLOTS - 1
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[int]:
        """Iterate over the codes. The table must not be changed meanwhile."""
        return (code for code in self._codes if code)

    def slot(self, code: int) -> int:
        """Return the slot of a code, its index in each column, or -1 if the code is missing.

        The slot is valid until the table changes.
        """
        codes, mask = self._codes, self._mask
        at = code & mask
        while (found := codes[at]) != code:
            if found == FREE:
                return -1
            at = (at + 1) & mask
        return at

    def put(self, code: int, *numbers: int) -> None:
        """Add or replace a code, with a number for each column."""
        at = self.slot(code)
        if at < 0:
            if 5 * (self._count + 1) > 4 * len(self._codes):
                self._grow()
            at = self._free_slot(code)
            self._codes[at] = code
            self._count += 1
        for column, number in zip(self.columns, numbers, strict=True):
            column[at] = number

    def remove(self, code: int) -> bool:
        """Remove a code. Return False if it is missing."""
        hole = self.slot(code)
        if hole < 0:
            return False
        codes, mask = self._codes, self._mask
        at = hole
        while codes[at := (at + 1) & mask] != FREE:
            # Move an entry into the hole if a search for it would end at the hole.
            home = codes[at] & mask
            if (at - home) & mask >= (at - hole) & mask:
                self._move(at, hole)
                hole = at
        codes[hole] = FREE
        self._count -= 1
        return True

    def rows(self, *columns: int) -> list[tuple[int, ...]]:
        """Return a tuple for each code: the code and its numbers in these columns."""
        rows = zip(self._codes, *(self.columns[column] for column in columns), strict=True)
        return [row for row in rows if row[0]]

    def codes_where_below(self, column: int, limit: int) -> list[int]:
        """Return the codes whose number in this column is below a limit."""
        rows = zip(self._codes, self.columns[column], strict=True)
        return [code for code, number in rows if number < limit and code]

    def lower(self, column: int, limit: int) -> int:
        """Lower the numbers in a column that are above a limit to it, and return how many were."""
        numbers = self.columns[column]
        if max(numbers) <= limit:  # 0.5 ms for 100,000 slots
            return 0
        above = [at for at, code in enumerate(self._codes) if code and numbers[at] > limit]
        for at in above:
            numbers[at] = limit
        return len(above)

    def clear(self) -> None:
        self._codes = _zeros(_FEWEST_SLOTS)
        self.columns = [_zeros(_FEWEST_SLOTS) for _ in self.columns]
        self._mask = _FEWEST_SLOTS - 1
        self._count = 0

    def _move(self, source: int, target: int) -> None:
        for column in (self._codes, *self.columns):
            column[target] = column[source]

    def _free_slot(self, code: int) -> int:
        at = code & self._mask
        while self._codes[at] != FREE:
            at = (at + 1) & self._mask
        return at

    def _grow(self) -> None:
        codes, columns = self._codes, self.columns
        self._codes = _zeros(2 * len(codes))
        self.columns = [_zeros(2 * len(codes)) for _ in columns]
        self._mask = len(self._codes) - 1
        for before, code in enumerate(codes):
            if code:
                at = self._free_slot(code)
                self._codes[at] = code
                for old, new in zip(columns, self.columns, strict=True):
                    new[at] = old[before]

    # ---- as bytes ----

    def to_bytes(self) -> list[bytes]:
        """Return the bytes of the array of codes, then of each column, in the machine's byte order.

        A copy of 6 MB takes 1 ms.
        """
        return [column.tobytes() for column in (self._codes, *self.columns)]

    def load(self, parts: Sequence[bytes]) -> None:
        """Load the result of `to_bytes` of a table with the same number of columns.

        Raises ValueError if the parts are inconsistent.
        """
        columns = []
        for part in parts:
            column = array(_CODE)
            column.frombytes(part)
            columns.append(column)
        slots = len(columns[0])
        if len(columns) != 1 + len(self.columns) or {len(column) for column in columns} != {slots}:
            raise ValueError("a column is missing")
        if slots < _FEWEST_SLOTS or slots & (slots - 1):
            raise ValueError(f"a table has a power of two of slots, not {slots}")
        count = slots - columns[0].count(FREE)
        if 5 * count > 4 * slots:
            raise ValueError("too many slots are used")
        self._codes, *self.columns = columns
        self._mask, self._count = slots - 1, count


def _zeros(count: int) -> array[int]:
    return array(_CODE, bytes(count * CODE_BYTES))
