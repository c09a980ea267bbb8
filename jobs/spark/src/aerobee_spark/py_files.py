"""Write the packages of the data source into one file for `spark-submit --py-files`.

    python -m aerobee_spark.py_files aerobee.zip

The zip contains only the packages of this project, which are pure Python. Install the other
packages (protobuf, pyarrow, numpy and so on) for the Python of the workers, because Python cannot
load shared libraries from a zip.
"""

from __future__ import annotations

import sys
import zipfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

PACKAGES = (
    "aerobee_spark",
    "pyspark_aerobee",
    "aerobee_client",
    "aerobee_cluster",
    "aerobee_http2",
    "aerobee_wire",
    "aerobee",
)


def write(target: Path) -> int:
    """Write the zip to `target`. Replace an existing file.

    Returns:
        The size of the zip in bytes.

    Raises:
        OSError: the file cannot be written.
    """
    beside = target.with_name(f".{target.name}.new")
    with zipfile.ZipFile(beside, "w", zipfile.ZIP_DEFLATED) as archive:
        for package in PACKAGES:
            # Add folders too: Python finds a namespace package only if the zip has an entry for it.
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
        # Spark adds only files of this suffix to the Python path of the workers.
        print("error: name one file to write, with the suffix .zip", file=sys.stderr)
        return 2
    try:
        size = write(Path(arguments[0]))
    except OSError as error:
        print(f"error: cannot write {arguments[0]}: {error.strerror}", file=sys.stderr)
        return 1
    print(f"{arguments[0]}: {size:,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
