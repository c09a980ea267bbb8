"""Dead letters at a real broker, and redrives of them that are killed."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aerobee_client import AdminClient, AsyncAdminClient, Message, Producer
from aerobee_client.admin.dead_letters import DeadLetters
from aerobee_wire import properties as names
from aerobee_wire.record import iter_records
from aerobee_wire.topics import dead_letter_topic
from support.clock.polling import until_sync
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
class Finished:
    """`result`: what was printed; `peak_kib`: resident memory at most."""

    result: dict[str, Any]
    peak_kib: int


def peak_kib(process_id: int) -> int:
    """Of a process so far; 0 when it has ended."""
    try:
        status = Path(f"/proc/{process_id}/status").read_text()
    except OSError:
        return 0
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    return int(found[1]) if found else 0


@dataclass(frozen=True)
class Redrives:
    """One redrive with a journal, run as often as it takes."""

    namesrv: str
    group: str
    target: str
    journal: Path

    @property
    def command(self) -> tuple[str, ...]:
        given = ("--all", "--to", self.target, "--journal", str(self.journal), "--json")
        return ("dlq", "redrive", self.group, *given, "--namesrv", self.namesrv)

    def kill_after(self, announced: int) -> int:
        """Runs until so many messages stand in the journal, then kills the process. Returns how
        many of them have no outcome there."""
        with self._started() as process:

            def reached() -> bool:
                return self.lines("sending") >= announced or process.poll() is not None

            until_sync(reached, f"{announced} messages are announced", timeout_s=TIMEOUT_S)
            process.kill()
            code = process.wait()
        assert code == -signal.SIGKILL, f"it ended by itself: {self._errors.read_text()}"
        return len(self.unfinished())

    def unfinished(self) -> set[str]:
        """Message ids that were announced in the journal and have no outcome there."""
        left: set[str] = set()
        for line in self.journal.read_bytes().splitlines(keepends=True)[1:]:
            if line.endswith(b"\n"):
                item = json.loads(line)
                if "sending" in item:
                    left.add(item["sending"])
                else:
                    left.discard(item.get("sent") or item["failed"])
        return left

    def finish(self, act: Callable[[], object] | None = None, announced: int = 0) -> Finished:
        """Runs to the end. `act` is called once so many messages stand in the journal."""
        with self._started() as process:
            peaks = [0]

            def ended() -> bool:
                peaks.append(peak_kib(process.pid))
                return process.poll() is not None

            if act is not None:
                until_sync(
                    lambda: ended() or self.lines("sending") >= announced, timeout_s=TIMEOUT_S
                )
                act()
            until_sync(ended, "the redrive has ended", timeout_s=TIMEOUT_S)
        assert process.returncode == 0, self._errors.read_text()
        return Finished(json.loads(self._output.read_text()), max(peaks))

    @property
    def _output(self) -> Path:
        return self.journal.with_suffix(".out")

    @property
    def _errors(self) -> Path:
        return self.journal.with_suffix(".err")

    @contextmanager
    def _started(self) -> Iterator[subprocess.Popen[bytes]]:
        """A process, whose output goes to files; killed at the latest on leaving."""
        with self._output.open("wb") as out, self._errors.open("wb") as errors:
            process = subprocess.Popen(
                [*COMMAND, *self.command], stdin=subprocess.DEVNULL, stdout=out, stderr=errors
            )
            try:
                yield process
            finally:
                process.kill()
                process.wait()

    def lines(self, what: str) -> int:
        """How many lines of the journal begin so."""
        if not self.journal.exists():
            return 0
        return self.journal.read_bytes().count(f'{{"{what}": '.encode())
