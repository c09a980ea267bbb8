"""Encode dead letters as messages to send again, by the rules of `aerobee dlq redrive`.

Python code runs for each row, because the properties of a dead letter decide its destination.
Bodies are not copied into Python objects. This module does no I/O.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from aerobee_spark.errors import MqError, RowError
from aerobee_spark.writing import arrays
from aerobee_spark.writing.arrays import NONE
from aerobee_spark.writing.encoding import Messages, compression
from aerobee_spark.writing.message_columns import FrameColumns
from aerobee_wire import properties as names
from aerobee_wire import redrive as rules
from aerobee_wire import topics
from aerobee_wire.redrive import Target


def encode(
    batch: pa.RecordBatch, columns: FrameColumns, target: Target, *, first_row: int, now_ms: int
) -> Messages:
    """Encode dead letters as messages that keep their ids.

    Args:
        batch: dead letters, as a read returned them.
        columns: the columns of the batch, by position.
        target: the kind of topic to which dead letters are sent.
        first_row: number of the first row in the partition.
        now_ms: the current time, in milliseconds since the epoch.

    Raises:
        RowError: a row is not a dead letter, or is incomplete.
    """
    rows = dict(zip(columns.names, batch.columns, strict=True))
    numbers = np.arange(first_row, first_row + batch.num_rows, dtype=np.int64)
    sent = [
        _sent(int(row), target, now_ms, *given)
        for row, given in zip(numbers, _dead_letters(rows), strict=True)
    ]
    in_order = target != Target.RETRY
    groups = [_order_key(given) if in_order else None for _, given in sent]
    priorities = [given.get(names.PRIORITY, "") if in_order else "" for _, given in sent]
    return Messages(
        numbers,
        _bodies(rows, numbers),
        pa.array([names.encode(given) for _, given in sent], pa.binary()),
        _ints(rows["flag"]),
        compression(_ints(rows["sysFlag"])),
        arrays.coded(pa.array([topic for topic, _ in sent], pa.string())),
        arrays.nothing(batch.num_rows),
        arrays.coded(pa.array(groups, pa.string())),
        np.array([_priority(text) for text in priorities], np.int64),
    )


def _order_key(properties: Mapping[str, str]) -> str | None:
    """Return the message group or the lite topic of a message, or None.

    Messages with the same key must be sent to the same queue.
    """
    return properties.get(names.SHARDING_KEY) or properties.get(names.LITE_TOPIC)


def _dead_letters(rows: dict[str, Any]) -> Any:
    """Iterate over (topic, properties, offset message id) of each row."""
    given = (rows[name].to_pylist() for name in ("topic", "properties", "offsetMsgId"))
    return zip(*given, strict=True)


def _sent(  # noqa: PLR0917
    row: int,
    target: Target,
    now_ms: int,
    topic: str | None,
    properties: list[tuple[str, str]] | None,
    offset_message_id: str | None,
) -> tuple[str, dict[str, str]]:
    """Return the topic and the properties with which a dead letter is sent again."""
    if topic is None or properties is None or offset_message_id is None:
        reason = "topic, properties or offsetMsgId is null: read with includeProperties=true"
        raise RowError(row, reason, "properties")
    given = dict(properties)
    try:
        group = rules.group_of(topic)
        to = rules.topic_for(target, group, given)
        topics.check_topic(to)
        return to, rules.properties_for(
            target, given, offset_message_id=offset_message_id, now_ms=now_ms
        )
    except MqError as error:
        raise RowError(row, error.message, "redrive") from None


def _bodies(rows: dict[str, Any], numbers: arrays.Ints) -> pa.Array:
    bodies = arrays.binary(rows["body"])
    sizes = arrays.sizes(bodies)
    at = arrays.first(sizes == 0)  # the size of null is 0
    if at is not None:
        raise RowError(int(numbers[at]), "the body is missing: read with includeBody=true", "body")
    if "bodySize" in rows:
        whole = _ints(rows["bodySize"])
        at = arrays.first(sizes < whole)
        if at is not None:
            reason = (
                f"the body has {sizes[at]} of {whole[at]} bytes: read without maxBodyBytes, or "
                "remove the column bodySize to send cut bodies"
            )
            raise RowError(int(numbers[at]), reason, "body")
    return bodies


def _ints(column: Any) -> arrays.Ints:
    found: arrays.Ints = column.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    return found


def _priority(text: str) -> int:
    number = names.whole_number(text)
    return NONE if number is None else max(0, number)
