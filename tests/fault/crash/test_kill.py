"""F1: a real process on a real disk, killed by SIGKILL at a random moment, again and again, on the
same directory. Every message that it had said is stored is there.
"""

from __future__ import annotations

import json
import random
import statistics
import subprocess
import sys
import time
from pathlib import Path

from aerobee_broker.store.message_store import MessageStore
from aerobee_broker.store.messages import ReadStatus
from aerobee_wire import record
from fault import writer
from fault.conftest import Campaign

Queue = tuple[str, int]


def write_until_killed(directory: Path, number: int, seed: int) -> list[tuple[Queue, int, int]]:
    """(queue, queue offset, number) of every message that the process acknowledged."""
    with subprocess.Popen(
        [sys.executable, str(Path(writer.__file__)), str(directory), str(number)],
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        first = process.stdout.readline()
        assert first, "the writer died by itself"
        time.sleep(random.Random(seed).random() * 0.15)  # the random moment
        process.kill()
        # The last line may be torn; its batch was acknowledged to nobody.
        lines = (first + process.stdout.read()).split(b"\n")[:-1]
    return [
        ((topic, queue_id), offset, number)
        for line in lines
        for topic, queue_id, offset, number in json.loads(line)
    ]


def read_on(store: MessageStore, found: dict[Queue, list[int]]) -> None:
    """Adds the numbers of the messages that are there beyond those that were found before."""
    for topic in store.topics():
        for queue_id in store.queues(topic):
            numbers = found.setdefault((topic, queue_id), [])
            while True:
                result = store.read(topic, queue_id, len(numbers), max_messages=500)
                if result.status is ReadStatus.NO_NEW:
                    break
                assert result.corrupted_count == 0
                for message in record.iter_records(result.records):
                    number = int(message.body.partition(b"|")[0])
                    assert message.body == writer.body_of(number)
                    numbers.append(number)


def test_acknowledged_messages_survive_kill_9(tmp_path: Path, campaign: Campaign) -> None:
    found: dict[Queue, list[int]] = {}
    starts: list[float] = []
    acknowledged = number = 0
    for seed in campaign.seeds(4, 200):
        said = write_until_killed(tmp_path, number, seed)
        begun = time.perf_counter()
        store = writer.open_store(tmp_path)
        starts.append(time.perf_counter() - begun)
        assert store.corruption_count == 0
        read_on(store, found)
        for queue, offset, number in said:
            assert found[queue][offset] == number, f"seed {seed}: lost {queue} {offset}"
        acknowledged += len(said)
        number = max(max(numbers) for numbers in found.values()) + 1_000
        last = said[-1]
        assert len(store.query(last[0][0], f"ID{last[2]}", unique=True)) == 1
        if seed % 5 == 0:
            store.close()
        else:
            store.abandon()
    everything: dict[Queue, list[int]] = {}
    store = writer.open_store(tmp_path)
    read_on(store, everything)
    store.close()
    assert everything == found
    campaign.report(
        f"{len(starts)} kills, {acknowledged:,} acknowledged messages, 0 lost; start again in "
        f"{statistics.median(starts) * 1000:.0f} ms (median), {max(starts) * 1000:.0f} ms (most)"
    )
