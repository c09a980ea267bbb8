"""The commit that `aerobee --version` shows: the build's, the checkout's, and never another one."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from aerobee_cli import commit
from support.repository.tree import ROOT


def test_a_wheel_shows_the_commit_of_its_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "commit.txt").write_text("0123456789ab-dirty")
    monkeypatch.setattr(commit, "BUILT_FROM", tmp_path / "commit.txt")
    assert commit.commit() == "0123456789ab-dirty"


def test_a_checkout_shows_its_commit() -> None:
    head = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout
    assert len(commit.commit()) >= 12 and head.startswith(commit.commit())


def test_a_package_below_another_checkout_shows_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An environment in the folder of a project: its commit is not ours."""
    site = tmp_path / "env" / "lib" / "python3.11" / "site-packages" / "aerobee_cli"
    site.mkdir(parents=True)
    subprocess.run(["git", "init", "--quiet", str(tmp_path / "env")], check=True)
    monkeypatch.setattr(commit, "HERE", site)
    monkeypatch.setattr(commit, "BUILT_FROM", site / "commit.txt")
    assert commit.commit() == ""
