"""Write the table of docs/mqadmin.md from the counterparts that `aerobee` knows.

.venv/bin/python docs/mqadmin.py
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from aerobee_cli.mqadmin import COMMANDS, Counterpart

PAGE = Path(__file__).with_name("mqadmin.md")
START = "<!-- The rest is written by docs/mqadmin.py. -->\n"


def _ours(counterpart: Counterpart) -> str:
    commands = ", ".join(f"`aerobee {command}`" for command in counterpart.commands)
    if not commands:
        return f"none: {counterpart.note}"
    return commands + (f": {counterpart.note}" if counterpart.note else "")


def _tables() -> Iterator[str]:
    for title, commands in COMMANDS.items():
        yield f"\n## {title.capitalize()}\n\n| mqadmin | here |\n|---|---|\n"
        for name, counterpart in commands.items():
            yield f"| `{name}` | {_ours(counterpart)} |\n"


def rewritten(page: str) -> str:
    """Return the page with the tables. Raise SystemExit if the mark is missing."""
    before, mark, _ = page.partition(START)
    if not mark:
        raise SystemExit(f"{PAGE.name} lacks the line {START.strip()}: add it")
    return f"{before}{START}{''.join(_tables())}"


def main() -> int:
    PAGE.write_text(rewritten(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
