"""F24: files roll and expire while consumers read. No message of elsewhere, no wrong offset; an
offset whose message is gone gets the new lowest one.
"""

from __future__ import annotations

import random
from dataclasses import replace

from aerobee_broker.store.messages import NewMessage, ReadStatus
from aerobee_wire import properties, record
from fault.conftest import Campaign
from fault.history import TOPICS
from support.clock.manual_clock import ManualClock
from support.disk.simulated_disk import SimulatedDisk
from support.disk.stores import SMALL, open_store, send, visible

OPTIONS = replace(
    SMALL, retain_bytes=3 * SMALL.commit_log_file_size, clean_interval_ms=1_000, delete_when=()
)


def test_readers_meet_only_their_own_messages_while_files_expire(campaign: Campaign) -> None:
    moved = 0
    for seed in campaign.seeds(3, 100):
        rng = random.Random(seed)
        clock = ManualClock()
        disk = SimulatedDisk(seed)
        store = open_store(disk, OPTIONS, clock)
        positions = {(topic, queue_id): 0 for topic in TOPICS for queue_id in range(2)}
        sent: dict[tuple[str, int], list[bytes]] = {place: [] for place in positions}
        for number in range(300):
            topic, queue_id = place = rng.choice(sorted(positions))
            body = f"{number}|".encode() * rng.randint(1, 150)
            named = properties.encode({"UNIQ_KEY": f"ID{number}"})
            send(store, [NewMessage(topic, queue_id, body, named)])
            sent[place].append(body)
            clock.advance(rng.choice([0, 300]))
            store.maintain(clock.now_ms())
            store.maintain_files()
            topic, queue_id = place = rng.choice(sorted(positions))
            result = store.read(topic, queue_id, positions[place], max_messages=rng.randint(1, 9))
            if result.status is ReadStatus.OFFSET_TOO_SMALL:
                moved += 1
                assert result.next_begin_offset == store.min_offset(topic, queue_id)
            for message in record.iter_records(result.records):
                assert message.body == sent[place][message.queue_offset]
            assert result.corrupted_count == 0
            positions[place] = max(0, result.next_begin_offset - rng.choice([0, 0, 9]))
        assert store.min_physical_offset > 0
        # What is retained, the file in use, and what came since the last look.
        assert store.end_offset - store.min_physical_offset <= 5 * SMALL.commit_log_file_size
        before = visible(store)
        for place, bodies in sent.items():
            low, high = store.min_offset(*place), store.max_offset(*place)
            assert before[place] == {n: bodies[n] for n in range(low, high)}
        disk = disk.after_power_cut(seed)
        store = open_store(disk, OPTIONS, clock)
        # A file whose removal was not durable is there again, with its messages.
        for place, messages in visible(store).items():
            assert messages.items() >= before[place].items()
            assert all(sent[place][n] == body for n, body in messages.items())
        assert store.corruption_count == 0
    assert moved
    campaign.report(f"{moved} readers met an offset whose message had expired")


def test_a_recreated_topic_shows_none_of_its_old_messages(campaign: Campaign) -> None:
    for seed in campaign.seeds(30, 1_000):
        rng = random.Random(seed)
        disk = SimulatedDisk(seed)
        store = open_store(disk)
        generation = 0
        current: dict[int, bytes] = {}
        for number in range(60):
            if rng.random() < 0.06:
                store.delete_topic("orders")
                generation += 1
                current = {}
            body = f"{generation}.{number}|".encode() * rng.randint(1, 40)
            [place] = store.append([NewMessage("orders", 0, body)])
            send(store, [NewMessage("other", 0, body)])
            current[place.queue_offset] = body
            if rng.random() < 0.1:
                store.maintain(number * 1_000)
                store.maintain_files()
            if rng.random() < 0.05:
                disk = disk.after_kill() if rng.random() < 0.5 else disk.after_power_cut(number)
                if rng.random() < 0.3:
                    disk.remove(store.path / "checkpoint")
                store = open_store(disk)
            assert visible(store)["orders", 0] == current, f"seed {seed}"
