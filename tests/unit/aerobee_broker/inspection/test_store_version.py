"""`aerobee store version`, and what `check` and `dump` say of a format."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from aerobee_broker.disk import RealDisk, replace_file
from aerobee_broker.inspection.__main__ import _format_lines, main
from aerobee_broker.store.format import LITE_TOPICS, THIS_BUILD, Build, Format, FormatFile
from aerobee_wire.checked_json import encode
from support.disk.stores import open_store


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A closed one, with the feature of lite topics."""
    path = tmp_path / "data" / "broker" / "store"
    open_store(RealDisk(), path=path).close()
    file = FormatFile(RealDisk(), path)
    assert not file.note({LITE_TOPICS})
    return path


def put(store: Path, required: Mapping[str, str]) -> Path:
    content = {"version": 1, "since": "0.1.0", "writtenBy": "9.1.0", "required": required}
    path = store / "config" / "format.json"
    replace_file(RealDisk(), path, encode(content))
    return path


def test_version_of_a_store_says_what_it_needs(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["version", str(store.parents[1]), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["path"] == str(store) and report["opens"] and not report["problem"]
    assert report["format"] == {
        "version": 1,
        "since": "0.1.0",
        "writtenBy": THIS_BUILD.version,
        "required": {LITE_TOPICS: THIS_BUILD.features[LITE_TOPICS]},
        "needs": THIS_BUILD.features[LITE_TOPICS],
    }
    assert main(["version", str(store)]) == 0
    assert LITE_TOPICS in capsys.readouterr().out


@pytest.mark.parametrize(("version", "is_ahead"), [("0.1.0", True), ("0.2.0", False)])
def test_a_build_before_the_release_of_a_feature_does_not_say_that_it_is_too_old(
    version: str, is_ahead: bool
) -> None:
    found = Format(required={LITE_TOPICS: "0.2.0"})
    build = Build(version, {LITE_TOPICS: "0.2.0"})
    line = _format_lines(found, build, opens=True)[0]
    assert "0.2.0" in line and ("this build" in line) == is_ahead
    assert "this build" not in _format_lines(found, build, opens=False)[0]


def test_version_of_an_open_store_is_shown_and_nothing_is_changed(store: Path) -> None:
    opened = open_store(RealDisk(), path=store)
    try:
        before = {path: path.read_bytes() for path in store.rglob("*") if path.is_file()}
        assert main(["version", str(store)]) == 0
        assert {path: path.read_bytes() for path in store.rglob("*") if path.is_file()} == before
    finally:
        opened.close()


def test_store_without_a_format_is_of_an_earlier_build(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (store / "config" / "format.json").unlink()
    for verb in ("version", "check"):
        assert main([verb, str(store), "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["format"] is None
    assert not (store / "config" / "format.json").exists()


def test_store_of_a_later_build_is_shown_and_not_read(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    put(store, {"tomorrow": "9.0.0"})
    assert main(["version", str(store), "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert not report["opens"] and report["format"]["needs"] == "9.0.0"
    for verb in ("check", "dump"):
        assert main([verb, str(store)]) == 1
        err = capsys.readouterr().err
        assert err.count("\n") == 1 and "9.0.0" in err and "tomorrow" in err


def test_check_reports_the_format(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(store), "--json"]) == 0
    required = json.loads(capsys.readouterr().out)["format"]["required"]
    assert required == {LITE_TOPICS: THIS_BUILD.features[LITE_TOPICS]}


def test_damaged_format_is_a_problem_of_the_check(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = put(store, {})
    path.write_bytes(path.read_bytes().replace(b"9.1.0", b"9.1.1"))
    assert main(["check", str(store), "--json"]) == 1
    problems = json.loads(capsys.readouterr().out)["problems"]
    assert [problem["file"] for problem in problems] == [str(path)]
    assert main(["version", str(store)]) == 1
