"""F6: whatever is derived is lost or damaged between two starts, and comes back from the log."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from fault.conftest import Campaign
from fault.history import History
from support.disk.simulated_disk import SimulatedDisk
from support.disk.stores import PATH, SMALL, open_store, visible

DERIVED = ("consumequeue", "index", "checkpoint")


def recorded() -> tuple[SimulatedDisk, dict[Path, bytes]]:
    """A closed store, and the content of its derived files."""
    history = History(7, SMALL)
    history.open()
    for step in range(40):
        history.append()
        history.flush()
        if step % 10 == 5:
            history.clock.advance(9_000)
            history.maintain()
            history.upkeep()
    assert history.store is not None
    history.store.close()
    disk = history.disk.after_kill()
    return disk, contents(disk)


def contents(disk: SimulatedDisk) -> dict[Path, bytes]:
    """Of consume queues and index: what must come back byte for byte."""
    return {
        path: data
        for path, data in disk.files().items()
        if path.relative_to(PATH).parts[0] in ("consumequeue", "index")
    }


def start_and_stop(disk: SimulatedDisk) -> dict[Path, bytes]:
    store = open_store(disk)
    store.close()
    assert store.corruption_count == 0
    return contents(disk)


def lose(disk: SimulatedDisk, what: str) -> None:
    path = PATH / what
    if what == "checkpoint":
        disk.remove(path)
    else:
        disk.remove_tree(path)


@pytest.mark.parametrize("crashed", [False, True], ids=["closed", "crashed"])
@pytest.mark.parametrize("lost", [*DERIVED, "everything"])
def test_lost_derived_files_are_rebuilt_identically(lost: str, crashed: bool) -> None:
    disk, before = recorded()
    for what in DERIVED if lost == "everything" else (lost,):
        lose(disk, what)
    if crashed:
        disk.open(PATH / "abort", create=True).close()
    assert start_and_stop(disk) == before


def test_any_lost_or_truncated_file_is_rebuilt_identically() -> None:
    disk, before = recorded()
    for path, data in before.items():
        lost, truncated = disk.copy(), disk.copy()
        lost.remove(path)
        truncated.put(path, data[: len(data) // 2])
        assert start_and_stop(lost) == start_and_stop(truncated) == before, path


def test_damaged_derived_files_never_lead_to_a_wrong_message(campaign: Campaign) -> None:
    """Bits flip, or 64 bytes become zeros. A unit that leads nowhere is mended from the log."""
    disk, before = recorded()
    sent = visible(open_store(disk.copy()))
    queues = [path for path in before if "consumequeue" in path.parts]
    others = [path for path in before if "index" in path.parts] + [PATH / "checkpoint"]
    mended = 0
    for seed in campaign.seeds(100, 3_000):
        rng = random.Random(seed)
        hurt = disk.copy()
        path = rng.choice(queues if seed % 2 else others)
        data = bytearray(hurt.files()[path])
        at = rng.randrange(len(data))
        if rng.random() < 0.5:
            data[at] ^= 1 << rng.randrange(8)
        else:
            data[at : at + 64] = bytes(len(data[at : at + 64]))
        hurt.put(path, bytes(data))
        store = open_store(hurt)
        assert visible(store) == sent, f"seed {seed}"
        mended += path in queues
    campaign.report(f"{mended} damaged consume queues, every message served")
