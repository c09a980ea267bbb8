"""Scanning over arrays against decoding one by one."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aerobee_broker.store.recovery import scan as scan_module
from aerobee_broker.store.recovery.scan import Records, Stop, scan
from aerobee_wire import record
from aerobee_wire.message_id import pack_host
from aerobee_wire.topics import retry_topic
from support import records

HOSTS = (pack_host("10.0.0.1:80"), pack_host("[::1]:80"))
ROOM = 1 << 20
BASE = 3 * ROOM


def encoded(physical_offset: int, **changes: Any) -> bytes:
    fields: dict[str, Any] = {
        "topic": "orders",
        "queue_id": 1,
        "queue_offset": 5,
        "physical_offset": physical_offset,
        "body": b"body",
        "properties": b"TAGS\x01red\x02",
        "store_timestamp_ms": 1_700_000_000_000,
        "whole_crc": True,
    }
    return records.encode(**(fields | changes))


def stream(changes: list[dict[str, Any]]) -> bytes:
    data = b""
    for change in changes:
        data += encoded(BASE + len(data), **change)
    return data


def rows(found: Records) -> list[tuple[Any, ...]]:
    if not len(found):
        return []
    names = [found.by_queue().queues[number][0] for number in found.by_queue().numbers.tolist()]
    return list(
        zip(
            found.physical_offsets.tolist(),
            found.sizes.tolist(),
            found.queue_ids.tolist(),
            found.queue_offsets.tolist(),
            found.sys_flags.tolist(),
            found.stored_ms.tolist(),
            [name.decode() for name in names],
            found.properties(),
            strict=True,
        )
    )


def reference(data: bytes) -> list[tuple[Any, ...]]:
    return [
        (
            decoded.physical_offset,
            decoded.store_size,
            decoded.queue_id,
            decoded.queue_offset,
            decoded.sys_flag,
            decoded.store_timestamp_ms,
            decoded.topic,
            decoded.raw_properties,
        )
        for decoded in record.iter_records(data)
    ]


CHANGES = st.fixed_dictionaries(
    {
        "topic": st.sampled_from(["a", "orders", retry_topic("g" * 130)]),
        "queue_id": st.integers(0, 9),
        "queue_offset": st.integers(0, 1 << 40),
        "body": st.binary(min_size=1, max_size=40),
        "properties": st.sampled_from([b"", b"TAGS\x01red\x02", b"KEYS\x01a b\x02x\x01y\x02"]),
        "born_host": st.sampled_from(HOSTS),
        "store_host": st.sampled_from(HOSTS),
        "sys_flag": st.sampled_from([0, 4, 8, 12]),
        "whole_crc": st.booleans(),
    }
)


@settings(deadline=None)
@given(st.lists(CHANGES, max_size=20))
def test_fields_are_those_of_the_codec(changes: list[dict[str, Any]]) -> None:
    data = stream(changes)
    found, end = scan(data + bytes(8), BASE, ROOM, check_crc=True)
    assert rows(found) == reference(data)
    assert (end.stop, end.at) == (Stop.ZEROS, len(data))


@pytest.mark.parametrize("count", [1, 15, 16, 17, 500])
@pytest.mark.parametrize("odd_one", [None, 0, 3, 16, 40])
def test_records_of_one_size_are_scanned_alike(count: int, odd_one: int | None) -> None:
    changes: list[dict[str, Any]] = [{"queue_offset": n} for n in range(count)]
    if odd_one is not None and odd_one < count:
        changes[odd_one]["body"] = b"longer body"
    data = stream(changes)
    found, end = scan(data, BASE, ROOM, check_crc=True)
    assert rows(found) == reference(data)
    assert (end.stop, end.at) == (Stop.MORE, len(data))


TOPICS = st.sampled_from(["a", "b", "orders", "orderz", "größe", retry_topic("g" * 300)])


@settings(deadline=None)
@given(st.lists(st.tuples(TOPICS, st.integers(0, 3)), min_size=1, max_size=40))
def test_records_are_grouped_by_queue_in_log_order(names: list[tuple[str, int]]) -> None:
    """Names of one length and of several; one is too long for the weighted sums."""
    data = stream([{"topic": topic, "queue_id": queue_id} for topic, queue_id in names])
    found, _ = scan(data, BASE, ROOM, check_crc=True)
    by_queue = found.by_queue()
    queues = [(name.decode(), queue_id) for name, queue_id in by_queue.queues]
    assert len(set(queues)) == len(queues) == len(by_queue.bounds) - 1
    assert [queues[number] for number in by_queue.numbers.tolist()] == names
    for number, queue in enumerate(queues):
        members = by_queue.order[by_queue.bounds[number] : by_queue.bounds[number + 1]].tolist()
        assert members == [at for at, name in enumerate(names) if name == queue]


def test_queues_with_one_weighted_sum_are_distinguished(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan_module, "_WEIGHTS", np.zeros(256, dtype=np.uint64))
    monkeypatch.setattr(scan_module, "_QUEUE_WEIGHT", np.uint64(0))
    changes = [{"topic": topic, "queue_id": n % 2} for n, topic in enumerate(["a", "b", "a", "cc"])]
    found, _ = scan(stream(changes), BASE, ROOM, check_crc=True)
    assert len(found.by_queue().queues) == 3
    assert [row[6] for row in rows(found)] == ["a", "b", "a", "cc"]


def test_blank_record_ends_the_file() -> None:
    data = stream([{}])
    rest = ROOM - len(data)
    blank = record.BLANK.pack(rest, record.MAGIC_BLANK)
    assert scan(data + blank, BASE, ROOM, check_crc=True)[1].stop is Stop.BLANK
    wrong = record.BLANK.pack(rest - 1, record.MAGIC_BLANK)
    assert scan(data + wrong, BASE, ROOM, check_crc=True)[1].stop is Stop.BAD


def test_every_flipped_bit_ends_the_scan_at_its_record() -> None:
    data = stream([{"queue_offset": n} for n in range(4)])
    size = len(data) // 4
    for bit in random.Random(1).sample(range(len(data) * 8), 600):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        found, end = scan(bytes(damaged), BASE, ROOM, check_crc=True)
        hit = bit // 8 // size
        # A size beyond the bytes given asks for more of them.
        assert len(found) == hit and end.at == hit * size, f"bit {bit}"
        assert end.stop in (Stop.BAD, Stop.BAD_CRC, Stop.MORE)
        assert end.stop is Stop.MORE or end.reason


@settings(deadline=None)
@given(st.binary(max_size=300))
def test_any_bytes_can_be_scanned(data: bytes) -> None:
    found, _ = scan(data, BASE, ROOM, check_crc=True)
    assert len(found) == 0


@settings(deadline=None)
@given(st.binary(max_size=300))
def test_any_bytes_behind_a_header_can_be_scanned(data: bytes) -> None:
    prefixed = (len(data) + 8).to_bytes(4, "big") + bytes.fromhex("DAA320A7") + data
    scan(prefixed, BASE, ROOM, check_crc=True)


def test_damaged_body_leaves_the_fields_of_its_record() -> None:
    data = bytearray(stream([{}, {"queue_offset": 6}]))
    size = len(data) // 2
    data[size + 90] ^= 1
    _, end = scan(bytes(data), BASE, ROOM, check_crc=True)
    assert end.stop is Stop.BAD_CRC and end.at == size
    assert end.damaged is not None
    assert rows(end.damaged)[0][:4] == (BASE + size, size, 1, 6)


def test_damage_outside_of_the_body_leaves_no_record() -> None:
    data = bytearray(stream([{}]))
    data[27] ^= 1  # its queue offset
    _, end = scan(bytes(data), BASE, ROOM, check_crc=True)
    assert end.stop is Stop.BAD_CRC and end.damaged is None


def test_record_behind_the_durable_offset_needs_its_crc() -> None:
    """Torn in its properties it would pass: the CRC of its body matches."""
    data = stream([{"whole_crc": False}, {"whole_crc": True}, {"whole_crc": False}])
    assert len(scan(data, BASE, ROOM, check_crc=True)[0]) == 3
    assert len(scan(data, BASE, ROOM, check_crc=True, crc_from=BASE)[0]) == 0
    assert len(scan(data, BASE, ROOM, check_crc=True, crc_from=BASE + 1)[0]) == 2


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_a_damaged_crc_does_not_make_a_record_without_one(size: int) -> None:
    whole = stream([{}, {}])
    for at in range(len(whole) - record.CRC_TAIL_BYTES - 1, len(whole) - size + 1):
        data = bytearray(whole)
        data[at : at + size] = bytes(byte ^ 0xFF for byte in data[at : at + size])
        assert len(scan(bytes(data), BASE, ROOM, check_crc=True)[0]) == 1, at


def test_unterminated_properties_are_bad() -> None:
    data = stream([{"properties": b"KEYS\x01a\x00", "whole_crc": False}])
    found, end = scan(data, BASE, ROOM, check_crc=True)
    assert (len(found), end.stop, end.reason) == (0, Stop.BAD, "its properties are cut off")


def test_crc_check_can_be_disabled() -> None:
    data = bytearray(stream([{}]))
    data[90] ^= 1
    assert len(scan(bytes(data), BASE, ROOM, check_crc=False)[0]) == 1
