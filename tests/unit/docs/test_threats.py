"""Each threat of docs/security.md has tests of the name that the page gives."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "security.md"
LEAST = 13


def test_each_threat_has_tests_of_its_name() -> None:
    section = PAGE.read_text(encoding="utf-8").partition("## Threats")[2].partition("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| ")][1:]
    names = {name for row in rows for name in re.findall(r"`(test_\w+)`", row.rpartition(" | ")[2])}
    assert len(rows) >= LEAST and len(names) >= len(rows)
    files = list((ROOT / "tests").rglob("test_*.py"))
    functions = {
        name
        for file in files
        for name in re.findall(
            r"^(?:async )?def (test_\w+)", file.read_text(encoding="utf-8"), re.MULTILINE
        )
    }
    known = functions | {file.stem for file in files}
    missing = [name for name in names if not any(each.startswith(name) for each in known)]
    assert not missing, "pytest -k NAME would run no test"
