"""A folder under a path that has no meaning to an engine: commas, brackets and colons are lists,
patterns and URIs to Spark, brackets and stars are patterns to DuckDB."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def plain_path(folder: Path) -> Iterator[Path]:
    """A symbolic link to `folder` for the block."""
    with tempfile.TemporaryDirectory(prefix="aerobee-report-") as directory:
        link = Path(directory) / "work"
        link.symlink_to(folder.resolve(), target_is_directory=True)
        yield link
