"""What brokers have of what was written, and what Spark says of a failure."""

from __future__ import annotations

from collections.abc import Callable

from aerobee_client import AdminClient
from aerobee_wire import record
from aerobee_wire.record import Record

TIMEOUT_S = 120
MIB = 1024 * 1024
Write = Callable[..., None]


def stored(admin: AdminClient, topic: str) -> list[Record]:
    """Every message that the brokers have, queue by queue."""
    found: list[Record] = []
    for queue in admin.topic_status(topic):
        offset = queue.min_offset
        while offset < queue.max_offset:
            page = admin.browse(
                topic, queue.broker_name, queue.queue_id, offset, max_messages=4096, max_bytes=MIB
            )
            found += record.iter_records(page.records)
            offset = page.next_begin_offset
    return found


def numbers(records: list[Record]) -> list[int]:
    """The bodies, sorted."""
    return sorted(int(each.body) for each in records)


def ids(records: list[Record]) -> set[str]:
    return {each.unique_message_id for each in records}


def last_line(error: BaseException) -> str:
    """The last line of the Python traceback, before Spark's own SQLSTATE."""
    text, _, _ = str(error).partition("\n SQLSTATE")
    return text.strip().splitlines()[-1]


def columns_of(columns: str) -> list[str]:
    """At the commas between columns."""
    parts, depth = [""], 0
    for character in columns:
        depth += (character == "(") - (character == ")")
        if character == "," and not depth:
            parts.append("")
        else:
            parts[-1] += character
    return parts
