"""A table of items, laid out for the width of a terminal, or one line per item for programs.

On a terminal, a table shows the columns that matter most, and further ones if there is room. Text
is wrapped at spaces, beside the other cells or below its row; ids and numbers are never wrapped. If
even the most important columns do not fit side by side, each item is a paragraph. If stdout is not
a terminal, each item is one line with all columns, so that `grep` and `awk` can read it.
"""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from aerobee_cli import output
from aerobee_cli.output import Item
from aerobee_wire.printable import printable

GAP = 2  # spaces between columns: `awk -F '  +'` splits a line for programs
# The lowest width of wrapped text beside other cells. Narrower text is written below its row.
TEXT_WIDTH = 40
# The maximum number of lines of a text. `--json` and a pipe have the whole text.
TEXT_LINES = 3
INDENT = 4  # of text below its row
EMPTY = "-"  # an empty cell in a line for programs, so that each line has the same number of fields


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table: its title, the key of its values, and a function that formats a value.

    If `write` is None, a value is formatted as in `output.show_one`. An `extra` column is left out
    on a terminal if there is no room for it. A `text` is wrapped; other cells are not. Columns of
    either kind are left out on a terminal if all their cells are empty.
    """

    title: str
    key: str
    write: Callable[[Any], str] | None = None
    right: bool = False
    extra: bool = False
    text: bool = False

    @property
    def name(self) -> str:
        """The name for `--columns`: the title in lower case, with hyphens between its words."""
        return "-".join(self.title.replace("(", "").replace(")", "").lower().split())

    def cell(self, value: Any, *, for_programs: bool) -> str:
        """Format a value. For programs, numbers have no separators and times have milliseconds."""
        if self.write is not None:
            return self.write(value)
        if isinstance(value, int) and not isinstance(value, bool):
            if self.key.endswith(("timestamp_ms", "since_ms")):
                return output.iso_time(value, milliseconds=for_programs)
            if for_programs:
                return str(value)
        return output.text_of(value)


def number(title: str, key: str, *, extra: bool = False) -> Column:
    """Return a column of numbers. A missing number is an empty cell."""
    return Column(title, key, right=True, extra=extra)


class Table:
    """Columns in their order, and how to print items in them.

    If `every` is true, all columns are shown, also those that are `extra`.
    """

    def __init__(self, columns: Sequence[Column], *, every: bool = False) -> None:
        self._columns = columns
        self._every = every

    def show(self, items: Iterable[Item], *, as_json: bool = False, empty: str = "") -> None:
        """Print items on stdout, as a table or as one JSON array.

        If there are no items, print `empty` on stderr in place of a table.
        """
        if as_json:
            output.write_array(items)
            return
        found = list(items)
        if not found:
            if empty:
                output.note(empty)
            return
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
        sys.stdout.writelines(f"{line}\n" for line in self.lines(found, width))

    def lines(self, items: Sequence[Item], width: int | None) -> list[str]:
        """Return the lines of a table of at least one item. `width` is None for programs."""
        rows = [
            [
                printable(each.cell(item[each.key], for_programs=width is None))
                for each in self._columns
            ]
            for item in items
        ]
        cells = [list(column) for column in zip(*rows, strict=True)]
        if width is None:
            return _for_programs(self._columns, cells)
        return _for_people(self._columns, cells, width, every=self._every)


@dataclass(frozen=True, slots=True)
class _Sized:
    """A column with its cells and their widths in character cells of a terminal."""

    column: Column
    cells: Sequence[str]
    full: int  # the width at which nothing is wrapped
    least: int  # the lowest width of the column

    @classmethod
    def of(cls, column: Column, cells: Sequence[str]) -> _Sized:
        lines = [line for cell in cells for line in cell.split("\n")]
        title = width_of(column.title)
        full = max(title, *map(width_of, lines))
        if not column.text:
            return cls(column, cells, full, full)
        word = max((width_of(word) for line in lines for word in line.split()), default=0)
        return cls(column, cells, full, min(full, max(title, word, TEXT_WIDTH)))


def _for_programs(columns: Sequence[Column], cells: Sequence[Sequence[str]]) -> list[str]:
    """Return a line of names and a line for each item, without wrapped or empty cells."""
    whole = [[_field(cell) for cell in column] for column in cells]
    names = [column.name for column in columns]
    widths = [max(map(width_of, (name, *each))) for name, each in zip(names, whole, strict=True)]
    # Numbers are not aligned: a line that begins with spaces would have an empty first field.
    sides = [False] * len(columns)
    return [_line(row, sides, widths) for row in (names, *zip(*whole, strict=True))]


def _field(cell: str) -> str:
    """Return a cell without line feeds, and without the spaces that separate columns."""
    if "  " in cell:
        cell = " ".join(filter(None, cell.split(" ")))
    return cell.replace("\n", "\\n").replace("\t", "\\t") or EMPTY


def _for_people(
    columns: Sequence[Column], cells: Sequence[Sequence[str]], width: int, *, every: bool
) -> list[str]:
    sized = [
        _Sized.of(column, [cell.expandtabs() for cell in each])
        for column, each in zip(columns, cells, strict=True)
        if every or any(each) or not (column.extra or column.text)
    ]
    needed = [each for each in sized if every or not each.column.extra]
    below: list[_Sized] = []
    if not _fits(needed, width):
        below = [each for each in needed if each.column.text and any(each.cells)]
        needed = [each for each in needed if not each.column.text]
        if not needed or not _fits(needed, width):
            return _paragraphs([each for each in sized if each in needed or each in below], width)
    beside = needed
    for each in sized:
        if each not in needed and each not in below and _fits([*beside, each], width):
            beside = [other for other in sized if other in beside or other is each]
    widths = _widths(beside, width)
    sides = [each.column.right for each in beside]
    lines = [_line([each.column.title for each in beside], sides, widths)]
    lines.append("─" * (sum(widths) + GAP * (len(widths) - 1)))
    for number in range(len(cells[0])):
        lines += _row(beside, widths, number)
        for each in below:
            title = f"{each.column.title}: " if len(below) > 1 else ""
            wrapped = _wrapped(title + each.cells[number], width - INDENT)
            lines += (" " * INDENT + line for line in wrapped if each.cells[number])
    return lines


def _fits(columns: Sequence[_Sized], width: int) -> bool:
    return sum(each.least for each in columns) + GAP * (len(columns) - 1) <= width


def _widths(columns: Sequence[_Sized], width: int) -> list[int]:
    """Return the width of each column. Texts get the room that is left, in their order."""
    room = width - GAP * (len(columns) - 1) - sum(each.least for each in columns)
    widths = []
    for each in columns:
        more = min(room, each.full - each.least)
        room -= more
        widths.append(each.least + more)
    return widths


def _row(columns: Sequence[_Sized], widths: Sequence[int], number: int) -> list[str]:
    """Return the lines of one item: as many as its longest wrapped cell has."""
    wrapped = [
        _wrapped(each.cells[number], width) if each.column.text else [each.cells[number]]
        for each, width in zip(columns, widths, strict=True)
    ]
    height = max(map(len, wrapped))
    sides = [each.column.right for each in columns]
    return [
        _line([lines[at] if at < len(lines) else "" for lines in wrapped], sides, widths)
        for at in range(height)
    ]


def _line(cells: Sequence[str], right: Sequence[bool], widths: Sequence[int]) -> str:
    """Return cells side by side. `right` has True for each cell that is aligned to the right."""
    padded = []
    for cell, is_right, width in zip(cells, right, widths, strict=True):
        space = " " * (width - width_of(cell))
        padded.append(space + cell if is_right else cell + space)
    return (" " * GAP).join(padded).rstrip()


def _paragraphs(columns: Sequence[_Sized], width: int) -> list[str]:
    """Return a line "title  value" for each cell that is not empty, and a blank line between."""
    titles = max(width_of(each.column.title) for each in columns)
    room = max(width - titles - GAP, TEXT_WIDTH // 2)
    lines: list[str] = []
    for number in range(len(columns[0].cells)):
        lines += [""] if number else []
        for each in columns:
            cell = each.cells[number]
            parts = _wrapped(cell, room) if each.column.text else [cell]
            for at, part in enumerate(parts if cell else []):
                lines.append(f"{'' if at else each.column.title:<{titles + GAP}}{part}")
    return lines


def _wrapped(text: str, width: int) -> list[str]:
    """Wrap a text at spaces to at most TEXT_LINES lines. A longer word is not broken."""
    lines = []
    for line in text.split("\n"):
        lines += _wrapped_line(line, width) if width_of(line) > width else [line]
    if len(lines) <= TEXT_LINES:
        return lines
    return [*lines[: TEXT_LINES - 1], _cut(f"{lines[TEXT_LINES - 1]} …", width)]


def _wrapped_line(line: str, width: int) -> list[str]:
    if line.isascii():
        return textwrap.wrap(line, width, break_long_words=False, break_on_hyphens=False)
    lines, current = [], ""
    for word in line.split():
        longer = f"{current} {word}" if current else word
        if current and width_of(longer) > width:
            lines.append(current)
            longer = word
        current = longer
    return [*lines, current]


def _cut(text: str, width: int) -> str:
    """Shorten a text that ends with "…" to `width`."""
    while width_of(text) > width and " " in text[:-2]:
        text = text[:-2].rpartition(" ")[0] + " …"
    return text


def width_of(text: str) -> int:
    """Return the number of character cells of a text on a terminal."""
    if text.isascii():
        return len(text)
    from unicodedata import category, east_asian_width

    return sum(
        2 if east_asian_width(each) in "WF" else 0 if category(each) in ("Mn", "Me", "Cf") else 1
        for each in text
    )
