"""`make release`: what it refuses, and what it changes. Its builds and checks are other verbs."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from support.repository.tree import ROOT, script

release = script(ROOT / "deploy" / "release.py")

CHANGELOG = """# Changelog

## Unreleased

### Added

- A feature.

## 0.1.0

- The first version.
"""


def git(root: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(root), *arguments], check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for role in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{role}_NAME", "owner")
        monkeypatch.setenv(f"GIT_{role}_EMAIL", "owner@example.org")
    git(tmp_path, "init", "--quiet", "--initial-branch=main")
    (tmp_path / "CHANGELOG.md").write_text(CHANGELOG)
    version = tmp_path / release.VERSION_FILE
    version.parent.mkdir(parents=True)
    version.write_text('"""The version."""\n\nVERSION = "0.1.0"\n')
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "--message", "all")
    return tmp_path


def step(checkout: Path, name: str, version: str = "0.2.0") -> int:
    return int(release.main([name, version, "--root", str(checkout)]))


def test_a_release_dates_the_changelog_sets_the_version_and_is_tagged(
    checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert [step(checkout, name) for name in ("ready", "cut", "tag")] == [0, 0, 0]
    changelog = (checkout / "CHANGELOG.md").read_text()
    assert re.search(
        r"## Unreleased\n\n## 0\.2\.0 - \d{4}-\d\d-\d\d\n\n### Added\n\n- A feature\.", changelog
    )
    assert release.unreleased(changelog) == ""
    assert 'VERSION = "0.2.0"\n' in (checkout / release.VERSION_FILE).read_text()
    assert git(checkout, "describe") == "v0.2.0"
    assert git(checkout, "status", "--porcelain") == ""
    commands = capsys.readouterr().out.rpartition("To publish:\n")[2].split("\n")
    assert [line.strip() for line in commands if line] == [
        "build/tools/env/bin/twine upload build/dist/*",
        "git push --atomic origin main v0.2.0",
    ]


@pytest.mark.parametrize(
    ("version", "reason"),
    [
        ("", "three numbers"),
        ("0.2", "three numbers"),
        ("v0.2.0", "three numbers"),
        ("0.2.0rc1", "three numbers"),
        ("0.1.0", "does not follow 0.1.0"),
        ("0.0.9", "does not follow 0.1.0"),
    ],
)
def test_a_version_that_is_none_or_not_higher_is_refused(
    checkout: Path, capsys: pytest.CaptureFixture[str], version: str, reason: str
) -> None:
    assert step(checkout, "ready", version) == 1
    assert reason in capsys.readouterr().err


def test_a_tenth_version_follows_the_ninth(checkout: Path) -> None:
    (checkout / release.VERSION_FILE).write_text('VERSION = "0.9.0"\n')
    git(checkout, "commit", "--quiet", "--all", "--message", "ninth")
    assert step(checkout, "ready", "0.10.0") == 0


@pytest.mark.parametrize("name", ["CHANGELOG.md", "new.py"])
def test_a_tree_with_changes_is_refused(
    checkout: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    (checkout / name).write_text("changed")
    assert [step(checkout, each) for each in ("ready", "cut")] == [1, 1]
    assert "the tree has changes" in capsys.readouterr().err
    assert git(checkout, "log", "-1", "--format=%s") == "all"


def test_a_tag_that_exists_is_refused(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    git(checkout, "tag", "v0.2.0")
    assert step(checkout, "ready") == 1
    assert "the tag v0.2.0 exists" in capsys.readouterr().err


def test_a_changelog_without_changes_is_refused(
    checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (checkout / "CHANGELOG.md").write_text(CHANGELOG.replace("### Added\n\n- A feature.\n\n", ""))
    git(checkout, "commit", "--quiet", "--all", "--message", "empty")
    assert step(checkout, "ready") == 1
    assert "no unreleased changes" in capsys.readouterr().err


def test_a_build_that_fails_leaves_the_tree_as_it_was(checkout: Path) -> None:
    before = git(checkout, "rev-parse", "HEAD")
    assert [step(checkout, name) for name in ("cut", "undo")] == [0, 0]
    assert git(checkout, "rev-parse", "HEAD") == before
    assert git(checkout, "tag") == ""


def test_only_the_commit_of_a_release_is_tagged_or_removed(checkout: Path) -> None:
    before = git(checkout, "rev-parse", "HEAD")
    assert [step(checkout, name) for name in ("tag", "undo")] == [1, 1]
    assert git(checkout, "rev-parse", "HEAD") == before and git(checkout, "tag") == ""


def test_the_changelog_of_this_tree_can_be_dated() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert release.UNRELEASED in text
    assert "## 9.9.9 - 2030-01-01\n" in release.dated(text, "9.9.9", "2030-01-01")
