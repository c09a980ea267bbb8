"""Writes the file map of docs/architecture.md: each module and the first sentence of its docstring.

Run it after adding, removing or renaming a module; `make check` fails when the page is stale.

    python docs/file_map.py            # rewrite the map
    python docs/file_map.py --check    # compare only
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "architecture.md"
BEGIN, END = "<!-- file map: begin -->", "<!-- file map: end -->"
MAPPED = ("proto/src", "services", "clients", "jobs")


def modules() -> list[Path]:
    """The modules of our distributions that git knows or would take, relative to the root."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *MAPPED],
        cwd=ROOT, check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    paths = {Path(line) for line in listed.splitlines() if line.endswith(".py")}
    return sorted(p for p in paths if p.name != "__init__.py" and (ROOT / p).is_file())


def sentence(path: Path) -> str:
    """What the module says that it is: the first sentence, on one line. Raises SystemExit."""
    docstring = ast.get_docstring(ast.parse((ROOT / path).read_text(encoding="utf-8")))
    if not docstring:
        raise SystemExit(f"{path} does not open with what it is")
    paragraph = " ".join(docstring.split("\n\n")[0].split())
    return re.split(r"(?<=[.])\s+(?=[A-Z])", paragraph)[0].replace("|", "\\|")


def package(path: Path) -> Path:
    """`services/broker/src/aerobee_broker` of any module below it."""
    return Path(*path.parts[: path.parts.index("src") + 2])


def rows() -> Iterator[str]:
    for folder, members in groupby(modules(), key=package):
        yield f"**`{folder}`**\n\n| file | what it is |\n|---|---|\n"
        for path in members:
            yield f"| `{path.relative_to(folder)}` | {sentence(path)} |\n"
        yield "\n"


def rewritten(page: str) -> str:
    """The page with a fresh map. Raises SystemExit when it has no place for one."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"{PAGE.relative_to(ROOT)} lacks the lines {BEGIN} and {END}")
    return f"{before}{BEGIN}\n\n{''.join(rows())}{END}{after}"


def main() -> int:
    page = PAGE.read_text(encoding="utf-8")
    fresh = rewritten(page)
    if sys.argv[1:] == ["--check"]:
        if fresh != page:
            print("the file map is stale: run .venv/bin/python docs/file_map.py")
        return int(fresh != page)
    PAGE.write_text(fresh, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
