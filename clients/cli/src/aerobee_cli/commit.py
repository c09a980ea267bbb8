"""Find the commit of this build. A wheel has it in a file; a checkout asks Git."""

from __future__ import annotations

import subprocess
from pathlib import Path

HERE = Path(__file__).resolve().parent
BUILT_FROM = HERE / "commit.txt"  # the build hook writes it, deploy/hatch_build.py
IN_CHECKOUT = Path("clients/cli/src/aerobee_cli")


def commit() -> str:
    """Return the commit, or "" if neither the build nor Git knows it."""
    if BUILT_FROM.exists():
        return BUILT_FROM.read_text(encoding="utf-8")
    root = HERE.parents[len(IN_CHECKOUT.parts) - 1]
    # An installed package may lie below the checkout of another project.
    if root / IN_CHECKOUT != HERE or not (root / ".git").exists():
        return ""
    try:
        told = subprocess.run(
            ["git", "-C", str(root), "rev-parse", "--short=12", "HEAD"],
            check=False,
            capture_output=True,
            text=True,
        )
    except OSError:  # Git is not installed
        return ""
    return told.stdout.strip()
