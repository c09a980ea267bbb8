"""Prints the records of a stopped store, in the order of the log."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from aerobee_broker.inspection.stopped_store import StoppedStore, Walk
from aerobee_broker.store.recovery.scan import find_record
from aerobee_wire import properties as props
from aerobee_wire.record import Record, decode


def dump(store: StoppedStore, *, topic: str | None, begin: int) -> Iterator[Record]:
    """Yield whole records, from the first one at or after the physical offset `begin` on.

    With `topic`, yield only its records. Add damage between the records to `store.problems`.
    """
    low = store.log.starts[0] if store.log.starts else 0
    first: int | None = max(begin, low)
    if begin > low:
        first = find_record(store.log, begin, store.end_of_files(), check_crc=False)
    if first is None:
        return
    for records, _ in Walk(store, first):
        at = 0
        for size in records.sizes.tolist():
            record = decode(records.data, at, check_crc=False)
            at += size
            if topic is None or record.topic == topic:
                yield record


def to_json(record: Record) -> dict[str, Any]:
    """Return all fields of a record except its body."""
    return {
        "physical_offset": record.physical_offset,
        "store_size": record.store_size,
        "topic": record.topic,
        "queue_id": record.queue_id,
        "queue_offset": record.queue_offset,
        "body_size": len(record.body),
        "flag": record.flag,
        "sys_flag": record.sys_flag,
        "born_timestamp_ms": record.born_timestamp_ms,
        "born_host": record.born_host,
        "store_timestamp_ms": record.store_timestamp_ms,
        "store_host": record.store_host,
        "reconsume_times": record.reconsume_times,
        "prepared_transaction_offset": record.prepared_transaction_offset,
        "offset_message_id": record.offset_message_id,
        "properties": record.properties,
    }


def to_line(record: Record) -> str:
    """Return the record as one line of text for the operator."""
    properties = record.properties
    parts = [
        f"{record.physical_offset:>14}",
        f"{record.store_size:>8}",
        f"{record.topic} {record.queue_id}:{record.queue_offset}",
        f"id={properties.get(props.UNIQUE_KEY, '-')}",
    ]
    parts += [
        f"{name}={value!r}" for name in (props.TAGS, props.KEYS) if (value := properties.get(name))
    ]
    if record.reconsume_times:
        parts.append(f"reconsume_times={record.reconsume_times}")
    return "  ".join(parts)
