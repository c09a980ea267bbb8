"""Convert messages to JSON objects, and export dead letters as JSON lines."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from aerobee_wire import files
from aerobee_wire.status import MqError

if TYPE_CHECKING:  # slow to import, and only the caller needs them
    from aerobee_client.admin.dead_letters import DeadLetters
    from aerobee_client.admin.letters import LetterStatus
    from aerobee_client.message import ReceivedMessage


def status_fields(status: LetterStatus | None) -> dict[str, Any]:
    """Return the state of a dead letter as fields of a JSON object.

    All of them are null if the state is unknown. "state_timestamp_ms" is null, and the texts are
    "", if no job has handled the letter.
    """
    return {
        "state": status and status.state.value,
        "state_timestamp_ms": status and (status.at_ms or None),
        "job_id": status and status.job_id,
        "requested_by": status and status.requested_by,
        "target": status and status.target,
        "job_error": status and status.error,
    }


def summary(message: ReceivedMessage) -> dict[str, Any]:
    """Return all fields of a message as a JSON object, except its body and properties.

    "message_id" is the id from the producer, which a dead letter keeps. "origin_message_id" is the
    offset message id of the record that was first consumed. "lite_topic" is the lite topic of the
    send; "" for none. "reason", "description" and "cause" explain the last rejection of the message
    by "consumer"; "" if it was not rejected, or if its consumer did not say.
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
        "cause": message.failure_cause,
        "consumer": message.failed_consumer,
        "broker_name": message.broker_name,
        "queue_id": message.queue_id,
        "queue_offset": message.queue_offset,
        "body_size": len(message.stored_body),
    }


def full(message: ReceivedMessage) -> dict[str, Any]:
    """Return the summary, the properties and the body of a message as a JSON object.

    The body is text under "body", or base64 under "body_base64" if it is not UTF-8. If a body
    cannot be decompressed, the stored bytes are used, and "body_problem" gives the reason.
    """
    item = summary(message) | {
        "stack_trace": message.failure_stack_trace,
        "properties": dict(message.properties),
    }
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
    """Write each dead letter as one line of JSON. Return the number of lines."""
    count = 0
    async for message in dead_letters.read():
        item = full(message) | status_fields(dead_letters.status_of(message))
        write(json.dumps(item, ensure_ascii=False) + "\n")
        count += 1
    return count


@contextmanager
def replacing(out: Path) -> Iterator[TextIO]:
    """Open a text file that replaces `out` after it was written and synced to the disk.

    If the block raises, `out` does not change, because it may be the only copy after a purge. A
    pipe or device is written directly. Raises OSError.
    """
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
            files.sync(file.fileno())
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)
