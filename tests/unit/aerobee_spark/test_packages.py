"""Test the packages that a worker needs, and the file for --py-files."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from aerobee_spark import packages, py_files
from aerobee_spark.errors import MissingPackageError
from support.spark.pythons import python_without_ours


@pytest.fixture(autouse=True)
def anew() -> Iterator[None]:
    packages.check_packages.cache_clear()
    yield
    packages.check_packages.cache_clear()


def test_this_one_lacks_nothing() -> None:
    packages.check_packages()


def test_each_package_that_is_missing_is_named_and_where(monkeypatch: pytest.MonkeyPatch) -> None:
    needed = {**packages.NEEDED, "no_such_module": "some-package", "nothing.at_all": "other"}
    monkeypatch.setattr(packages, "NEEDED", needed)
    with pytest.raises(MissingPackageError) as caught:
        packages.check_packages()
    assert caught.value.about == "some-package and other"
    assert sys.executable in caught.value.message and "\n" not in caught.value.message


# ---- test py files ----
#
# Test that the zip for --py-files has all modules that the data source imports.


def test_the_data_source_is_loaded_from_the_zip_alone(tmp_path: Path) -> None:
    ours = tmp_path / "aerobee.zip"
    assert py_files.main([str(ours)]) == 0
    program = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "import aerobee_spark.source, aerobee_spark.stream.reader, aerobee_spark.reading.planning\n"
        "import aerobee_spark.reading.columns, aerobee_client.producer, pyspark_aerobee\n"
        "from aerobee.broker.v1 import message_pb2\n"
        "for name in ('spark', 'client', 'cluster', 'http2', 'wire'):\n"
        "    print(sys.modules[f'aerobee_{name}'].__file__)\n"
    )
    python = python_without_ours(tmp_path)
    done = subprocess.run(
        [str(python), "-c", program, str(ours)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert all(line.startswith(f"{ours}/") for line in done.stdout.splitlines())
    alone = [str(python), "-c", "import aerobee_spark"]
    assert subprocess.run(alone, capture_output=True, check=False).returncode


@pytest.mark.parametrize("given", [[], ["aerobee.whl"], ["a.zip", "b.zip"]])
def test_a_file_that_spark_would_not_take_is_refused(given: list[str]) -> None:
    assert py_files.main(given) == 2


def test_a_file_that_cannot_be_written_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert py_files.main([str(tmp_path / "nowhere" / "a.zip")]) == 1
    assert capsys.readouterr().err.count("\n") == 1
