"""What pop writes into the log: one record for each answer, whatever the number of its messages.

The records lie in a system topic of one queue, so their order is the order in which things
happened, and they share log, group commit and recovery with everything else. Each says how it is
now, not what changed: read twice, or read onto a state that has seen it, it does no harm.

The body is JSON: {"kind": …} and
  lease   group, topic, id, at (ms since the epoch), for (ms), fifo, attempt (name of the attempt),
          queues: [queue id, cursor before, cursor after, [[offset, delivery attempt] …] on lease,
          [offset …] open and never handed out]
          What lies between the cursors and is in neither list is settled.
  settle  queues: [group, topic, queue id, [offset …] settled, [offset …] acknowledged behind an
          unsettled one of their message group]
  show    leases: [group, topic, queue id, offset, lease id, since (ms since the epoch),
          for (ms), delivery attempt, 1 when it is not to count]
  move    group, topic, queue id, offset: the group is here, and holds nothing
  forget  group or topic, the other empty: it was deleted
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from aerobee_broker.store.messages import NewMessage

TOPIC_PREFIX = "rmq_sys_REVIVE_LOG_"
QUEUE_ID = 0


def topic_of(cluster: str) -> str:
    return TOPIC_PREFIX + cluster


def record(topic: str, kind: str, content: Mapping[str, Any], now_ms: int) -> NewMessage:
    """The message to append to `topic`."""
    body = json.dumps({"kind": kind, **content}, ensure_ascii=False, separators=(",", ":"))
    return NewMessage(topic, QUEUE_ID, body.encode(), born_timestamp_ms=now_ms)


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
    return {"queues": [[*key, done, behind] for key, done, behind in queues]}
