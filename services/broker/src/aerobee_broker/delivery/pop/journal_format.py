"""What pop writes into the log: one record for each answer, whatever the number of its messages.

The records lie in a system topic of one queue, so their order is the order in which things
happened, and they share log, group commit and recovery with everything else. Each says how it is
now, not what changed: read twice, or read onto a state that has seen it, it does no harm.

The body is JSON: {"kind": …} and
  lease   group, topic, id, at (ms since the epoch), for (ms), fifo, attempt (name of the attempt),
          queues: [queue id, cursor before, cursor after, [[offset, delivery attempt, count] …] on
          lease, [offset …] open, and on no lease that the log knows]
          What lies between the cursors and is in neither list is settled.
  settle  queues: [group, topic, queue id, [[offset, count] …] settled, [offset …] acknowledged
          behind an unsettled one of their message group]
  show    leases: [group, topic, queue id, offset, lease id, since (ms since the epoch),
          for (ms), delivery attempt, 1 when it is not to count]
  move    group, topic, queue id, offset: the group is here, and holds nothing
  forget  group or topic, the other empty: it was deleted

Where a count is, the entry stands for so many messages one after the other, from `offset` on. For a
single message older brokers wrote [offset, delivery attempt] on lease, and the bare offset settled.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from aerobee_broker.store.messages import NewMessage

QUEUE_ID = 0
# Made once: `json.dumps` makes one a call.
_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), check_circular=False).encode


def record(topic: str, kind: str, content: Mapping[str, Any], now_ms: int) -> NewMessage:
    """The message to append to `topic`."""
    body = _encode({"kind": kind, **content}).encode()
    return NewMessage(topic, QUEUE_ID, body, born_timestamp_ms=now_ms)


def parse(body: bytes) -> dict[str, Any]:
    """Raises ValueError."""
    content = json.loads(body)
    if not isinstance(content, dict) or "kind" not in content:
        raise ValueError("no record of pop")
    return content


def settled(
    queues: Iterable[tuple[tuple[str, str, int], list[int], list[int]]],
) -> dict[str, Any]:
    """Content of a `settle` record. Each: (group, topic, queue id), settled, acknowledged."""
    return {"queues": [[*key, _runs(done), behind] for key, done, behind in queues]}


def leased_runs(messages: Iterable[tuple[int, int]]) -> list[list[int]]:
    """Of (offset, delivery attempt) on lease: what a `lease` record has of them."""
    runs: list[list[int]] = []
    following = last_attempt = -1
    for offset, attempt in messages:
        if offset == following and attempt == last_attempt:
            runs[-1][2] += 1
        else:
            runs.append([offset, attempt, 1])
            last_attempt = attempt
        following = offset + 1
    return runs


def leased_messages(entries: Iterable[list[int]]) -> Iterator[tuple[int, int]]:
    """(offset, delivery attempt) of each message that a `lease` record has on lease."""
    for offset, attempt, *count in entries:
        for one in range(offset, offset + (count[0] if count else 1)):
            yield one, attempt


def settled_offsets(entries: Iterable[int | list[int]]) -> Iterator[int]:
    """Of each message that a `settle` record settles."""
    for entry in entries:
        if isinstance(entry, int):
            yield entry
        else:
            first, count = entry
            yield from range(first, first + count)


def _runs(offsets: Iterable[int]) -> list[list[int]]:
    runs: list[list[int]] = []
    following = -1
    for offset in offsets:
        if offset == following:
            runs[-1][1] += 1
        else:
            runs.append([offset, 1])
        following = offset + 1
    return runs
