"""Check that documentation is written in plain English.

The check reads the docstrings, comments and messages of Python sources, and Markdown pages. Code in
backticks and fenced blocks is skipped. CONTRIBUTING.md explains the rules ("How to write").

    python docs/prose.py             # check the paths in CLEAN; `make check` runs this
    python docs/prose.py PATH...     # check other files or folders, before adding them to CLEAN

Exit codes: 0 no problem, 1 problems found, 2 a path does not exist.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
# Files and folders without problems, relative to the root. Add a path when it is clean, so that it
# stays clean. Never remove one.
CLEAN = (
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "README.md",
    "SECURITY.md",
    "clients/cli/src",
    "clients/cluster/src",
    "clients/console/src",
    "clients/python/src",
    "deploy",
    "docs/administration.md",
    "docs/adr",
    "docs/architecture.md",
    "docs/audit.md",
    "docs/backup.md",
    "docs/benchmarks.md",
    "docs/change_over.md",
    "docs/compare.md",
    "docs/compatibility.md",
    "docs/compose.md",
    "docs/configuration.md",
    "docs/console.md",
    "docs/curves.py",
    "docs/dead_letters.md",
    "docs/docstrings.py",
    "docs/figures.py",
    "docs/glossary.md",
    "docs/install.md",
    "docs/keys.py",
    "docs/kubernetes.md",
    "docs/messages.md",
    "docs/metrics.md",
    "docs/metrics.py",
    "docs/mqadmin.md",
    "docs/mqadmin.py",
    "docs/pages.py",
    "docs/permissions.md",
    "docs/permissions.py",
    "docs/python_client.md",
    "docs/quotas.md",
    "docs/reference",
    "docs/reliability.md",
    "docs/replication.md",
    "docs/security.md",
    "docs/spark.md",
    "docs/storage_format.md",
    "docs/systemd.md",
    "docs/testing.md",
    "docs/traces.md",
    "docs/upgrade.md",
    "docs/usage.md",
    "docs/users.md",
    "jobs/spark",
    "proto/src",
    "services",
)
# word or phrase → what to write instead
PHRASES = {
    "tell": "notify, log, return or report",
    "telling": "notifying, logging, returning or reporting",
    "tells": "notifies, logs, returns or reports",
    "told": "notified, logged, returned or reported",
    "go on": "continue or resume",
    "goes on": "continues or resumes",
    "going on": "continuing or resuming",
    "went on": "continued or resumed",
    "try again": "retry",
    "tries again": "retries",
    "tried again": "retried",
    "is away": "'is unavailable' or 'is missing'",
    "are away": "'are unavailable' or 'are missing'",
    "is not there": "'is missing' or 'does not exist'",
    "nobody": "the name of the part, such as 'no client'",
    "somebody": "the name of the part, such as 'a client'",
    "whoever": "the name of the part, such as 'the caller'",
    "whom": "the name of the part, such as 'the caller'",
    "anew": "'again'",
    "by and by": "'eventually'",
    "thereupon": "'then' or 'after that'",
    "so long": "the duration, such as 'up to 3 days'",
    "so many": "the number, such as 'up to 512'",
}
# First words of a docstring that make it a fragment without subject or verb.
FRAGMENTS = frozenset(
    ("what", "of", "as", "until", "whether", "that", "where", "so", "none", "again")
)

_PHRASE = re.compile(
    r"\b(" + "|".join(phrase.replace(" ", r"\s+") for phrase in PHRASES) + r")\b", re.IGNORECASE
)
# "is no queue offset", but not "there is no topic" and not "is no longer".
_NEGATED_NOUN = re.compile(r"\b(there\s+)?(?:is|are|was|were)\s+no\s+(?!longer\b)[a-z]+", re.I)
_CODE = re.compile(r"``.+?``|`[^`\n]*`")
_FENCE = re.compile(r"^\s*(```|~~~)")


class Text(NamedTuple):
    """A piece of prose, the line on which it starts, and whether it is a docstring."""

    line: int
    prose: str
    is_docstring: bool = False


class Problem(NamedTuple):
    """A line, and what to change there."""

    line: int
    advice: str


def problems(text: Text) -> Iterator[Problem]:
    """Yield the problems of one piece of prose."""
    prose = _CODE.sub(lambda code: "`" + " " * (len(code.group()) - 2) + "`", text.prose)

    def line_of(position: int) -> int:
        return text.line + prose.count("\n", 0, position)

    if text.is_docstring and (first := re.match(r"\W*(\w+)\b", prose)):
        word = first.group(1)
        if word.lower() in FRAGMENTS and "`" not in first.group():
            yield Problem(text.line, f"docstring begins with '{word}': begin with a verb")
    for found in _PHRASE.finditer(prose):
        phrase = " ".join(found.group().lower().split())
        yield Problem(line_of(found.start()), f"'{phrase}': write {PHRASES[phrase]}")
    for found in _NEGATED_NOUN.finditer(prose):
        if not found.group(1):
            phrase = " ".join(found.group().split())
            yield Problem(line_of(found.start()), f"'{phrase}': negate the verb ('is not a …')")


def python_texts(source: str) -> Iterator[Text]:
    """Yield the docstrings, the other strings with a space, and the comments of a module."""
    tree = ast.parse(source)
    docstrings = set()
    for node in ast.walk(tree):  # a node comes before those that it contains
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                docstrings.add(id(first.value))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            is_docstring = id(node) in docstrings
            if is_docstring or " " in node.value:
                yield Text(node.lineno, node.value, is_docstring)
    # Finding comments takes most of the time of a check, and few modules have a problem at all.
    if may_have_problems(re.sub(r"\n[ \t]*#", "\n", source)):
        yield from _comments(source)


def may_have_problems(text: str) -> bool:
    """Return False if no part of a text has a problem, apart from the form of docstrings."""
    return bool(_PHRASE.search(text) or _NEGATED_NOUN.search(text))


def _comments(source: str) -> Iterator[Text]:
    """Yield comments. Comments on consecutive lines are one text, so that phrases may wrap."""
    block: list[str] = []
    start = 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT:
            continue
        line = token.start[0]
        if block and line != start + len(block):
            yield Text(start, "\n".join(block))
            block = []
        if not block:
            start = line
        block.append(token.string.lstrip("# "))
    if block:
        yield Text(start, "\n".join(block))


def markdown_text(source: str) -> Text:
    """Return a page as one text, with empty lines in place of fenced blocks."""
    lines = []
    is_fenced = False
    for line in source.splitlines():
        is_fence = bool(_FENCE.match(line))
        lines.append("" if is_fenced or is_fence else line)
        is_fenced ^= is_fence
    return Text(1, "\n".join(lines))


def check(path: Path) -> list[Problem]:
    """Return the problems of a Python module or a Markdown page, in order of their lines."""
    source = path.read_text(encoding="utf-8")
    texts = python_texts(source) if path.suffix == ".py" else [markdown_text(source)]
    return sorted(problem for text in texts for problem in problems(text))


def files(path: Path) -> list[Path]:
    """Return a file itself, or the modules and pages in a folder."""
    if path.is_file():
        return [path]
    return sorted(each for each in path.rglob("*") if each.suffix in (".py", ".md"))


def main(arguments: list[str]) -> int:
    paths = [Path(name) for name in arguments] or [ROOT / name for name in CLEAN]
    if missing := [path for path in paths if not path.exists()]:
        print(f"error: {missing[0]} does not exist: correct the path", file=sys.stderr)
        return 2
    count = 0
    for file in (file for path in paths for file in files(path)):
        name = file.relative_to(ROOT) if file.is_relative_to(ROOT) else file
        for problem in check(file):
            print(f"{name}:{problem.line}: {problem.advice}")
            count += 1
    if count:
        print(f"error: {count} problems: see 'How to write' in CONTRIBUTING.md", file=sys.stderr)
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
