"""Change the offsets of a group in a topic: `aerobee group reset-offset` and `forget`.

This module parses the target of `--to`, and reports which messages a change affects.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, TypedDict

from aerobee_cli.options import BadOption
from aerobee_cli.output import counted
from aerobee_cli.times import EPOCH_MS_DIGITS, is_epoch_ms, parse_time_ms
from aerobee_wire.status import Code, MqError

if TYPE_CHECKING:
    from aerobee_client import AdminClient
    from aerobee_client.admin.descriptions import QueueOffset, QueueProgress


END = -1  # as a store time: the end of the queue
NAMED = {"earliest": 0, "latest": END, "now": END}  # now: as in mqadmin


class ResetTarget(TypedDict, total=False):
    """Keyword arguments of `AdminClient.reset_offsets`."""

    timestamp_ms: int
    queue_offset: int


def reset_target(text: str) -> ResetTarget:
    """Parse the value of `--to`. Raises BadOption if it is invalid."""
    if text in NAMED:
        return {"timestamp_ms": NAMED[text]}
    if text.isascii() and text.isdigit() and not is_epoch_ms(text):
        if len(text) > EPOCH_MS_DIGITS:
            raise BadOption(
                f"--to {text}: {len(text)} digits are too many for a queue offset; a time in "
                f"milliseconds has {EPOCH_MS_DIGITS}"
            )
        return {"queue_offset": int(text)}
    try:
        return {"timestamp_ms": parse_time_ms(text)}
    except ValueError:
        raise BadOption(
            f"--to {text!r}: give earliest, latest or now, a time like 2025-06-01T00:00:00Z or "
            "1748736000000, or a queue offset"
        ) from None


def effects(
    before: Iterable[QueueProgress], moved: Iterable[QueueOffset], target: ResetTarget
) -> Iterator[str]:
    """Yield texts about the effects of moved offsets.

    `before` is the progress of the group before the move. Where the group has no offset in a queue,
    it has not consumed any messages.
    """
    places = {(each.broker_name, each.queue_id): each for each in before}
    skipped = repeated = cut = 0
    for each in moved:
        cut += each.queue_offset < target.get("queue_offset", 0)
        known = places.get((each.broker_name, each.queue_id))
        if known is not None:
            offset = known.min_offset if known.consumer_offset is None else known.consumer_offset
            skipped += max(0, each.queue_offset - offset)
            repeated += max(0, offset - each.queue_offset)
    if cut:
        queues = counted(cut, "queue")
        yield f"the group is at the end of {queues} shorter than {target['queue_offset']:,}"
    if skipped:
        yield f"skipped {counted(skipped, 'message')} that the group has not consumed"
    if repeated:
        yield f"{counted(repeated, 'message')} will be consumed again"


def loss(admin: AdminClient, group: str, offsets: Sequence[QueueOffset]) -> str:
    """Describe the loss if the `offsets` of a group in one topic are deleted."""
    topic = offsets[0].topic
    held = {(each.broker_name, each.queue_id) for each in offsets}
    text = f"the offsets of {group} in {counted(len(held), 'queue')} of {topic}"
    lag = _lag(admin, group, topic)
    if lag is None:
        return f"{text}, which does not exist any more"
    return f"{text}, with {counted(lag, 'message')} not consumed"


def _lag(admin: AdminClient, group: str, topic: str) -> int | None:
    """Return the lag of a group in a topic, or None if the topic does not exist."""
    try:
        return sum(queue.lag for queue in admin.consume_progress(group, topic))
    except MqError as error:
        if error.code is not Code.TOPIC_NOT_EXIST:
            raise
        return None
