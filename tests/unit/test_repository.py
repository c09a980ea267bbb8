"""The rules of the repository that no linter knows: locks, packaging, words, documents."""

from __future__ import annotations

import ast
import json
import os
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from support.repository.tree import (
    ROOT,
    Distribution,
    distributions,
    files,
    locked,
    modules,
    sources,
    texts,
    wanted,
)

DEPLOY = ROOT / "deploy"
LOCK = ROOT / "requirements.lock"
PYTHONS = ("3.11", "3.12", "3.13")
VERBS = ("install", "demo", "up", "test", "bench", "check", "fault", "lock", "clean", "help")
# Names that the field knows.
KNOWN_MANAGERS = {"RouteInfoManager", "KVConfigManager", "KvConfigManager"}
VAGUE = re.compile(r".+(Manager|Service|Impl|Helper|Utils?|Base)$")
# Class names that were replaced by terms of the field (docs/glossary.md).
PRIVATE_DIALECT = {
    *("Archive", "Choice", "Chooser", "Coalescer", "Due", "Filed", "Held", "Incoming", "Intake"),
    *("OffLoop", "Parts", "Positions", "Presence", "Questions", "Renewals", "Row", "Seldom"),
    *("Settling", "Shown", "Surroundings", "Turns", "Wish"),
}
CLOCK = ROOT / "services" / "chassis" / "src" / "aerobee_chassis" / "clock.py"
TOPIC_NAMES = ROOT / "proto" / "src" / "aerobee_wire" / "topics.py"


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def satisfied(requirement: Requirement, lock: Path) -> bool:
    versions = locked(lock).get(canonicalize_name(requirement.name), {})
    return bool(versions) and all(version in requirement.specifier for version in versions)


# ---- what is installed ----


def test_every_requirement_is_locked_within_its_range() -> None:
    assert [
        str(need) for need in wanted(ROOT / "requirements.in") if not satisfied(need, LOCK)
    ] == []


@pytest.mark.parametrize("part", ["services", "build"])
def test_the_locks_of_the_image_are_parts_of_the_whole_lock(part: str) -> None:
    whole, of_image = locked(LOCK), locked(DEPLOY / f"requirements-{part}.lock")
    assert {name: whole.get(name) for name in of_image} == of_image
    assert [
        str(need)
        for need in wanted(DEPLOY / f"requirements-{part}.in")
        if not satisfied(need, DEPLOY / f"requirements-{part}.lock")
    ] == []


@pytest.mark.parametrize("lock", [LOCK, *sorted(DEPLOY.glob("*.lock"))], ids=relative)
def test_every_pin_has_hashes_and_the_lock_names_no_address(lock: Path) -> None:
    pins = locked(lock)
    assert pins
    assert all(hashes for versions in pins.values() for hashes in versions.values())
    assert "://" not in lock.read_text(encoding="utf-8")
    assert not re.search(r"^\s*-(?!-hash)", lock.read_text(encoding="utf-8"), re.MULTILINE)


def test_every_package_of_the_node_sdk_has_a_hash_and_its_lock_no_address() -> None:
    folder = ROOT / "tests" / "conformance" / "sdk" / "node"
    lock = json.loads((folder / "package-lock.json").read_text(encoding="utf-8"))
    root = lock["packages"].pop("")
    assert root["dependencies"] == json.loads((folder / "package.json").read_text())["dependencies"]
    assert all(re.fullmatch(r"[\d.]+", pin) for pin in root["dependencies"].values())
    assert lock["packages"]
    for package in lock["packages"].values():
        assert package["integrity"].startswith("sha512-") and "resolved" not in package


@pytest.mark.parametrize("distribution", distributions(), ids=lambda d: d.name)
def test_what_a_distribution_needs_is_locked(distribution: Distribution) -> None:
    locks = [LOCK]
    if distribution.folder.parent.name == "services" or distribution.name == "aerobee-wire":
        locks.append(DEPLOY / "requirements-services.lock")
    assert [
        (str(need), relative(lock))
        for lock in locks
        for need in distribution.third_party
        if not satisfied(need, lock)
    ] == []


@pytest.mark.parametrize("distribution", distributions(), ids=lambda d: d.name)
def test_a_distribution_is_typed_and_has_the_version_of_the_changelog(
    distribution: Distribution,
) -> None:
    assert (distribution.package / "py.typed").is_file()
    assert distribution.metadata["requires-python"] == ">=3.11"
    assert {f"Programming Language :: Python :: {version}" for version in PYTHONS} == {
        line for line in distribution.metadata["classifiers"] if "Python" in line
    }
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    newest = re.search(r"^## (\d+\.\d+\.\d+)", changelog, re.MULTILINE)
    assert newest
    assert distribution.metadata["version"] == newest.group(1)


@pytest.mark.parametrize("distribution", distributions(), ids=lambda d: d.name)
def test_a_distribution_carries_the_licence(distribution: Distribution) -> None:
    assert distribution.metadata["license"] == "Apache-2.0"
    assert distribution.metadata["license-files"] == ["LICENSE"]
    assert (distribution.folder / "LICENSE").resolve() == ROOT / "LICENSE"


def test_the_makefile_installs_every_distribution_and_checks_its_types() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8").replace("\\\n", " ")
    folders = {relative(distribution.folder) for distribution in distributions()}
    installed = re.search(r"^DISTRIBUTIONS := (.*)$", makefile, re.MULTILINE)
    checked = re.search(r"^SOURCES := (.*)$", makefile, re.MULTILINE)
    assert installed and checked
    assert set(installed.group(1).split()) == folders
    assert {f"{folder}/src" for folder in folders} <= set(checked.group(1).split())
    mypy_path = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["mypy"][
        "mypy_path"
    ]
    assert {f"{folder}/src" for folder in folders} <= set(mypy_path.split(":"))


def test_the_import_contracts_cover_every_distribution() -> None:
    linter = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"]
    assert set(linter["root_packages"]) == {d.package.name for d in distributions()}


# ---- words and addresses ----


def test_no_file_names_a_package_registry() -> None:
    # In pieces, so that this file does not name them either.
    hosts = ["py" + "pi.org", "python" + "hosted.org", "docker" + ".io", "ghcr" + ".io"]
    hosts += ["npm" + "js.org", "maven" + ".org", "debian" + ".org/debian", "crates" + ".io"]
    hosts += ["index" + "-url", "simple" + "-index", "artifact" + "ory"]
    assert [
        (str(path), host)
        for path, text in texts().items()
        for host in hosts
        if host in text.lower()
    ] == []


def test_no_file_holds_a_path_of_somebodys_machine() -> None:
    places = "|".join(("work", "home", "Users", "root", "tmp/lab"))
    # A path starts where no word, dot or slash stands before it.
    absolute = re.compile(rf"(?<![\w./~:$}}*)-])/(?:{places})/[\w.]")
    assert [
        (str(path), found.group())
        for path, text in texts().items()
        if (found := absolute.search(text))
    ] == []


def test_no_file_is_left_unfinished() -> None:
    marks = re.compile(
        r"\b(" + "|".join(("TO" + "DO", "FIX" + "ME", "X" + "XX", "HA" + "CK")) + r")\b"
    )
    assert [
        (str(path), found.group())
        for path, text in texts().items()
        if (found := marks.search(text))
    ] == []


# ---- source ----


@pytest.mark.parametrize("path", modules(), ids=relative)
def test_a_module_opens_with_what_it_is(path: Path) -> None:
    docstring = ast.get_docstring(parsed(path))
    assert docstring
    assert len(docstring.split()) >= 2, "say what it is, and what it is not"


def test_no_class_has_a_name_that_says_nothing() -> None:
    assert [
        (relative(path), node.name)
        for path in sources()
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.ClassDef)
        and VAGUE.match(node.name)
        and node.name not in KNOWN_MANAGERS
    ] == []


def test_no_class_has_a_name_of_the_old_private_dialect() -> None:
    assert [
        (relative(path), node.name)
        for path in sources()
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.ClassDef) and node.name in PRIVATE_DIALECT
    ] == []


def swallows(handler: ast.ExceptHandler) -> bool:
    """Whether it drops any exception at all without a word."""
    caught = ast.unparse(handler.type) if handler.type else "BaseException"
    silent = all(isinstance(statement, ast.Pass) for statement in handler.body)
    return silent and caught in ("BaseException", "Exception")


def test_no_failure_is_swallowed_unseen() -> None:
    assert [
        (relative(path), node.lineno)
        for path in modules()
        for node in ast.walk(parsed(path))
        if (isinstance(node, ast.ExceptHandler) and swallows(node))
        or (
            isinstance(node, ast.Call)
            and ast.unparse(node.func) in ("contextlib.suppress", "suppress")
            and any(ast.unparse(kind) in ("Exception", "BaseException") for kind in node.args)
        )
    ] == []


def test_servers_ask_their_clock_and_never_the_machines() -> None:
    clocks = re.compile(r"(time|datetime)\.(time|time_ns|monotonic|monotonic_ns|now|utcnow)")
    servers = [path for path in sources() if "services" in path.parts and path != CLOCK]
    assert [
        (relative(path), node.lineno)
        for path in servers
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.Call) and clocks.fullmatch(ast.unparse(node.func))
    ] == []


def docstrings(tree: ast.Module) -> set[ast.Constant]:
    owners = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    return {
        node.body[0].value
        for node in ast.walk(tree)
        if isinstance(node, owners)
        and node.body
        and isinstance(node.body[0], ast.Expr)
        and isinstance(node.body[0].value, ast.Constant)
    }


def strings(path: Path) -> Iterator[tuple[int, str]]:
    """Line and value of every string that is not a docstring."""
    tree = parsed(path)
    prose = docstrings(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in prose:
            yield node.lineno, node.value


def test_retry_and_dead_letter_topics_are_named_in_one_place() -> None:
    assert [
        (relative(path), line)
        for path in sources()
        if path != TOPIC_NAMES
        for line, value in strings(path)
        if "%RETRY%" in value or "%DLQ%" in value
    ] == []


# ---- verbs and documents ----


def test_the_makefile_has_every_verb_and_says_what_it_does() -> None:
    described = re.findall(
        r"^([a-z]+):.*## \S+", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE
    )
    assert sorted(described) == sorted(VERBS)


def test_ci_calls_the_verbs_and_nothing_else_decides() -> None:
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    text = script.read_text(encoding="utf-8")
    assert text.startswith("#!/usr/bin/env bash\n")
    assert "set -euo pipefail" in text
    assert re.findall(r"^make \w+$", text, re.MULTILINE) == ["make check", "make test"]


def test_links_between_documents_lead_somewhere() -> None:
    broken = []
    for page in (path for path in files() if path.suffix == ".md"):
        for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text(encoding="utf-8")):
            if "://" not in target and not (page.parent / target).exists():
                broken.append((relative(page), target))
    assert broken == []


def test_a_document_that_a_source_points_to_exists() -> None:
    pointers = re.compile(r"\bdocs/[\w/-]+\.md\b")
    assert [
        (str(path), target)
        for path, text in texts().items()
        for target in pointers.findall(text)
        if not (ROOT / target).is_file()
    ] == []


def test_a_module_that_a_document_names_exists() -> None:
    """`rpc/messages.py` is the end of a path below the package or folder that the text is about."""
    paths = [f"/{relative(path)}" for path in files()]
    named = re.compile(r"`([\w/]+\.py)`")
    assert [
        (relative(page), module)
        for page in files()
        if page.suffix == ".md" and page.parent.name != "adr" and page.name != "file_map.md"
        for module in named.findall(page.read_text(encoding="utf-8"))
        if not any(path.endswith(f"/{module}") for path in paths)
    ] == []


def glossary() -> list[str]:
    page = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    return re.findall(r"^\| ([^|]+?) \| [^|]+ \|$", page.partition("|---|---|")[2], re.MULTILINE)


def test_the_glossary_is_sorted_and_defines_each_term_once() -> None:
    terms = [term.casefold() for term in glossary()]
    assert len(terms) > 50
    assert terms == sorted(set(terms))


def test_decisions_are_numbered_and_say_what_follows() -> None:
    records = sorted((ROOT / "docs" / "adr").glob("*.md"))
    assert [int(path.name[:4]) for path in records] == list(range(1, len(records) + 1))
    for path in records:
        headings = re.findall(r"^## (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
        assert headings == ["Context", "Decision", "Consequences"], path.name


def test_the_pages_show_no_figure_that_make_bench_does_not_measure() -> None:
    page = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    shown = page.partition("<!-- figures: begin -->")[2].partition("<!-- figures: end -->")[0]
    bench = (ROOT / "tests" / "bench" / "run.py").read_text(encoding="utf-8")
    assert set(re.findall(r"^\| `(\w+)`", shown, re.MULTILINE)) <= set(
        re.findall(r'"(\w+)"', bench)
    )
