"""F5: bits of the commit log flip, under an open store and between two starts. What is served is
what was stored, byte for byte, or it is not served; the messages behind the hole are.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from aerobee_broker.store.message_store import MessageStore
from aerobee_broker.store.messages import ReadStatus
from aerobee_wire import record
from fault.conftest import Campaign
from fault.history import History
from support.disk.simulated_disk import SimulatedDisk
from support.disk.stores import PATH, SMALL, Queue, open_store, open_with_events

# One file, so that every flip of its used part hits a record.
OPTIONS = replace(SMALL, commit_log_file_size=64 * 1_024)
LOG = PATH / "commitlog" / ("0" * 20)
Records = dict[tuple[Queue, int], bytes]


@dataclass
class Flips:
    flips: int = 0
    detected: int = 0
    served_wrong: int = 0
    lost_beside: int = 0  # whole messages that were not served because of a flip elsewhere


def recorded() -> tuple[SimulatedDisk, Records]:
    """A closed store with records of all kinds, and what it holds."""
    history = History(5, OPTIONS)
    history.open()
    for _ in range(30):
        history.append()
        history.flush()
    assert history.store is not None
    history.store.close()
    disk = history.disk.after_kill()
    store = open_store(disk, OPTIONS)
    sent, corrupted = served(store)
    assert corrupted == 0 and len(sent) > 80
    store.close()
    return disk.after_kill(), sent


def served(store: MessageStore) -> tuple[Records, int]:
    """Bytes of every record that the store gives out, and how many it says are damaged."""
    found: Records = {}
    corrupted = 0
    for topic in store.topics():
        for queue_id in store.queues(topic):
            at = store.min_offset(topic, queue_id)
            while True:
                result = store.read(topic, queue_id, at, max_messages=9, max_bytes=4_000)
                if result.status is ReadStatus.NO_NEW:
                    break
                corrupted += result.corrupted_count
                position = 0
                while position < len(result.records):
                    decoded = record.decode(result.records, position, check_crc=False)
                    end = position + decoded.store_size
                    found[(topic, queue_id), decoded.queue_offset] = result.records[position:end]
                    position = end
                at = result.next_begin_offset
    return found, corrupted


def judge(
    flips: Flips, sent: Mapping[tuple[Queue, int], bytes], store: MessageStore, *, fresh: bool
) -> None:
    """`fresh`: the store was opened after the flip, and may have seen it then."""
    found, corrupted = served(store)
    wrong = sum(1 for place, data in found.items() if data != sent.get(place))
    flips.flips += 1
    flips.served_wrong += wrong
    flips.detected += corrupted > 0 or (fresh and store.corruption_count > 0)
    flips.lost_beside += max(0, len(sent) - len(found) - 1)


def bit_of_a_message(sent: Records, seed: int) -> int:
    """A bit of the log: any bit of a record that a consumer reads is as likely as any other."""
    rng = random.Random(seed)
    records = list(sent.values())
    data = rng.choices(records, weights=[len(data) for data in records])[0]
    return record.decode(data).physical_offset * 8 + rng.randrange(len(data) * 8)


def flip_many(disk: SimulatedDisk, sent: Records, seeds: Iterable[int]) -> Flips:
    """Under one open store: a bit flips, everything is read, the bit flips back."""
    store = open_store(disk, OPTIONS)
    flips = Flips()
    for seed in seeds:
        bit = bit_of_a_message(sent, seed)
        disk.flip(LOG, bit)
        judge(flips, sent, store, fresh=False)
        disk.flip(LOG, bit)
    return flips


def flip_and_start(disk: SimulatedDisk, sent: Records, seeds: Iterable[int]) -> Flips:
    """Between two starts, the second of which has to read the whole log."""
    flips = Flips()
    for seed in seeds:
        hurt = disk.copy()
        hurt.remove(PATH / "checkpoint")
        hurt.flip(LOG, bit_of_a_message(sent, seed))
        judge(flips, sent, open_store(hurt, OPTIONS), fresh=True)
    return flips


def test_no_flipped_bit_is_served_by_an_open_store(campaign: Campaign) -> None:
    flips = flip_many(*recorded(), campaign.seeds(500, 10_000))
    campaign.report(f"{flips}")
    assert flips == Flips(flips.flips, detected=flips.flips)


def test_no_flipped_bit_is_served_after_a_restart(campaign: Campaign) -> None:
    """Without a checkpoint: everything derived is made from the damaged log. Only the very last
    record may go without a report: nothing tells it from a torn tail.
    """
    disk, sent = recorded()
    last = max(sent.values(), key=lambda data: record.decode(data).physical_offset)
    at = record.decode(last).physical_offset
    seeds = [s for s in campaign.seeds(100, 2_000) if bit_of_a_message(sent, s) // 8 < at]
    flips = flip_and_start(disk, sent, seeds)
    campaign.report(f"{flips}")
    assert flips == Flips(flips.flips, detected=flips.flips)


def test_damage_is_reported_with_file_and_physical_offset() -> None:
    disk, sent = recorded()
    place = sorted(record.decode(data).physical_offset for data in sent.values())[7]
    disk.flip(LOG, (place + 100) * 8)
    store, events = open_with_events(disk, OPTIONS)
    found, corrupted = served(store)
    assert (len(found), corrupted) == (len(sent) - 1, 1)
    reported = [
        (name, fields.get("file"), fields.get("physical_offset")) for name, fields in events
    ]
    assert ("corrupt_record", str(LOG), place) in reported
    assert store.corruption_count == 1
    assert [name for name, _ in events].count("corrupt_record") == 1
