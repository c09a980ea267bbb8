"""A forked process ends as an executed one does, but does not clear its modules."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.processes import prepared

BEGIN = """
import atexit, os, sys, threading, time
os.write(2, b"started\\n")
atexit.register(print, "at exit")
print("not flushed yet", end="")
"""
ENDS = {
    "returns": "",
    "exits": "sys.exit()",
    "exits with a code": "sys.exit(3)",
    "exits with a large code": "sys.exit(259)",
    "exits with a negative code": "sys.exit(-1)",
    "exits with a text": "sys.exit('no such topic')",
    "after its threads": (
        "threading.Thread(target=lambda: (time.sleep(0.05), print('thread'))).start()"
    ),
    "kills itself": "os.kill(os.getpid(), 9)",
}


def executed(module: str) -> tuple[int, str, list[str]]:
    done = subprocess.run(
        [sys.executable, "-m", module], capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout, done.stderr.splitlines()


def forked(module: str) -> tuple[int, str, list[str]]:
    process = prepared.fork(module, [], os.environ)
    assert process is not None
    with process.stdout, process.stderr:
        out, err = process.stdout.read().decode(), process.stderr.read().decode()
    return process.wait(), out, err.splitlines()


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_it_ends_as_an_executed_process(
    end: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "program.py").write_text(BEGIN + end)
    monkeypatch.chdir(tmp_path)

    assert forked("program") == executed("program")


def test_it_ends_by_an_exception(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "program.py").write_text(BEGIN + "raise ValueError('no such topic')")
    monkeypatch.chdir(tmp_path)

    code, out, err = forked("program")

    assert (code, out, err[-1]) == (1, "not flushed yetat exit\n", "ValueError: no such topic")


def test_garbage_warns_at_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lost = "async def lost(): ...\nkept = [lost()]\nkept.append(kept)\ndel kept"
    (tmp_path / "program.py").write_text(BEGIN + lost)
    monkeypatch.chdir(tmp_path)

    _, _, err = forked("program")

    assert any("coroutine 'lost' was never awaited" in line for line in err), err


def test_it_does_not_clear_its_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = (
        "class Kept:\n"
        "    def __del__(self, write=__import__('os').write):\n"
        "        write(1, b'cleared')\n"
        "kept = Kept()\n"
        "import sys\n"
        "sys.modules['aerobee_cli'].kept = kept\n"
    )
    (tmp_path / "program.py").write_text(program)
    monkeypatch.chdir(tmp_path)

    assert forked("program") == (0, "", [])
