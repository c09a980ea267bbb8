"""F6, F2: the files under `config/` (topics, groups, offsets, leases) are saved while the power
goes in any call, and damaged between two starts. What is loaded was saved, or the damage is told.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from aerobee_broker.errors import ConfigFileDamaged
from aerobee_broker.metadata.persistent_table import JsonFile
from aerobee_broker.store.retention.deleted_topics import DeletedTopics
from aerobee_wire.checked_json import encode
from fault.conftest import Campaign
from support.disk.simulated_disk import PowerCut, SimulatedDisk

PATH = Path("/data/config/consumerOffset.json")
BACKUP = PATH.with_name(PATH.name + ".bak")
SAVES = 5


def content(revision: int) -> dict[str, Any]:
    """As of a broker with some groups: of several sectors, each time another size."""
    queues = {str(queue): revision * 1_000 + queue for queue in range(8)}
    return {"offsetTable": {f"topic{n}@group": queues for n in range(10 + revision)}}


def save_all(disk: SimulatedDisk) -> int:
    """How many saves returned, and so are durable. Ends early when the power goes."""
    saved = 0
    try:
        disk.make_directory(PATH.parent)
        file = JsonFile(disk, PATH)
        for revision in range(SAVES):
            file.write(encode(content(revision)))
            saved += 1
    except PowerCut:
        pass
    return saved


def test_a_table_survives_a_power_cut_in_any_call(campaign: Campaign) -> None:
    """The newest that was saved, or the one that was being saved."""
    steps = SimulatedDisk()
    assert save_all(steps) == SAVES
    count = 0
    for seed in campaign.seeds(5, 100):
        for crash_at in range(1, steps.steps + 1):
            disk = SimulatedDisk(seed, crash_at=crash_at)
            saved = save_all(disk)
            for after in (disk.after_power_cut(seed), disk.after_kill()):
                found = JsonFile(after, PATH).load()
                may_be = [content(revision) for revision in range(max(0, saved - 1), saved + 1)]
                if saved == 0:
                    assert found in (None, content(0)), f"seed {seed}, call {crash_at}"
                else:
                    assert found in may_be, f"seed {seed}, call {crash_at}"
                count += 1
    campaign.report(f"{count:,} crashes, 0 tables lost or torn")


def saved_twice() -> SimulatedDisk:
    disk = SimulatedDisk()
    disk.make_directory(PATH.parent)
    for revision in range(2):
        JsonFile(disk, PATH).write(encode(content(revision)))
    return disk


def outcome(disk: SimulatedDisk) -> str:
    """What a start makes of it."""
    file = JsonFile(disk, PATH)
    try:
        found = file.load()
    except ConfigFileDamaged as error:
        return "refused" if str(PATH) in str(error) else "refused, no file named"
    if found == content(1):
        assert not file.problem
        return "the same"
    if found == content(0):
        return "the backup, told" if file.problem else "the backup, untold"
    return "something else"


def test_a_truncated_file_is_replaced_by_its_backup() -> None:
    whole = saved_twice().files()[PATH]
    object_end = whole.index(b"\n")
    for size in range(len(whole)):
        disk = saved_twice()
        disk.put(PATH, whole[:size])
        if size in (object_end, object_end + 1):
            assert outcome(disk) == "the same", "only the checksum is gone"
            continue
        assert outcome(disk) == "the backup, told", f"cut at {size}"
        disk.put(BACKUP, whole[:size])
        assert outcome(disk) == "refused", f"both cut at {size}"


def test_a_zeroed_file_is_replaced_by_its_backup() -> None:
    whole = saved_twice().files()[PATH]
    for at in range(len(whole)):
        disk = saved_twice()
        size = min(64, len(whole) - at)
        disk.put(PATH, whole[:at] + bytes(size) + whole[at + size :])
        assert outcome(disk) == "the backup, told", f"zeros at {at}"


def test_a_removed_file_is_replaced_by_its_backup() -> None:
    disk = saved_twice()
    disk.remove(PATH)
    assert outcome(disk) == "the backup, untold", "as after a crash between two renames"
    disk.remove(BACKUP)
    assert JsonFile(disk, PATH).load() is None


def test_a_file_with_a_flipped_bit_is_replaced_by_its_backup(campaign: Campaign) -> None:
    disk = saved_twice()
    bits = len(disk.files()[PATH]) * 8
    for bit in range(bits):
        disk.flip(PATH, bit)
        assert outcome(disk) == "the backup, told", f"bit {bit}"
        disk.flip(PATH, bit)
    assert outcome(disk) == "the same"
    campaign.report(f"{bits:,} flipped bits, all noticed")


@pytest.mark.parametrize("name", [PATH.name, BACKUP.name])
def test_an_unreadable_file_is_reported(name: str) -> None:
    disk = saved_twice()
    disk.fail_reads = lambda path: path.name == name
    assert outcome(disk) == ("the backup, told" if name == PATH.name else "the same")


DELETED = PATH.with_name("deletedTopics.json")
DELETIONS = 4


def delete_all(disk: SimulatedDisk) -> int:
    """How many deletions of topics returned. Ends early when the power goes."""
    done = 0
    try:
        disk.make_directory(DELETED.parent)
        deleted = DeletedTopics(disk, DELETED)
        for number in range(DELETIONS):
            deleted.add(f"topic{number}", 1_000 + number, 0)
            done += 1
    except PowerCut:
        pass
    return done


def test_no_deletion_is_forgotten_after_a_power_cut_and_damage_of_one_file(
    campaign: Campaign,
) -> None:
    """A deletion that was not answered may count: its topic was to be deleted."""
    steps = SimulatedDisk()
    assert delete_all(steps) == DELETIONS
    count = 0
    for seed in campaign.seeds(3, 100):
        rng = random.Random(seed)
        for crash_at in range(1, steps.steps + 1):
            disk = SimulatedDisk(seed, crash_at=crash_at)
            done = delete_all(disk)
            disk = disk.after_power_cut(seed)
            files = [path for path, data in sorted(disk.files().items()) if data]
            damaged = rng.choice([DELETED, DELETED.with_name(f"{DELETED.name}.bak"), None])
            if damaged in files:
                disk.flip(damaged, rng.randrange(8 * len(disk.files()[damaged])))
            deleted = DeletedTopics(disk, DELETED)
            try:
                deleted.load()
            except ConfigFileDamaged:
                assert done == 0, f"seed {seed}, call {crash_at}: both files were written"
                continue
            may_be = [{f"topic{n}": 1_000 + n for n in range(end)} for end in (done, done + 1)]
            assert deleted.offsets in may_be, f"seed {seed}, call {crash_at}"
            count += 1
    campaign.report(f"{count:,} lists of deleted topics, 0 deletions forgotten")
