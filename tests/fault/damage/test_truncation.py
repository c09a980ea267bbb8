"""F4: the last file of the log is cut at every byte, and garbage is put behind its end.

Behind what was durable that is a torn tail: the longest whole prefix is served, and no damage is
reported. Before it messages are lost: the others are served, and the hole is reported.
"""

from __future__ import annotations

import random

import pytest

from fault.conftest import Campaign
from fault.history import History
from support.disk.simulated_disk import SimulatedDisk
from support.disk.stores import PATH, SMALL, Queue, open_store, visible

Ends = list[tuple[int, Queue, int, bytes]]  # end of the record, queue, queue offset, body
LOG = PATH / "commitlog"


def written(*, closed: bool) -> tuple[SimulatedDisk, Ends]:
    """Two and a half files, none of which was ever synced; after a kill, or a clean shutdown."""
    history = History(3, SMALL)
    history.open()
    for _ in range(24):
        history.append()
        history.write()
    ends = list(history.unconfirmed)
    if closed:
        assert history.store is not None
        history.store.close()
    return history.disk.after_kill(), ends


def last_file(disk: SimulatedDisk) -> tuple[str, int]:
    name = [path.name for path in sorted(disk.files()) if path.parent == LOG][-1]
    return name, int(name)


def places(messages: Ends) -> list[tuple[Queue, int, bytes]]:
    return sorted((queue, offset, body) for _, queue, offset, body in messages)


def shown(disk: SimulatedDisk) -> tuple[list[tuple[Queue, int, bytes]], int]:
    store = open_store(disk)
    found = visible(store)
    messages = [(q, offset, body) for q, bodies in found.items() for offset, body in bodies.items()]
    return sorted(messages), store.corruption_count


def cuts(campaign: Campaign, start: int, ends: Ends) -> list[int]:
    """Every byte of the used part; in short, the bytes around each end of a record."""
    used = max(end for end, *_ in ends) - start
    if campaign.long:
        return list(range(used + 2))
    edges = {end - start + step for end, *_ in ends if end > start for step in (-21, -1, 0, 1, 8)}
    return sorted(edge for edge in edges if 0 <= edge <= used + 2)


@pytest.mark.parametrize("closed", [False, True], ids=["a torn tail", "durable messages"])
def test_cut_file_shows_its_whole_records_and_reports_durable_ones_that_are_gone(
    campaign: Campaign, closed: bool
) -> None:
    disk, ends = written(closed=closed)
    name, start = last_file(disk)
    data = disk.files()[LOG / name]
    every = (7 if campaign.long else 5) if closed else 1
    tried = cuts(campaign, start, ends)[::every]
    for cut in tried:
        torn = disk.copy()
        torn.put(LOG / name, data[:cut])
        whole = [end for end in ends if end[0] <= start + cut]
        messages, corruptions = shown(torn)
        assert messages == places(whole), f"cut at {cut}"
        assert (corruptions > 0) == (closed and len(whole) < len(ends)), f"cut at {cut}"
    campaign.report(f"{len(tried)} cuts")


def test_garbage_behind_the_tail_is_cut_off(campaign: Campaign) -> None:
    disk, ends = written(closed=False)
    name, start = last_file(disk)
    used = max(end for end, *_ in ends) - start
    for seed in campaign.seeds(20, 500):
        rng = random.Random(seed)
        torn = disk.copy()
        data = bytearray(disk.files()[LOG / name])
        garbage = rng.randbytes(rng.randint(1, 400))
        data[used : used + len(garbage)] = garbage
        torn.put(LOG / name, bytes(data[: SMALL.commit_log_file_size]))
        assert shown(torn) == (places(ends), 0), f"seed {seed}"
