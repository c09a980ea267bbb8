"""Test tables as CSV and text, and previews of bodies."""

from __future__ import annotations

import csv
import json
import zlib
from pathlib import Path
from typing import Any

import pytest

from aerobee_spark.report.data.summary import MOST_TEXT, preview
from aerobee_spark.report.formats import duration, size
from aerobee_spark.report.view.tables import as_text, guarded, write_csv
from aerobee_wire.compression import SYS_FLAGS, compress


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1"])
def test_text_that_a_spreadsheet_would_run_is_guarded(text: str) -> None:
    assert guarded(text) == "'" + text


@pytest.mark.parametrize("value", ["UA", "a=b", "", 5, -5, 1.5, None])
def test_other_cells_stay_as_they_are(value: Any) -> None:
    assert guarded(value) == value


def test_csv_opens_in_a_spreadsheet_and_reads_back(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    write_csv(path, ("tag", "n", "all"), [('Zürich, "x"\n=1', 1, ["a", "b"]), ("=1", True, None)])
    assert path.read_bytes().startswith(b"\xef\xbb\xbf")
    with path.open(encoding="utf-8-sig", newline="") as file:
        assert list(csv.reader(file)) == [
            ["tag", "n", "all"],
            ['Zürich, "x"\n=1', "1", "a, b"],
            ["'=1", "true", ""],
        ]


def test_text_tables_put_numbers_to_the_right() -> None:
    assert as_text(("tag", "n"), [("UA", 1234), ("longer", 5)]) == (
        "tag         n\nUA      1,234\nlonger      5"
    )
    assert as_text(("", ""), [("dead", 7)]) == "dead  7"


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (None, "–"),
        (0, "0 ms"),
        (999, "999 ms"),
        (1000, "1 s"),
        (2450, "2.5 s"),
        (61_000, "1 min"),
        (5_400_000, "1.5 h"),
        (864_000_000, "10 d"),
    ],
)
def test_durations_have_two_digits(ms: int | None, text: str) -> None:
    assert duration(ms) == text


def test_sizes_are_in_powers_of_1024() -> None:
    shown = [size(n) for n in (None, 0, 1023, 1536, 3 << 20, 2 << 30)]
    assert shown == ["–", "0 B", "1023 B", "1.5 KiB", "3 MiB", "2 GiB"]


# ---- bodies ----


def shown(body: bytes | None, sys_flag: int = 0, whole_size: int | None = None) -> tuple[Any, str]:
    return preview(
        body, sys_flag, whole_size=len(body or b"") if whole_size is None else whole_size
    )


def test_json_is_indented_and_other_text_is_not() -> None:
    assert shown(b'{"a":[1,"\xc3\xbc"]}') == ('{\n  "a": [\n    1,\n    "ü"\n  ]\n}', "json")
    assert shown(b"17") == ("17", "text")
    assert shown("Zürich\n".encode()) == ("Zürich\n", "text")
    assert shown(b"{not json") == ("{not json", "text")


@pytest.mark.parametrize("sign", ["\u00a0", "\u3000", "\u200d", "\ufeff", "\u00ad", "\ue000", "\f"])
def test_any_character_but_a_control_character_is_text(sign: str) -> None:
    text = f"12{sign}€"
    assert shown(text.encode()) == (text, "text")
    body = json.dumps({"preis": text}, ensure_ascii=False).encode()
    if sign != "\f":
        assert shown(body) == (json.dumps({"preis": text}, indent=2, ensure_ascii=False), "json")


def test_json_may_begin_with_a_byte_order_mark() -> None:
    assert shown("\ufeff[1]".encode()) == ("[\n  1\n]", "json")


def test_what_is_no_text_is_hex() -> None:
    assert shown(b"\xff\x00") == ("ff 00", "hex")
    assert shown(b"a\x07") == ("61 07", "hex")
    assert shown(b"\xff" * 300) == ("ff " * 255 + "ff…", "hex")


def test_a_body_that_is_cut_says_so_even_inside_a_character() -> None:
    assert shown("aü".encode()[:2], whole_size=3) == ("a…", "text")
    assert shown(b'{"a":', whole_size=9) == ('{"a":…', "text")
    assert shown(b"x" * 5000) == ("x" * MOST_TEXT + "…", "text")


def test_empty_and_omitted_bodies_differ() -> None:
    assert shown(b"") == ("", "empty")
    assert shown(None, whole_size=9) == (None, "omitted")


def test_compressed_bodies_are_unpacked_as_far_as_they_go() -> None:
    packed = zlib.compress(json.dumps({"a": 1}).encode())
    assert shown(packed, sys_flag=1) == ('{\n  "a": 1\n}', "json")
    assert shown(packed, sys_flag=0x301) == ('{\n  "a": 1\n}', "json")
    assert shown(b"plain", sys_flag=1) == ("plain", "text")  # not compressed, despite the flag
    assert shown(packed, sys_flag=0x101)[1] == "hex"  # not what the flag says
    text, kind = shown(zlib.compress(b"x" * 100_000), sys_flag=1)
    assert (kind, text[-1], len(text)) == ("text", "…", MOST_TEXT + 1)


@pytest.mark.parametrize("method", SYS_FLAGS)
def test_a_sample_of_each_compression_is_text(method: str) -> None:
    packed = compress(b"late " * 100_000, method, 5)
    text, kind = shown(packed, SYS_FLAGS[method])
    assert (kind, text) == ("text", ("late " * 1_000)[:MOST_TEXT] + "…")
