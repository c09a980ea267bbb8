"""The record codec: one vector byte by byte, round trips, and every kind of damage."""

from __future__ import annotations

import dataclasses
import struct
import zlib
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aerobee_wire import message_id, record
from support import records
from support.codes import raises_about

V4 = message_id.pack_host("10.0.0.7:10911")
V6 = message_id.pack_host("[2001:db8::1]:9")


def fields(**changes: Any) -> dict[str, Any]:
    values: dict[str, Any] = {
        "topic": "flights",
        "queue_id": 3,
        "queue_offset": 17,
        "physical_offset": 4096,
        "body": b"hello",
        "properties": b"TAGS\x01UA\x02",
        "flag": -5,
        "sys_flag": 0,
        "born_timestamp_ms": 1_700_000_000_001,
        "born_host": V4,
        "store_timestamp_ms": 1_700_000_000_002,
        "store_host": V4,
        "reconsume_times": 2,
        "prepared_transaction_offset": 99,
    }
    return values | changes


def test_layout_is_rocketmqs_byte_by_byte() -> None:
    """The fields in order, fixed part 91 bytes for IPv4 hosts and magic V1."""
    expected = b"".join(
        (
            struct.pack(">i", 91 + 5 + 7 + 8),
            bytes.fromhex("DAA320A7"),
            struct.pack(">i", zlib.crc32(b"hello") & 0x7FFFFFFF),
            struct.pack(">ii", 3, -5),
            struct.pack(">qq", 17, 4096),
            struct.pack(">i", 0),
            struct.pack(">q", 1_700_000_000_001),
            bytes([10, 0, 0, 7]) + struct.pack(">i", 10911),
            struct.pack(">q", 1_700_000_000_002),
            bytes([10, 0, 0, 7]) + struct.pack(">i", 10911),
            struct.pack(">iq", 2, 99),
            struct.pack(">i", 5) + b"hello",
            b"\x07flights",
            struct.pack(">h", 8) + b"TAGS\x01UA\x02",
        )
    )
    assert records.encode(**fields()) == expected


@pytest.mark.parametrize("born", [V4, V6])
@pytest.mark.parametrize("store", [V4, V6])
@pytest.mark.parametrize("topic", ["t", "a" * 127, "%RETRY%" + "g" * 121, "ü" * 100])
def test_both_host_sizes_and_magics_are_decoded(born: bytes, store: bytes, topic: str) -> None:
    encoded = records.encode(**fields(born_host=born, store_host=store, topic=topic))
    decoded = record.decode(encoded)
    wide = len(topic.encode()) > 127
    assert encoded[4:8].hex().upper() == ("DAA320AB" if wide else "DAA320A7")
    assert len(encoded) == 91 + len(born) + len(store) - 16 + wide + 5 + len(topic.encode()) + 8
    assert (decoded.topic, decoded.store_size) == (topic, len(encoded))
    assert decoded.born_host == message_id.unpack_host(born)
    assert decoded.store_host == message_id.unpack_host(store)
    assert decoded.sys_flag == (0x10 if len(born) == 20 else 0) | (0x20 if len(store) == 20 else 0)


@given(
    body=st.binary(max_size=300),
    properties=st.binary(max_size=300),
    numbers=st.tuples(*[st.integers(-(2**31), 2**31 - 1)] * 3),
    offsets=st.tuples(*[st.integers(0, 2**62)] * 3),
)
def test_decode_returns_what_was_encoded(
    body: bytes, properties: bytes, numbers: tuple[int, ...], offsets: tuple[int, ...]
) -> None:
    given_fields = fields(
        body=body,
        properties=properties,
        queue_id=numbers[0],
        flag=numbers[1],
        reconsume_times=numbers[2],
        queue_offset=offsets[0],
        physical_offset=offsets[1],
        prepared_transaction_offset=offsets[2],
    )
    decoded = record.decode(b"before" + records.encode(**given_fields), 6)
    for name in ("body", "queue_id", "flag", "reconsume_times", "queue_offset", "physical_offset"):
        assert getattr(decoded, name) == given_fields[name]
    assert decoded.raw_properties == properties
    assert decoded.body_crc == zlib.crc32(body) & 0x7FFFFFFF


def test_ids_and_properties_are_decoded_on_demand() -> None:
    decoded = record.decode(
        records.encode(**fields(properties=b"UNIQ_KEY\x01ID\x02KEYS\x01a b\x02"))
    )
    assert decoded.unique_message_id == "ID"
    assert decoded.properties == {"UNIQ_KEY": "ID", "KEYS": "a b"}
    assert decoded.offset_message_id == "0A00000700002A9F0000000000001000"


def patched(at: int, data: bytes) -> bytes:
    encoded = bytearray(records.encode(**fields()))
    encoded[at : at + len(data)] = data
    return bytes(encoded)


@pytest.mark.parametrize(
    ("data", "about"),
    [
        (b"", "total_size"),
        (records.encode(**fields())[:-1], "total_size"),
        (patched(4, b"\0\0\0\0"), "magic_code"),
        (patched(0, b"\0\0\0\x50"), "total_size"),
        (patched(0, b"\x7f\xff\xff\xff"), "total_size"),
        (patched(84, b"\0\0\x10\0"), "body_length"),
        (patched(84, b"\xff\xff\xff\xff"), "body_length"),
        (patched(93, b"\xff"), "topic_length"),
        (patched(93, b"\x06"), "properties_length"),
        (patched(94, b"\xff"), "topic"),
        (patched(88, b"j"), "body_crc"),
        (patched(39, b"\x10"), "body_length"),  # IPv6 born host: all later fields move
    ],
)
def test_damage_is_found_and_the_field_named(data: bytes, about: str) -> None:
    with raises_about(record.CorruptRecord, about):
        record.decode(data)


def test_every_flipped_bit_of_the_body_is_found() -> None:
    encoded = records.encode(**fields())
    for bit in range(88 * 8, 93 * 8):
        damaged = bytearray(encoded)
        damaged[bit // 8] ^= 1 << bit % 8
        with raises_about(record.CorruptRecord, "body_crc"):
            record.decode(bytes(damaged))


def test_crc_of_the_record_is_no_property_to_a_reader() -> None:
    """20 bytes: the name, 0x01, ten decimal digits from the lowest on, 0x02."""
    encoded = records.encode(**fields(), whole_crc=True)
    crc = zlib.crc32(encoded[:-20]) & 0x7FFFFFFF
    digits = f"{crc:010d}"[::-1].encode()
    assert encoded[-20:] == b"__CRC32#\x01" + digits + b"\x02"
    decoded = record.decode(encoded)
    assert decoded.store_size == len(encoded)
    assert decoded.raw_properties == b"TAGS\x01UA\x02"
    assert decoded.properties == {"TAGS": "UA"}


@pytest.mark.parametrize("topic", ["flights", "t" * 200])
def test_every_flipped_bit_of_a_record_with_its_crc_is_found(topic: str) -> None:
    encoded = records.encode(**fields(topic=topic), whole_crc=True)
    for bit in range(len(encoded) * 8):
        damaged = bytearray(encoded)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(record.CorruptRecord):
            record.decode(bytes(damaged))


@pytest.mark.parametrize("size", [2, 3, 4, 8])
def test_a_damaged_crc_does_not_make_a_record_without_one(size: int) -> None:
    encoded = records.encode(**fields(), whole_crc=True)
    for at in range(len(encoded) - record.CRC_TAIL_BYTES - 1, len(encoded) - size + 1):
        damaged = bytearray(encoded)
        damaged[at : at + size] = bytes(byte ^ 0xFF for byte in damaged[at : at + size])
        if size > 4 and at < len(encoded) - record.CRC_TAIL_BYTES:
            continue  # without the bytes before it, too little of the CRC is left
        with pytest.raises(record.CorruptRecord):
            record.decode(bytes(damaged))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("__STATUS", "0123456789"),
        ("orderNos", "0123456789"),
        ("__CREATE", "1764300000"),
        ("__CREDIT", "0123456789"),
        ("__CRC_ID", "2026-11-28"),
    ],
)
def test_a_property_that_resembles_the_crc_is_a_property(name: str, value: str) -> None:
    properties = f"{name}\x01{value}\x02".encode()
    decoded = record.decode(records.encode(**fields(properties=properties)))
    assert decoded.properties == {name: value}


@given(st.binary(max_size=400))
def test_any_bytes_give_a_record_or_corrupt_record(data: bytes) -> None:
    prefixed = struct.pack(">i", len(data) + 8) + bytes.fromhex("DAA320A7") + data
    try:
        decoded = record.decode(prefixed)
    except record.CorruptRecord:
        return
    assert decoded.store_size == len(prefixed)


def test_consecutive_records_are_iterated_decoded_or_raw() -> None:
    several = [records.encode(**fields(queue_offset=n, body=bytes(n))) for n in range(3)]
    joined = b"".join(several)
    assert [item.queue_offset for item in record.iter_records(joined)] == [0, 1, 2]
    assert list(record.iter_raw(joined)) == list(enumerate(several))
    assert [*record.iter_records(b""), *record.iter_raw(b"")] == []


def decoded_one_by_one(data: bytes, *, check_crc: bool) -> list[record.Record]:
    found: list[record.Record] = []
    position = 0
    while position < len(data):
        found.append(record.decode(data, position, check_crc=check_crc))
        position += found[-1].store_size
    return found


def outcome(
    read: Callable[..., Iterable[record.Record]], data: bytes | memoryview, *, check_crc: bool
) -> list[list[Any]] | tuple[str, str]:
    """Return the fields of all records, or the reason and the field of the damage."""
    try:
        found = list(read(data, check_crc=check_crc))
    except record.CorruptRecord as error:
        return error.reason, error.about
    names = [each.name for each in dataclasses.fields(record.Record)]
    return [[getattr(each, name) for name in names] for each in found]


@given(
    st.lists(
        st.fixed_dictionaries(
            {
                "topic": st.sampled_from(["flights", "flightx", "t" * 200, "größe", ""]),
                "body": st.binary(max_size=40),
                "properties": st.sampled_from([b"", b"TAGS\x01UA\x02", b"__CRC32#\x01"]),
                "born_host": st.sampled_from([V4, V4, V4, V6]),
                "queue_offset": st.integers(0, 2**40),
            },
            optional={"reconsume_times": st.integers(0, 9)},
        ),
        min_size=1,
        max_size=5,
    ),
    st.data(),
)
def test_consecutive_records_are_as_if_each_was_decoded_alone(
    several: list[dict[str, Any]], data: st.DataObject
) -> None:
    crc = st.sampled_from([True, True, True, False])
    encoded = [records.encode(**fields(**each), whole_crc=data.draw(crc)) for each in several]
    joined = bytearray(b"".join(encoded))
    for _ in range(data.draw(st.integers(0, 2))):
        joined[data.draw(st.integers(0, len(joined) - 1))] ^= data.draw(st.integers(1, 255))
    cut = bytes(joined[: len(joined) - data.draw(st.sampled_from([0, 0, 0, 1, 30]))])
    for check_crc in (True, False):
        expected = outcome(decoded_one_by_one, cut, check_crc=check_crc)
        assert outcome(record.iter_records, cut, check_crc=check_crc) == expected
        assert outcome(record.iter_records, memoryview(cut), check_crc=check_crc) == expected


def test_every_flipped_bit_of_a_later_record_is_found() -> None:
    first = records.encode(**fields(), whole_crc=True)
    for bit in range(len(first) * 8):
        damaged = bytearray(first)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(record.CorruptRecord):
            list(record.iter_records(first + damaged))
