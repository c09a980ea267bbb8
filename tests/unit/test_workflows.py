"""The files of .github: what they call exists, and their form is that of the platform."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.repository.tree import PYTHONS, ROOT

GITHUB = ROOT / ".github"
WORKFLOWS = sorted((GITHUB / "workflows").glob("*.yml"))
FORMS = sorted(path for path in (GITHUB / "ISSUE_TEMPLATE").glob("*.yml") if path.stem != "config")


def loaded(path: Path) -> dict[str, Any]:
    # YAML 1.1 reads the key `on` as true.
    found: dict[str, Any] = yaml.safe_load(
        path.read_text(encoding="utf-8").replace("\non:", "\n'on':")
    )
    return found


def steps(path: Path) -> Iterator[dict[str, Any]]:
    for job in loaded(path)["jobs"].values():
        yield from job["steps"]


def verbs() -> set[str]:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    return set(re.findall(r"^([a-z-]+):(?!=)", makefile, re.MULTILINE))


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_calls_verbs_that_exist(path: Path) -> None:
    called = {
        verb
        for step in steps(path)
        for verb in re.findall(r"^make ([a-z-]+)", step.get("run", ""), re.MULTILINE)
    }
    assert called and called <= verbs()


def test_all_verbs_of_a_change_and_of_a_release_are_called() -> None:
    text = "".join(path.read_text(encoding="utf-8") for path in WORKFLOWS)
    called = set(re.findall(r"run: make ([a-z-]+)", text))
    assert {"check", "docs", "unit", "test", "dist", "image", "sbom", "release-check"} <= called


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_an_action_has_a_version_and_a_job_a_limit(path: Path) -> None:
    used = [step["uses"] for step in steps(path) if "uses" in step]
    assert [
        name for name in used if not re.fullmatch(r"[\w-]+/[\w-]+@(v\d+|[0-9a-f]{40})", name)
    ] == []
    jobs = loaded(path)["jobs"].values()
    assert all(job["timeout-minutes"] <= 120 for job in jobs)
    assert all(job["runs-on"] != "ubuntu-latest" for job in jobs)


def test_only_the_draft_of_a_release_may_write() -> None:
    writing = {
        (path.stem, name)
        for path in WORKFLOWS
        for name, job in loaded(path)["jobs"].items()
        if "write" in job.get("permissions", {}).values()
    }
    assert writing == {("release", "draft")}
    assert {frozenset(loaded(path)["permissions"].items()) for path in WORKFLOWS} == {
        frozenset({("contents", "read")})
    }


def test_units_run_on_every_python() -> None:
    unit = loaded(GITHUB / "workflows" / "check.yml")["jobs"]["unit"]
    assert unit["strategy"]["matrix"]["python"] == list(PYTHONS)


def test_a_release_is_of_a_tag_that_has_the_version_of_the_tree() -> None:
    path = GITHUB / "workflows" / "release.yml"
    assert loaded(path)["on"] == {"push": {"tags": ["v*"]}}
    runs = [step["run"] for step in loaded(path)["jobs"]["build"]["steps"] if "run" in step]
    assert runs[0] == 'make release-check TAG="$GITHUB_REF_NAME"'
    assert loaded(path)["jobs"]["draft"]["needs"] == "build"


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.stem)
def test_a_form_asks_for_what_it_says(path: Path) -> None:
    form = loaded(path)
    assert form.keys() >= {"name", "description", "body"}
    fields = [field for field in form["body"] if field["type"] != "markdown"]
    assert {field["type"] for field in fields} <= {"textarea", "input", "dropdown", "checkboxes"}
    names = [field["id"] for field in fields]
    assert len(names) == len({*names}) and all(field["attributes"]["label"] for field in fields)
    assert any(field.get("validations", {}).get("required") for field in fields)


def test_actionlint_finds_nothing() -> None:
    """check.yml runs it too."""
    if shutil.which("actionlint") is None:
        pytest.skip("no actionlint (a Go program)")
    done = subprocess.run(["actionlint"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
