"""Stop PySpark and pyarrow from importing pandas, which they do if it is installed.

The import takes a second, and PySpark prints warnings about the version of pandas. Only commands
may call this, because it affects the whole process.
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
    """Make `import pandas` fail from now on, as if pandas were not installed."""
    if not any(isinstance(finder, _PandasIsAbsent) for finder in sys.meta_path):
        sys.meta_path.insert(0, _PandasIsAbsent())
