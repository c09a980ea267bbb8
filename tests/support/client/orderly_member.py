"""A member of a group that consumes in order, as a process that a test may kill; run as a program.

    python orderly_member.py NAMESRV GROUP TOPIC RECORD

It appends a line to the file RECORD when its listener begins with a message, and one when it ends:
"begin 3 17 81234.5 4711" is queue 3, queue offset 17, seconds of the monotonic clock of the
machine, process. SIGTERM closes it.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from aerobee_client import ConsumeFromWhere, PushConsumer, ReceivedMessage

WORK_S = 0.002  # of a listener


@dataclass(frozen=True, slots=True)
class Call:
    """Of the listener; `ended` None: it was killed in it, or still runs. `consumed`: it ended, and
    did not fail."""

    offset: int
    member: str
    began: float
    ended: float | None
    consumed: bool = False


def calls(lines: Iterable[str]) -> dict[str, list[Call]]:
    """The calls of a record by queue, in the order of their beginnings. A call that failed ends
    with "failed" in place of "end"."""
    open_calls: dict[tuple[str, str], Call] = {}
    found: defaultdict[str, list[Call]] = defaultdict(list)
    for line in lines:
        event, queue, offset, at, member = line.split()
        key = queue, member
        if event == "begin":
            if key in open_calls:
                raise AssertionError(f"{member} has two listeners of queue {queue}")
            open_calls[key] = Call(int(offset), member, float(at), None)
        else:
            begun = open_calls.pop(key)
            found[queue].append(replace(begun, ended=float(at), consumed=event == "end"))
    for (queue, _), begun in open_calls.items():
        found[queue].append(begun)
    return {queue: sorted(each, key=lambda call: call.began) for queue, each in found.items()}


def overlaps(found: Iterable[Call], ends: dict[str, float]) -> list[tuple[Call, Call]]:
    """Calls of one queue that ran at once, the earlier one first. `ends`: when members were
    killed."""
    several = []
    running: list[Call] = []
    for call in found:
        running = [
            each for each in running if call.began < (each.ended or ends.get(each.member, 0.0))
        ]
        several += [(each, call) for each in running]
        running.append(call)
    return several


def gaps(found: Iterable[Call]) -> list[Call]:
    """Calls of one queue for a message in front of which one had not been consumed."""
    consumed, found_gaps = -1, []
    for call in found:
        if call.offset > consumed + 1:
            found_gaps.append(call)
        if call.consumed:
            consumed = max(consumed, call.offset)
    return found_gaps


def main(namesrv: str, group: str, topic: str, record: str) -> None:
    descriptor = os.open(record, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def note(event: str, message: ReceivedMessage) -> None:
        where = f"{message.queue_id} {message.queue_offset}"
        os.write(descriptor, f"{event} {where} {time.monotonic()} {os.getpid()}\n".encode())

    def listen(message: ReceivedMessage) -> None:
        if message.stored_topic == topic:
            note("begin", message)
            time.sleep(WORK_S)
            note("end", message)

    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    where = ConsumeFromWhere.FIRST_OFFSET
    with PushConsumer(
        group, listen, namesrv=namesrv, orderly=True, consume_from_where=where
    ) as member:
        member.subscribe(topic)
        Path(f"{record}.{os.getpid()}").touch()  # it has joined
        stop.wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
