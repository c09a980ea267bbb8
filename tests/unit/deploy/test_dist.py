"""`deploy/dist.py`: what it refuses. tests/integration/distributions builds with it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from support.repository.tree import ROOT, files, script

dist = script(ROOT / "deploy" / "dist.py")


def test_two_builds_that_differ_are_an_error_and_leave_the_last_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def build(out: Path, environment: Mapping[str, str], *, from_sdist: bool) -> None:
        out.mkdir()
        (out / "same.whl").write_text("same")
        (out / "zoned.whl").write_text(environment["TZ"])

    monkeypatch.setattr(dist, "build", build)
    last = tmp_path / "dist"
    last.mkdir()
    (last / "last.whl").write_text("last")
    assert dist.main([str(last)]) == 1
    assert capsys.readouterr().err == "error: two builds differ: zoned.whl\n"
    assert [path.name for path in last.iterdir()] == ["last.whl"]


def test_builds_have_the_time_and_the_commit_of_the_last_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def build(out: Path, environment: Mapping[str, str], *, from_sdist: bool) -> None:
        out.mkdir()
        seen.append((dict(environment), from_sdist))

    monkeypatch.setattr(dist, "build", build)
    assert dist.main([str(tmp_path / "dist")]) == 0
    (first, of_sdist), (second, of_tree) = seen
    assert (of_sdist, of_tree) == (True, False)
    assert (
        first["SOURCE_DATE_EPOCH"]
        == second["SOURCE_DATE_EPOCH"]
        == dist.git("log", "-1", "--format=%ct")
    )
    assert first["AEROBEE_COMMIT"].startswith(dist.git("rev-parse", "--short=12", "HEAD"))
    assert first["TZ"] != second["TZ"]


def test_only_tracked_files_are_exported_and_links_become_files(tmp_path: Path) -> None:
    dist.export(tmp_path)
    exported = {path.relative_to(tmp_path) for path in tmp_path.rglob("*") if path.is_file()}
    assert exported == {path.relative_to(ROOT) for path in files()}
    assert (ROOT / "clients" / "python" / "LICENSE").is_symlink()
    assert not any(path.is_symlink() for path in tmp_path.rglob("*"))


def test_a_tree_without_git_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(dist, "ROOT", tmp_path)
    assert dist.main([str(tmp_path / "dist")]) == 1
    assert "has no Git files" in capsys.readouterr().err
