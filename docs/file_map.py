"""Write docs/file_map.md: each module and the first sentence of its docstring.

Run it after you add, remove or rename a module. `make check` fails if the page is stale.

    python docs/file_map.py            # rewrite the map
    python docs/file_map.py --check    # compare only
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterable
from itertools import groupby
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "file_map.md"
HEAD = """\
# File map

Each module and what it is. [file_map.py](file_map.py) writes this page from the first sentence of
each module's docstring; how the parts hang together is in [architecture.md](architecture.md).

"""
MAPPED = ("proto/src", "services", "clients", "jobs")


def modules() -> list[Path]:
    """Return the modules of the distributions, relative to the root, without ignored files."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *MAPPED],
        cwd=ROOT, check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    paths = {Path(line) for line in listed.splitlines() if line.endswith(".py")}
    return sorted(
        path
        for path in paths
        if path.name != "__init__.py" and "src" in path.parts and (ROOT / path).is_file()
    )


def sentence(path: Path) -> str:
    """Return the first sentence of a module, on one line. Raise SystemExit if it has none."""
    docstring = ast.get_docstring(ast.parse((ROOT / path).read_text(encoding="utf-8")))
    if not docstring:
        raise SystemExit(f"{path} has no docstring: begin it with a sentence on its purpose")
    paragraph = " ".join(docstring.split("\n\n")[0].split())
    return re.split(r"(?<=[.])\s+(?=[A-Z])", paragraph)[0].replace("|", "\\|")


def package(path: Path) -> Path:
    """Return the package of a module, such as `services/broker/src/aerobee_broker`."""
    return Path(*path.parts[: path.parts.index("src") + 2])


def table(folder: Path, paths: Iterable[Path]) -> str:
    """Return the section of the page for one package."""
    rows = "".join(f"| `{path.relative_to(folder)}` | {sentence(path)} |\n" for path in paths)
    return f"**`{folder}`**\n\n| file | what it is |\n|---|---|\n{rows}"


def page() -> str:
    return HEAD + "\n".join(table(*group) for group in groupby(modules(), key=package))


def main() -> int:
    written = PAGE.read_text(encoding="utf-8") if PAGE.exists() else ""
    if sys.argv[1:] == ["--check"]:
        if page() != written:
            print("the file map is stale: run .venv/bin/python docs/file_map.py")
        return int(page() != written)
    PAGE.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
