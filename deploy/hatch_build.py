"""The build hook of our distributions: it adds to a wheel or sdist what pyproject.toml cannot name.

* `fold`: packages that lie outside the folder of the distribution, and their places in the sdist.
* `exact`: requirements of our own distributions. The hook pins them to the version that is built.
* `commit`: a file that gets the commit that is built. It is in AEROBEE_COMMIT, or Git knows it.

A sdist contains folded packages and the commit, so the wheel that is built from it is the same.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from packaging.requirements import Requirement

COMMIT_VARIABLE = "AEROBEE_COMMIT"


class DistributionHook(BuildHookInterface[Any]):
    """Folds packages, pins our own distributions, and records the commit."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        build_data["dependencies"] += [self._pinned(text) for text in self.config.get("exact", ())]
        if version == "editable":  # dev-mode-dirs names all folders, and Git knows the commit
            return
        for source, place in self.config.get("fold", {}).items():
            self._include(build_data, Path(self.root, source), place)
        if "commit" in self.config:
            self._include_commit(build_data, self.config["commit"])
        # A link to a file of the repository leads nowhere in a sdist: it has the file itself.
        included = build_data["force_include"]
        build_data["force_include"] = {os.path.realpath(path): to for path, to in included.items()}

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if self._scratch is not None:
            self._scratch.cleanup()

    _scratch: tempfile.TemporaryDirectory[str] | None = None

    def _pinned(self, text: str) -> str:
        requirement = Requirement(text)
        requirement.specifier &= f"=={self.metadata.version}"
        return str(requirement)

    def _include(self, build_data: dict[str, Any], source: Path, place: str) -> None:
        """Include `source`, or what is in its place if this is the tree of an sdist."""
        in_sdist = Path(self.root, place)
        target = place if self.target_name == "sdist" else place.rpartition("src/")[2]
        build_data["force_include"][str(in_sdist if in_sdist.exists() else source)] = target

    def _include_commit(self, build_data: dict[str, Any], place: str) -> None:
        commit = os.environ.get(COMMIT_VARIABLE) or self._commit_of_checkout()
        self._scratch = tempfile.TemporaryDirectory()
        written = Path(self._scratch.name, "commit")
        written.write_text(commit, encoding="utf-8")
        self._include(build_data, written, place)

    def _commit_of_checkout(self) -> str:
        """Return the commit of this checkout, or "" where Git's files are missing."""
        if not Path(self.root, ".git").exists():
            return ""
        told = subprocess.run(
            ["git", "-C", self.root, "rev-parse", "--short=12", "HEAD"],
            check=True,
            capture_output=True,
            text=True,
        )
        return told.stdout.strip()
