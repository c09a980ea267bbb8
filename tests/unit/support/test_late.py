"""With `--late`, each test runs and ends as before, and one worker imports a file."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from support.repository.tree import ROOT

CONFTEST = """
import os
import pytest
from pathlib import Path
from support.running import late

def note(line):
    with Path("notes").open("a") as notes:
        notes.write(line + "\\n")

def pytest_addoption(parser):
    parser.addoption(late.OPTION, action="store_true")

def pytest_configure(config):
    if late.suits(config):
        config.pluginmanager.register(late.Late())

def pytest_collection_modifyitems(items):
    for item in items:
        if "skipped" in item.nodeid:
            item.add_marker(pytest.mark.skip)

@pytest.fixture(scope="session")
def shared():
    yield os.getpid()
    note("shared ends")

@pytest.fixture(scope="package")
def of_folder():
    yield
    note("folder ends")
    raise ValueError

@pytest.fixture(scope="module")
def of_file():
    yield
    note("file ends")
"""
TESTS = """
import pytest
from conftest import note

note(f"import {__name__}")

@pytest.mark.parametrize("number", [1, 2])
def test_passes(shared, of_file, number):
    note(f"run {number}")

def test_fails(shared):
    raise ValueError

@pytest.mark.skip
def test_is_skipped():
    raise ValueError
"""
IN_FOLDER = """
def test_of_a_folder(of_folder):
    pass
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "folder").mkdir()
    (tmp_path / "conftest.py").write_text(CONFTEST)
    for name in "abc":
        (tmp_path / f"test_{name}.py").write_text(TESTS)
    (tmp_path / "test_broken.py").write_text("import no_such_module")
    (tmp_path / "folder" / "__init__.py").touch()
    (tmp_path / "folder" / "test_folder.py").write_text(IN_FOLDER)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    return tmp_path


def run(tree: Path, *arguments: str) -> tuple[dict[str, int], list[str]]:
    """Return the numbers of the last line, and the notes."""
    command = (sys.executable, "-m", "pytest", "-p", "no:cacheprovider")
    by_file = ("-n", "2", "--dist", "loadfile", "-o", f"pythonpath={ROOT / 'tests'} .")
    done = subprocess.run(
        [*command, *by_file, *arguments],
        cwd=tree,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    counts = re.findall(r"(\d+) (passed|failed|skipped|error|deselected)", done.stdout)
    return {what: int(count) for count, what in counts}, (tree / "notes").read_text().splitlines()


def test_each_test_runs_once_and_each_file_is_imported_once(tree: Path) -> None:
    counts, notes = run(tree, "--late")

    # The folder's fixture fails at its end, and one file cannot be imported.
    assert counts == {"passed": 7, "failed": 3, "skipped": 3, "error": 2}
    assert sorted(line for line in notes if line.startswith("import")) == [
        "import test_a",
        "import test_b",
        "import test_c",
    ]
    assert notes.count("run 1") == notes.count("run 2") == notes.count("file ends") == 3
    assert notes.count("folder ends") == 1 and 1 <= notes.count("shared ends") <= 2


def test_a_hook_may_skip_a_whole_file(tree: Path) -> None:
    (tree / "test_a.py").rename(tree / "test_skipped.py")

    counts, _ = run(tree, "--late")

    assert counts == {"passed": 5, "failed": 2, "skipped": 6, "error": 2}


def test_chosen_tests_are_collected_first(tree: Path) -> None:
    (tree / "test_broken.py").unlink()

    counts, notes = run(tree, "--late", "-k", "fails")

    assert counts == {"failed": 3}
    assert sum(line.startswith("import") for line in notes) == 6, "both workers import"
