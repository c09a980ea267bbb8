"""The packages of the data source in one file for `spark-submit --py-files`:

    python -m aerobee_spark.py_files aerobee.zip

Only what is ours, which is pure Python. The rest (grpcio, pyarrow, numpy and so on) has to be
installed for the Python of the workers: Python loads no shared library from a zip.
"""

from __future__ import annotations

import sys
import zipfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

PACKAGES = ("aerobee_spark", "pyspark_aerobee", "aerobee_client", "aerobee_wire", "aerobee")


def write(target: Path) -> int:
    """Writes the zip, in place of an earlier one; returns its size in bytes. Raises OSError."""
    beside = target.with_name(f".{target.name}.new")
    with zipfile.ZipFile(beside, "w", zipfile.ZIP_DEFLATED) as archive:
        for package in PACKAGES:
            # Folders too: without its entry a namespace package is not found.
            archive.mkdir(package)
            for folder in _folders(package):
                for path in _files(folder):
                    archive.write(path, str(Path(package) / path.relative_to(folder)))
    beside.replace(target)
    return target.stat().st_size


def _folders(package: str) -> list[Path]:
    found = find_spec(package)
    assert found is not None and found.submodule_search_locations is not None, package
    return [Path(location) for location in found.submodule_search_locations]


def _files(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.rglob("*")):
        if "__pycache__" not in path.parts:
            yield path


def main(arguments: list[str]) -> int:
    if len(arguments) != 1 or not arguments[0].endswith(".zip"):
        # Spark puts nothing else on the path of the workers.
        print("error: give the file to write; its name ends in .zip", file=sys.stderr)
        return 2
    try:
        size = write(Path(arguments[0]))
    except OSError as error:
        print(f"error: {arguments[0]} cannot be written: {error.strerror}", file=sys.stderr)
        return 1
    print(f"{arguments[0]}: {size:,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
