"""Tables: which columns are shown, what is wrapped, and what programs read."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from aerobee_cli.options import BadOption, TableOptions
from aerobee_cli.table import TEXT_LINES, Column, Table, number, width_of

COLUMNS = (
    Column("id", "id"),
    number("lag", "lag"),
    Column("reason", "reason", text=True),
    Column("stored at", "store_timestamp_ms", extra=True),
)
ID = "C0000202667E26BE0FE98E729CAA0001"


def item(**fields: Any) -> dict[str, Any]:
    return {"id": ID, "lag": 1_234_567, "reason": "", "store_timestamp_ms": 1} | fields


def lines(width: int | None, *items: dict[str, Any]) -> list[str]:
    return Table(COLUMNS).lines(items, width)


def test_a_list_is_one_json_array(capsys: pytest.CaptureFixture[str]) -> None:
    items = [{"topic": "orders", "keys": ("a", "b")}, {"topic": "grüße", "keys": ()}]
    Table(()).show(items, as_json=True)
    assert json.loads(capsys.readouterr().out) == [
        {"topic": "orders", "keys": ["a", "b"]},
        {"topic": "grüße", "keys": []},
    ]


def test_an_empty_list_is_an_empty_array_or_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    Table(COLUMNS).show([], as_json=True, empty="no items")
    out, err = capsys.readouterr()
    assert (json.loads(out), err) == ([], "")
    Table(COLUMNS).show([], empty="no items")
    assert capsys.readouterr() == ("", "no items\n")


def test_a_line_for_programs_has_all_columns_and_no_empty_field() -> None:
    reason = "two\nlines, " + "and more " * 100 + "end"
    titles, first, second = lines(None, item(reason=reason), item(lag=None))
    assert titles.split() == ["id", "lag", "reason", "stored-at"]
    fields = re.split("  +", first)
    assert fields[:2] == [ID, "1234567"], "a program can add numbers without separators"
    assert fields[2] == reason.replace("\n", "\\n"), "nothing is cut"
    assert fields[3] == "1970-01-01T00:00:00.001Z"
    assert re.split("  +", lines(None, item(reason="a   b"))[1])[2] == "a b"
    assert re.split("  +", second) == [ID, "-", "-", "1970-01-01T00:00:00.001Z"]


@pytest.mark.parametrize("width", [48, 60, 80, 100, 120, 200])
@pytest.mark.parametrize("reason", ["", "short", "ValueError: " + "no such address " * 20])
def test_no_line_is_wider_than_the_terminal_and_no_id_is_wrapped(width: int, reason: str) -> None:
    shown = lines(width, item(reason=reason), item(reason="other"))
    assert all(width_of(line) <= width for line in shown)
    assert sum(ID in line for line in shown) == 2


def test_text_without_room_is_below_its_row() -> None:
    reason = "ValueError: no such address for order 7"
    assert lines(60, item(reason=reason))[2:] == [f"{ID}  1,234,567", f"    {reason}"]
    assert lines(120, item(reason=reason))[2].split("  ")[2] == reason


def test_extra_columns_are_shown_if_there_is_room() -> None:
    assert "stored at" not in lines(60, item(reason="x"))[0]
    assert "stored at" in lines(100, item(reason="x"))[0]


def test_columns_without_values_are_left_out_for_people() -> None:
    shown = lines(200, item(store_timestamp_ms=0))
    assert shown[0].split() == ["id", "lag"]


def test_items_are_paragraphs_if_their_columns_do_not_fit() -> None:
    shown = lines(40, item(), item(reason="x"))
    first = [f"id      {ID}", "lag     1,234,567"]
    assert shown == [*first, "", *first, "reason  x"]


def test_a_long_text_ends_after_three_lines() -> None:
    shown = lines(80, item(reason="word " * 1_000))
    assert len(shown) == 2 + 1 + TEXT_LINES and shown[-1].endswith(" …")


def test_wide_characters_are_aligned() -> None:
    columns = (Column("topic", "topic"), Column("type", "type"))
    items = [{"topic": "größe 日本", "type": "a"}, {"topic": "e\u0301", "type": "b"}]
    shown = Table(columns).lines(items, 80)
    assert shown[2:] == ["größe 日本  a", "e\u0301           b"]


def test_what_looks_like_markup_is_shown_as_it_is() -> None:
    assert "[red]x[/]" in lines(200, item(reason="[red]x[/]"))[2]


def test_a_cell_cannot_steer_the_terminal() -> None:
    for width in (80, None):
        text = "\n".join(lines(width, item(reason="a\x1b[2Jb\x9bc\nd\te")))
        assert "\x1b" not in text and "\x9b" not in text and "a\\x1b[2Jb\\x9bc" in text


def test_columns_are_chosen_by_their_names() -> None:
    table = TableOptions(columns="stored-at, ID").listing(COLUMNS)
    assert table.lines([item()], 200)[0].split() == ["stored", "at", "id"]
    wide = TableOptions(wide=True).listing(COLUMNS)
    assert wide.lines([item()], 200)[0].split() == ["id", "lag", "reason", "stored", "at"]
    assert wide.lines([item()], 60)[0] == f"id         {ID}", "they do not fit side by side"


@pytest.mark.parametrize(("wide", "chosen"), [(False, "id,size"), (True, "id"), (False, "id,")])
def test_unknown_columns_are_refused(wide: bool, chosen: str) -> None:
    with pytest.raises(BadOption, match="--columns"):
        TableOptions(wide=wide, columns=chosen).listing(COLUMNS)
