"""The repository as data: its files, distributions and modules. For tests about the tree itself."""

from __future__ import annotations

import functools
import importlib.util
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[3]
GENERATED = ROOT / "proto" / "gen"
PYTHONS = ("3.11", "3.12", "3.13")  # that are supported


@dataclass(frozen=True)
class Distribution:
    """One of those that users install: a folder with a pyproject.toml, and packages of the tree."""

    folder: Path
    pyproject: dict[str, Any]

    @property
    def metadata(self) -> dict[str, Any]:
        return dict(self.pyproject["project"])

    @property
    def name(self) -> str:
        return str(self.metadata["name"])

    @property
    def packages(self) -> list[Path]:
        """The folders of the tree that are in its wheel."""
        build = self.pyproject["tool"]["hatch"]["build"]
        folded = build["hooks"]["custom"].get("fold", {})
        named = [*build["targets"]["wheel"]["packages"], *folded]
        return [(self.folder / name).resolve() for name in named]

    @property
    def exact(self) -> list[Requirement]:
        """What it needs of ours, which the build hook pins to its own version."""
        return [
            Requirement(text)
            for text in self.pyproject["tool"]["hatch"]["build"]["hooks"]["custom"]["exact"]
        ]

    @property
    def extras(self) -> set[str]:
        return set(self.metadata.get("optional-dependencies", {}))

    @property
    def third_party(self) -> list[Requirement]:
        """What it needs that is not ours, with all extras."""
        return self.needs(*self.metadata.get("optional-dependencies", {}))

    def needs(self, *extras: str) -> list[Requirement]:
        """What it needs that is not ours, with some extras."""
        optional = self.metadata.get("optional-dependencies", {})
        chosen = [optional.get(extra, []) for extra in extras]
        return [
            Requirement(text)
            for texts in (self.metadata.get("dependencies", []), *chosen)
            for text in texts
        ]


@functools.cache
def files() -> list[Path]:
    """Every file that git tracks and that exists, absolute, sorted.

    Raises CalledProcessError outside a git checkout.
    """
    output = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout
    return sorted(path for name in output.split("\0") if name and (path := ROOT / name).is_file())


@functools.cache
def texts() -> dict[Path, str]:
    """Path, relative to the root → content of every tracked text file."""
    return {
        path.relative_to(ROOT): path.read_text(encoding="utf-8")
        for path in files()
        if b"\0" not in path.read_bytes()[:4096]
    }


@functools.cache
def distributions() -> list[Distribution]:
    """Ours, in the order of their folders."""
    projects = [path for path in files() if path.name == "pyproject.toml"]
    return [
        Distribution(path.parent, tomllib.loads(path.read_text(encoding="utf-8")))
        for path in projects
    ]


def packages() -> list[Path]:
    """Our written packages, which the wheels have: not those that protoc generated."""
    found = {path for distribution in distributions() for path in distribution.packages}
    return sorted(path for path in found if GENERATED not in path.parents)


@functools.cache
def modules() -> list[Path]:
    """Our written Python files, tests included; not what protoc generated."""
    return [path for path in files() if path.suffix == ".py" and GENERATED not in path.parents]


@functools.cache
def sources() -> list[Path]:
    """The modules that are installed."""
    return [path for path in modules() if "src" in path.relative_to(ROOT).parts]


def locked(path: Path) -> dict[str, dict[Version, frozenset[str]]]:
    """Package → version → hashes of a lock file (a package has two where markers differ); without
    those for Windows, where no service runs."""
    pins: dict[str, dict[Version, frozenset[str]]] = {}
    for entry in path.read_text(encoding="utf-8").replace("\\\n", " ").splitlines():
        words = entry.split()
        if not words or words[0].startswith("#") or "sys_platform == 'win32'" in entry:
            continue
        name, _, version = words[0].partition("==")
        hashes = frozenset(word for word in words if word.startswith("--hash=sha256:"))
        pins.setdefault(name, {})[Version(version)] = hashes
    return pins


def wanted(path: Path) -> list[Requirement]:
    """The requirements of a `.in` file."""
    lines = (line.partition("#")[0].strip() for line in path.read_text("utf-8").splitlines())
    return [Requirement(line) for line in lines if line]


def docs_script(name: str) -> ModuleType:
    """Import docs/`name`.py, which is a script and belongs to no package."""
    return script(ROOT / "docs" / f"{name}.py")


def script(path: Path) -> ModuleType:
    """Import a script."""
    spec = importlib.util.spec_from_file_location(f"script_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look for their module there
    spec.loader.exec_module(module)
    return module
