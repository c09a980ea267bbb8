"""The format of a store: what is recorded is durable before it is used, and what a build does not
know is refused before anything is touched."""

from __future__ import annotations

import errno
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from aerobee_broker.disk import read_file, replace_file
from aerobee_broker.errors import DiskFull, StoreOpenError, StoreWriteError
from aerobee_broker.store.format import (
    FEATURES,
    FORMAT_VERSION,
    Build,
    FormatFile,
    StoreTooNew,
    newest,
)
from aerobee_wire.checked_json import decode, encode
from support.codes import raises_about
from support.disk.simulated_disk import PowerCut, SimulatedDisk
from support.disk.stores import PATH
from support.repository.tree import ROOT

OLD = Build("0.9.0", {"trees": "0.8.0"})
NEW = Build("0.10.1", {"trees": "0.8.0", "grass": "0.9.5", "water": "0.10.0"})
FILE = PATH / "config" / "format.json"


def new_disk(seed: int = 0) -> SimulatedDisk:
    disk = SimulatedDisk(seed)
    disk.make_directory(FILE.parent)
    return disk


def loaded(disk: SimulatedDisk, build: Build) -> FormatFile:
    file = FormatFile(disk, PATH, build)
    file.load()
    return file


def opened(disk: SimulatedDisk, build: Build) -> FormatFile:
    file = loaded(disk, build)
    assert not file.note()
    return file


def put(disk: SimulatedDisk, **changes: object) -> None:
    content = {"version": 1, "since": "0.1.0", "writtenBy": "0.9.0", "required": {}}
    replace_file(disk, FILE, encode({**content, **changes}))


def test_store_without_the_file_gets_it_when_it_opens() -> None:
    disk = new_disk()
    file = loaded(disk, OLD)
    assert file.current is None and not disk.exists(FILE)
    assert not file.note({"trees"})
    assert decode(read_file(disk, FILE)) == {
        "version": FORMAT_VERSION,
        "since": "0.1.0",
        "writtenBy": "0.9.0",
        "required": {"trees": "0.8.0"},
    }


def test_later_build_opens_the_store_of_an_earlier_one_and_says_that_it_wrote() -> None:
    disk = new_disk()
    opened(disk, OLD).require({"trees"})
    file = opened(disk, NEW)
    assert file.required == {"trees"}
    assert file.current is not None and file.current.written_by == NEW.version


def test_feature_that_a_build_does_not_know_is_refused_with_the_version_that_is_needed() -> None:
    disk = new_disk()
    opened(disk, NEW).require({"trees", "grass"})
    steps, before = disk.steps, disk.files()
    with pytest.raises(StoreTooNew) as caught:
        loaded(disk, OLD)
    assert caught.value.needed == "0.9.5"
    text = caught.value.message
    assert "grass" in text and "0.9.5" in text and "trees" not in text and "\n" not in text
    assert (disk.steps, disk.files()) == (steps, before)


def test_later_format_version_is_refused_with_the_version_that_reads_it() -> None:
    disk = new_disk()
    put(disk, version=FORMAT_VERSION + 1, since="3.0.0", required={"moon": "3.1.0"})
    with pytest.raises(StoreTooNew) as caught:
        loaded(disk, NEW)
    assert caught.value.needed == "3.1.0"


def test_unknown_members_that_are_not_required_are_ignored_and_kept() -> None:
    disk = new_disk()
    put(disk, hint={"of": "a later version"})
    opened(disk, NEW).require({"water"})
    content = decode(read_file(disk, FILE))
    assert content["hint"] == {"of": "a later version"}
    assert content["required"] == {"water": "0.10.0"}


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data.replace(b"0.9.0", b"0.9.1"),
        lambda data: b"{",
        lambda data: encode({"version": 1}),
        lambda data: encode({"version": 1, "since": "1", "writtenBy": "1", "required": {"a": 2}}),
        lambda data: encode({"version": "1", "since": "1", "writtenBy": "1", "required": {}}),
        lambda data: encode({"version": 1, "since": "1", "writtenBy": "1", "required": []}),
    ],
)
def test_damaged_file_is_refused_and_stays(damage: Callable[[bytes], bytes]) -> None:
    disk = new_disk()
    put(disk)
    disk.put(FILE, damage(read_file(disk, FILE)))
    before = read_file(disk, FILE)
    with raises_about(StoreOpenError, str(FILE)):
        loaded(disk, OLD)
    assert read_file(disk, FILE) == before


def use(disk: SimulatedDisk, used: set[str]) -> None:
    """A life of a store. `used`: features, from when they may be in other files."""
    file = opened(disk, NEW)
    for features in ({"trees"}, {"trees"}, {"grass", "water"}):
        file.require(features)
        used |= features


def count_steps() -> int:
    disk = new_disk()
    begin = disk.steps
    use(disk, set())
    return disk.steps - begin


@pytest.mark.parametrize("crash_at", range(count_steps()))
@pytest.mark.parametrize("seed", range(8))
def test_what_was_used_is_recorded_after_a_power_cut_at_any_change(
    crash_at: int, seed: int
) -> None:
    disk, used = new_disk(seed), set[str]()
    disk.crash_at = disk.steps + crash_at
    with pytest.raises(PowerCut):
        use(disk, used)
    disk = disk.after_power_cut(seed)
    assert used <= loaded(disk, NEW).required <= NEW.features.keys()
    if used - OLD.features.keys():
        with pytest.raises(StoreTooNew):
            loaded(disk, OLD)
    use(disk, set())
    assert loaded(disk, NEW).required == NEW.features.keys()


@pytest.mark.parametrize("seed", range(20))
def test_what_a_killed_process_recorded_is_durable_before_the_next_one_uses_it(seed: int) -> None:
    """The kill came before the sync of the directory."""
    steps = count_steps()
    disk = new_disk(seed)
    disk.crash_at = disk.steps + steps - 1
    with pytest.raises(PowerCut):
        use(disk, set())
    disk = disk.after_kill()
    file = opened(disk, NEW)
    assert file.required <= loaded(disk.after_power_cut(seed), NEW).required


def test_full_disk_keeps_no_store_closed_and_no_new_feature_is_used_on_it() -> None:
    disk = new_disk()
    disk.capacity = 0
    file = loaded(disk, OLD)
    assert file.note({"trees"}) and not file.required
    with pytest.raises(DiskFull):
        file.require({"trees"})
    disk.capacity = None
    file.require(set())  # what the start could not record
    assert loaded(disk, OLD).required == {"trees"}


def test_failing_disk_is_distinguished_from_a_full_one() -> None:
    disk = new_disk()
    file = opened(disk, OLD)
    disk.fail_writes = lambda path: "format" in path.name
    with pytest.raises(StoreWriteError) as caught:
        file.require({"trees"})
    assert isinstance(caught.value.__cause__, OSError) and caught.value.__cause__.errno == errno.EIO
    assert not file.required


def test_versions_are_compared_by_number() -> None:
    assert newest(["0.9.0", "0.10.0", "0.2.11"]) == "0.10.0"
    assert not newest([])


def test_directory_of_the_file_is_that_of_the_other_tables() -> None:
    assert FormatFile(SimulatedDisk(), Path("/s"), OLD).path == Path("/s/config/format.json")


def test_each_feature_has_a_version_that_was_released_or_is_to_come_and_is_documented() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    released = set(re.findall(r"^## (\d+\.\d+\.\d+)", changelog, re.MULTILINE))
    page = (ROOT / "docs" / "storage_format.md").read_text(encoding="utf-8")
    for feature, since in FEATURES.items():
        assert since in released or newest([since, *released]) == since
        assert f"| `{feature}` | {since} |" in page
