"""Append: offsets, records byte for byte, limits, all or none."""

from __future__ import annotations

from dataclasses import replace

import pytest

from aerobee_broker.errors import MessageIllegal
from aerobee_broker.store.messages import NewMessage
from aerobee_broker.store.options import StoreOptions
from aerobee_wire import record
from aerobee_wire.message_id import pack_host
from aerobee_wire.topics import retry_topic
from support import records
from support.clock.manual_clock import ManualClock
from support.codes import raises_about
from support.disk.stores import (
    FIRST_FILE,
    ILLEGAL_CONTENTS,
    LOG,
    SMALL,
    flush,
    new_store,
    open_store,
    send,
    visible,
)

NOW_MS = 1_700_000_000_000


def full() -> NewMessage:
    return NewMessage(
        topic="orders",
        queue_id=3,
        body=b"body",
        properties=b"TAGS\x01red\x02",
        flag=7,
        sys_flag=record.COMPRESSED,
        born_timestamp_ms=99,
        born_host="10.0.0.7:81",
        reconsume_times=2,
        prepared_transaction_offset=55,
    )


@pytest.mark.parametrize("whole_crc", [True, False])
def test_record_on_disk_is_that_of_the_codec(whole_crc: bool) -> None:
    """With the CRC of the record, and without."""
    store, disk, _ = new_store(replace(SMALL, whole_crc=whole_crc))
    [appended] = send(store, [full()])
    expected = records.encode(
        topic="orders",
        queue_id=3,
        queue_offset=0,
        physical_offset=0,
        body=b"body",
        properties=b"TAGS\x01red\x02",
        flag=7,
        sys_flag=record.COMPRESSED,
        born_timestamp_ms=99,
        born_host=pack_host("10.0.0.7:81"),
        store_timestamp_ms=NOW_MS,
        store_host=pack_host("127.0.0.1:10911"),
        reconsume_times=2,
        prepared_transaction_offset=55,
        whole_crc=whole_crc,
    )
    assert disk.files()[FIRST_FILE].rstrip(b"\0") == expected.rstrip(b"\0")
    assert appended == (3, 0, 0, len(expected))


@pytest.mark.parametrize(
    ("topic", "host"),
    [
        ("orders", "[2001:db8::1]:9"),
        (retry_topic("g" * 130), "10.0.0.1:9"),
        (retry_topic("g" * 130), "[2001:db8::1]:9"),
    ],
)
def test_long_topics_and_ipv6_hosts_are_stored(topic: str, host: str) -> None:
    """Magic V2 over 127 bytes of topic; 12 more bytes for an IPv6 host."""
    store = open_store()
    send(store, [NewMessage(topic, 0, b"x", born_host=host), NewMessage(topic, 0, b"y")])
    found = list(record.iter_records(store.read(topic, 0, 0).records))
    assert [(stored.topic, stored.body) for stored in found] == [(topic, b"x"), (topic, b"y")]
    assert found[0].born_host == host
    assert bool(found[0].sys_flag & record.BORN_HOST_V6) == host.startswith("[")


def test_host_bits_follow_the_hosts_not_the_sender() -> None:
    store = open_store()
    send(store, [NewMessage("orders", 0, b"x", sys_flag=record.BORN_HOST_V6 | 1)])
    [stored] = record.iter_records(store.read("orders", 0, 0).records)
    assert stored.sys_flag == 1


def test_queue_offsets_count_per_queue() -> None:
    store = open_store()
    appended = send(store, [NewMessage("a", n % 2, b"x" * (n + 1)) for n in range(6)])
    assert [message.queue_id for message in appended] == [0, 1] * 3
    assert [message.queue_offset for message in appended] == [0, 0, 1, 1, 2, 2]
    ends = [message.physical_offset + message.store_size for message in appended]
    assert [message.physical_offset for message in appended] == [0, *ends[:-1]]
    assert store.end_offset == ends[-1]


def test_prepared_and_rollback_records_take_no_queue_offset() -> None:
    """Queue offset 0 and no unit; a commit has both."""
    store = open_store()
    kinds = [record.TRANSACTION_PREPARED, 0, record.TRANSACTION_ROLLBACK, record.TRANSACTION_COMMIT]
    appended = send(store, [NewMessage("a", 0, b"%d" % kind, sys_flag=kind) for kind in kinds])
    assert [message.queue_offset for message in appended] == [0, 0, 0, 1]
    assert visible(store) == {("a", 0): {0: b"0", 1: b"8"}}
    assert store.get(appended[0].physical_offset).body == b"4"


def test_tags_code_is_the_hash_of_the_tag_or_the_topics_own() -> None:
    """Delayed topics store the deliver time there."""
    store = open_store()
    send(store, [NewMessage("a", 0, b"x", b"TAGS\x01UA\x02"), NewMessage("a", 0, b"x")])
    assert [unit[2] for unit in store.units("a", 0, 0, 9)] == [ord("U") * 31 + ord("A"), 0]
    clock = ManualClock(1_000)

    codes = {"delayed": lambda properties, stored_ms: stored_ms + len(properties)}
    later = open_store(clock=clock, tags_code_of=codes)
    send(later, [NewMessage("delayed", 0, b"x", b"TAGS\x01UA\x02"), NewMessage("a", 0, b"x")])
    assert later.units("delayed", 0, 0, 1)[0][2] == 1_008
    assert later.units("a", 0, 0, 1)[0][2] == 0


@pytest.mark.parametrize(
    ("message", "about"),
    [
        *(
            (NewMessage("a", 0, body, properties), about)
            for body, properties, about in ILLEGAL_CONTENTS
        ),
        (NewMessage("a" * 128, 0, b"x"), "topic"),
        (NewMessage(retry_topic("g" * 250), 0, b"x"), "topic"),
        (NewMessage("", 0, b"x"), "topic"),
        (NewMessage("../a", 0, b"x"), "topic"),
        (NewMessage("..", 0, b"x"), "topic"),
        (NewMessage("a", -1, b"x"), "queue_id"),
        (NewMessage("a", 0, b"x", born_host="somewhere:80"), "born_host"),
        (NewMessage("a", 0, b"x", born_host=b"12345"), "born_host"),
    ],
)
def test_illegal_message_refuses_the_whole_append(message: NewMessage, about: str) -> None:
    store = open_store()
    good = NewMessage("a", 0, b"good")
    with pytest.raises(MessageIllegal) as caught:
        store.append([good, message, good])
    assert (caught.value.about, store.end_offset) == (about, 0)
    [stored] = send(store, [good])
    assert (stored.queue_offset, stored.physical_offset) == (0, 0)
    assert visible(store)["a", 0] == {0: b"good"}


def test_largest_properties_leave_room_for_the_crc() -> None:
    options = replace(SMALL, commit_log_file_size=1 << 16)
    store = open_store(options=options)
    largest = b"k\x01" + b"v" * (32_767 - 20 - 3) + b"\x02"
    send(store, [NewMessage("a", 0, b"x", largest)])
    [stored] = record.iter_records(store.read("a", 0, 0).records)
    assert stored.raw_properties == largest
    with raises_about(MessageIllegal, "properties"):
        store.append([NewMessage("a", 0, b"x", largest[:-1] + b"v\x02")])


def test_append_spans_files_with_blank_records() -> None:
    """A record leaves 8 bytes of its file, or goes to the next one; the blank holds how many."""
    store, disk, _ = new_store()
    appended = send(store, [NewMessage("a", 0, b"x" * 1_900) for _ in range(20)])
    size = SMALL.commit_log_file_size
    assert {message.physical_offset // size for message in appended} == set(range(5))
    for number in range(4):
        data = disk.files()[LOG / f"{number * size:020d}"]
        last = max(
            message.physical_offset + message.store_size
            for message in appended
            if message.physical_offset // size == number
        )
        assert data[last - number * size :][:8] == record.BLANK.pack(
            (number + 1) * size - last, record.MAGIC_BLANK
        )
    assert len(visible(store)["a", 0]) == 20


def test_record_may_fill_its_file_up_to_the_blank() -> None:
    options = replace(SMALL, commit_log_file_size=4_096, max_message_size=4_096)
    store = open_store(options=options)
    fixed = record.FIXED_V1 + 1 + record.CRC_TAIL_BYTES
    send(store, [NewMessage("a", 0, b"x" * (4_096 - 8 - fixed)), NewMessage("a", 0, b"y")])
    assert [unit[0] for unit in store.units("a", 0, 0, 2)] == [0, 4_096]
    with raises_about(MessageIllegal, "mappedFileSizeCommitLog"):
        store.append([NewMessage("a", 0, b"x" * (4_096 - 7 - fixed))])


def test_empty_append_is_no_error() -> None:
    store = open_store()
    assert send(store, []) == []
    assert store.end_offset == 0


def test_each_write_is_one_call_a_file() -> None:
    store, disk, _ = new_store(replace(SMALL, commit_log_step=SMALL.commit_log_file_size))
    send(store, [NewMessage("a", 0, b"first")])
    before = disk.steps
    for _ in range(10):
        store.append([NewMessage("b", 1, b"x") for _ in range(5)])
    store.flush.write()
    assert disk.steps == before + 1
    flush(store)
    assert len(visible(store)["b", 1]) == 50


def test_default_file_sizes_are_rocketmqs() -> None:
    options = StoreOptions()
    assert options.commit_log_file_size == 1_073_741_824
    assert options.consume_queue_file_size == 300_000 * 20
    assert (options.index_slot_count, options.index_entry_count) == (5_000_000, 20_000_000)
