"""Numbers, shares and times in a page."""

from __future__ import annotations

import hashlib
import tomllib
from pathlib import Path

import pytest

import aerobee_console
from aerobee_console.web.render import count, humps, moment, number, percent


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0, "0 %"),
        (0.001, "< 0.1 %"),
        (0.049, "< 0.1 %"),
        (0.05, "0.1 %"),
        (1, "1 %"),
        (9.94, "9.9 %"),
        (9.96, "10 %"),
        (99.4, "99 %"),
        (99.99, "> 99 %"),
        (100, "100 %"),
    ],
)
def test_a_small_share_is_not_0_and_a_large_one_not_all(value: float, shown: str) -> None:
    assert percent(value) == shown


def test_a_small_rate_is_not_0() -> None:
    assert [number(each) for each in (0.0, 0.001, 0.1, 1_234.56)] == [
        "0.0",
        "< 0.1",
        "0.1",
        "1,234.6",
    ]
    assert (count(0.001, False), count(0.2, False), count(0.0, False)) == ("> 0", "≥ 0.2", None)


def test_a_time_that_no_calendar_has_is_shown_as_a_number() -> None:
    assert moment(1 << 62) == f"{1 << 62} ms since 1970"
    assert moment(-1_000) != moment(1_000)


def test_a_name_of_an_option_may_break_between_its_words() -> None:
    assert humps("Change fileReservedTime") == "Change file<wbr>Reserved<wbr>Time"
    assert humps("<b>aB") == "&lt;b&gt;a<wbr>B"


# ---- test vendored ----
#
# The vendored scripts are the published ones, and our own script stays small.


STATIC = Path(aerobee_console.__path__[0], "static")
VENDOR = STATIC / "vendor"


def test_each_vendored_file_has_the_hash_of_its_release_and_a_licence() -> None:
    listed = tomllib.loads((VENDOR / "vendored.toml").read_text(encoding="utf-8"))
    files: dict[str, str] = {}
    for name, package in listed.items():
        assert package["version"] and package["licence"], name
        assert (VENDOR / package["licence_file"]).is_file()
        files |= package["sha256"]
    there = {path.name for path in VENDOR.iterdir() if path.suffix in (".js", ".css")}
    assert there == files.keys()
    for name, digest in files.items():
        assert hashlib.sha256((VENDOR / name).read_bytes()).hexdigest() == digest, name


def test_our_own_script_has_at_most_400_lines() -> None:
    assert len((STATIC / "console.js").read_text(encoding="utf-8").splitlines()) <= 400
