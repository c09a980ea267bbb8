"""The index against a slow reference, and its queries."""

from __future__ import annotations

import errno
import random
from dataclasses import replace

import pytest

from aerobee_broker.disk import DiskFile
from aerobee_broker.errors import MessageCorrupted
from aerobee_broker.store.derived.index import (
    ENTRY,
    HEADER,
    Index,
    Slots,
    key_hash,
    name_after,
    name_of,
)
from aerobee_broker.store.message_store import MessageStore
from aerobee_broker.store.messages import NewMessage
from aerobee_wire import properties, record
from aerobee_wire.tags import java_hash
from support.clock.manual_clock import ManualClock
from support.disk.simulated_disk import SimulatedDisk
from support.disk.stores import FIRST_FILE, PATH, SMALL, flush, new_store, open_store, send, upkeep

SLOTS, ENTRIES = SMALL.index_slot_count, SMALL.index_entry_count
Key = tuple[str, str, int, int]  # topic, key, physical offset, store timestamp (ms)


def reference(keys: list[Key]) -> bytes:
    """The file of these keys, made entry by entry."""
    slots = [0] * SLOTS
    entries = [bytes(ENTRY.size)]
    begin_ms = keys[0][3]
    for number, (topic, key, physical_offset, stored_ms) in enumerate(keys, start=1):
        value = abs(java_hash(f"{topic}#{key}"))
        slot = value % SLOTS
        entries.append(
            ENTRY.pack(value, physical_offset, (stored_ms - begin_ms) // 1000, slots[slot])
        )
        slots[slot] = number
    header = HEADER.pack(
        begin_ms,
        keys[-1][3],
        keys[0][2],
        keys[-1][2],
        sum(1 for slot in slots if slot),
        len(keys) + 1,
    )
    table = b"".join(slot.to_bytes(4, "big") for slot in slots)
    return (header + table + b"".join(entries)).ljust(40 + SLOTS * 4 + ENTRIES * 20, b"\0")


def index_files(disk: SimulatedDisk) -> dict[str, bytes]:
    folder = PATH / "index"
    return {path.name: data for path, data in disk.files().items() if path.parent == folder}


def message(topic: str, number: int, **named: str) -> NewMessage:
    return NewMessage(topic, 0, b"%d" % number, properties.encode(named))


def fill(store: MessageStore, clock: ManualClock, count: int, seed: int = 1) -> list[Key]:
    """Messages with unique ids, keys, both or none; returns what must be in the index."""
    rng = random.Random(seed)
    keys: list[Key] = []
    for number in range(count):
        topic = rng.choice(["orders", "payments"])
        named = {}
        if rng.random() < 0.8:
            named["UNIQ_KEY"] = f"ID{number:08d}"
        if rng.random() < 0.5:
            named["KEYS"] = rng.choice(["a", "b c", " d  e ", "ключ", "\U0001f600 x", "a a"])
        [stored] = store.append([message(topic, number, **named)])
        names = [named["UNIQ_KEY"]] if "UNIQ_KEY" in named else []
        names += [key for key in named.get("KEYS", "").split(" ") if key]
        keys += [(topic, name, stored.physical_offset, clock.now_ms()) for name in names]
        if rng.random() < 0.3:
            flush(store)
            clock.advance(rng.randint(0, 2_500))
    flush(store)
    return keys


@pytest.mark.parametrize("seed", range(5))
def test_files_match_the_reference_implementation(seed: int) -> None:
    store, disk, clock = new_store()
    keys = fill(store, clock, 220, seed)
    store.close()
    first = keys[: ENTRIES - 1]
    rest = keys[ENTRIES - 1 :]
    assert 0 < len(rest) < ENTRIES
    files = index_files(disk)
    names = sorted(files)
    assert names[0] == str(name_of(first[0][3]))
    assert [files[name] for name in names] == [reference(first), reference(rest)]


def has_slots(index: Index) -> bool:
    return index._slots is not None


def test_slots_are_released_when_idle_and_read_again() -> None:
    store, disk, clock = new_store()
    index = store._dispatch.index
    assert index is not None
    keys: list[Key] = []
    for seed in range(3):
        keys += fill(store, clock, 30, seed)
        clock.advance(SMALL.checkpoint_interval_ms)
        store.maintain(clock.now_ms())
        assert has_slots(index), "a checkpoint is being taken"
        upkeep(store, clock)
        assert not has_slots(index)
        topic, key, _, _ = keys[-1]
        physical_offsets = [hit.physical_offset for hit in store.query(topic, key)]
        wanted = {
            physical_offset
            for name, other, physical_offset, _ in keys
            if (name, other) == (topic, key)
        }
        assert physical_offsets == sorted(wanted, reverse=True)
    store.close()
    assert list(index_files(disk).values()) == [reference(keys)]


def test_hash_has_no_sign_and_the_smallest_number_becomes_0() -> None:
    """abs(Java's hash), Integer.MIN → 0."""
    assert key_hash("orders", "a") == abs(java_hash("orders#a"))
    # A key with which the hash of orders#… is -2^31, found digit by digit of base 31.
    rest = (0x8000_0000 - java_hash("orders#") * pow(31, 7)) % (1 << 32)
    digits = []
    for _ in range(7):
        rest, digit = divmod(rest, 31)
        digits.append(digit)
    key = "".join(map(chr, reversed(digits)))
    assert java_hash(f"orders#{key}") == -(1 << 31)
    assert key_hash("orders", key) == 0


def test_name_is_the_time_of_the_first_record() -> None:
    assert name_of(0) == 19700101000000000
    assert name_of(1_700_000_000_123) == 20231114221320123
    assert name_after(20231231235959999) == 20240101000000000


def test_messages_are_found_by_key_and_by_unique_id_newest_first() -> None:
    store = open_store()
    send(store, [message("orders", n, UNIQ_KEY=f"ID{n}", KEYS=f"k{n % 2} all") for n in range(6)])
    send(store, [message("other", 9, UNIQ_KEY="ID0", KEYS="all")])
    newest_first = [b"%d" % n for n in range(5, -1, -1)]
    assert [hit.body for hit in store.query("orders", "all")] == newest_first
    assert [hit.body for hit in store.query("orders", "k1", max_messages=2)] == [b"5", b"3"]
    assert [hit.body for hit in store.query("orders", "ID3")] == [b"3"]
    assert [hit.body for hit in store.query("orders", "ID3", unique=True)] == [b"3"]
    assert store.query("orders", "k1", unique=True) == []
    assert store.query("orders", "k9") == []
    assert store.query("unknown", "all") == []


def test_key_given_twice_finds_its_message_once() -> None:
    store = open_store()
    send(store, [message("orders", 1, UNIQ_KEY="a", KEYS="a a")])
    assert len(store.query("orders", "a")) == 1


def test_keys_with_one_hash_are_distinguished() -> None:
    """Java: "AaAa" and "BBBB" have one hash."""
    store = open_store()
    send(store, [message("orders", 1, KEYS="AaAa"), message("orders", 2, KEYS="BBBB")])
    assert [hit.body for hit in store.query("orders", "AaAa")] == [b"1"]
    assert [hit.body for hit in store.query("orders", "BBBB")] == [b"2"]


def test_bounds_of_time_hold_to_the_millisecond() -> None:
    clock = ManualClock(1_000_000)
    store = open_store(clock=clock)
    for number in range(5):
        send(store, [message("orders", number, KEYS="k")])
        clock.advance(700)
    stored = [1_000_000 + 700 * number for number in range(5)]
    for begin in range(5):
        for end in range(begin, 5):
            found = store.query("orders", "k", begin_ms=stored[begin], end_ms=stored[end])
            assert [hit.body for hit in found] == [b"%d" % n for n in range(end, begin - 1, -1)]
            assert store.query("orders", "k", begin_ms=stored[-1] + 1) == []


def test_queries_reach_over_several_files() -> None:
    store, disk, clock = new_store()
    for number in range(0, 500, 50):
        batch = [
            message("orders", n, UNIQ_KEY=f"ID{n}", KEYS="all") for n in range(number, number + 50)
        ]
        send(store, batch)
        clock.advance(5)
    upkeep(store, clock)
    assert len(index_files(disk)) > 3
    for number in (0, 123, 499):
        assert [hit.body for hit in store.query("orders", f"ID{number}")] == [b"%d" % number]
    assert [hit.body for hit in store.query("orders", "all", max_messages=500)] == [
        b"%d" % number for number in range(499, -1, -1)
    ]


@pytest.mark.parametrize(("damaged_at", "counted"), [(88, 1), (4, 0)], ids=["body", "head"])
def test_query_reports_damaged_records_of_its_key(damaged_at: int, counted: int) -> None:
    store, disk, _ = new_store()
    appended = send(store, [message("orders", n, KEYS="k") for n in range(3)])
    physical_offset = appended[1].physical_offset
    disk.flip(FIRST_FILE, (physical_offset + damaged_at) * 8)
    damaged: list[MessageCorrupted] = []
    assert [hit.body for hit in store.query("orders", "k", damaged=damaged)] == [b"2", b"0"]
    assert [(hit.file, hit.physical_offset) for hit in damaged] == [(FIRST_FILE, physical_offset)]
    assert store.query("orders", "other", damaged=damaged) == []
    assert (len(damaged), store.corruption_count) == (1, counted)


def test_rolled_back_messages_are_not_indexed_and_prepared_ones_are() -> None:
    store = open_store()
    send(
        store,
        [
            replace(message("orders", 1, KEYS="k"), sys_flag=record.TRANSACTION_ROLLBACK),
            replace(message("orders", 2, KEYS="k"), sys_flag=record.TRANSACTION_PREPARED),
        ],
    )
    assert [hit.body for hit in store.query("orders", "k")] == [b"2"]


def test_store_without_index_finds_nothing() -> None:
    store, disk, _ = new_store(replace(SMALL, index_enabled=False))
    send(store, [message("orders", 1, KEYS="k")])
    assert store.query("orders", "k") == []
    store.close()
    assert index_files(disk) == {}


def test_index_enabled_later_gets_the_earlier_keys() -> None:
    store, disk, _ = new_store(replace(SMALL, index_enabled=False))
    send(store, [message("orders", 1, KEYS="k")])
    store.close()
    store = open_store(disk.after_kill())
    assert [hit.body for hit in store.query("orders", "k")] == [b"1"]


def test_irregular_properties_are_stored_and_not_indexed() -> None:
    """Names and values do not alternate, so that no property is certain."""
    store = open_store()
    odd = NewMessage("orders", 0, b"odd", b"KEYS\x01a\x01b\x02")
    send(store, [odd, message("orders", 1, KEYS="k"), replace(odd, properties=b"x\x02\x02")])
    assert [hit.body for hit in store.query("orders", "k")] == [b"1"]
    assert store.query("orders", "a") == []
    assert store.max_offset("orders", 0) == 3


def test_expired_index_files_are_removed_after_a_checkpoint() -> None:
    disk, clock = SimulatedDisk(), ManualClock()
    options = replace(SMALL, retain_bytes=8_192, clean_interval_ms=1_000)
    store = open_store(disk, options, clock)
    for number in range(400):
        send(store, [message("orders", number, UNIQ_KEY=f"ID{number}", KEYS="a b")])
        clock.advance(1)
    store.query("orders", "a")
    before = set(index_files(disk))
    upkeep(store, clock)
    upkeep(store, clock)
    after = set(index_files(disk))
    assert len(after) < len(before)
    assert after < before
    store.close()
    store = open_store(disk.after_kill(), options, clock)
    assert [hit.body for hit in store.query("orders", "ID399")] == [b"399"]
    assert store.query("orders", "ID0") == []


def test_unreadable_slots_are_rebuilt_from_the_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else one bad sector of the index would stop all appends."""
    store, disk, clock = new_store()
    for n in range(50):
        send(store, [NewMessage("a", 0, b"x", b"KEYS\x01k%d\x02" % n)])
    for _ in range(3):
        upkeep(store, clock)  # releases the slots

    def refuse(slots: Slots, file: DiskFile) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(Slots, "read", refuse)
    for n in range(50, 100):
        send(store, [NewMessage("a", 0, b"x", b"KEYS\x01k%d\x02" % n)])
    upkeep(store, clock)
    assert store.disk_full_reason == ""
    monkeypatch.undo()
    for again in (False, True):
        if again:
            store.close()
            store = open_store(disk.after_kill())
        assert [len(store.query("a", f"k{n}")) for n in range(100)] == [1] * 100
