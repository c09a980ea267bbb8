"""Which wheels are tried, and with which Pythons."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from support.repository.installed import pythons, this_python
from support.repository.tree import ROOT


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--built", metavar="DIR", help="try these wheels, not ones of a new build")
    parser.addoption(
        "--every-python", action="store_true", help="try each Python that this machine has"
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "version" in metafunc.fixturenames:
        every = metafunc.config.getoption("--every-python", default=False)
        versions = list(pythons()) if every else [this_python()]
        metafunc.parametrize("version", versions, scope="module")


@pytest.fixture(scope="session")
def built(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with sdists and wheels."""
    if given := request.config.getoption("--built", default=None):
        return Path(given).resolve()
    folder = tmp_path_factory.mktemp("dist") / "built"
    subprocess.run(
        [sys.executable, str(ROOT / "deploy" / "dist.py"), str(folder)],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    return folder
