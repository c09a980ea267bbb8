"""Messages as JSON objects, and the export of dead letters: a file of JSON lines."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from aerobee_wire.status import MqError

if TYPE_CHECKING:  # slow to import, and only the caller needs them
    from aerobee_client.admin.dead_letters import DeadLetters
    from aerobee_client.message import ReceivedMessage


def summary(message: ReceivedMessage) -> dict[str, Any]:
    """Everything about a message but its body and properties.

    "message_id" is the producer's, which a dead letter keeps; "origin_message_id" is the offset
    message id of the record that was first consumed. "lite_topic": that it was sent to; "": none.
    "reason" and "description" say why a message was last rejected; "" for one that was not.
    """
    return {
        "message_id": message.message_id,
        "offset_message_id": message.offset_message_id,
        "topic": message.stored_topic,
        "origin_topic": message.origin_topic,
        "origin_message_id": message.origin_message_id,
        "lite_topic": message.lite_topic,
        "tag": message.tag,
        "keys": list(message.keys),
        "reconsume_times": message.reconsume_times,
        "born_timestamp_ms": message.born_timestamp_ms,
        "store_timestamp_ms": message.store_timestamp_ms,
        "reason": message.failure_reason,
        "description": message.failure_description,
        "broker_name": message.broker_name,
        "queue_id": message.queue_id,
        "queue_offset": message.queue_offset,
        "body_size": len(message.stored_body),
    }


def full(message: ReceivedMessage) -> dict[str, Any]:
    """The summary, "properties", and the body: as text under "body", or in base64 under
    "body_base64" when it is not UTF-8. A body that cannot be decompressed is given as it is stored;
    "body_problem" then says why."""
    item = summary(message) | {"properties": dict(message.properties)}
    try:
        body = message.body
    except MqError as error:
        item["body_problem"] = str(error)
        body = message.stored_body
    try:
        return item | {"body": body.decode()}
    except UnicodeDecodeError:
        return item | {"body_base64": base64.b64encode(body).decode()}


async def export(dead_letters: DeadLetters, write: Callable[[str], object]) -> int:
    """Writes one line of JSON for each dead letter that `dead_letters` reads. Returns how many."""
    count = 0
    async for message in dead_letters.read():
        write(json.dumps(full(message), ensure_ascii=False) + "\n")
        count += 1
    return count


@contextmanager
def replacing(out: Path) -> Iterator[TextIO]:
    """A text file that takes the place of `out` once it is written and on the disk; when the block
    raises, `out` stays as it was: after a purge it may be the only copy. A pipe or a device is
    written directly. Raises OSError."""
    target = out.resolve()
    if out.exists() and not (out.is_file() and target.exists() and target.samefile(out)):
        with out.open("w", encoding="utf-8") as file:
            yield file
        return
    part = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        with part.open("w", encoding="utf-8") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)
