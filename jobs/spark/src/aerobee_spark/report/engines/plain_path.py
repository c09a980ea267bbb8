"""Provide a folder under a path without characters that have a meaning for an engine.

Spark reads commas, brackets and colons as lists, patterns and URIs. DuckDB reads brackets and stars
as patterns.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def plain_path(folder: Path) -> Iterator[Path]:
    """Create a symbolic link to `folder` for the block."""
    with tempfile.TemporaryDirectory(prefix="aerobee-report-") as directory:
        link = Path(directory) / "work"
        link.symlink_to(folder.resolve(), target_is_directory=True)
        yield link
