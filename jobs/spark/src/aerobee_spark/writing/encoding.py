"""Check the rows of a DataFrame, and encode them as messages, column by column.

If a row cannot be sent, RowError names its number. The Python client applies the same checks to
messages. Bodies are not copied into Python objects. If Spark repeats a task, its rows get the same
message ids again. This module does no I/O.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from aerobee_client.message import MAX_DELAY, MAX_PROPERTIES_BYTES
from aerobee_spark.errors import MqError, RowError
from aerobee_spark.writing import arrays, map_column
from aerobee_spark.writing.arrays import NONE, Bytes, Coded, Ints, Mask
from aerobee_spark.writing.map_column import MapColumn
from aerobee_spark.writing.message_columns import ROW_OF_A_READ, FrameColumns
from aerobee_wire import properties as names
from aerobee_wire import topics
from aerobee_wire.compression import compression_bits
from aerobee_wire.queues.choice import check_message_group

_SEPARATORS = (names.NAME_END_CODE, names.VALUE_END_CODE)
_UNIQUE_KEY = f"{names.UNIQUE_KEY}{names.NAME_END}".encode()
_QUEUE_ID_BITS = 32
_LONGEST_DELAY_MS = int(MAX_DELAY.total_seconds() * 1000)
ID_BYTES = 32
_PREFIX_BYTES = 10
_HEX = np.frombuffer(b"0123456789ABCDEF", np.uint8)


class MessageIds:
    """Generates the message ids of one task.

    Like ids of RocketMQ's clients, an id has 32 hexadecimal digits. They encode 10 bytes of a hash
    of job and partition, and 6 bytes with the number of the row in the partition.

    Args:
        job: the same for each attempt of a task, and different for each job.
        partition: number of the task's partition.
    """

    def __init__(self, job: str, partition: int) -> None:
        name = f"{partition} {job}".encode()
        self._prefix = hashlib.blake2b(name, digest_size=_PREFIX_BYTES).digest()

    def of(self, first_row: int, count: int) -> npt.NDArray[np.uint8]:
        """Return the ids of `count` rows from `first_row` on, one row of ASCII digits for each."""
        raw = np.empty((count, ID_BYTES // 2), np.uint8)
        raw[:, :_PREFIX_BYTES] = np.frombuffer(self._prefix, np.uint8)
        numbers = np.arange(first_row, first_row + count, dtype=">i8").view(np.uint8)
        raw[:, _PREFIX_BYTES:] = numbers.reshape(count, 8)[:, 2:]
        digits = np.stack([raw >> 4, raw & 15], axis=2).reshape(count, ID_BYTES)
        return np.ascontiguousarray(_HEX[digits])


@dataclass(frozen=True, slots=True)
class Messages:
    """Encoded messages that can be sent, as one array for each attribute.

    `rows` has the number of each message's row in the partition. `topics`, `queues` (broker name
    and queue id) and `groups` (message group) have the destination of each message. `priorities` is
    NONE for a message without a priority.
    """

    rows: Ints
    bodies: pa.Array
    properties: pa.Array
    flags: Ints
    sys_flags: Ints
    topics: Coded
    queues: Coded
    groups: Coded
    priorities: Ints

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, chosen: Ints) -> Messages:
        """Return a copy of the messages at the positions `chosen`."""
        indices = pa.array(chosen)
        return Messages(
            self.rows[chosen],
            self.bodies.take(indices),
            self.properties.take(indices),
            self.flags[chosen],
            self.sys_flags[chosen],
            self.topics.take(chosen),
            self.queues.take(chosen),
            self.groups.take(chosen),
            self.priorities[chosen],
        )

    def part(self, start: int, stop: int) -> Messages:
        """Return the messages from position `start` up to `stop`, exclusive, without a copy."""
        size = stop - start
        return Messages(
            self.rows[start:stop],
            self.bodies.slice(start, size),
            self.properties.slice(start, size),
            self.flags[start:stop],
            self.sys_flags[start:stop],
            Coded(self.topics.values, self.topics.codes[start:stop]),
            Coded(self.queues.values, self.queues.codes[start:stop]),
            Coded(self.groups.values, self.groups.codes[start:stop]),
            self.priorities[start:stop],
        )


def encode(
    batch: pa.RecordBatch,
    columns: FrameColumns,
    ids: Bytes,
    *,
    first_row: int,
    topic: str,
    max_message_size: int,
    now_ms: int,
) -> Messages:
    """Encode the rows of a batch as messages.

    Args:
        batch: rows of the DataFrame.
        columns: the columns of the batch, by position.
        ids: a message id for each row (see MessageIds).
        first_row: number of the first row in the partition.
        topic: topic of all messages; empty if the column topic names it.
        max_message_size: largest body, in bytes.
        now_ms: the current time, in milliseconds since the epoch.

    Raises:
        RowError: a row cannot be sent.
    """
    rows = _Rows(batch, columns, first_row)
    bodies = _bodies(rows, max_message_size)
    mapped = _mapped(rows)
    delays = _delays(rows, now_ms)
    groups = _groups(rows, mapped)
    queues = _queues(rows, groups)
    _check_order(rows, groups, delays)
    parts = [_unique_keys(ids), _tags(rows), _keys(rows), *delays]
    if "messageGroup" in columns:
        parts.append(_property(names.SHARDING_KEY, rows.binary("messageGroup")))
    parts.append(mapped.strings)
    return Messages(
        rows.numbers,
        bodies,
        _properties(rows, [part for part in parts if part is not None]),
        rows.ints("flag"),
        compression(rows.ints("sysFlag")),
        _topics(rows, topic),
        queues,
        groups,
        mapped.priorities,
    )


class _Rows:
    """The columns of a batch by name, and the number of each row in the partition."""

    def __init__(self, batch: pa.RecordBatch, columns: FrameColumns, first_row: int) -> None:
        self.count = batch.num_rows
        self.numbers = np.arange(first_row, first_row + self.count, dtype=np.int64)
        self._columns = dict(zip(columns.names, batch.columns, strict=True))

    def get(self, name: str) -> Any | None:
        return self._columns.get(name)

    def binary(self, name: str) -> pa.Array | None:
        column = self.get(name)
        return None if column is None else arrays.binary(column)

    def ints(self, name: str) -> Ints:
        """Return an integer column with 0 for null. A missing column is 0 everywhere."""
        column = self.get(name)
        if column is None:
            return np.zeros(self.count, np.int64)
        found: Ints = column.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
        return found

    @property
    def of_a_read(self) -> Mask:
        column = self.get(ROW_OF_A_READ)
        return np.zeros(self.count, np.bool_) if column is None else arrays.valid(column)

    def error(self, at: int, reason: str, about: str) -> RowError:
        return RowError(int(self.numbers[at]), reason, about)

    def refuse(self, bad: Mask, reason: str, about: str) -> None:
        at = arrays.first(bad)
        if at is not None:
            raise self.error(at, reason, about)

    def check_separators(self, array: pa.Array, about: str) -> None:
        at = arrays.first_with(array, _SEPARATORS)
        if at is not None:
            raise self.error(at, f"{about} has \\x01 or \\x02, which separate properties", about)


# ---- columns ----


def _bodies(rows: _Rows, limit: int) -> pa.Array:
    bodies = rows.binary("body")
    assert bodies is not None, "checked by FrameColumns"
    rows.refuse(~arrays.valid(bodies), "the body is null: use at least one byte", "body")
    sizes = arrays.sizes(bodies)
    rows.refuse(sizes == 0, "the body is empty: use at least one byte", "body")
    at = arrays.first(sizes > limit)
    if at is not None:
        reason = (
            f"the body has {sizes[at]} bytes, but the limit is {limit}: split it, or "
            "raise maxMessageSize on the broker and in the options"
        )
        raise rows.error(at, reason, "body")
    return bodies


def _topics(rows: _Rows, topic: str) -> Coded:
    if topic:
        return Coded((topic,), np.zeros(rows.count, np.int64))
    column = rows.get("topic")
    assert column is not None, "checked by FrameColumns"
    found = arrays.coded(column)
    rows.refuse(found.codes == NONE, "the topic is null: name a topic", "topic")
    for code, name in enumerate(found.values):
        reason = _topic_problem(str(name))
        if reason:
            rows.refuse(found.codes == code, reason, "topic")
    return found


def _topic_problem(topic: str) -> str:
    try:
        topics.check_topic(topic)
    except MqError as error:
        return error.message
    if topic in topics.SEND_REFUSED_TOPICS:
        return f"clients cannot send to the system topic {topic}: choose another topic"
    if topics.is_retry(topic):
        return f"{topic} belongs to a consumer group: set the option topic to another topic"
    if topics.is_dead_letter(topic):  # a read returned the rows; sending them would duplicate them
        return f"{topic} holds dead letters: set the option redrive, or topic to another topic"
    return ""


def _tags(rows: _Rows) -> pa.Array | None:
    column = rows.binary("tags")
    if column is None:
        return None
    rows.check_separators(column, "tags")
    at = arrays.first_with(column, b"|")
    if at is not None:
        reason = "the tag has |, which separates the tags of a subscription"
        raise rows.error(at, reason, "tags")
    return _property(names.TAGS, column)


def _keys(rows: _Rows) -> pa.Array | None:
    column = rows.get("keys")
    if column is None:
        return None
    if pa.types.is_list(column.type) or pa.types.is_large_list(column.type):
        return _property(names.KEYS, _joined_keys(rows, column))
    texts = arrays.binary(column)
    rows.check_separators(texts, "keys")
    return _property(names.KEYS, texts)


def _joined_keys(rows: _Rows, column: pa.ListArray) -> pa.Array:
    """Join the keys of each message with spaces. Raise RowError for an invalid key."""
    keys, row_of = arrays.binary(column.flatten()), pc.list_parent_indices(column).to_numpy()
    at = arrays.first(arrays.sizes(keys) == 0)
    if at is None:
        at = arrays.first_with(keys, (*_SEPARATORS, ord(names.KEY_SEPARATOR)))
    if at is not None:
        reason = "a key is empty, or has a space, \\x01 or \\x02"
        raise rows.error(int(row_of[at]), reason, "keys")
    separator = pa.scalar(names.KEY_SEPARATOR.encode(), pa.binary())
    return pc.binary_join(column.cast(pa.list_(pa.binary())), separator)


def _mapped(rows: _Rows) -> MapColumn:
    column = rows.get("properties")
    if column is None:
        empty = arrays.from_parts(b"", np.zeros(rows.count + 1, np.int64))
        none = arrays.nothing(rows.count)
        return MapColumn(empty, none, none.codes)
    keep_group = rows.get("messageGroup") is None
    return map_column.encode(column, rows.numbers, rows.of_a_read, keep_group=keep_group)


def _delays(rows: _Rows, now_ms: int) -> list[pa.Array]:
    """Encode the column deliverAt or delaySeconds as properties.

    The list has one array of properties, or is empty if the batch has neither column.
    """
    at, seconds = rows.get("deliverAt"), rows.get("delaySeconds")
    if at is not None:
        micros = at.cast(pa.int64()).fill_null(0).to_numpy()
        ms, given = -(-micros // 1000), arrays.valid(at)  # round up: do not deliver early
        late = given & (ms > now_ms + _LONGEST_DELAY_MS)
        rows.refuse(late, "deliverAt is more than 3 days ahead: send it later", "deliverAt")
        return [_numbers(names.TIMER_DELIVER_MS, np.maximum(ms, 0), given)]
    if seconds is not None:
        delays = seconds.cast(pa.float64(), safe=False).fill_null(0).to_numpy()
        given = arrays.valid(seconds)
        good = (delays >= 0) & (delays * 1000 <= _LONGEST_DELAY_MS)  # False for NaN
        rows.refuse(
            given & ~good, "delaySeconds is invalid: use 0 to 259200 (3 days)", "delaySeconds"
        )
        ms = np.ceil(np.where(good, delays, 0) * 1000).astype(np.int64)
        return [_numbers(names.TIMER_DELAY_MS, ms, given)]
    return []


def _groups(rows: _Rows, mapped: MapColumn) -> Coded:
    column = rows.binary("messageGroup")
    if column is None:
        return _decoded(mapped.groups)
    rows.check_separators(column, "messageGroup")
    found = _decoded(arrays.coded(_without_empty(column)))
    for code, name in enumerate(found.values):
        try:
            check_message_group(str(name))
        except MqError as error:
            rows.refuse(found.codes == code, error.message, "messageGroup")
    return found


def _decoded(texts: Coded) -> Coded:
    values = [bytes(value).decode("utf-8", "replace") for value in texts.values]
    return Coded(values, texts.codes)


def _queues(rows: _Rows, groups: Coded) -> Coded:
    """Return the queues that the columns brokerName and queueId choose for rows.

    A chosen queue takes precedence over a message group in the column properties.
    """
    brokers, ids = rows.get("brokerName"), rows.get("queueId")
    if brokers is None or ids is None:
        return arrays.nothing(rows.count)
    named, numbered = arrays.valid(brokers), arrays.valid(ids)
    reason = "only one of brokerName and queueId is null: set both, or neither"
    rows.refuse(named != numbered, reason, "queueId")
    rows.refuse(rows.ints("queueId") < 0, "queueId is negative: use 0 or more", "queueId")
    if rows.get("messageGroup") is not None:
        reason = "messageGroup and queueId both choose the queue: set only one of them"
        rows.refuse(named & (groups.codes != NONE), reason, "queueId")
    found = arrays.coded(brokers)
    pairs = (found.codes << _QUEUE_ID_BITS) + rows.ints("queueId")
    different, codes = np.unique(pairs[named], return_inverse=True)
    all_codes = np.full(rows.count, NONE, np.int64)
    all_codes[named] = codes
    brokers_of, ids_of = different >> _QUEUE_ID_BITS, different & (1 << _QUEUE_ID_BITS) - 1
    return Coded(
        [
            (found.values[broker], number)
            for broker, number in zip(brokers_of.tolist(), ids_of.tolist(), strict=True)
        ],
        all_codes,
    )


def _check_order(rows: _Rows, groups: Coded, delays: list[pa.Array]) -> None:
    if delays:
        delayed = arrays.sizes(delays[0]) > 0
        reason = "a delayed message cannot keep the order of a message group: set only one of both"
        rows.refuse(delayed & (groups.codes != NONE), reason, "messageGroup")


# ---- property strings ----


def _properties(rows: _Rows, parts: list[pa.Array]) -> pa.Array:
    found = arrays.joined(*parts)
    at = arrays.first(arrays.sizes(found) > MAX_PROPERTIES_BYTES)
    if at is not None:
        reason = (
            f"the properties have {arrays.sizes(found)[at]} bytes, tag and keys included: "
            f"the limit is {MAX_PROPERTIES_BYTES}"
        )
        raise rows.error(at, reason, "properties")
    try:
        found.cast(pa.string())  # raises if it is not UTF-8
    except pa.ArrowInvalid:
        at = next(at for at in range(len(found)) if not _is_utf8(found[at].as_py()))
        reason = "tag, keys, group or properties are not UTF-8: encode the text"
        raise rows.error(at, reason, "properties") from None
    return found


def _is_utf8(encoded: bytes) -> bool:
    try:
        encoded.decode()
    except UnicodeDecodeError:
        return False
    return True


def _unique_keys(ids: Bytes) -> pa.Array:
    count = len(ids)
    head = np.broadcast_to(np.frombuffer(_UNIQUE_KEY, np.uint8), (count, len(_UNIQUE_KEY)))
    tail = np.full((count, 1), names.VALUE_END_CODE, np.uint8)
    width = len(_UNIQUE_KEY) + ID_BYTES + 1
    data = np.concatenate([head, ids, tail], axis=1)
    return arrays.from_parts(data.ravel(), np.arange(count + 1, dtype=np.int64) * width)


def _property(name: str, values: pa.Array | None) -> pa.Array:
    """Encode a property with this name for each value.

    The result is empty for a value that is null or empty.
    """
    prefix = f"{name}{names.NAME_END}".encode()
    found = arrays.joined(prefix, _without_empty(values), names.VALUE_END_BYTES)
    return found.fill_null(b"")


def _without_empty(values: Any) -> pa.Array:
    return pc.if_else(pc.equal(pc.binary_length(values), 0), pa.scalar(None, pa.binary()), values)


def _numbers(name: str, values: Ints, given: Mask) -> pa.Array:
    texts = pa.array(values).cast(pa.string()).cast(pa.binary())
    return _property(name, pc.if_else(pa.array(given), texts, pa.scalar(None, pa.binary())))


def compression(sys_flags: Ints) -> Ints:
    """Return only those bits of each sys flag that describe the compression of the body."""
    if not sys_flags.any():
        return sys_flags
    different, codes = np.unique(sys_flags, return_inverse=True)
    return np.array([compression_bits(int(flags)) for flags in different], np.int64)[codes]
