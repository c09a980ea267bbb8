"""F6, F24: log files expire, topics are deleted and made again, derived files are lost and rebuilt,
and the process or the power goes in the middle: of a deletion, of a start. Every message that has
not expired is there, at its offset; no queue counts from 0 again but that of a deleted topic. An
older list of deleted topics may bring deleted messages back, and hides none of a later topic. Some
topics have a retention time of their own, which is raised: an expired message never comes back.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from aerobee_broker.disk import replace_file
from aerobee_broker.store.derived.checkpoint import decode
from aerobee_broker.store.message_store import MessageStore
from aerobee_broker.store.messages import NewMessage
from aerobee_broker.store.options import StoreOptions
from aerobee_broker.store.retention.topic_times import TopicTime
from aerobee_wire import properties
from fault.conftest import Campaign
from support.clock.manual_clock import ManualClock
from support.disk.simulated_disk import PowerCut, SimulatedDisk
from support.disk.stores import LOG, PATH, SMALL, Queue, claim, open_store, send, visible

TOPICS = ("busy", "other", "now and then", "rare")
NEVER = 1 << 60
LIST = PATH / "config" / "deletedTopics.json"
LISTS = (LIST, LIST.with_name(f"{LIST.name}.bak"))


class History:
    """A store and what it must hold."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        self.options: StoreOptions = replace(
            SMALL,
            retain_bytes=3 * SMALL.commit_log_file_size,
            delete_when=(),
            clean_interval_ms=1_000,
            unwritten_units=rng.choice([1, 10, 48]),
            consume_queue_file_size=20 * rng.choice([4, 32]),
            index_entry_count=rng.choice([20, 200]),
        )
        self.clock = ManualClock()
        self.disk = SimulatedDisk(seed)
        # Body, physical offset, store time.
        self.sent: dict[Queue, list[tuple[bytes, int, int]]] = {}
        self.low = 0  # of the log, at most
        limited = rng.sample(TOPICS, rng.choice([0, 1, 2, len(TOPICS)]))
        self.times = {topic: TopicTime(rng.randint(1, 20) * 1_000) for topic in limited}
        self.lows: dict[Queue, int] = {}  # the highest minimum offset
        self.expired = 0
        self.lost = self.rebuilt = self.returned = 0
        self.lists: list[dict[Path, bytes]] = [{}]  # copies of the list of deleted topics
        self.start()

    def start(self) -> None:
        self.store: MessageStore = open_store(self.disk, self.options, self.clock, self._hear)
        self.store.topic_times.use(self.times)
        self.store.topic_times.expire_all(self.clock.now_ms())
        self._may_clean(False)

    def _hear(self, event: str, _: object) -> None:
        self.rebuilt += event == "derived_files_rebuilt"

    def _may_clean(self, yes: bool) -> None:
        """Retention of a small log takes what no checkpoint covers; that of a large one does not,
        so here a checkpoint comes first."""
        self.store.cleaning._next_ms = 0 if yes else NEVER

    def step(self) -> None:
        steps: list[tuple[int, Callable[[], None]]] = [
            (30, self.send),
            (25, self.tick),
            (4, self.delete),
            (4, self.raise_a_time),
            (4, self.kill),
            (4, self.cut_power),
            (4, self.close),
            (3, self.lose),
            (3, self.crash_in_start),
            (2, self.crash_in_deletion),
            (2, self.put_an_older_list_back),
        ]
        weights, what = zip(*steps, strict=True)
        self.rng.choices(what, weights)[0]()
        self.check()

    # ---- what happens ----

    def send(self) -> None:
        messages = [self._message() for _ in range(self.rng.randint(1, 12))]
        for message, stored in zip(messages, send(self.store, messages), strict=True):
            queue = self.sent.setdefault((message.topic, message.queue_id), [])
            claim(stored.queue_offset == len(queue), "a queue does not count on")
            queue.append((message.body, stored.physical_offset, self.clock.now_ms()))

    def _message(self) -> NewMessage:
        topic = self.rng.choices(TOPICS, (10, 10, 3, 1))[0]
        key = f"k{self.rng.getrandbits(40)}"
        body = key.encode() + b"|" * self.rng.randint(1, 900)
        return NewMessage(topic, self.rng.randrange(2), body, properties.encode({"KEYS": key}))

    def tick(self) -> None:
        self.store._derived_flush.request()
        self._upkeep(4, 1)
        checkpoint = decode(self.disk.files()[PATH / "checkpoint"])
        covered = checkpoint is not None and checkpoint.dispatched == self.store.confirmed_offset
        self._may_clean(covered)
        self._upkeep(self.rng.randint(1, 4), 1_000)
        self._may_clean(False)
        claim(not self.store.flush.read_only_reason, "the store is read-only")

    def _upkeep(self, times: int, step_ms: int) -> None:
        for _ in range(times):
            self.clock.advance(step_ms)
            self.store.maintain(self.clock.now_ms())
            for _ in range(self.rng.randint(1, 12)):
                self.store.maintain_files()

    def delete(self) -> None:
        self.lists.append(
            {path: self.disk.files()[path] for path in LISTS if self.disk.exists(path)}
        )
        topic = self.rng.choice(TOPICS)
        self.store.delete_topic(topic)
        self._forget(topic)

    def _forget(self, topic: str) -> None:
        for queue in [queue for queue in self.sent if queue[0] == topic]:
            del self.sent[queue]
            self.lows.pop(queue, None)

    def raise_a_time(self) -> None:
        """Or remove it. What has expired under the shorter one stays so."""
        for topic, time in list(self.times.items())[:1]:
            before_ms = time.threshold_ms(self.clock.now_ms())
            more_ms = self.rng.choice([None, 5_000])
            reserved_ms = time.reserved_ms
            if reserved_ms is not None:
                reserved_ms = None if more_ms is None else reserved_ms + more_ms
            self.times[topic] = TopicTime(reserved_ms, before_ms)
            self.store.topic_times.use(self.times)
            self.store.topic_times.expire_all(self.clock.now_ms())

    def crash_in_deletion(self) -> None:
        topic = self.rng.choice(TOPICS)
        before = self.store.deleted_below(topic)
        self._crash(lambda: self.store.delete_topic(topic), 12)
        self._go()
        self.start()
        if self.store.deleted_below(topic) > before:
            self._forget(topic)

    def _crash(self, what: Callable[[], None], calls: int) -> None:
        self.disk.crash_at = self.disk.steps + self.rng.randint(1, calls)
        with suppress(PowerCut):
            what()
        self.disk.crash_at, self.disk.dead = None, False

    def _go(self) -> None:
        self.rng.choice([self._off, self._killed])()

    def _off(self) -> None:
        self.disk = self.disk.after_power_cut(self.rng.getrandbits(30))

    def _killed(self) -> None:
        self.disk = self.disk.after_kill()

    def kill(self) -> None:
        self._killed()
        self.start()

    def cut_power(self) -> None:
        self._off()
        self.start()

    def close(self) -> None:
        self.store.close()
        self.kill()

    def lose(self) -> None:
        if self.rng.random() < 0.5:
            self.store.close()
        self._killed()
        what = self.rng.choice([self._lose_checkpoint, self._lose_index, self._lose_queue_file])
        what()
        self.lost += 1
        self.start()

    def _lose_checkpoint(self) -> None:
        if self.disk.exists(PATH / "checkpoint"):
            self.disk.remove(PATH / "checkpoint")

    def _lose_index(self) -> None:
        self.disk.remove_tree(PATH / "index")

    def _lose_queue_file(self) -> None:
        """Of a queue that the log knows something of: for nothing else tells where it goes on."""
        files = self.disk.files()
        log = [int(path.name) for path in files if path.parent == LOG and path.name.isdigit()]
        low = min(log, default=0)
        known = [path for path in files if "consumequeue" in path.parts and self._is_in(path, low)]
        if known:
            self.disk.remove(self.rng.choice(known))

    def _is_in(self, path: Path, low: int) -> bool:
        queue = self.sent.get((path.parts[-3], int(path.parts[-2])), [])
        return any(place >= low for _, place, _ in queue)

    def put_an_older_list_back(self) -> None:
        """And rebuild. Queues without a message of the later topic may show the earlier one."""
        self.store.close()
        self._killed()
        for path in filter(self.disk.exists, LISTS):
            self.disk.remove(path)
            self.disk.sync_directory(path.parent)
        for path, data in self.rng.choice(self.lists).items():
            replace_file(self.disk, path, data)
        self._lose_checkpoint()
        self.start()
        for topic in self.store.topics():
            for queue_id in self.store.queues(topic):
                if (topic, queue_id) not in self.sent:
                    self._take_back(topic, queue_id)

    def _take_back(self, topic: str, queue_id: int) -> None:
        """These were deleted, so the next rebuild may drop them: they count as expired."""
        low, high = self.store.min_offset(topic, queue_id), self.store.max_offset(topic, queue_id)
        messages = self.sent[topic, queue_id] = [(b"", -1, 0)] * low
        for place, size, _ in self.store.units(topic, queue_id, low, high - low):
            messages.append((self.store.get(place, size).body, -1, 0))
        self.returned += 1

    def crash_in_start(self) -> None:
        self._go()
        if self.rng.random() < 0.5:
            self._lose_checkpoint()
        self._crash(self.start, 40)
        self.disk.locks.clear()
        self._go()
        self.start()

    # ---- what must hold ----

    def check(self) -> None:
        store = self.store
        # Files that were removed may come back; their messages need not.
        self.low = max(self.low, store.min_physical_offset)
        shown = visible(store)
        claim(store.corruption_count == 0, f"damage: {list(store.damage.suspects)[:1]}")
        claim(set(store.topics()) == {topic for topic, _ in self.sent}, "other topics")
        for queue, messages in self.sent.items():
            low, high = store.min_offset(*queue), store.max_offset(*queue)
            claim(high == len(messages), f"{queue} goes on at {high}, not {len(messages)}")
            expected = {offset: messages[offset][0] for offset in range(low, high)}
            claim(shown.get(queue, {}) == expected, f"{queue} shows other messages")
            time = self.times.get(queue[0], TopicTime())
            threshold_ms = time.threshold_ms(self.clock.now_ms())
            gone = [place for _, place, stored_ms in messages[:low] if stored_ms >= threshold_ms]
            claim(max(gone, default=-1) < self.low, f"{queue} has lost what has not expired")
            # Only the messages of files that had been removed, and are not older than their time.
            again = messages[low : self.lows.get(queue, 0)]
            come_back = all(place < self.low and at >= threshold_ms for _, place, at in again)
            claim(come_back, f"{queue} shows what had expired")
            self.expired += any(place >= self.low for _, place, _ in messages[:low])
            self.lows[queue] = low
            if low < high:
                key = messages[-1][0].split(b"|")[0].decode()
                claim(len(store.query(queue[0], key)) == 1, "the newest key is not found")


def test_unexpired_messages_survive_rebuilds_deletions_and_crashes(campaign: Campaign) -> None:
    lost = rebuilt = steps = expired = returned = 0
    for seed in campaign.seeds(15, 1_000):
        history = History(seed)
        try:
            for _ in range(history.rng.randint(5, 60)):
                history.step()
                steps += 1
        except Exception as error:
            error.add_note(f"seed {seed}")
            raise
        lost, rebuilt = lost + history.lost, rebuilt + history.rebuilt
        expired, returned = expired + history.expired, returned + history.returned
    assert (rebuilt > 0 and expired > 0 and returned > 0) or campaign.seed is not None
    campaign.report(f"{steps} steps, {lost} losses, {rebuilt} rebuilds, 0 messages lost")
