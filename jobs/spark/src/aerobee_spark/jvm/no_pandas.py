"""Keeps pandas out of a process whose PySpark and pyarrow would load it merely because it is there.

It takes a second, and PySpark prints warnings about its version. For the report's own process; a
library has no business to call this.
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
    """From now on `import pandas` fails, as if it were not installed."""
    if not any(isinstance(finder, _PandasIsAbsent) for finder in sys.meta_path):
        sys.meta_path.insert(0, _PandasIsAbsent())
