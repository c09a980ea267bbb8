"""Describe what a change of offsets costs: for `group reset-offset`, `forget` and `delete`.

This module also parses the target of `--to`. The descriptions leave out brokers that do not answer,
which the command names after the change.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, TypedDict

from aerobee_cli.options import BadOption
from aerobee_cli.output import counted
from aerobee_cli.times import EPOCH_MS_DIGITS, is_epoch_ms, parse_time_ms
from aerobee_wire.status import Code, MqError

if TYPE_CHECKING:
    from aerobee_client import AdminClient
    from aerobee_client.admin.descriptions import QueueOffset, QueueProgress, QueueStatus


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


def queues_of(texts: Iterable[str]) -> list[tuple[str, int]]:
    """Parse the values of `--queue`, "BROKER/ID". Raises BadOption if one is invalid."""
    found = []
    for text in texts:
        broker, _, queue_id = text.rpartition("/")
        if not broker or not (queue_id.isascii() and queue_id.isdigit()):
            raise BadOption(f"--queue {text!r}: write BROKER/ID, for example broker-a/3")
        found.append((broker, int(queue_id)))
    return found


def effects(
    before: Iterable[QueueProgress], moved: Iterable[QueueOffset], target: ResetTarget
) -> Iterator[str]:
    """Yield texts about the effects of offsets that are moved, or would be.

    `before` is the progress of the group before the move. Where the group has no offset in a queue,
    it has not consumed any messages.
    """
    places = {(each.topic, each.broker_name, each.queue_id): each for each in before}
    skipped = repeated = cut = 0
    for each in moved:
        cut += each.queue_offset < target.get("queue_offset", 0)
        known = places.get((each.topic, each.broker_name, each.queue_id))
        if known is not None:
            offset = known.min_offset if known.consumer_offset is None else known.consumer_offset
            skipped += max(0, each.queue_offset - offset)
            repeated += max(0, offset - each.queue_offset)
    if cut:
        queues = counted(cut, "queue")
        yield f"the group is at the end of {queues} shorter than {target['queue_offset']:,}"
    if skipped:
        yield f"the group skips {counted(skipped, 'message')} that it has not consumed"
    if repeated:
        yield f"the group consumes {counted(repeated, 'message')} again"


def effects_of_reset(
    admin: AdminClient,
    group: str,
    topic: str,
    target: ResetTarget,
    queues: Collection[tuple[str, int]] = (),
) -> Iterator[str]:
    """Yield texts about what a reset of these queues, or of all, to `target` would do."""
    yield from effects(
        admin.consume_progress(group, topic, silent=[]),
        [
            _moved(admin, queue, target)
            for queue in admin.topic_status(topic, silent=[])
            if not queues or (queue.broker_name, queue.queue_id) in queues
        ],
        target,
    )


def _moved(admin: AdminClient, queue: QueueStatus, target: ResetTarget) -> QueueOffset:
    """Return where a reset would move the group in one queue."""
    from aerobee_client.admin.descriptions import QueueOffset

    place = (queue.topic, queue.broker_name, queue.queue_id)
    offset = known_offset(queue, target)
    if offset is None:
        offset = admin.search_offset(*place, target["timestamp_ms"])
    return QueueOffset(*place, offset)


def known_offset(queue: QueueStatus, target: ResetTarget) -> int | None:
    """Return the offset to which a reset would move the group in one queue.

    Return None if the offset has to be searched by the time of `target`.
    """
    timestamp_ms = target.get("timestamp_ms")
    if timestamp_ms is None:
        return min(target["queue_offset"], queue.max_offset)
    return queue.max_offset if timestamp_ms < 0 else None


def losses_of_group(admin: AdminClient, group: str) -> Iterator[str]:
    """Yield texts about the offsets that are deleted with a group."""
    try:
        progress = admin.consume_progress(group, silent=[])
    except MqError as error:
        if error.code is not Code.SUBSCRIPTION_GROUP_NOT_EXIST:
            raise
        return
    known = [queue for queue in progress if queue.consumer_offset is not None]
    for topic in dict.fromkeys(queue.topic for queue in known):
        queues = [queue for queue in known if queue.topic == topic]
        yield _described(group, topic, len(queues), sum(queue.lag for queue in queues))


def losses_of_topic(admin: AdminClient, topic: str) -> Iterator[str]:
    """Yield a text about the messages that are deleted with a topic."""
    try:
        queues = admin.topic_status(topic, silent=[])
    except MqError as error:
        if error.code is not Code.TOPIC_NOT_EXIST:
            raise
        return
    messages = sum(queue.max_offset - queue.min_offset for queue in queues)
    yield f"{topic} has {counted(messages, 'message')} in {counted(len(queues), 'queue')}"


def loss(admin: AdminClient, group: str, offsets: Sequence[QueueOffset]) -> str:
    """Describe the loss if the `offsets` of a group in one topic are deleted."""
    topic = offsets[0].topic
    held = {(each.broker_name, each.queue_id) for each in offsets}
    return _described(group, topic, len(held), _lag(admin, group, topic))


def _described(group: str, topic: str, queues: int, lag: int | None) -> str:
    """Describe the offsets of a group in a topic. `lag` is None if the topic does not exist."""
    text = f"the offsets of {group} in {counted(queues, 'queue')} of {topic}"
    if lag is None:
        return f"{text}, which does not exist any more"
    return f"{text}, with {counted(lag, 'message')} not consumed"


def _lag(admin: AdminClient, group: str, topic: str) -> int | None:
    """Return the lag of a group in a topic, or None if the topic does not exist."""
    try:
        return sum(queue.lag for queue in admin.consume_progress(group, topic, silent=[]))
    except MqError as error:
        if error.code is not Code.TOPIC_NOT_EXIST:
            raise
        return None
