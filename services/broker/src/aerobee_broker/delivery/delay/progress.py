"""Progress records: the position up to which a delay queue has been delivered.

Each is appended together with the delivered copies. After a crash, delivery resumes at the newest
readable record.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import structlog

from aerobee_broker.store.message_store import MessageStore
from aerobee_broker.store.messages import NewMessage
from aerobee_wire.record import Record
from aerobee_wire.status import MqError

PROGRESS_QUEUE = 0
READ_BACK_RECORDS = 16  # number of records to try if the newest ones are damaged


def progress_record(topic: str, progress: Mapping[Any, Any], now_ms: int) -> NewMessage:
    """Return the record. `progress` must be serializable as JSON."""
    body = json.dumps(progress, separators=(",", ":")).encode()
    return NewMessage(topic, PROGRESS_QUEUE, body, born_timestamp_ms=now_ms)


def newest_progress(store: MessageStore, topic: str) -> dict[str, Any] | None:
    """Return the newest readable record of a progress topic; None if there is none."""
    record = newest_record(store, topic, PROGRESS_QUEUE)
    return None if record is None else json.loads(record.body)


def newest_record(store: MessageStore, topic: str, queue_id: int) -> Record | None:
    """Return the newest readable message of a queue, among the last READ_BACK_RECORDS."""
    high = store.max_offset(topic, queue_id)
    for queue_offset in range(high - 1, max(0, high - READ_BACK_RECORDS) - 1, -1):
        units = store.units(topic, queue_id, queue_offset, 1)
        try:
            for physical_offset, size, _ in units:
                return store.get(physical_offset, size)
        except MqError as error:
            structlog.get_logger().error(
                "delay_record_unreadable",
                topic=topic,
                queue_offset=queue_offset,
                reason=error.message,
            )
    return None
