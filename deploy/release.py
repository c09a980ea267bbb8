"""Cut a release: the steps of `make release VERSION=0.2.0` that change files, commits and tags.

    python deploy/release.py ready 0.2.0    # refuse what may not be released
    python deploy/release.py cut 0.2.0      # date the changelog, set the version, commit
    python deploy/release.py tag 0.2.0      # tag the commit, and print how to publish
    python deploy/release.py undo 0.2.0     # remove the commit, because its build failed
    python deploy/release.py tagged v0.2.0  # fail if the tree does not have the tag's version

Nothing here publishes.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CHANGELOG = Path("CHANGELOG.md")
VERSION_FILE = Path("proto/src/aerobee_wire/version.py")
UNRELEASED = "## Unreleased\n"
STATED = re.compile(r'^VERSION = "(.+)"$', re.MULTILINE)


class NotReady(Exception):
    """The tree cannot be released. The message says why and what to do."""


def git(root: Path, *arguments: str) -> str:
    """Return what Git prints. Raises CalledProcessError."""
    done = subprocess.run(
        ["git", "-C", str(root), *arguments], check=True, stdout=subprocess.PIPE, text=True
    )
    return done.stdout.strip()


def stated(root: Path) -> str:
    """Return the version of the tree."""
    found = STATED.search((root / VERSION_FILE).read_text(encoding="utf-8"))
    assert found is not None, f"{VERSION_FILE} states no version"
    return found[1]


def unreleased(text: str) -> str:
    """Return the changes in a changelog that no version has."""
    after = text.partition(UNRELEASED)[2]
    return re.split(r"^## ", after, maxsplit=1, flags=re.MULTILINE)[0].strip()


def dated(text: str, version: str, day: str) -> str:
    """Return a changelog whose unreleased changes are those of `version`."""
    return text.replace(UNRELEASED, f"{UNRELEASED}\n## {version} - {day}\n", 1)


def parsed(version: str) -> tuple[int, ...]:
    """Return the three numbers of a version. Raises NotReady."""
    if not re.fullmatch(r"(0|[1-9]\d*)(\.(0|[1-9]\d*)){2}", version):
        raise NotReady(f"invalid version {version!r}: write three numbers, such as VERSION=0.2.0")
    return tuple(map(int, version.split(".")))


def ready(root: Path, version: str) -> None:
    """Raise NotReady if `version` cannot be released from this tree."""
    numbers, current = parsed(version), stated(root)
    if numbers <= parsed(current):
        raise NotReady(f"version {version} does not follow {current}: choose a higher one")
    if git(root, "status", "--porcelain"):
        raise NotReady("the tree has changes: commit or remove what 'git status' lists")
    if git(root, "tag", "--list", f"v{version}"):
        raise NotReady(f"the tag v{version} exists: choose a higher version, or delete the tag")
    if not unreleased((root / CHANGELOG).read_text(encoding="utf-8")):
        raise NotReady(f"{CHANGELOG} has no unreleased changes: there is nothing to release")


def cut(root: Path, version: str) -> None:
    """Date the changelog, set the version, and commit both. Raises NotReady."""
    ready(root, version)
    day = f"{datetime.now(UTC):%Y-%m-%d}"
    changelog, source = root / CHANGELOG, root / VERSION_FILE
    changelog.write_text(dated(changelog.read_text("utf-8"), version, day), encoding="utf-8")
    text = STATED.sub(f'VERSION = "{version}"', source.read_text(encoding="utf-8"))
    source.write_text(text, encoding="utf-8")
    git(root, "commit", "--quiet", "--message", subject(version), str(CHANGELOG), str(VERSION_FILE))
    print(f"committed {subject(version)!r}")


def subject(version: str) -> str:
    """Return the subject of a release's commit."""
    return f"release: {version}"


def undo(root: Path, version: str) -> None:
    """Remove the commit of `cut`. Raises NotReady if it is not the last one."""
    expect_cut(root, version)
    git(root, "reset", "--quiet", "--hard", "HEAD~1")
    print(f"removed the commit {subject(version)!r}", file=sys.stderr)


def tag(root: Path, version: str) -> None:
    """Tag the commit of `cut`, and print how to publish it. Raises NotReady."""
    expect_cut(root, version)
    if git(root, "status", "--porcelain"):
        raise NotReady("the build has changed the tree: commit or remove what 'git status' lists")
    git(root, "tag", "--annotate", "--message", f"Aerobee {version}", f"v{version}")
    branch = git(root, "branch", "--show-current") or "HEAD"
    print(f"tagged v{version}; nothing is published yet. To publish:\n")
    print("  build/tools/env/bin/twine upload build/dist/*")
    print(f"  git push --atomic origin {branch} v{version}")


def expect_cut(root: Path, version: str) -> None:
    """Raise NotReady if the last commit is not that of `cut`."""
    last = git(root, "log", "-1", "--format=%s")
    if last != subject(version) or stated(root) != version:
        raise NotReady(f"the last commit is {last!r}, not {subject(version)!r}")


def tagged(root: Path, tag: str) -> None:
    """Raise NotReady if a tag is not that of the tree's version, or the changelog lacks it."""
    version = stated(root)
    if tag != f"v{version}":
        raise NotReady(f"the tag is {tag!r}, but the tree has version {version}: tag v{version}")
    if f"\n## {version}" not in (root / CHANGELOG).read_text(encoding="utf-8"):
        raise NotReady(f"{CHANGELOG} has no dated changes of {version}: use make release")


STEPS = {"ready": ready, "cut": cut, "tag": tag, "undo": undo, "tagged": tagged}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("step", choices=STEPS)
    parser.add_argument("version", help="for `tagged`, the tag")
    parser.add_argument("--root", type=Path, default=ROOT, help="checkout (default: this one)")
    given = parser.parse_args(arguments)
    try:
        STEPS[given.step](given.root, given.version)
    except NotReady as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
