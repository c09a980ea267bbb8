"""`aerobee completion`: a script for each shell, which bash runs here."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from aerobee_cli import main


def script(shell: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert main.main(["completion", shell]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_gets_a_script(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert f"_AEROBEE_COMPLETE={shell}_complete" in script(shell, capsys)


def test_another_shell_is_refused() -> None:
    assert main.main(["completion", "cmd"]) == 2


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["aerobee", "gro"], {"group"}),
        (["aerobee", "broker", "config", ""], {"get", "set", "unset"}),
        (["aerobee", "topic", "create", "--que"], {"--queues"}),
    ],
)
def test_bash_completes_commands_and_options(
    words: list[str], found: set[str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    program = tmp_path / "aerobee"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m aerobee_cli "$@"\n')
    program.chmod(0o755)
    typed = " ".join(f'"{word}"' for word in words)
    lines = (
        script("bash", capsys),
        f"COMP_WORDS=({typed}); COMP_CWORD={len(words) - 1}",
        "_aerobee_completion aerobee",
        'printf "%s\\n" "${COMPREPLY[@]}"',
    )
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "--norc", "-c", "\n".join(lines)],
        capture_output=True,
        text=True,
        env={**os.environ, "PATH": path},
        timeout=60,
        check=True,
    )
    assert set(done.stdout.split()) == found
