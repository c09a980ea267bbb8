"""deploy/audit.py: which advisories affect which packages, and what is not audited."""

from __future__ import annotations

import io
import json
import urllib.error
import zipfile
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from support.repository.tree import ROOT, files, script

audit = script(ROOT / "deploy" / "audit.py")

JINJA = audit.Package("PyPI", "jinja2", "3.1.6")
HTMX = audit.Package("npm", "htmx.org", "2.0.11")


def advisory(name: str = "jinja2", ecosystem: str = "PyPI", **affected: Any) -> dict[str, Any]:
    return {
        "id": "GHSA-1",
        "aliases": ["CVE-1"],
        "modified": "2026-11-01T00:00:00Z",
        "summary": "A summary.",
        "affected": [{"package": {"ecosystem": ecosystem, "name": name}, **affected}],
    }


def in_range(*events: dict[str, str], kind: str = "ECOSYSTEM") -> list[dict[str, Any]]:
    return [{"type": kind, "events": list(events)}]


def judged(package: Any, *advisories: dict[str, Any]) -> list[tuple[str, str]]:
    """The findings of one package: advisory, "" if not audited, and text."""
    snapshot = audit.Advisories({(package.ecosystem, package.name)})
    for each in advisories:
        snapshot.add(each)
    return [(each.advisory, each.text) for each in audit.audit([package], snapshot)]


def is_affected(package: Any, *advisories: dict[str, Any]) -> bool:
    found = judged(package, *advisories)
    assert all(name for name, _ in found), found
    return bool(found)


ZERO = {"introduced": "0"}


@pytest.mark.parametrize(
    ("version", "events", "affected"),
    [
        ("3.1.6", [ZERO, {"fixed": "3.1.7"}], True),
        ("3.1.6", [ZERO, {"fixed": "3.1.6"}], False),
        ("3.1.10", [ZERO, {"fixed": "3.1.7"}], False),  # as a version, not as text
        ("3.1.6", [{"introduced": "3.1.6"}], True),
        ("3.1.5", [{"introduced": "3.1.6"}], False),
        ("3.1.6", [ZERO, {"last_affected": "3.1.6"}], True),
        ("3.1.7", [ZERO, {"last_affected": "3.1.6"}], False),
        ("3.1.6", [ZERO, {"fixed": "2.0"}, {"introduced": "3.0"}, {"fixed": "4.0"}], True),
        ("2.5", [ZERO, {"fixed": "2.0"}, {"introduced": "3.0"}, {"fixed": "4.0"}], False),
        ("3.1.6", [{"fixed": "4.0"}, {"introduced": "3.0"}], True),  # in any order
        ("3.1.6rc1", [{"introduced": "3.1.6"}], False),
        ("3.1.6", [ZERO, {"limit": "3.0"}], False),
        ("3.1.6", [], False),
        ("3.1.6rc1", [ZERO, {"fixed": "3.1.6"}], True),
        ("3.1.6.dev3", [ZERO, {"fixed": "3.1.6rc1"}], True),
        ("3.1.6.post1", [ZERO, {"fixed": "3.1.6"}], False),
        ("3.1.6.post1", [ZERO, {"last_affected": "3.1.6"}], False),
        ("3.1.6.post1", [ZERO, {"last_affected": "3.1.6.post1"}], True),
        ("3.1.6+cpu", [ZERO, {"last_affected": "3.1.6"}], True),  # a build of 3.1.6
        ("1!1.0", [ZERO, {"fixed": "3.1.6"}], False),
        ("3.1", [ZERO, {"last_affected": "3.1.0"}], True),
        ("3.1.6", [ZERO, {"last_affected": "3.0"}, {"introduced": "3.1"}], True),
        ("0.0.0", [ZERO, {"fixed": "0"}], False),
        ("0.0.0", [{"introduced": "0.0.0"}, {"last_affected": "0.0.0"}], True),
    ],
)
def test_ranges_of_python_packages(
    version: str, events: Sequence[dict[str, str]], affected: bool
) -> None:
    package = audit.Package("PyPI", "jinja2", version)
    assert is_affected(package, advisory(ranges=in_range(*events))) is affected


@pytest.mark.parametrize(
    ("version", "events", "affected"),
    [
        ("2.0.11", [ZERO, {"fixed": "2.0.12"}], True),
        ("2.0.11", [ZERO, {"fixed": "2.0.9"}], False),
        ("2.0.11", [ZERO, {"fixed": "2.0.11-rc.1"}], False),
        ("2.0.11-rc.2", [ZERO, {"fixed": "2.0.11-rc.10"}], True),
        ("2.0.11-rc.2", [ZERO, {"fixed": "2.0.11"}], True),
        ("2.0.11-beta", [{"introduced": "2.0.11-alpha.1"}], True),
    ],
)
def test_ranges_of_scripts(version: str, events: Sequence[dict[str, str]], affected: bool) -> None:
    package = audit.Package("npm", "htmx.org", version)
    found = advisory("htmx.org", "npm", ranges=in_range(*events, kind="SEMVER"))
    assert is_affected(package, found) is affected


def test_lists_of_versions() -> None:
    """Also where ranges are of commits."""
    commits = in_range(ZERO, kind="GIT")
    assert is_affected(JINJA, advisory(versions=["3.1.5", "3.1.6"], ranges=commits))
    assert is_affected(JINJA, advisory(versions=["3.1.6.0"]))
    assert not is_affected(JINJA, advisory(versions=["3.1.5", "of old"], ranges=commits))


def test_one_of_several_ranges_is_enough() -> None:
    old, new = in_range(ZERO, {"fixed": "2.0"}), in_range({"introduced": "3"}, {"fixed": "3.2"})
    assert is_affected(JINJA, advisory(ranges=old + new))
    entries = {"affected": [each for r in (old, new) for each in advisory(ranges=r)["affected"]]}
    [(_, text)] = judged(JINJA, advisory() | entries)
    assert text.endswith("; fixed in 3.2")


@pytest.mark.parametrize(
    ("known", "events", "affected"),
    [
        ("<= 3.1.5", [ZERO], False),
        ("<= 3.1.6", [ZERO], True),
        ("< 3.1.6", [{"introduced": "3.0"}], False),
        ("<= 3.1.5", [ZERO, {"fixed": "3.1.7"}], True),  # the fix is more exact
        ("= 3.1.5", [ZERO], True),  # not understood
        (7, [ZERO], True),
    ],
)
def test_a_range_without_an_end_may_have_a_last_known_version(
    known: object, events: Sequence[dict[str, str]], affected: bool
) -> None:
    beside = {"last_known_affected_version_range": known, "source": "a file"}
    found = advisory(ranges=in_range(*events), database_specific=beside)
    assert is_affected(JINJA, found) is affected


def test_of_two_advisories_with_one_id_the_newer_counts() -> None:
    affects = advisory(ranges=in_range(ZERO))
    newer = {"modified": "2026-11-02T00:00:00.5Z"}
    withdrawn = affects | newer | {"withdrawn": "2026-11-02T00:00:00Z"}
    not_affects = advisory(ranges=in_range(ZERO, {"fixed": "3.1.6"})) | newer
    for later in (withdrawn, not_affects):
        assert not is_affected(JINJA, affects, later)
        assert not is_affected(JINJA, later, affects)


def test_aliases_are_one_finding() -> None:
    """Both databases of Python have most vulnerabilities; one may be behind."""
    github = advisory(ranges=in_range(ZERO)) | {"aliases": ["CVE-1", "PYSEC-1"]}
    pypa = github | {"id": "PYSEC-1", "aliases": ["CVE-1", "GHSA-1"]}
    other = github | {"id": "PYSEC-2", "aliases": None}
    assert [name for name, _ in judged(JINJA, github, pypa, other)] == [
        "GHSA-1 CVE-1 PYSEC-1",
        "PYSEC-2",
    ]
    assert is_affected(JINJA, advisory(ranges=in_range(ZERO, {"fixed": "3.1.6"})), pypa)


def test_a_finding_says_how_severe_it_is() -> None:
    affected = advisory(ranges=in_range(ZERO))
    vector = [{"type": "CVSS_V3", "score": "CVSS:3.1/AV:N"}]
    word = {"severity": vector, "database_specific": {"severity": "HIGH", "cwe_ids": []}}
    of_package = advisory(ranges=in_range(ZERO), severity=vector)
    for found, begin in (
        (affected | word, "HIGH: A summary."),
        (affected | {"severity": vector}, "CVSS:3.1/AV:N: A summary."),
        (of_package, "CVSS:3.1/AV:N: A summary."),
        (affected, "A summary."),
    ):
        [(_, text)] = judged(JINJA, found)
        assert text.startswith(begin)


def test_details_stand_in_for_a_summary() -> None:
    details = "An attacker\ncan do it.\n\n" + "More. " * 100
    found = advisory(ranges=in_range(ZERO)) | {"details": details}
    del found["summary"]
    [(_, text)] = judged(JINJA, found)
    assert text == "An attacker can do it.; no version has a fix"
    [(_, text)] = judged(JINJA, found | {"details": "long " * 100})
    assert len(text.partition(";")[0]) <= audit.SUMMARY_CHARS


def test_advisories_of_commits_name_no_package() -> None:
    commits = {"affected": [{"ranges": in_range(ZERO, kind="GIT")}]}
    nothing = advisory() | {"affected": None}
    assert not is_affected(JINJA, advisory() | commits, nothing, advisory("other"))


def test_other_packages_and_withdrawn_advisories_are_left_out() -> None:
    everything = in_range(ZERO)
    assert is_affected(JINJA, advisory("Jinja2", ranges=everything)), "a name in another spelling"
    extensions = audit.Package("PyPI", "typing-extensions", "4.16.0")
    assert is_affected(extensions, advisory("Typing_.Extensions", ranges=everything))
    assert not is_affected(JINJA, advisory("jinja", ranges=everything))
    of_npm = advisory("jinja2", "npm", ranges=everything)
    assert not is_affected(JINJA, of_npm, advisory("other", ranges=everything))
    withdrawn = advisory(ranges=everything) | {"withdrawn": "2026-01-01T00:00:00Z"}
    assert not is_affected(JINJA, withdrawn)


def test_advisories_of_other_packages_are_counted_and_not_kept() -> None:
    snapshot = audit.Advisories({("PyPI", "jinja2")})
    for each in (*OTHERS, advisory(ranges=in_range(ZERO))):
        snapshot.add(each)
    assert snapshot.count == 3 and snapshot.ecosystems == {"PyPI", "npm"}
    assert list(snapshot.of) == [("PyPI", "jinja2")]


def test_a_finding_names_aliases_and_the_fix() -> None:
    [(names, text)] = judged(JINJA, advisory(ranges=in_range(ZERO, {"fixed": "3.1.7"})))
    assert names == "GHSA-1 CVE-1"
    assert text.endswith("fixed in 3.1.7")


@pytest.mark.parametrize(
    "affected",
    [
        {"ranges": in_range(ZERO, kind="GIT")},
        {"ranges": in_range(ZERO, {"fixed": "yesterday"})},
        {"ranges": [{"type": "ECOSYSTEM"}]},
        {},
    ],
)
def test_an_advisory_that_cannot_be_compared_is_not_audited(affected: dict[str, Any]) -> None:
    [(name, text)] = judged(JINJA, advisory(**affected))
    assert (name, "GHSA-1" in text) == ("", True)


def test_an_ecosystem_without_advisories_is_not_audited() -> None:
    [(name, text)] = judged(HTMX, advisory(ranges=in_range(ZERO)))
    assert (name, "npm" in text) == ("", True)


def test_all_locks_and_scripts_are_audited_but_official_sdks() -> None:
    found = audit.packages(ROOT)
    places = {place for of_package in found.values() for place in of_package}
    locks = {
        str(path.relative_to(ROOT))
        for path in files()
        if path.suffix == ".lock" and "conformance" not in path.parts
    }
    assert places == {*locks, str(audit.VENDORED)}
    assert {each.name for each in found} >= {"grpcio", "pyspark", "htmx.org"}


def test_a_line_of_a_lock_that_is_not_understood_is_an_error(tmp_path: Path) -> None:
    lock, vendored = tmp_path / "requirements.lock", tmp_path / audit.VENDORED
    vendored.parent.mkdir(parents=True)
    vendored.write_text("")
    lock.write_text("# a comment\n\n--no-binary x\ncelery[redis]==5.6.3 \\\n    --hash=sha256:aa\n")
    assert list(audit.packages(tmp_path)) == [audit.Package("PyPI", "celery", "5.6.3")]
    for line in ("celery>=5", "celery @ https://example.org/celery.whl", "./celery"):
        lock.write_text(line + "\n")
        with pytest.raises(audit.AuditError, match="NAME==VERSION"):
            audit.packages(tmp_path)
        assert audit.main([], tmp_path) == 2


# ---- the command ----


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "requirements.lock").write_text(
        "jinja2==3.1.6 \\\n    --hash=sha256:aa\nNumPy==2.4.6 ; python_version < '3.12' \\\n"
    )
    vendored = tmp_path / audit.VENDORED
    vendored.parent.mkdir(parents=True)
    vendored.write_text('["htmx.org"]\nversion = "2.0.11"\n')
    return tmp_path


OTHERS = (
    advisory("other", ranges=in_range(ZERO)) | {"id": "A-1"},
    advisory("other", "npm", ranges=in_range(ZERO, kind="SEMVER")) | {"id": "A-2"},
)


def zipped(*advisories: dict[str, Any]) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for each in advisories:
            archive.writestr(f"{each['id']}.json", json.dumps(each))
    return content.getvalue()


def written(folder: Path, form: str, *advisories: dict[str, Any]) -> Path:
    """A snapshot as a folder, as a zip file, or as a folder of OSV's zip files."""
    snapshot = folder / "snapshot"
    if form == "zip":
        snapshot.write_bytes(zipped(*advisories))
        return snapshot
    (snapshot / "deep").mkdir(parents=True)
    for each in advisories:
        if form == "folder":
            (snapshot / "deep" / f"{each['id']}.json").write_text(json.dumps(each))
        else:
            (snapshot / "deep" / f"{each['id']}.zip").write_bytes(zipped(each))
    return snapshot


@pytest.mark.parametrize("form", ["folder", "zip", "zips"])
def test_the_verb_fails_if_a_package_is_affected(
    form: str, tree: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = advisory(ranges=in_range(ZERO))
    monkeypatch.setenv("AUDIT_ADVISORIES", str(written(tree, form, *OTHERS)))
    assert audit.main([], tree) == 0
    assert "3 packages against 2 advisories (newest: 2026-11-01)" in capsys.readouterr().out
    more = tree / "more"
    more.mkdir()
    monkeypatch.setenv("AUDIT_ADVISORIES", str(written(more, form, *OTHERS, found)))
    assert audit.main([], tree) == 1
    [line, _] = capsys.readouterr().out.splitlines()
    assert line.startswith("affected: jinja2 3.1.6 (requirements.lock): GHSA-1 CVE-1: ")


def test_the_verb_fails_if_a_package_was_not_audited(
    tree: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AUDIT_ADVISORIES", str(written(tree, "zip", OTHERS[0])))
    assert audit.main([], tree) == 1
    [line, summary] = capsys.readouterr().out.splitlines()
    assert line.startswith("not audited: htmx.org 2.0.11")
    assert summary.endswith("0 affected, 1 not audited")


@pytest.mark.parametrize("content", [b"", b"no zip", zipped(), zipped({"id": 1})])
def test_a_snapshot_that_is_no_snapshot_audits_nothing(
    content: bytes,
    tree: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tree / "snapshot").write_bytes(content)
    monkeypatch.setenv("AUDIT_ADVISORIES", str(tree / "snapshot"))
    assert audit.main([], tree) == 2
    assert len(capsys.readouterr().out.splitlines()) == 3, "each package is not audited"
    monkeypatch.setenv("AUDIT_ADVISORIES", str(tree / "missing"))
    assert audit.main([], tree) == 2


def test_without_a_snapshot_the_advisories_of_each_ecosystem_are_fetched(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AUDIT_ADVISORIES", raising=False)
    asked: list[str] = []

    def urlopen(url: str, timeout: float) -> io.BytesIO:
        asked.append(url)
        return io.BytesIO(zipped(*OTHERS))

    monkeypatch.setattr(audit.urllib.request, "urlopen", urlopen)
    assert audit.main(["--source", "https://osv.example"], tree) == 0
    assert asked == ["https://osv.example/PyPI/all.zip", "https://osv.example/npm/all.zip"]


def test_without_a_network_nothing_is_audited(
    tree: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("AUDIT_ADVISORIES", raising=False)

    def urlopen(url: str, timeout: float) -> io.BytesIO:
        raise urllib.error.URLError("no route")

    monkeypatch.setattr(audit.urllib.request, "urlopen", urlopen)
    assert audit.main([], tree) == 2
    shown = capsys.readouterr()
    assert "AUDIT_ADVISORIES" in shown.err
    assert shown.out.count("not audited: ") == 3


# ---- accepted advisories ----

DAY = date(2026, 11, 29)
ENTRY = """
[[accepted]]
id = "GHSA-1"
package = "jinja2"
reason = "Only tests use it."
until = 2026-11-29
"""


def accepting(
    tree: Path, monkeypatch: pytest.MonkeyPatch, entries: str, *advisories: dict[str, Any]
) -> int:
    """Audit the packages of the tree on DAY, with a file of accepted advisories."""
    file = tree / audit.ACCEPTED
    file.parent.mkdir(exist_ok=True)
    file.write_text(entries)
    monkeypatch.setenv("AUDIT_ADVISORIES", str(written(tree, "zip", *OTHERS, *advisories)))
    return int(audit.main([], tree, DAY))


AFFECTS = advisory(ranges=in_range(ZERO))


@pytest.mark.parametrize(
    "entries",
    [
        ENTRY,
        ENTRY.replace("GHSA-1", "CVE-1"),  # an alias
        ENTRY.replace("jinja2", "Jinja2"),
    ],
)
def test_accepted_advisory_is_listed_with_its_reason_and_does_not_fail(
    entries: str, tree: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert accepting(tree, monkeypatch, entries, AFFECTS) == 0
    line, summary = capsys.readouterr().out.splitlines()
    assert line.startswith("accepted until 2026-11-29: jinja2 3.1.6 (requirements.lock): GHSA-1 ")
    assert line.endswith("; reason: Only tests use it.")
    assert summary.endswith("1 accepted, 0 affected, 0 not audited")


def test_accepted_advisory_may_be_one_that_cannot_be_compared(
    tree: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert accepting(tree, monkeypatch, ENTRY, advisory()) == 0
    line, _ = capsys.readouterr().out.splitlines()
    assert "cannot be compared" in line and line.endswith("reason: Only tests use it.")


def test_other_advisories_of_an_accepted_package_fail(
    tree: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    other = AFFECTS | {"id": "GHSA-2", "aliases": []}
    assert accepting(tree, monkeypatch, ENTRY, AFFECTS, other) == 1
    begun = [line.split(":")[0] for line in capsys.readouterr().out.splitlines()[:-1]]
    assert begun == ["accepted until 2026-11-29", "affected"]


def test_expired_entry_fails_and_does_not_accept(
    tree: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    entry = ENTRY.replace("2026-11-29", "2026-11-28")
    assert accepting(tree, monkeypatch, entry, AFFECTS) == 1
    affected, expired, summary = capsys.readouterr().out.splitlines()
    assert affected.startswith("affected: jinja2 3.1.6")
    assert expired.startswith("expired: GHSA-1 of jinja2 in deploy/advisories-accepted.toml")
    assert "2026-11-28 (Only tests use it.)" in expired
    assert summary.endswith("0 accepted, 1 affected, 0 not audited")


@pytest.mark.parametrize(
    ("entries", "advisories"),
    [
        (ENTRY, []),  # the advisory is withdrawn, or the package was updated
        (ENTRY.replace("jinja2", "numpy"), [AFFECTS]),
        (ENTRY.replace("GHSA-1", "GHSA-9"), [AFFECTS]),
    ],
)
def test_entry_that_matches_no_finding_fails(
    entries: str,
    advisories: list[dict[str, Any]],
    tree: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert accepting(tree, monkeypatch, entries, *advisories) == 1
    unknown = capsys.readouterr().out.splitlines()[-2]
    assert unknown.startswith("unknown: ") and "remove the entry" in unknown


@pytest.mark.parametrize(
    "entries",
    [
        "accepted = ",
        "accepted = [1]",
        "accepted = 1",
        "[accepted]\nid = 'GHSA-1'",
        ENTRY.replace("[[accepted]]", "[[acepted]]"),
        ENTRY.replace('reason = "Only tests use it."', ""),
        ENTRY.replace("Only tests use it.", " "),
        ENTRY.replace("2026-11-29", '"2026-11-29"'),
        ENTRY.replace("2026-11-29", "2026-11-29T00:00:00"),
        ENTRY + 'because = "x"',
        ENTRY + ENTRY.replace("jinja2", "Jinja2"),
    ],
)
def test_invalid_file_of_accepted_advisories_is_an_error(
    entries: str, tree: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert accepting(tree, monkeypatch, entries, AFFECTS) == 2
    assert "error: deploy/advisories-accepted.toml" in capsys.readouterr().err


def test_entries_of_this_repository_are_valid() -> None:
    assert (ROOT / audit.ACCEPTED).is_file()
    audit.accepted(ROOT)
