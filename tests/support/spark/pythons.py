"""Environments as those of a cluster's workers: what others made is installed, none of ours is."""

from __future__ import annotations

import sys
import venv
from pathlib import Path


def python_without_ours(folder: Path, *lacking: str) -> Path:
    """The program of an environment with the packages of this one, but without ours, which are
    installed by .pth files that no other environment follows. `lacking`: modules without which it
    is, too."""
    venv.create(folder / "venv", with_pip=False, symlinks=True)
    packages = folder / "packages"
    packages.mkdir(parents=True)
    for site in (Path(entry) for entry in sys.path if entry.endswith("site-packages")):
        for path in site.iterdir():
            link = packages / path.name
            if path.name not in lacking and path.suffix != ".pth" and not link.exists():
                link.symlink_to(path)
    [site] = (folder / "venv").glob("lib/python*/site-packages")
    (site / "packages.pth").write_text(f"{packages}\n")
    return folder / "venv" / "bin" / "python"
