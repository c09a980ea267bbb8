"""Build the distributions from the tracked files: an sdist and a wheel of each.

    python deploy/dist.py build/dist    # `make dist` runs this

Everything is built twice, in two folders, time zones and umasks: the wheel from the sdist, as an
index expects it, and then from the tree, as `pip install` of a checkout does it. The command fails
if the results differ. The time of all entries is that of the commit.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PROJECTS = ("clients/python", ".", "jobs/spark")
# What may not change a result.
SURROUNDINGS = ({"TZ": "UTC", "PYTHONHASHSEED": "0"}, {"TZ": "Asia/Kolkata", "PYTHONHASHSEED": "7"})
UMASKS = (0o022, 0o077)


def git(*arguments: str, root: Path = ROOT) -> str:
    """Return what Git prints. Raises CalledProcessError."""
    done = subprocess.run(
        ["git", "-C", str(root), *arguments], check=True, stdout=subprocess.PIPE, text=True
    )
    return done.stdout.strip()


def commit() -> str:
    """Return the short commit, with "-dirty" if a tracked file differs from it."""
    changed = git("status", "--porcelain", "--untracked-files=no")
    return git("rev-parse", "--short=12", "HEAD") + ("-dirty" if changed else "")


def export(target: Path) -> None:
    """Copy the tracked files into a new folder. A link becomes the file that it leads to."""
    for name in git("ls-files", "-z").split("\0"):
        source = ROOT / name
        if name and source.is_file():
            copy = target / name
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, copy)


def hatchling(project: Path, kind: str, out: Path, environment: Mapping[str, str]) -> Path:
    """Build an sdist or a wheel of a folder, and return its path.

    Raises SystemExit with hatchling's output.
    """
    before = set(out.iterdir())
    done = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(out)],
        cwd=project,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise SystemExit(f"error: cannot build a {kind} of {project}:\n{done.stdout}")
    (made,) = set(out.iterdir()) - before
    return made


def build(out: Path, environment: Mapping[str, str], *, from_sdist: bool) -> None:
    """Build all distributions into a new folder."""
    out.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as scratch:
        tree = Path(scratch, "tree")
        export(tree)
        for number, project in enumerate(PROJECTS):
            folder = tree / project
            sdist = hatchling(folder, "sdist", out, environment)
            if from_sdist:
                with tarfile.open(sdist) as archive:
                    archive.extractall(Path(scratch, str(number)), filter="data")
                (folder,) = Path(scratch, str(number)).iterdir()
            hatchling(folder, "wheel", out, environment)


def digests(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of each file of a folder, by name."""
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.iterdir())
    }


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("out", type=Path, help="folder to write; an existing one is replaced")
    out = parser.parse_args(arguments).out
    if not (ROOT / ".git").exists():
        print(
            f"error: {ROOT} has no Git files, which know what to build: clone it", file=sys.stderr
        )
        return 1
    common = {
        "SOURCE_DATE_EPOCH": git("log", "-1", "--format=%ct"),
        "AEROBEE_COMMIT": commit(),
    }
    with tempfile.TemporaryDirectory() as scratch:
        results = []
        for number, (surroundings, umask) in enumerate(zip(SURROUNDINGS, UMASKS, strict=True)):
            made = Path(scratch, str(number))
            previous = os.umask(umask)
            try:
                build(made, {**common, **surroundings}, from_sdist=number == 0)
            finally:
                os.umask(previous)
            results.append(digests(made))
        first, second = results
        if first != second:
            differing = sorted(name for name in first if first[name] != second.get(name))
            print(f"error: two builds differ: {', '.join(differing)}", file=sys.stderr)
            return 1
        shutil.rmtree(out, ignore_errors=True)
        shutil.copytree(Path(scratch, "0"), out)
    for name, digest in first.items():
        print(f"{digest}  {out / name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
