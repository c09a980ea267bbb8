"""Test the encoding of rows as messages, and the errors that name a row."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from aerobee_client import Message
from aerobee_client.message import MAX_PROPERTIES_BYTES
from aerobee_spark.errors import RowError
from aerobee_spark.writing import arrays
from aerobee_spark.writing.encoding import MessageIds, Messages, encode
from aerobee_spark.writing.message_columns import FrameColumns
from aerobee_wire import properties
from aerobee_wire.compression import SYS_FLAGS
from support.user_properties import ACCEPTED, REFUSED

FIRST_ROW = 100
NOW = datetime(2026, 5, 1, tzinfo=UTC)
NOW_MS = int(NOW.timestamp() * 1000)
IDS = MessageIds("job", 3)
MAP = pa.map_(pa.string(), pa.string())
# Spark's names of the types of Arrow.
KINDS = {
    pa.binary(): "binary",
    pa.string(): "string",
    pa.large_string(): "string",
    pa.int32(): "int",
    pa.int64(): "bigint",
    pa.float64(): "double",
    pa.list_(pa.string()): "array<string>",
    pa.timestamp("us", "UTC"): "timestamp",
    MAP: "map<string,string>",
}


def encoded(columns: dict[str, pa.Array], topic: str = "t", part: slice = slice(None)) -> Messages:
    batch = pa.record_batch(columns)
    batch = batch.slice(part.start or 0, part.stop and part.stop - (part.start or 0))
    kinds = [(name, KINDS[array.type]) for name, array in columns.items()]
    return encode(
        batch,
        FrameColumns.of(kinds),
        IDS.of(FIRST_ROW, batch.num_rows),
        first_row=FIRST_ROW,
        topic=topic,
        max_message_size=1000,
        now_ms=NOW_MS,
    )


def strings(*values: str | None) -> pa.Array:
    return pa.array(values, pa.string())


def ints(*values: int | None) -> pa.Array:
    return pa.array(values, pa.int32())


def maps(*values: dict[str, str] | None) -> pa.Array:
    return pa.array([value and list(value.items()) for value in values], MAP)


def of(messages: Messages, row: int) -> dict[str, str]:
    """Return the properties of a row, without its message id."""
    found = properties.decode(messages.properties[row].as_py())
    del found[properties.UNIQUE_KEY]
    return found


def rows_of_a_read(*given: dict[str, str], **more: pa.Array) -> dict[str, pa.Array]:
    count = len(given)
    return {
        "body": strings(*["x"] * count),
        "properties": maps(*given),
        "queueOffset": pa.array(range(count), pa.int64()),
        **more,
    }


# ---- what rows become ----


def test_the_properties_string_is_that_of_the_clients_message() -> None:
    given = {"note": "Zürich", "id": "7"}
    messages = encoded(
        {
            "body": strings("a", "b"),
            "tags": strings("T1", None),
            "keys": pa.array([["k1", "all"], None], pa.list_(pa.string())),
            "properties": maps(given, None),
            "flag": ints(5, None),
        }
    )
    message_id = bytes(IDS.of(FIRST_ROW, 1)[0]).decode()
    message = Message("t", b"a", tag="T1", keys=["k1", "all"], properties=given)
    assert messages.properties[0].as_py() == message.encoded_properties(message_id)
    assert (of(messages, 1), messages.flags.tolist()) == ({}, [5, 0])
    assert [body.as_py() for body in messages.bodies] == [b"a", b"b"]


def test_keys_may_be_text_and_bodies_binary_or_large() -> None:
    messages = encoded(
        {
            "body": pa.array(["a", "b"], pa.large_string()),
            "keys": strings("k1 k2", ""),
            "tags": strings("", ""),
        }
    )
    assert [of(messages, row) for row in (0, 1)] == [{"KEYS": "k1 k2"}, {}]
    assert arrays.contents(messages.bodies).tobytes() == b"ab"


def test_a_part_of_a_batch_has_its_own_rows() -> None:
    count = 20
    columns = {
        "body": strings(*(f"b{i}" for i in range(count))),
        "keys": pa.array([[f"k{i}"] for i in range(count)], pa.list_(pa.string())),
        "properties": maps(*({"n": str(i), "m": "x"} if i % 3 else None for i in range(count))),
    }
    messages = encoded(columns, part=slice(5, 9))
    assert [body.as_py() for body in messages.bodies] == [b"b5", b"b6", b"b7", b"b8"]
    assert of(messages, 0) == {"KEYS": "k5", "n": "5", "m": "x"}
    assert of(messages, 1) == {"KEYS": "k6"}


@pytest.mark.parametrize(
    ("kind", "seconds", "ms"),
    [(pa.int32(), 30, "30000"), (pa.int64(), 1, "1000"), (pa.float64(), 0.0015, "2")],
)
def test_a_delay_in_seconds_is_rounded_up_to_ms(kind: pa.DataType, seconds: float, ms: str) -> None:
    messages = encoded({"body": strings("a", "b"), "delaySeconds": pa.array([seconds, None], kind)})
    assert (of(messages, 0), of(messages, 1)) == ({"TIMER_DELAY_MS": ms}, {})


def test_a_time_is_rounded_up_to_ms() -> None:
    moments = [NOW + timedelta(microseconds=1), NOW - timedelta(days=9), None]
    times = pa.array(moments, pa.timestamp("us", "UTC"))
    messages = encoded({"body": strings("a", "b", "c"), "deliverAt": times})
    assert of(messages, 0) == {"TIMER_DELIVER_MS": str(NOW_MS + 1)}
    assert of(messages, 1) == {"TIMER_DELIVER_MS": str(NOW_MS - 9 * 86_400_000)}
    assert of(messages, 2) == {}


def test_a_message_group_is_a_property_and_a_place() -> None:
    messages = encoded({"body": strings("a", "b", "c"), "messageGroup": strings("g1", None, "")})
    assert of(messages, 0) == {"__SHARDINGKEY": "g1"}
    assert [messages.groups.values[code] for code in messages.groups.codes if code >= 0] == ["g1"]
    assert (messages.groups.codes == arrays.NONE).tolist() == [False, True, True]


def test_the_message_id_is_that_of_the_row() -> None:
    first = encoded({"body": strings("a", "b")})
    again = encoded({"body": strings("c", "d")})
    ids = [properties.decode(row.as_py())["UNIQ_KEY"] for row in first.properties]
    assert ids == [properties.decode(row.as_py())["UNIQ_KEY"] for row in again.properties]
    assert len(set(ids)) == 2 and all(len(each) == 32 for each in ids)


def test_bits_of_compression_are_kept_of_the_sys_flag() -> None:
    zlib = SYS_FLAGS["zlib"]
    messages = encoded({"body": strings("a", "b", "c"), "sysFlag": ints(zlib | 0x10, 0x10, None)})
    assert messages.sys_flags.tolist() == [zlib, 0, 0]


# ---- rows of a read ----


def test_reserved_names_of_a_read_are_left_out_and_the_users_stay() -> None:
    given = {"UNIQ_KEY": "X", "TAGS": "old", "KEYS": "k", "CLUSTER": "c", "mine": "1"}
    messages = encoded(rows_of_a_read(given, tags=strings("new")))
    assert of(messages, 0) == {"TAGS": "new", "mine": "1"}


def test_message_group_and_priority_of_a_read_stay() -> None:
    given = {"__SHARDINGKEY": "g", "_SYS_MSG_PRIORITY_": "3", "mine": "1"}
    messages = encoded(rows_of_a_read(given, {"mine": "2"}))
    assert of(messages, 0) == given
    assert messages.priorities.tolist() == [3, arrays.NONE]
    assert [messages.groups.values[code] for code in messages.groups.codes[:1]] == ["g"]
    regrouped = encoded(rows_of_a_read(given, messageGroup=strings("other")))
    assert of(regrouped, 0)["__SHARDINGKEY"] == "other"
    assert list(regrouped.groups.values) == ["other"]


def test_a_row_without_a_queue_offset_is_none_of_a_read() -> None:
    columns = rows_of_a_read({"UNIQ_KEY": "X"}) | {"queueOffset": pa.array([None], pa.int64())}
    with pytest.raises(RowError, match="'UNIQ_KEY' has a reserved name"):
        encoded(columns)


# ---- what rows are refused for ----


def refused(bad: Any, name: str, kind: pa.DataType, good: Any = None, **more: pa.Array) -> RowError:
    """Return the error of a frame in which only the second row is invalid."""
    columns = {"body": strings("a", "b"), name: pa.array([good, bad], kind), **more}
    with pytest.raises(RowError) as raised:
        encoded(columns, topic="" if name == "topic" else "t")
    assert raised.value.row == FIRST_ROW + 1
    assert raised.value.about == name
    return raised.value


@pytest.mark.parametrize("body", [None, b"", bytes(1001)])
def test_bad_bodies_are_refused(body: bytes | None) -> None:
    refused(body, "body", pa.binary(), b"a")


@pytest.mark.parametrize(
    "entry",
    [
        ("", "x"),
        ("x", ""),
        ("x", None),
        *REFUSED,
        ("TAGS", "x"),
        ("UNIQ_KEY", "x"),
        ("x", "x" * MAX_PROPERTIES_BYTES),
    ],
)
def test_bad_properties_are_refused(entry: tuple[str, str | None]) -> None:
    refused([("fine", "1"), entry], "properties", MAP, [("other", "2")])


@pytest.mark.parametrize(("name", "value"), ACCEPTED)
def test_good_properties_are_sent(name: str, value: str) -> None:
    assert of(encoded({"body": strings("a"), "properties": maps({name: value})}), 0) == {
        name: value
    }


def test_a_control_character_in_what_a_read_leaves_out_is_accepted() -> None:
    given = {"DLQ_REASON_DESCRIPTION": "failed\nagain", "mine": "1"}
    assert of(encoded(rows_of_a_read(given)), 0) == {"mine": "1"}


@pytest.mark.parametrize("tags", ["a||b", "a\x01b", "\x02"])
def test_bad_tags_are_refused(tags: str) -> None:
    refused(tags, "tags", pa.string(), "fine")


@pytest.mark.parametrize("keys", [["a", ""], ["a b"], ["a\x01"], [None]])
def test_bad_keys_are_refused(keys: list[str | None]) -> None:
    refused(keys, "keys", pa.list_(pa.string()), ["fine"])


def test_separators_in_keys_as_text_are_refused() -> None:
    refused("a\x02b", "keys", pa.string(), "fine one")


@pytest.mark.parametrize(
    "topic", [None, "", "a b", "RMQ_SYS_TRANS_HALF_TOPIC", "%RETRY%g", "%DLQ%g"]
)
def test_bad_topics_are_refused(topic: str | None) -> None:
    refused(topic, "topic", pa.string(), "fine")


@pytest.mark.parametrize("group", [" ", "g" * 64, "a\x01b", "line\n"])
def test_bad_message_groups_are_refused(group: str) -> None:
    refused(group, "messageGroup", pa.string(), "fine")


@pytest.mark.parametrize("seconds", [-1.0, 259_200.1, float("nan"), float("inf")])
def test_bad_delays_are_refused(seconds: float) -> None:
    refused(seconds, "delaySeconds", pa.float64(), 259_200.0)


def test_a_delay_that_no_float_has_is_refused() -> None:
    refused((1 << 62) + 1, "delaySeconds", pa.int64(), 259_200)


def test_a_time_over_three_days_ahead_is_refused() -> None:
    late = NOW + timedelta(days=3, seconds=1)
    refused(late, "deliverAt", pa.timestamp("us", "UTC"), NOW + timedelta(days=3))


def test_a_delayed_message_of_a_message_group_is_refused() -> None:
    refused("g", "messageGroup", pa.string(), delaySeconds=ints(None, 1))


@pytest.mark.parametrize(("broker", "queue_id"), [("a", None), (None, 1), ("a", -1)])
def test_half_a_queue_and_one_below_0_are_refused(broker: str | None, queue_id: int | None) -> None:
    refused(queue_id, "queueId", pa.int32(), 0, brokerName=strings("a", broker))


def test_a_message_group_with_a_chosen_queue_is_refused() -> None:
    more = {"brokerName": strings("a", "a"), "messageGroup": strings(None, "g")}
    refused(1, "queueId", pa.int32(), 1, **more)


def test_text_that_is_not_utf_8_is_refused() -> None:
    # As Spark's cast of a binary to a string makes it.
    raw = pa.array([b"fine", b"\xff"], pa.binary())
    tags = pa.Array.from_buffers(pa.string(), 2, raw.buffers())
    with pytest.raises(RowError) as raised:
        encoded({"body": strings("a", "b"), "tags": tags})
    assert raised.value.row == FIRST_ROW + 1


def test_bodies_that_are_not_utf_8_are_sent() -> None:
    body = pa.Array.from_buffers(pa.string(), 1, pa.array([b"\xff\x00"], pa.binary()).buffers())
    assert encoded({"body": body}).bodies[0].as_py() == b"\xff\x00"


# ---- parts ----


def test_taken_and_cut_rows_keep_what_they_are() -> None:
    messages = encoded(
        {
            "body": strings(*"abcd"),
            "topic": strings("t1", "t2", "t1", "t2"),
            "flag": ints(1, 2, 3, 4),
            "brokerName": strings("a", None, "a", "b"),
            "queueId": ints(0, None, 1, 0),
        },
        topic="",
    )
    for some in (messages.take(np.array([1, 3])), messages.take(np.array([0, 1, 3])).part(1, 3)):
        assert some.rows.tolist() == [FIRST_ROW + 1, FIRST_ROW + 3]
        assert [body.as_py() for body in some.bodies] == [b"b", b"d"]
        assert some.flags.tolist() == [2, 4]
        assert {some.topics.values[code] for code in some.topics.codes} == {"t2"}
        assert some.queues.codes[0] == arrays.NONE
        assert some.queues.values[some.queues.codes[1]] == ("b", 0)


# ---- message ids: equal for a repeated task, different otherwise ----


def ids(job: str, partition: int, first_row: int, count: int) -> list[str]:
    found = MessageIds(job, partition).of(first_row, count)
    return [row.tobytes().decode() for row in found]


def test_a_row_has_the_same_id_however_rows_come_in_batches() -> None:
    whole = ids("job", 2, 0, 300)
    assert [*ids("job", 2, 0, 1), *ids("job", 2, 1, 255), *ids("job", 2, 256, 44)] == whole


def test_ids_are_hexadecimal_and_different_in_jobs_partitions_and_rows() -> None:
    found = [
        each
        for job in ("a", "b", "a 1", "query 1", "query 11")
        for partition in (0, 1, 11)
        for first in (0, 65_536, 2**40)
        for each in ids(job, partition, first, 100)
    ]
    assert len(set(found)) == len(found)
    assert all(re.fullmatch("[0-9A-F]{32}", each) for each in found)
