"""NOTICE names each package that the images contain, and each script of the console."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping

import pytest

from support.repository.tree import ROOT, locked, script

notice = script(ROOT / "deploy" / "notice.py")
ROW = re.compile(r"^  (\S+) (\S+(?: or \S+)*): (\S.*)$")


def sections() -> Mapping[str, dict[str, tuple[set[str], str]]]:
    """Title → package → its versions and its licence."""
    found: dict[str, dict[str, tuple[set[str], str]]] = {}
    title = ""
    for line in (ROOT / "NOTICE").read_text(encoding="utf-8").splitlines():
        if row := ROW.match(line):
            found.setdefault(title, {})[row[1]] = {*row[2].split(" or ")}, row[3]
        elif line:
            title = line
    return found


def test_the_file_begins_as_it_is_written() -> None:
    assert (ROOT / "NOTICE").read_text(encoding="utf-8").startswith(notice.HEAD)


@pytest.mark.parametrize("title", notice.IMAGES)
def test_each_locked_package_of_an_image_has_a_licence(title: str) -> None:
    pins = locked(ROOT / notice.IMAGES[title])
    named = sections()[title]
    assert {name: versions for name, (versions, _) in named.items()} == {
        name: {str(version) for version in versions} for name, versions in pins.items()
    }
    assert not [name for name, (_, licence) in named.items() if licence.lower() == "none"]


def test_each_script_of_the_console_has_a_licence() -> None:
    path = ROOT / notice.VENDORED
    scripts = tomllib.loads(path.read_text(encoding="utf-8"))
    assert sections()["The scripts of the console"] == {
        name: ({fields["version"]}, fields["licence"]) for name, fields in scripts.items()
    }
    for fields in scripts.values():
        assert (path.parent / fields["licence_file"]).read_text(encoding="utf-8")


def test_licences_are_those_of_the_installed_packages() -> None:
    for named in sections().values():
        for name, (versions, licence) in named.items():
            try:
                installed = notice.metadata(name)
            except notice.PackageNotFoundError:  # a script, or Spark without `make demo`
                continue
            if installed["Version"] in versions:
                assert licence == notice.licence(name), f"run deploy/notice.py: {name}"
