"""The store against a model of a few lines, driven by Hypothesis: append, read, crash, start again,
lose derived files, delete topics, in any order; a failure is shrunk to the shortest one.
"""

from __future__ import annotations

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule

from aerobee_broker.store.message_store import MessageStore
from aerobee_broker.store.messages import NewMessage
from aerobee_wire import properties
from support.clock.manual_clock import ManualClock
from support.disk.simulated_disk import SimulatedDisk
from support.disk.stores import PATH, flush, open_store, visible

TOPIC_NAMES = st.sampled_from(["a", "b", "c"])
BODIES = st.binary(min_size=1, max_size=900)


class StoreMachine(RuleBasedStateMachine):
    """The model: for each queue the bodies that are visible, in order, and those that wait."""

    keys = Bundle("keys")

    @initialize(seed=st.integers(0, 1 << 30))
    def start(self, seed: int) -> None:
        self.clock = ManualClock()
        self.disk = SimulatedDisk(seed)
        self.seed = seed
        self.durable: dict[tuple[str, int], list[bytes]] = {}
        self.waiting: list[tuple[tuple[str, int], bytes]] = []
        self.numbers = 0
        self.open()

    def open(self) -> None:
        self.store: MessageStore = open_store(self.disk, clock=self.clock)

    # ---- what may happen ----

    @rule(target=keys, topic=TOPIC_NAMES, queue_id=st.integers(0, 1), body=BODIES)
    def append(self, topic: str, queue_id: int, body: bytes) -> tuple[str, str]:
        self.numbers += 1
        key = f"KEY{self.numbers}"
        named = properties.encode({"UNIQ_KEY": key, "TAGS": "red"})
        self.store.append([NewMessage(topic, queue_id, body, named)])
        self.waiting.append(((topic, queue_id), body))
        return topic, key

    @rule()
    def flush(self) -> None:
        flush(self.store)
        for queue, body in self.waiting:
            self.durable.setdefault(queue, []).append(body)
        self.waiting.clear()

    @rule(seconds=st.integers(0, 10))
    def upkeep(self, seconds: int) -> None:
        self.clock.advance(seconds * 1_000)
        self.store.maintain(self.clock.now_ms())
        while self.store.maintain_files():
            pass

    @rule()
    def close(self) -> None:
        self.flush()
        self.store.close()
        self.disk = self.disk.after_kill()
        self.open()

    @rule()
    def die(self) -> None:
        """What was appended and not written is lost; here that is all that waits."""
        self.waiting.clear()
        self.disk = self.disk.after_kill()
        self.open()

    @rule()
    def cut_power(self) -> None:
        self.waiting.clear()
        self.seed += 1
        self.disk = self.disk.after_power_cut(self.seed)
        self.open()

    @rule(what=st.sampled_from(["consumequeue", "index", "checkpoint"]))
    def lose(self, what: str) -> None:
        self.close()
        self.store.close()
        self.disk = self.disk.after_kill()
        if what == "checkpoint":
            self.disk.remove(PATH / what)
        else:
            self.disk.remove_tree(PATH / what)
        self.open()

    @rule(topic=TOPIC_NAMES)
    def delete_topic(self, topic: str) -> None:
        self.flush()
        self.store.delete_topic(topic)
        self.durable = {queue: rest for queue, rest in self.durable.items() if queue[0] != topic}

    @rule(found=keys)
    def query(self, found: tuple[str, str]) -> None:
        """At most one message has a unique id, and it is the right one."""
        topic, key = found
        hits = self.store.query(topic, key, unique=True)
        assert len(hits) <= 1
        for hit in hits:
            assert hit.unique_message_id == key
            assert hit.topic == topic

    # ---- what always holds ----

    @invariant()
    def shows_what_is_durable_in_order(self) -> None:
        found = {queue: list(kept.values()) for queue, kept in visible(self.store).items() if kept}
        assert found == {queue: bodies for queue, bodies in self.durable.items() if bodies}
        assert self.store.corruption_count == 0

    @invariant()
    def offsets_count_from_the_first_message(self) -> None:
        for topic, queue_id in self.durable:
            assert self.store.min_offset(topic, queue_id) == 0
            assert self.store.max_offset(topic, queue_id) == len(self.durable[topic, queue_id])


TestStore = StoreMachine.TestCase
# How many examples: the profile, which conftest.py chooses.
TestStore.settings = settings(
    stateful_step_count=30,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
