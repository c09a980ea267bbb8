"""Describe a binary layout of named fields of fixed size, big-endian, in one declaration.

Code that encodes, decodes or measures the layout, or reads arrays of it, takes the `struct.Struct`,
the offsets or the array type from this declaration. This module does not know Aerobee's formats.
"""

from __future__ import annotations

import struct
from itertools import accumulate

_KINDS = {"b": "i", "h": "i", "i": "i", "q": "i", "B": "u", "H": "u", "I": "u", "Q": "u"}


class Layout:
    """Consecutive fields without padding. A field is a name and its code in `struct`'s notation."""

    def __init__(self, *fields: tuple[str, str]) -> None:
        self._codes = dict(fields)
        assert len(self._codes) == len(fields), "a field is declared twice"
        self.struct = struct.Struct(">" + "".join(self._codes.values()))
        self.size = self.struct.size
        self._sizes = {name: struct.calcsize(f">{code}") for name, code in fields}
        ends = accumulate(self._sizes.values(), initial=0)
        self._offsets = dict(zip(self._codes, ends, strict=False))

    def offset_of(self, name: str) -> int:
        """Return the offset of a field's first byte."""
        return self._offsets[name]

    def with_codes(self, **codes: str) -> Layout:
        """Return a layout with the same fields, some of them with other codes."""
        return Layout(*(self._codes | codes).items())

    def merged(self, first: str, last: str) -> Layout:
        """Return a layout in which the fields from `first` to `last` are one field of bytes.

        The merged field has the name `first`. The size of the layout does not change.
        """
        chosen = self._between(first, last)
        merged = f"{sum(self._sizes[name] for name in chosen)}s"
        kept = [(name, code) for name, code in self._codes.items() if name not in chosen[1:]]
        return Layout(*kept).with_codes(**{first: merged})

    def view(self, *names: str) -> struct.Struct:
        """Return a struct that reads only the named fields, in declared order.

        Unpack it from the first byte of the whole layout.
        """
        assert list(names) == sorted(names, key=self._offsets.__getitem__), "not in their order"
        format_, end = ">", 0
        for name in names:
            gap = self._offsets[name] - end
            format_ += (f"{gap}x" if gap else "") + self._codes[name]
            end = self._offsets[name] + self._sizes[name]
        return struct.Struct(format_)

    def part(self, first: str, last: str) -> struct.Struct:
        """Return a struct that packs only the fields from `first` to `last`."""
        return struct.Struct(
            ">" + "".join(map(self._codes.__getitem__, self._between(first, last)))
        )

    def array_fields(self) -> list[tuple[str, str]]:
        """Return the fields for `numpy.dtype`. A field of bytes has an opaque type such as "V8"."""
        return [
            (name, f">{_KINDS[code]}{size}" if code in _KINDS else f"V{size}")
            for (name, code), size in zip(self._codes.items(), self._sizes.values(), strict=True)
        ]

    def _between(self, first: str, last: str) -> list[str]:
        names = list(self._codes)
        return names[names.index(first) : names.index(last) + 1]
