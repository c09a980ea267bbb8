"""Child processes: start, stop, and that none outlives its starter. Real processes."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from aerobee_cli.errors import ProcessEnded
from aerobee_cli.processes import supervise
from aerobee_cli.processes.supervise import Child
from support.clock.polling import until, until_sync
from support.processes.command import is_alive

# A minimal service. MODE comes first, PORT last.
SERVICE = """
import json, signal, subprocess, sys, time
mode, port = sys.argv[1], sys.argv[-1]
if mode == "refuse":
    print("error: the port is taken: choose another", file=sys.stderr)
    sys.exit(1)
if mode == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if mode == "parent":
    inner = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    print(json.dumps({"event": "inner", "pid": inner.pid}), flush=True)
print("not JSON")
print(json.dumps({"event": "warned", "hint": "take care"}), flush=True)
print(json.dumps({"event": "ready", "address": "127.0.0.1:" + port}), flush=True)
if mode == "die":
    sys.exit(3)
time.sleep(600)
"""

# A program that starts a child, prints its pid, and waits to be killed.
STARTER = """
import asyncio, sys
from aerobee_cli.processes.supervise import Child

async def main():
    child = Child("service", "some_service", [sys.argv[1]], print)
    await child.launch()
    if sys.argv[2] == "begin":
        await child.begin("1")
        await child.until_ready()
    print("pid", child.pid, flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""

Launch = Callable[..., Child]
Ready = Callable[[str], Awaitable[Child]]


@pytest.fixture(autouse=True)
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "some_service"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text(f"if __name__ == '__main__':\n    exec({SERVICE!r})\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))


@pytest.fixture
def lines() -> list[str]:
    return []


@pytest.fixture
async def make(lines: list[str]) -> AsyncIterator[Launch]:
    made: list[Child] = []

    def make(mode: str) -> Child:
        made.append(Child("service", "some_service", [mode], lines.append))
        return made[-1]

    yield make
    for child in made:
        await child.stop()


@pytest.fixture
def ready(make: Launch) -> Ready:
    """Makes a child, and starts it until it is ready."""

    async def ready(mode: str) -> Child:
        child = make(mode)
        await child.launch()
        await child.begin("1")
        await child.until_ready()
        return child

    return ready


async def test_a_child_takes_its_last_arguments_before_it_runs(
    make: Launch, lines: list[str]
) -> None:
    child = make("serve")
    await child.launch()
    assert not lines
    await child.begin("--port", "7")
    assert (await child.until_ready())["address"] == "127.0.0.1:7"
    assert lines[0] == "not JSON" and child.hints == ["take care"]
    pid = child.pid
    await child.stop()
    assert not is_alive(pid)


async def test_a_child_that_cannot_start_says_why(make: Launch, lines: list[str]) -> None:
    child = make("refuse")
    await child.launch()
    await child.begin()
    with pytest.raises(ProcessEnded) as raised:
        await child.until_ready()
    assert str(raised.value) == "service: the port is taken: choose another"
    assert not lines


async def test_a_child_that_ends_by_itself_is_noticed(make: Launch) -> None:
    child = make("die")
    await child.launch()
    await child.begin("1")
    assert await child.wait() == 3
    assert str(child.failure()) == "service ended with exit code 3: see its log"


async def test_a_killed_child_is_reported_with_its_signal(ready: Ready) -> None:
    child = await ready("serve")
    os.kill(child.pid, signal.SIGKILL)
    await child.wait()
    assert str(child.failure()) == "service ended by SIGKILL: see its log"


async def test_a_child_that_does_not_stop_is_killed(ready: Ready) -> None:
    child = await ready("stubborn")
    await child.stop(grace_s=0.2)
    assert await child.wait() == -signal.SIGKILL


async def test_a_child_that_never_began_stops_too(make: Launch) -> None:
    child = make("serve")
    await child.launch()
    pid = child.pid
    await child.stop()
    assert not is_alive(pid)


async def test_grandchildren_are_stopped_too(ready: Ready, lines: list[str]) -> None:
    child = await ready("parent")
    inner = int(lines[0].rpartition(" ")[2].rstrip("}"))
    assert is_alive(inner)
    await child.stop()
    await until(lambda: not is_alive(inner), "the inner process has ended")


@pytest.mark.parametrize("stage", ["begin", "wait"])
def test_no_child_outlives_its_killed_starter(stage: str) -> None:
    starter = subprocess.Popen(
        [sys.executable, "-c", STARTER, "parent", stage], stdout=subprocess.PIPE, text=True
    )
    assert starter.stdout is not None
    pids = []
    for line in starter.stdout:
        if line.startswith(('{"event": "inner"', "pid")):
            pids.append(int(line.rpartition(" ")[2].strip().rstrip("}")))
        if line.startswith("pid"):
            break
    assert len(pids) == (2 if stage == "begin" else 1)
    starter.kill()
    starter.wait()
    starter.stdout.close()
    until_sync(lambda: not any(map(is_alive, pids)), "all children have ended")


async def test_children_do_not_get_ctrl_c_of_the_terminal(ready: Ready) -> None:
    child = await ready("serve")
    assert os.getpgid(child.pid) == child.pid != os.getpgid(0)


async def test_a_log_that_cannot_be_written_stops_no_child() -> None:
    def full(line: str) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    child = Child("service", "some_service", ["serve"], full)
    await child.launch()
    await child.begin("--port", "7")
    assert (await child.until_ready())["address"] == "127.0.0.1:7"
    pid = child.pid
    await child.stop()
    assert not is_alive(pid)


async def test_the_end_of_a_child_is_noticed_despite_grandchildren(
    ready: Ready, lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervise, "REST_GRACE_S", 0.1)
    monkeypatch.setattr(supervise, "EXIT_POLL_S", 0.1)
    child = await ready("parent")
    inner = int(lines[0].rpartition(" ")[2].rstrip("}"))
    os.kill(child.pid, signal.SIGKILL)
    async with asyncio.timeout(20):
        assert await child.wait() == -signal.SIGKILL
    await until(lambda: not is_alive(inner), "the inner process has ended")
