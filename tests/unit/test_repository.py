"""The rules of the repository that no linter knows: locks, packaging, words, documents."""

from __future__ import annotations

import ast
import functools
import gc
import json
import os
import pkgutil
import re
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import TypeVar

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import aerobee_client
import aerobee_client.testing
from aerobee_wire.version import VERSION
from support.repository.tree import (
    GENERATED,
    PYTHONS,
    ROOT,
    Distribution,
    distributions,
    files,
    locked,
    modules,
    packages,
    sources,
    texts,
    wanted,
)

DEPLOY = ROOT / "deploy"
SDKS = ROOT / "tests" / "conformance" / "sdk"
LOCK = ROOT / "requirements.lock"
DOCS_LOCK = ROOT / "docs" / "requirements.lock"
IMAGE_LOCKS = {
    part: DEPLOY / f"requirements-{part}.lock" for part in ("services", "spark", "build", "users")
}
CLOCK = ROOT / "services" / "chassis" / "src" / "aerobee_chassis" / "clock.py"
TOPIC_NAMES = ROOT / "proto" / "src" / "aerobee_wire" / "topics.py"

Node = TypeVar("Node", bound=ast.AST)


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


@functools.cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@functools.cache
def by_kind(path: Path) -> Mapping[type[ast.AST], list[ast.AST]]:
    """The nodes of a module, of which many tests look at a few."""
    found: defaultdict[type[ast.AST], list[ast.AST]] = defaultdict(list)
    for node in ast.walk(parsed(path)):
        found[type(node)].append(node)
    return found


def nodes(paths: Iterable[Path], kind: type[Node]) -> Iterator[tuple[str, Node]]:
    """Place and node of all that is of this kind."""
    for path in paths:
        for node in by_kind(path).get(kind, ()):
            assert isinstance(node, kind)
            yield f"{relative(path)}:{getattr(node, 'lineno', 1)}", node


@pytest.fixture(scope="module", autouse=True)
def _without_garbage_collection() -> Iterator[None]:
    """Millions of nodes are kept until the last test: looking for garbage among them takes five
    times as long as parsing."""
    gc.disable()
    yield
    by_kind.cache_clear()
    parsed.cache_clear()
    gc.enable()


def dotted(node: ast.AST) -> str:
    """Return `a.b.c` of names and attributes, and "" of anything else."""
    if isinstance(node, ast.Attribute):
        value = dotted(node.value)
        return f"{value}.{node.attr}" if value else ""
    return node.id if isinstance(node, ast.Name) else ""


def found(pattern: re.Pattern[str]) -> list[tuple[str, str]]:
    """Path and match of every tracked text that the pattern is found in."""
    searched = ((str(path), pattern.search(text)) for path, text in texts().items())
    return [(path, match.group()) for path, match in searched if match]


def unmet(needs: Iterable[Requirement], lock: Path) -> list[str]:
    """Requirements without a pin within their range."""
    pins = locked(lock)
    versions = ((need, pins.get(canonicalize_name(need.name), {})) for need in needs)
    return [
        f"{need} ({relative(lock)})"
        for need, pinned in versions
        if not pinned or not all(version in need.specifier for version in pinned)
    ]


# ---- what is installed ----


@pytest.mark.parametrize("lock", [LOCK, DOCS_LOCK, *IMAGE_LOCKS.values()], ids=relative)
def test_every_requirement_is_locked_within_its_range(lock: Path) -> None:
    assert unmet(wanted(lock.with_suffix(".in")), lock) == []


@pytest.mark.parametrize("part", IMAGE_LOCKS)
def test_the_locks_of_the_image_are_parts_of_the_whole_lock(part: str) -> None:
    whole, of_image = locked(LOCK), locked(IMAGE_LOCKS[part])
    assert {name: whole.get(name) for name in of_image} == of_image


@pytest.mark.parametrize(
    "lock",
    [
        LOCK,
        DOCS_LOCK,
        *sorted(DEPLOY.glob("*.lock")),
        *sorted(SDKS.glob("python/*/*.lock")),
        *sorted((ROOT / "tests" / "cluster").glob("*.lock")),
    ],
    ids=relative,
)
def test_every_pin_has_hashes_and_the_lock_names_no_address(lock: Path) -> None:
    pins = locked(lock)
    assert pins
    assert all(hashes for versions in pins.values() for hashes in versions.values())
    assert "://" not in lock.read_text(encoding="utf-8")
    assert not re.search(r"^\s*-(?!-hash)", lock.read_text(encoding="utf-8"), re.MULTILINE)


@pytest.mark.parametrize("folder", sorted(SDKS.glob("node/[0-9]*")), ids=relative)
def test_every_package_of_the_node_sdk_has_a_hash_and_its_lock_no_address(folder: Path) -> None:
    lock = json.loads((folder / "package-lock.json").read_text(encoding="utf-8"))
    root = lock["packages"].pop("")
    assert root["dependencies"] == json.loads((folder / "package.json").read_text())["dependencies"]
    assert all(re.fullmatch(r"[\d.]+", pin) for pin in root["dependencies"].values())
    assert lock["packages"]
    for package in lock["packages"].values():
        assert package["integrity"].startswith("sha512-") and "resolved" not in package


@pytest.mark.parametrize("folder", sorted(SDKS.glob("rust/[0-9]*")), ids=relative)
def test_every_crate_of_the_rust_sdk_has_a_hash_and_its_lock_no_address(folder: Path) -> None:
    manifest = tomllib.loads((folder / "Cargo.toml").read_text(encoding="utf-8"))
    assert manifest["dependencies"]["rocketmq"] == f"={folder.name}"
    crates = tomllib.loads((folder / "Cargo.lock").read_text(encoding="utf-8"))["package"]
    assert {crate["name"] for crate in crates if "checksum" not in crate} == {"agent"}
    assert not any("source" in crate for crate in crates)


@pytest.mark.parametrize("folder", sorted(SDKS.glob("go/[0-9]*")), ids=relative)
def test_the_go_sdk_is_pinned_and_its_sums_name_no_address(folder: Path) -> None:
    needed = f"github.com/apache/rocketmq-clients/golang/v5 v{folder.name}\n"
    assert needed in (folder / "go.mod").read_text(encoding="utf-8")
    sums = (folder / "go.sum").read_text(encoding="utf-8")
    assert needed.replace("\n", " h1:") in sums and "://" not in sums


@pytest.mark.parametrize("distribution", distributions(), ids=lambda d: d.name)
def test_what_a_distribution_needs_is_locked(distribution: Distribution) -> None:
    assert unmet(distribution.third_party, LOCK) == []
    users = distribution.needs(*{"compression", "local", "testing"} & distribution.extras)
    assert unmet(users, IMAGE_LOCKS["users"]) == []
    if distribution.name != "aerobee-spark":
        needs = distribution.needs(*{"compression"} & distribution.extras)
        assert unmet(needs, IMAGE_LOCKS["services"]) == []
    if distribution.name != "aerobee":
        needs = distribution.needs(*{"compression", "spark", "jre"} & distribution.extras)
        assert unmet(needs, IMAGE_LOCKS["spark"]) == []


# Module → the package whose interface it belongs to, and which always brings it.
BROUGHT_BY = {"markupsafe": "jinja2", "py4j": "pyspark"}
FOR_TYPE_CHECKERS = {"_typeshed"}


def imported(distribution: Distribution) -> dict[str, str]:
    """Top-level module that is neither ours nor Python's → a place that imports it."""
    folders = set(distribution.packages)
    paths = [path for path in sources() if folders & set(path.parents)]
    names = [
        *((alias.name, place) for place, node in nodes(paths, ast.Import) for alias in node.names),
        *((node.module or "", place) for place, node in nodes(paths, ast.ImportFrom)),
    ]
    found = {name.partition(".")[0]: place for name, place in names}
    ours = {path.name for each in distributions() for path in each.packages}
    known = sys.stdlib_module_names | ours | FOR_TYPE_CHECKERS
    return {name: found[name] for name in found.keys() - known}


@pytest.mark.parametrize("distribution", distributions(), ids=lambda d: d.name)
def test_a_distribution_declares_what_it_imports(distribution: Distribution) -> None:
    """Its own requirements, or those that aerobee-client always has."""
    [client] = [each for each in distributions() if each.name == "aerobee-client"]
    declared = {
        canonicalize_name(need.name) for need in (*distribution.third_party, *client.needs())
    }
    brought = {module: [package] for module, package in BROUGHT_BY.items()}
    providers = {**metadata.packages_distributions(), **brought}
    assert {
        module: place
        for module, place in imported(distribution).items()
        if not declared & {canonicalize_name(name) for name in providers.get(module, [module])}
    } == {}


def test_the_newest_version_of_the_changelog_is_the_only_one_that_a_file_states() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    newest = re.search(r"^## (\d+\.\d+\.\d+)", changelog, re.MULTILINE)
    assert newest and newest.group(1) == VERSION
    for distribution in distributions():
        assert "version" in distribution.metadata["dynamic"]
        assert not any(need.specifier for need in distribution.exact)
        assert all(need.name.startswith("aerobee") for need in distribution.exact)
        path = distribution.folder / distribution.pyproject["tool"]["hatch"]["version"]["path"]
        assert f'VERSION = "{VERSION}"\n' in path.read_text(encoding="utf-8")


@pytest.mark.parametrize("distribution", distributions(), ids=lambda d: d.name)
def test_a_distribution_has_licence_and_pythons(distribution: Distribution) -> None:
    assert (distribution.folder / "LICENSE").resolve() == ROOT / "LICENSE"
    project = distribution.metadata
    assert project["license"] == "Apache-2.0"
    # The wheel of the root has scripts of others.
    of_others = ["NOTICE"] if distribution.folder == ROOT else []
    assert project["license-files"] == ["LICENSE", *of_others]
    assert project["requires-python"] == f">={PYTHONS[0]}"
    assert {f"Programming Language :: Python :: {version}" for version in PYTHONS} == {
        line for line in project["classifiers"] if "Python" in line
    }


def test_every_package_is_in_one_distribution_and_typed() -> None:
    placed = [path for distribution in distributions() for path in distribution.packages]
    assert len(placed) == len(set(placed))
    of_tree = {path.parent for path in sources() if path.parent.parent.name == "src"}
    assert set(packages()) == of_tree
    assert [relative(path) for path in packages() if not (path / "py.typed").is_file()] == []
    assert {path for path in placed if path not in of_tree} == set(GENERATED.iterdir())


def test_no_package_takes_a_name_that_others_use() -> None:
    """An official SDK may be installed beside ours. Spark requires the one name that differs."""
    placed = {path.name: each.name for each in distributions() for path in each.packages}
    foreign = {name for name in placed if name.partition("_")[0] != "aerobee"}
    assert foreign == {"pyspark_aerobee"}
    assert placed["aerobee_foreign"] == "aerobee"


def test_make_mypy_and_the_import_contracts_know_every_package() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    installed = re.search(r"^DISTRIBUTIONS := (.*)$", makefile, re.MULTILINE)
    folders = {relative(distribution.folder) for distribution in distributions()}
    assert installed and set(installed.group(1).split()) == folders
    sources = {relative(path.parent) for path in packages()}
    tools = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]
    assert sources <= set(tools["mypy"]["mypy_path"].split(":"))
    names = {path.name for path in packages()} - {"pyspark_aerobee"}
    assert set(tools["importlinter"]["root_packages"]) == names
    developed = {
        (distribution.folder / name).resolve()
        for distribution in distributions()
        for name in distribution.pyproject["tool"]["hatch"]["build"]["dev-mode-dirs"]
    }
    assert developed == {path.parent for path in packages()} | {GENERATED}


def test_ci_runs_the_checks_and_the_tests() -> None:
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    text = script.read_text(encoding="utf-8")
    assert "set -euo pipefail" in text
    verbs = re.findall(r"^make .*$", text, re.MULTILINE)
    assert verbs == ["make --jobs=2 check test-tools", "make test"]


# ---- what no file holds ----


def test_no_file_names_a_package_registry() -> None:
    # In pieces, so that this file does not name them either.
    hosts = ["py" + "pi.org", "python" + "hosted.org", "docker" + ".io", "ghcr" + ".io"]
    hosts += ["npm" + "js.org", "maven" + ".org", "debian" + ".org/debian", "crates" + ".io"]
    hosts += ["index" + "-url", "simple" + "-index", "artifact" + "ory"]
    assert found(re.compile("|".join(map(re.escape, hosts)), re.IGNORECASE)) == []


def test_no_file_holds_a_path_of_somebodys_machine() -> None:
    places = "|".join(("work", "home", "Users", "root", "tmp/lab"))
    # A path starts where no word, dot or slash stands before it.
    assert found(re.compile(rf"(?<![\w./~:$}}*)-])/(?:{places})/[\w.]")) == []


def test_every_extra_to_install_is_quoted() -> None:
    # zsh, the shell of macOS, takes unquoted brackets for a pattern and refuses the command.
    assert found(re.compile(r"pip install (-\S+ )*[\w-]+" + r"\[")) == []


def test_no_file_is_left_unfinished() -> None:
    marks = "|".join(("TO" + "DO", "FIX" + "ME", "X" + "XX", "HA" + "CK"))
    assert found(re.compile(rf"\b({marks})\b")) == []


# ---- source ----


def test_a_module_opens_with_what_it_is() -> None:
    opening = {path: ast.get_docstring(parsed(path)) or "" for path in modules()}
    assert [relative(path) for path, words in opening.items() if len(words.split()) < 2] == []


def test_no_class_has_a_name_that_says_nothing() -> None:
    of_rocketmq = {"RouteInfoManager", "KVConfigManager", "KvConfigManager"}
    vague = re.compile(r".+(Manager|Service|Impl|Helper|Utils?|Base)$")
    assert [
        (place, declared.name)
        for place, declared in nodes(sources(), ast.ClassDef)
        if vague.match(declared.name) and declared.name not in of_rocketmq
    ] == []


def test_no_failure_is_swallowed_unseen() -> None:
    anything = ("", "Exception", "BaseException")
    handlers = [
        place
        for place, handler in nodes(modules(), ast.ExceptHandler)
        if (ast.unparse(handler.type) if handler.type else "") in anything
        and all(isinstance(statement, ast.Pass) for statement in handler.body)
    ]
    suppressions = [
        place
        for place, call in nodes(modules(), ast.Call)
        if dotted(call.func) in ("contextlib.suppress", "suppress")
        and any(ast.unparse(kind) in anything for kind in call.args)
    ]
    assert handlers + suppressions == []


def test_servers_ask_their_clock_and_never_the_machines() -> None:
    clocks = re.compile(r"(time|datetime)\.(time|time_ns|monotonic|monotonic_ns|now|utcnow)")
    servers = [path for path in sources() if "services" in path.parts and path != CLOCK]
    assert [
        place for place, call in nodes(servers, ast.Call) if clocks.fullmatch(dotted(call.func))
    ] == []


def test_retry_and_dead_letter_topics_are_named_in_one_place() -> None:
    others = [path for path in sources() if path != TOPIC_NAMES]
    docstrings = {statement.value for _, statement in nodes(others, ast.Expr)}
    assert [
        place
        for place, literal in nodes(others, ast.Constant)
        if isinstance(literal.value, str)
        and re.search("%(RETRY|DLQ)%", literal.value)
        and literal not in docstrings
    ] == []


# ---- documents ----


def test_links_between_documents_lead_somewhere() -> None:
    assert [
        (relative(page), target)
        for page in files()
        if page.suffix == ".md"
        for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text(encoding="utf-8"))
        if "://" not in target and not (page.parent / target).exists()
    ] == []


def nav_pages(nav: object) -> list[str]:
    """The pages in the tree of `nav`."""
    if isinstance(nav, str):
        return [nav]
    entries = nav.values() if isinstance(nav, dict) else nav
    assert isinstance(entries, Iterable)
    return [page for entry in entries for page in nav_pages(entry)]


def test_the_site_lists_every_page_once() -> None:
    nav = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]
    pages = [relative(path) for path in files() if path.suffix == ".md"]
    at_root = {page for page in pages if "/" not in page} - {"README.md"}
    assert sorted(nav_pages(nav)) == sorted(
        {"index.md", *at_root, *(page for page in pages if page.startswith("docs/"))}
    )


def test_the_reference_has_every_name_of_the_client_once() -> None:
    pages = (ROOT / "docs" / "reference").glob("*.md")
    shown = [
        name
        for page in pages
        for name in re.findall(
            r"^::: (aerobee_client(?:\.testing)?\.[A-Z]\w+)$",
            page.read_text(encoding="utf-8"),
            re.MULTILINE,
        )
    ]
    assert sorted(shown) == sorted(
        f"{package.__name__}.{name}"
        for package in (aerobee_client, aerobee_client.testing)
        for name in package.__all__
    )


def test_each_entry_of_the_reference_exists() -> None:
    entries = {
        name
        for page in (ROOT / "docs" / "reference").glob("*.md")
        for name in re.findall(r"^::: ([\w.]+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    }
    assert len(entries) > 50
    for name in entries:
        assert pkgutil.resolve_name(name)


def test_a_document_that_a_source_points_to_exists() -> None:
    assert [
        (str(path), target)
        for path, text in texts().items()
        for target in re.findall(r"\bdocs/[\w/-]+\.md\b", text)
        if not (ROOT / target).is_file()
    ] == []


def test_a_module_that_a_document_names_exists() -> None:
    """`rpc/messages.py` is the end of a path below the package or folder that the text is about."""
    paths = [f"/{relative(path)}" for path in files()]
    named = re.compile(r"`([\w/]+\.py)`")
    assert [
        (relative(page), module)
        for page in files()
        if page.suffix == ".md" and page.parent.name != "adr"
        for module in named.findall(page.read_text(encoding="utf-8"))
        if not any(path.endswith(f"/{module}") for path in paths)
    ] == []


def test_the_readme_of_the_stand_ins_names_each() -> None:
    folder = ROOT / "tests" / "support"
    readme = (folder / "README.md").read_text(encoding="utf-8")
    stand_ins = [str(path.relative_to(folder)) for path in folder.rglob("*.py")]
    assert [name for name in stand_ins if f"`{name}`" not in readme] == []


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
