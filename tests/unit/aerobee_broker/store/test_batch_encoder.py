"""Batches: the same bytes, units and keys as single appends, and the same refusals."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aerobee_broker.errors import DiskFull, MessageIllegal
from aerobee_broker.store.message_store import MessageStore
from aerobee_broker.store.messages import NewBatch
from aerobee_broker.store.options import StoreOptions
from aerobee_wire import record
from aerobee_wire.properties import encode
from aerobee_wire.topics import retry_topic
from support.clock.manual_clock import ManualClock
from support.disk.simulated_disk import SimulatedDisk
from support.disk.stores import ILLEGAL_CONTENTS, SMALL, flush, open_store, upkeep, visible

HOSTS: st.SearchStrategy[bytes | str] = st.sampled_from(
    [b"\x0a\0\0\x01\0\0\0\x51", "[2001:db8::1]:9"]
)
TAGGED = "tagged"  # a topic with a tags code of its own

strings = st.one_of(
    st.just(b""),
    st.builds(
        encode,
        st.dictionaries(
            st.sampled_from(["TAGS", "UNIQ_KEY", "KEYS", "NOT_TAGS", "a"]),
            st.sampled_from(["", "x", "red", "rød", "TAGS"]),
        ),
    ),
)


@st.composite
def batches(draw: st.DrawFn) -> NewBatch:
    message = st.tuples(st.binary(min_size=1, max_size=1_900), strings)
    messages = draw(st.lists(message, min_size=1, max_size=9))
    flag = st.integers(-(1 << 31), (1 << 31) - 1)
    count = len(messages)
    return NewBatch(
        draw(st.sampled_from(["a", retry_topic("g" * 130), TAGGED])),
        draw(st.integers(0, 2)),
        [body for body, _ in messages],
        [properties for _, properties in messages],
        draw(st.one_of(st.just(()), st.lists(flag, min_size=count, max_size=count))),
        draw(st.sampled_from([0, record.COMPRESSED, record.BORN_HOST_V6])),
        draw(st.integers(0, 1 << 62)),
        draw(HOSTS),
    )


def opened(disk: SimulatedDisk, clock: ManualClock, options: StoreOptions) -> MessageStore:
    codes = {TAGGED: lambda properties, stored_ms: stored_ms + len(properties)}
    return open_store(disk, options, clock, tags_code_of=codes)


@settings(max_examples=60, deadline=None)
@given(given=st.lists(batches(), max_size=6), whole_crc=st.booleans())
def test_batch_writes_the_files_of_single_appends(given: list[NewBatch], whole_crc: bool) -> None:
    """Log, consume queues, index and checkpoint, byte for byte; and the returned offsets."""
    options = replace(SMALL, whole_crc=whole_crc)
    disks = SimulatedDisk(), SimulatedDisk()
    clocks = ManualClock(), ManualClock()
    at_once = opened(disks[0], clocks[0], options)
    singly = opened(disks[1], clocks[1], options)
    for batch in given:
        messages = [batch.message(number) for number in range(len(batch.bodies))]
        expected = singly.append(messages)
        first, physical_offsets = at_once.append_batch(batch)
        assert physical_offsets == [appended.physical_offset for appended in expected]
        assert [first + n for n in range(len(physical_offsets))] == [
            appended.queue_offset for appended in expected
        ]
        flush(at_once)
        flush(singly)
    assert visible(at_once) == visible(singly)
    upkeep(at_once, clocks[0])
    upkeep(singly, clocks[1])
    assert disks[0].files() == disks[1].files()


def test_failed_write_rolls_back_a_batch() -> None:
    disk = SimulatedDisk()
    store = opened(disk, ManualClock(), SMALL)
    store.append_batch(NewBatch("a", 0, [b"first"], [b""]))
    flush(store)
    disk.capacity = 0
    _, physical_offsets = store.append_batch(NewBatch("a", 0, [b"x" * 1_900] * 9, [b""] * 9))
    with pytest.raises(DiskFull):
        store.flush.write()
    disk.capacity = None
    again = store.append_batch(NewBatch("a", 0, [b"second"], [b""]))
    assert again == (1, physical_offsets[:1]), "their offsets are free again"
    flush(store)
    assert visible(store) == {("a", 0): {0: b"first", 1: b"second"}}


@pytest.mark.parametrize(
    ("batch", "about"),
    [
        *(
            (NewBatch("a", 0, [b"good", body], [b"", properties]), about)
            for body, properties, about in ILLEGAL_CONTENTS
        ),
        (NewBatch("a" * 128, 0, [b"x"], [b""]), "topic"),
        (NewBatch("a", -1, [b"x"], [b""]), "queue_id"),
        (NewBatch("a", 0, [b"x"], [b""], born_host="nowhere"), "born_host"),
        (NewBatch("a", 0, [b"x"], [b""], sys_flag=record.TRANSACTION_PREPARED), "sys_flag"),
    ],
)
def test_illegal_message_or_shared_field_refuses_the_whole_batch(
    batch: NewBatch, about: str
) -> None:
    store = opened(SimulatedDisk(), ManualClock(), SMALL)
    with pytest.raises(MessageIllegal) as caught:
        store.append_batch(batch)
    assert (caught.value.about, store.end_offset) == (about, 0)
    assert store.append_batch(NewBatch("a", 0, [b"good"], [b""])) == (0, [0])
