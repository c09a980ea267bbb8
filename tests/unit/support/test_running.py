"""Test what runs the suite: the schedule, the canary, and files in memory."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from support.running import canary
from support.running.costs import Cost
from support.running.schedule import IN_SESSION, Schedule

# ---- test canary ----
#
# The marks of secrets and bodies are found wherever a service may not write them.


RESERVED = 8 << 20  # bytes


def written(folder: Path, name: str, mark: str, *, at: int = 100) -> Path:
    """Return the folder, with a reserved file that has a mark."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.truncate(RESERVED)
        file.seek(at)
        file.write(mark.encode())
    return folder


@pytest.mark.parametrize("at", [0, 4_090, RESERVED // 2 + 4_090, RESERVED - 100])
@pytest.mark.parametrize(
    ("name", "mark"),
    [
        ("config/topics.json", canary.SECRET),
        ("commitlog/0", canary.SECRET),
        ("config/topics.json", canary.BODY),
        ("accessTable.json", canary.BODY),
    ],
)
def test_a_mark_in_a_file_is_found(tmp_path: Path, name: str, mark: str, at: int) -> None:
    with pytest.raises(AssertionError, match=name):
        canary.check_files(written(tmp_path, name, mark, at=at))


def test_marks_may_be_where_they_belong(tmp_path: Path) -> None:
    written(tmp_path, "config/accessTable.json.new", canary.SECRET)
    written(tmp_path, "commitlog/0", canary.BODY)
    (tmp_path / "empty").touch()
    canary.check_files(tmp_path)


def test_a_mark_in_a_text_is_found() -> None:
    for mark in (canary.SECRET, canary.BODY):
        with pytest.raises(AssertionError, match="the log"):
            canary.check_text(f"one\ntwo {mark}\n", "the log")
    canary.check_text(canary.BODY, "a message", bodies=True)
    canary.check_text("nothing", "the log")


# ---- test schedule ----
#
# Which worker runs which test file: as many compute as there are processors, others wait.


COSTS = {
    "tests/long.py": Cost(30, 29),
    "tests/short.py": Cost(5, 5),
    "tests/elected.py": Cost(60, 3),
    "tests/leased.py": Cost(20, 2),
    f"{IN_SESSION}test_a.py": Cost(10, 9),
    f"{IN_SESSION}test_b.py": Cost(9, 8),
}


class Node:
    """A worker that notes what it is to run."""

    def __init__(self) -> None:
        self.gateway = SimpleNamespace(id="gw")
        self.shutting_down = False
        self.sent: list[int] = []

    def send_runtest_some(self, indices: list[int]) -> None:
        self.sent += indices

    def shutdown(self) -> None:
        self.shutting_down = True


class Run:
    """Workers without processes. A test ends when `end` says so."""

    def __init__(self, workers: int, tests: list[str], pytestconfig: pytest.Config) -> None:
        config: Any = SimpleNamespace(
            getvalue=lambda name: ["popen"] * workers,
            option=SimpleNamespace(loadscopereorder=False, maxworkerrestart=None),
            rootpath=pytestconfig.rootpath,
        )
        self._tests = tests
        self._ended = 0
        self.schedule = Schedule(config, None, costs=COSTS, processors=2)
        self.nodes = [Node() for _ in range(workers)]
        for node in self.nodes:
            self.schedule.add_node(node)
        for node in self.nodes:
            self.schedule.add_node_collection(node, tests)
        self.schedule.schedule()

    def files(self, number: int) -> list[str]:
        return list(dict.fromkeys(self._tests[i].split("::")[0] for i in self.nodes[number].sent))

    def end(self, number: int, tests: int) -> None:
        node = self.nodes[number]
        for index in node.sent[self._ended : self._ended + tests]:
            self.schedule.mark_test_complete(node, index)
        self._ended += tests


def ids_of(*files: str, count: int = 4) -> list[str]:
    return [f"{file}::test_{number}" for file in files for number in range(count)]


def test_as_many_compute_as_there_are_processors_and_the_longest_start(
    pytestconfig: pytest.Config,
) -> None:
    run = Run(4, ids_of(*reversed(COSTS), "tests/unknown.py"), pytestconfig)
    assert run.files(0) == ["tests/long.py"]
    assert run.files(1) == [f"{IN_SESSION}test_b.py", f"{IN_SESSION}test_a.py"], "on one worker"
    assert run.files(2) == ["tests/elected.py"]
    assert run.files(3) == ["tests/leased.py"]


def test_the_next_file_is_chosen_when_one_test_is_left(pytestconfig: pytest.Config) -> None:
    run = Run(2, ids_of("tests/unknown.py", *COSTS), pytestconfig)
    run.end(0, 2)
    assert run.files(0) == ["tests/long.py"], "another worker may still take the next one"
    run.end(0, 1)
    assert run.files(0) == ["tests/long.py", "tests/short.py"]


def test_a_file_that_waits_is_taken_where_nothing_computes_any_more(
    pytestconfig: pytest.Config,
) -> None:
    run = Run(1, ids_of("tests/leased.py", "tests/elected.py", "tests/short.py"), pytestconfig)
    run.end(0, 3)
    run.end(0, 4)
    assert run.files(0) == ["tests/short.py", "tests/elected.py", "tests/leased.py"]


# ---- test files in memory ----
#
# Unit tests do not wait for a disk, also on a worker of pytest-xdist.


MEMORY = Path("/dev/shm")
ENOUGH_BYTES = 1 << 30


def test_files_of_a_test_are_in_memory(tmp_path: Path, pytestconfig: pytest.Config) -> None:
    command_line = getattr(pytestconfig, "workerinput", {}).get("mainargv", sys.argv)
    if any(argument.startswith("--basetemp") for argument in command_line):
        pytest.skip("the command line names a folder")
    if not MEMORY.is_dir() or shutil.disk_usage(MEMORY).free < ENOUGH_BYTES:
        pytest.skip("/dev/shm has less than 1 GiB")
    assert tmp_path.is_relative_to(MEMORY)
