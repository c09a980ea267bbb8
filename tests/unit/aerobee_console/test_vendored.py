"""The vendored scripts are the published ones, and our own script stays small."""

from __future__ import annotations

import hashlib
import tomllib
from pathlib import Path

import aerobee_console

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
