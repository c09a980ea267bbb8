"""Every example of the Python client runs, as its reader would run it, and ends by itself."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

from support.repository.tree import ROOT

EXAMPLES = sorted((ROOT / "clients" / "python" / "examples").glob("*.py"))
EXAMPLE_TIMEOUT_S = 120.0
EXAMPLE_LINES = 40


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs(example: Path, namesrv: str) -> None:
    ran = subprocess.run(
        [sys.executable, example],
        env={**os.environ, "NAMESRV_ADDR": namesrv},
        capture_output=True,
        text=True,
        timeout=EXAMPLE_TIMEOUT_S,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stdout, "an example shows what it does"


def test_no_two_examples_share_a_topic_or_a_consumer_group() -> None:
    """A reader runs them one after the other: one would get the messages of another."""
    users: defaultdict[str, set[str]] = defaultdict(set)
    for example in EXAMPLES:
        text = example.read_text(encoding="utf-8")
        for call, name in re.findall(r'(Message|subscribe|\w+Consumer)\(\s*"([\w-]+)"', text):
            users[f"{'group' if 'Consumer' in call else 'topic'} {name}"].add(example.name)
    assert users["topic bookings"] == {"reconsume_later.py"}
    assert {name: found for name, found in users.items() if len(found) > 1} == {}


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_short_and_has_its_place_in_the_docs(example: Path) -> None:
    assert len(example.read_text(encoding="utf-8").splitlines()) <= EXAMPLE_LINES
    page = (ROOT / "docs" / "python_client.md").read_text(encoding="utf-8")
    assert f"examples/{example.name}" in page
