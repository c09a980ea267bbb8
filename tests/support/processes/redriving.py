"""Dead letters at a real broker, and a process that redrives them."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from aerobee_client import AdminClient, AsyncAdminClient, Message, Producer
from aerobee_client.admin.dead_letters import DeadLetters
from aerobee_wire import properties as names
from aerobee_wire.record import iter_records
from aerobee_wire.topics import dead_letter_topic
from support.processes.command import COMMAND

BATCH = 500
PAGE_BYTES = 4 * 1024 * 1024
TIMEOUT_S = 900


def fill(namesrv: str, group: str, origin: str, count: int, body_bytes: int = 100) -> None:
    """Makes the group, its origin topic and so many dead letters, with bodies that differ."""
    with AdminClient(namesrv) as admin:
        admin.create_group(group)
        admin.create_topic(origin, queues=4)
        admin.create_topic(dead_letter_topic(group), queues=1)
    with Producer("tests", namesrv=namesrv) as producer:
        for start in range(0, count, BATCH):
            numbers = range(start, min(count, start + BATCH))
            producer.send_batch([dead_letter(group, origin, n, body_bytes) for n in numbers])


def dead_letter(group: str, origin: str, number: int, body_bytes: int) -> Message:
    body = b"%d " % number
    made = Message(
        dead_letter_topic(group),
        body.ljust(body_bytes, b"."),
        tag=f"tag-{number % 7}",
        keys=f"key-{number}",
        properties={f"property-{i}": str(number) for i in range(4)},
    )
    return made.with_system_properties(
        {names.DLQ_ORIGIN_TOPIC: origin, names.DLQ_REASON: "ValueError"}
    )


def message_ids(namesrv: str, topic: str) -> Counter[str]:
    """Of all messages that are stored in a topic, how often each."""
    found: Counter[str] = Counter()
    key = f"{names.UNIQUE_KEY}\x01".encode()
    with AdminClient(namesrv) as admin:
        for queue in admin.topic_status(topic):
            offset = queue.min_offset
            while offset < queue.max_offset:
                page = admin.browse(
                    topic,
                    queue.broker_name,
                    queue.queue_id,
                    offset,
                    max_messages=1_024,
                    max_bytes=PAGE_BYTES,
                )
                for record in iter_records(page.records):
                    found[(names.get(record.raw_properties, key) or b"").decode()] += 1
                offset = page.next_begin_offset
    return found


def dead_letters_by_id(namesrv: str, group: str) -> dict[str, tuple[bytes, str]]:
    """Message id → body and tag."""

    async def read() -> dict[str, tuple[bytes, str]]:
        async with AsyncAdminClient(namesrv) as admin:
            letters = DeadLetters(admin, group).read()
            return {letter.message_id: (letter.body, letter.tag) async for letter in letters}

    return asyncio.run(read())


@dataclass(frozen=True)
class Redrive:
    """`aerobee dlq redrive` of all dead letters of a group, as a process."""

    namesrv: str
    group: str
    target: str
    job_id: str
    rate: int = 0  # messages a second; 0 for no limit

    @property
    def command(self) -> tuple[str, ...]:
        given = ["--all", "--to", self.target, "--job", self.job_id, "--json"]
        given += ["--rate", str(self.rate)] if self.rate else []
        return ("dlq", "redrive", self.group, *given, "--namesrv", self.namesrv)

    def start(self) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*COMMAND, *self.command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    @contextmanager
    def started(self) -> Iterator[subprocess.Popen[str]]:
        """The process; killed at the latest on leaving."""
        process = self.start()
        try:
            yield process
        finally:
            process.kill()
            process.communicate()

    def finish(self) -> dict[str, Any]:
        """What it prints at its end."""
        with self.started() as process:
            out, error = process.communicate(timeout=TIMEOUT_S)
        assert process.returncode == 0, error
        result: dict[str, Any] = json.loads(out)
        return result
