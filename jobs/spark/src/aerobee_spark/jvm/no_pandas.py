"""Keeps PySpark and pyarrow from importing pandas, which they do whenever it is installed.

The import takes a second, and PySpark prints warnings about its version. Only for the process of
the report, never for a library.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


class _PandasIsAbsent(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname == "pandas":
            raise ModuleNotFoundError("pandas is kept out of this process", name=fullname)
        return None


def keep_out_pandas() -> None:
    """From now on `import pandas` fails, as if pandas were not installed."""
    if not any(isinstance(finder, _PandasIsAbsent) for finder in sys.meta_path):
        sys.meta_path.insert(0, _PandasIsAbsent())
