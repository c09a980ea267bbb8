"""Compare the decoder by columns with the decoder of single records, row by row."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

from aerobee_spark.errors import OptionError
from aerobee_spark.reading import columns, schema
from aerobee_wire import compression, message_id, properties, record, topics
from support import records
from support.codes import raises_about

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
V4 = message_id.pack_host("10.1.2.3:10911")
V6 = message_id.pack_host("[fe80::1]:10911")
WIDE_TOPIC = topics.dead_letter_topic("g" * 125)  # over 127 bytes: magic code V2


def encoded(**fields: Any) -> bytes:
    """Return a record, with defaults for all fields."""
    defaults: dict[str, Any] = {
        "topic": "flights",
        "queue_id": 3,
        "queue_offset": 7,
        "physical_offset": 4096,
        "body": b"body",
        "properties": properties.encode({"TAGS": "UA", "KEYS": "UA-1", "UNIQ_KEY": "7F00"}),
        "flag": 5,
        "born_timestamp_ms": 1_700_000_000_123,
        "born_host": V4,
        "store_timestamp_ms": 1_700_000_001_456,
        "store_host": V4,
        "reconsume_times": 2,
    }
    return records.encode(**(defaults | fields))


def time_of(ms: int) -> datetime | None:
    try:
        return EPOCH + timedelta(milliseconds=ms)
    except OverflowError:
        return None


def expected(row: record.Record) -> dict[str, Any]:
    tags = row.properties.get("TAGS")
    return {
        "topic": row.topic,
        "brokerName": "broker-a",
        "queueId": row.queue_id,
        "queueOffset": row.queue_offset,
        "msgId": row.unique_message_id or row.offset_message_id,
        "offsetMsgId": row.offset_message_id,
        "tags": tags,
        "keys": row.properties.get("KEYS"),
        "body": row.body,
        "bodySize": len(row.body),
        "flag": row.flag,
        "sysFlag": row.sys_flag,
        "bornTimestamp": time_of(row.born_timestamp_ms),
        "storeTimestamp": time_of(row.store_timestamp_ms),
        "bornHost": row.born_host,
        "storeHost": row.store_host,
        "reconsumeTimes": row.reconsume_times,
        "properties": list(row.properties.items()),
    }


def assert_equal_to_reference(buffer: bytes) -> None:
    batch = columns.decode(buffer, "broker-a")
    batch.validate(full=True)
    assert batch.to_pylist() == [expected(row) for row in record.iter_records(buffer)]


def test_a_property_that_looks_like_a_crc_is_read() -> None:
    """If properties are short, the last 20 bytes include topic and body."""
    tail = record.crc_tail(7)
    for cut in range(20):
        assert_equal_to_reference(encoded(body=b"x" * 30 + tail[:cut], topic="t", properties=b""))
    assert_equal_to_reference(encoded(properties=tail[:19]))


@pytest.mark.parametrize("at", [0, 8, 19])
def test_a_damaged_crc_is_refused_as_one_by_one(at: int) -> None:
    whole = bytearray(encoded(whole_crc=True))
    whole[len(whole) - 20 + at] ^= 4
    for decode in (lambda: record.decode(bytes(whole)), lambda: columns.decode(bytes(whole), "b")):
        with raises_about(record.CorruptRecord, "__CRC32#"):
            decode()


def test_no_records_give_no_rows() -> None:
    assert columns.decode(b"", "broker-a").num_rows == 0


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"TAGS\x01UA",  # without the last separator, as some clients send it
        b"TAGS\x01UA\x02\x02",
        b"TAGS\x01\x02KEYS\x01k\x02",  # an empty value
        b"\x01v\x02KEYS\x01k\x02",  # an empty name
        b"TAGS\x02KEYS\x01k\x02",
        b"KEYS\x01a\x01b\x02",
        b"KEYS\x01a\x02KEYS\x01b\x02",  # twice: the last one counts
        b"KEYS\x01\xff\xfe\x02",  # not UTF-8
        b"KEYS\x01\xc3\x02",  # cut inside a character
        "KEYS\x01Zürich 東京\x02".encode(),
        b"KEYS\x01\x00\x02",
        b"\x02\x01\x02\x01",
    ],
)
def test_unusual_properties_follow_the_rules_of_the_wire(raw: bytes) -> None:
    rows = [encoded(), encoded(properties=raw), encoded(properties=b""), encoded()]
    assert_equal_to_reference(b"".join(rows))
    assert_equal_to_reference(encoded(properties=raw))


@pytest.mark.parametrize(
    "other",
    [
        b"AA\x015\x02BB\x01\xc3\xa9\x02",
        b"BB\x015\x02AA\x016\x02",  # the same names in another order
        b"AA\x015\x02BC\x016\x02",
        b"AA\x015\x026\x01BB\x02",
        b"AA\x015\x02BB\x01\x01\x02",
        b"AA=15\x02BB\x01\x01\x02",
        b"AA\x015\x02BB\x01\x02",
        b"AA\x015\x02BB\x01\xff\x02",
        b"AA\x015\x02B\x02",
        b"AA\x015\x02",
    ],
)
def test_rows_of_equal_names_decode_as_one_by_one(other: bytes) -> None:
    usual = encoded(properties=b"AA\x01a\x02BB\x01b\x02")
    assert_equal_to_reference(usual * 3 + encoded(properties=other) + usual)


YEAR_1_MS, YEAR_10000_MS = -62_135_596_800_000, 253_402_300_800_000


@pytest.mark.parametrize("ms", [YEAR_1_MS - 1, YEAR_1_MS, YEAR_10000_MS - 1, YEAR_10000_MS])
def test_timestamps_outside_of_the_years_1_to_9999_are_null(ms: int) -> None:
    assert (time_of(ms) is None) == (not YEAR_1_MS <= ms < YEAR_10000_MS)
    assert_equal_to_reference(encoded(born_timestamp_ms=ms) + encoded())


RECORDS = st.builds(
    encoded,
    topic=st.sampled_from(["flights", WIDE_TOPIC]),
    queue_id=st.integers(0, 2**31 - 1),
    queue_offset=st.integers(0, 2**63 - 1),
    physical_offset=st.integers(0, 2**63 - 1),
    body=st.binary(max_size=40),
    properties=st.one_of(
        st.binary(max_size=30),
        st.text("ab\x01\x02ü", max_size=30).map(str.encode),
        st.dictionaries(
            st.sampled_from(["TAGS", "KEYS", "UNIQ_KEY", "user"]), st.text("ABCü ", min_size=1)
        ).map(properties.encode),
    ),
    flag=st.integers(-(2**31), 2**31 - 1),
    sys_flag=st.sampled_from([0, 1, 2, 8]),
    born_timestamp_ms=st.integers(-(2**63), 2**63 - 1),
    born_host=st.sampled_from([V4, V6]),
    store_timestamp_ms=st.integers(0, 2**42),
    store_host=st.sampled_from([V4, V6]),
    reconsume_times=st.integers(0, 2**31 - 1),
    whole_crc=st.booleans(),
)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(RECORDS, max_size=8))
def test_any_records_decode_as_one_by_one(rows: list[bytes]) -> None:
    assert_equal_to_reference(b"".join(rows))


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.tuples(RECORDS, st.integers(1, 25)), max_size=4))
def test_many_records_of_one_size_decode_as_one_by_one(runs: list[tuple[bytes, int]]) -> None:
    assert_equal_to_reference(b"".join(row * count for row, count in runs))


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(RECORDS, min_size=1, max_size=4), st.randoms(use_true_random=False))
def test_damaged_records_are_refused_or_decode_as_one_by_one(
    rows: list[bytes], dice: random.Random
) -> None:
    buffer = bytearray(b"".join(row * dice.choice([1, 1, 12]) for row in rows))
    buffer[dice.randrange(len(buffer))] ^= 1 << dice.randrange(8)
    try:
        reference = list(record.iter_records(bytes(buffer), check_crc=False))
    except record.CorruptRecord:
        with pytest.raises(record.CorruptRecord):
            columns.decode(bytes(buffer), "broker-a")
    else:
        assume(all(row.physical_offset >= 0 for row in reference))  # else there is no message id
        rows_found = columns.decode(bytes(buffer), "broker-a").to_pylist()
        assert rows_found == [expected(row) for row in reference]


@pytest.mark.parametrize("cut", [1, 50, 90, 91, 100])
def test_a_torn_record_is_refused(cut: int) -> None:
    whole = encoded(body=b"x" * 50)
    with pytest.raises(record.CorruptRecord):
        columns.decode(whole + whole[:cut], "broker-a")


def test_columns_that_are_left_out_are_null_and_the_size_stays() -> None:
    batch = columns.decode(
        encoded(body=b"x" * 9), "broker-a", include_body=False, include_properties=False
    )
    row = batch.to_pylist()[0]
    assert (row["body"], row["properties"], row["bodySize"]) == (None, None, 9)
    assert (row["tags"], row["keys"], row["msgId"]) == ("UA", "UA-1", "7F00")


def test_bodies_are_cut_and_the_size_stays() -> None:
    buffer = encoded(body=b"abcdef") + encoded(body=b"ab")
    rows = columns.decode(buffer, "broker-a", max_body_bytes=4).to_pylist()
    assert [(row["body"], row["bodySize"]) for row in rows] == [(b"abcd", 6), (b"ab", 2)]


def test_rows_are_kept_by_their_tags() -> None:
    rows = [encoded(properties=properties.encode({"TAGS": tag})) for tag in ("UA", "AA", "UA")]
    batch = columns.decode(b"".join([*rows, encoded(properties=b"")]), "broker-a")
    assert columns.with_tags(batch, {"UA", "B6"}).column("tags").to_pylist() == ["UA", "UA"]


def test_compressed_bodies_are_plain_and_damaged_ones_as_they_are_stored() -> None:
    body = b"worth it " * 50
    methods = ("zlib", "lz4", "zstd")
    whole = [compression.compress(body, method, 3) for method in methods]
    flags = [compression.SYS_FLAGS[method] | 64 for method in methods]
    bodies = [*whole, *(packed[:-7] for packed in whole), b"plain", b"unknown"]
    sys_flags = [*flags, *flags, 64, record.COMPRESSED | 7 << 8]
    stored = b"".join(
        encoded(body=packed, sys_flag=flag) for packed, flag in zip(bodies, sys_flags, strict=True)
    )
    plain = [body] * 3 + bodies[3:]
    batch = columns.decode(stored, "broker-a")
    batch.validate(full=True)
    assert batch.column("body").to_pylist() == plain
    assert batch.column("bodySize").to_pylist() == [len(each) for each in plain]
    assert batch.column("sysFlag").to_pylist() == [64] * 3 + sys_flags[3:]
    cut = columns.decode(stored, "broker-a", max_body_bytes=5)
    assert cut.column("body").to_pylist() == [each[:5] for each in plain]
    assert cut.column("bodySize").to_pylist() == [len(each) for each in plain]
    as_stored = columns.decode(stored, "broker-a", inflate=False)
    assert as_stored.column("body").to_pylist() == bodies
    assert as_stored.column("sysFlag").to_pylist() == sys_flags


def test_headers_are_the_properties_as_keys_and_bytes() -> None:
    records = b"".join(
        encoded(properties=properties.encode(each))
        for each in ({"é": "1", "b": ""}, {}, {"c": "3"})
    )
    batch = columns.decode(records, "broker-a")
    found = columns.with_headers(batch).column("headers")
    assert [[(each["key"], each["value"]) for each in row] for row in found.to_pylist()] == [
        [(name, value.encode()) for name, value in row] for row in batch["properties"].to_pylist()
    ]
    assert found.to_pylist()[2] == [{"key": "c", "value": b"3"}]


# ---- test schema ----
#
# Test schemas of users, which select columns of a message.


def test_a_schema_may_choose_columns() -> None:
    schema.check(StructType([StructField("queueOffset", LongType())]))


@pytest.mark.parametrize(
    "field",
    [
        StructField("offset", LongType()),
        StructField("queueOffset", IntegerType()),
        StructField("body", StringType()),
    ],
)
def test_a_schema_may_not_invent_or_convert_columns(field: StructField) -> None:
    with raises_about(OptionError, field.name):
        schema.check(StructType([StructField("tags", StringType()), field]))


def test_headers_are_a_column_only_if_they_are_requested() -> None:
    wanted = StructType([schema.of(include_headers=True)["headers"]])
    schema.check(wanted, include_headers=True)
    with raises_about(OptionError, "headers"):
        schema.check(wanted)
    assert "headers" not in schema.of(include_headers=False).names
