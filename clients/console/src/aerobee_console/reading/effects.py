"""Count the effects of a change before it is made: of deletions, resets, drains, promotions.

Each result has `seen`, a digest of the things that the change affects: queues, groups and members,
but no counts, which change all the time. The change is made only if they are still the same.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aerobee_cli.offsets import ResetTarget, effects, known_offset
from aerobee_cli.output import counted
from aerobee_client.admin.descriptions import (
    BrokerStatus,
    QueueOffset,
    QueueProgress,
    QueueStatus,
    ReplicaDescription,
    TopicDescription,
)
from aerobee_client.admin.letters import LetterPreview
from aerobee_client.admin.redriving.letter_job import GroupLetterJob
from aerobee_console.reading.brokers import broker_page
from aerobee_console.reading.groups import group_page
from aerobee_console.reading.source import NO_ANSWER, Answer, Silent, Source, gathered
from aerobee_console.reading.topics import topic_page
from aerobee_wire.route import WRITE
from aerobee_wire.status import MqError

MAX_CALLS = 16  # at the same time
NAMED_TOPICS = 10  # in a text


@dataclass(frozen=True, slots=True, kw_only=True)
class Effects(Answer):
    """The effects of a change, as sentences."""

    texts: tuple[str, ...]
    seen: str


@dataclass(frozen=True, slots=True)
class MovedQueue:
    """A queue whose offset would move. `before` is None if the group has no offset there."""

    topic: str
    broker_name: str
    queue_id: int
    before: int | None
    after: int
    max_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ResetEffects(Effects):
    """The effects of a reset, and the offset of each queue before and after it."""

    queues: tuple[MovedQueue, ...]


def digest(*facts: Any) -> str:
    """Return a digest of what the effects of a change depend on."""
    return hashlib.sha256(json.dumps(facts, default=sorted).encode()).hexdigest()[:32]


def figure(value: int | None, noun: str, complete: bool) -> str:
    """Return a sum over brokers with its noun: "5 messages".

    If a broker is missing, it is a lower bound: "at least 5 messages".
    """
    if value is None or not (value or complete):
        return f"an unknown number of {noun}s"
    return counted(value, noun) if complete else f"at least {counted(value, noun)}"


async def topic_deletion(source: Source, topic: str) -> Effects:
    """Return the effects of deleting a topic. Raises MqError like `topic_page`."""
    page = await topic_page(source, topic)
    queues = page.queues or ()
    stored = figure(page.stored_messages, "message", page.complete)
    texts = [f"{topic} has {stored} in {figure(len(queues), 'queue', page.complete)}"]
    for group in page.groups or ():
        texts.append(
            f"{group.consumer_group} reads it: {figure(group.members, 'member', page.complete)}, "
            f"{figure(group.lag, 'message', page.complete)} not consumed"
        )
    texts += [f"{client_id} publishes to it" for client_id in page.producers or ()]
    return Effects(
        texts=tuple(texts),
        seen=digest(
            [(queue.broker_name, queue.queue_id) for queue in queues],
            [group.consumer_group for group in page.groups or ()],
        ),
        silent=page.silent,
        asked_at_ms=page.asked_at_ms,
    )


async def group_deletion(source: Source, group: str) -> Effects:
    """Return the effects of deleting a group. Raises MqError like `group_page`."""
    page = await group_page(source, group)
    progress = [queue.progress for queue in page.queues or ()]
    held = [queue for queue in progress if queue.consumer_offset is not None]
    texts = [
        f"{group} has {figure(len(page.members or ()), 'member', page.complete)}",
        f"{group} has {figure(page.dead_letters, 'dead letter', page.complete)}, which stay",
    ]
    for topic in dict.fromkeys(queue.topic for queue in held):
        there = [queue for queue in held if queue.topic == topic]
        lag = sum(queue.lag for queue in there)
        texts.append(
            f"the offsets of {group} in {figure(len(there), 'queue', page.complete)} of {topic}, "
            f"with {figure(lag, 'message', page.complete)} not consumed"
        )
    return Effects(
        texts=tuple(texts),
        seen=digest(
            [(queue.topic, queue.broker_name, queue.queue_id) for queue in held],
            [client.client_id for client in page.members or ()],
        ),
        silent=page.silent,
        asked_at_ms=page.asked_at_ms,
    )


async def offset_reset(source: Source, group: str, topic: str, target: ResetTarget) -> ResetEffects:
    """Return the effects of a reset, also of a group without members.

    Raises MqError with the code SUBSCRIPTION_GROUP_NOT_EXIST or TOPIC_NOT_EXIST.
    """
    asking = await source.ask()
    admin = source.admin
    found: list[Any] = await gathered(
        asking.of(lambda silent: admin.consume_progress(group, topic, silent=silent)),
        asking.of(lambda silent: admin.topic_status(topic, silent=silent)),
        asking.of(lambda silent: admin.list_clients(group, silent=silent)),
    )
    progress: list[QueueProgress] = found[0] or []
    queues: list[QueueStatus] = found[1] or []
    free = asyncio.Semaphore(MAX_CALLS)

    async def moved(queue: QueueStatus) -> QueueOffset:
        async with free:
            return await _moved(source, queue, target)

    after = await gathered(*map(moved, queues))
    before = {(each.broker_name, each.queue_id): each.consumer_offset for each in progress}
    members = [client.client_id for client in found[2] or ()]
    texts = list(effects(progress, after, target)) or ["the group consumes as before"]
    return ResetEffects(
        texts=(f"{group} has {figure(len(members), 'member', not asking.silent)}", *texts),
        seen=digest([(queue.broker_name, queue.queue_id) for queue in queues], members, target),
        queues=tuple(
            MovedQueue(
                queue.topic,
                queue.broker_name,
                queue.queue_id,
                before.get((queue.broker_name, queue.queue_id)),
                new.queue_offset,
                queue.max_offset,
            )
            for queue, new in zip(queues, after, strict=True)
        ),
        silent=asking.silent,
        asked_at_ms=asking.at_ms,
    )


async def redrive(source: Source, job: GroupLetterJob) -> Effects:
    """Return the effects of a redrive: the letters that each broker with letters would send.

    Raises MqError with the code SUBSCRIPTION_GROUP_NOT_EXIST or INVALID_PARAMETER.
    """
    asking, spec = await source.ask(), job.spec

    async def preview(silent: list[MqError]) -> Mapping[str, LetterPreview]:
        try:
            return await job.preview()
        except MqError as error:
            if error.code in NO_ANSWER:
                silent.append(error)
            raise

    previews = await asking.of(preview) or {}
    shares = job.shares()
    total = sum(shares.values())
    targets = {"retry": "the retry topic of the group", "origin": "their origin topics"}
    done = f"sent to {targets[spec.target]}" if spec.target else "dismissed"
    letters = figure(total, "letter", not asking.silent)
    texts = [f"{letters} of {spec.consumer_group} would be {done}"]
    for name, each in previews.items():
        reasons = ", ".join(
            f"{reason or 'no reason'} {number:,}" for reason, number in each.reasons.items()
        )
        texts.append(
            f"{name}: {shares[name]:,} of {counted(each.stored, 'stored letter')}"
            + (f" ({reasons})" if reasons else "")
        )
        if each.already_sent or each.already_dismissed:
            left_out = each.already_sent + each.already_dismissed
            texts.append(f"{name}: {left_out:,} were sent or dismissed before, and are left out")
        if each.unreadable:
            texts.append(f"{name}: {counted(each.unreadable, 'record')} cannot be read")
        texts += [
            f"{name}: {number:,} cannot be sent: {why}" if number else f"{name}: {why}"
            for why, number in each.failures.items()
        ]
    return Effects(
        texts=tuple(texts),
        seen=digest(
            sorted(previews),
            *(spec.target, spec.reason, spec.no_reason, spec.tag, spec.no_tag),
            *(spec.limit, spec.rate),
        ),
        silent=asking.silent,
        asked_at_ms=asking.at_ms,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainEffects(Effects):
    """The effects of draining a broker, or of ending it. `draining` is None if it is unknown."""

    draining: bool | None


async def drain(source: Source, broker_name: str) -> DrainEffects:
    """Return the effects of draining a broker: where its producers continue.

    Raises MqError with the code BROKER_NOT_EXIST.
    """
    page = await broker_page(source, broker_name)
    status = page.row.status
    draining = None if status is None else bool(status.draining_since_ms)
    if draining:
        return DrainEffects(
            texts=(f"{broker_name} accepts messages of producers again",),
            draining=True, seen="", silent=page.silent, asked_at_ms=page.asked_at_ms,
        )  # fmt: skip
    asking = await source.ask()
    found: list[Any] = await gathered(
        asking.of(lambda silent: source.admin.broker_statuses(silent=silent)),
        asking.of(lambda silent: source.admin.list_topics(silent=silent)),
    )
    statuses: Mapping[str, BrokerStatus] = found[0] or {}
    topics: Sequence[TopicDescription] = found[1] or ()
    others = sorted(
        name
        for name, each in statuses.items()
        if name != broker_name and not each.draining_since_ms and not each.read_only_reason
    )
    alone = [
        each.topic
        for each in topics
        if broker_name in (writable := _accepting(each)) and writable.isdisjoint(others)
    ]
    nowhere = "no other broker accepts messages: sends fail until the broker accepts them again"
    if asking.silent:  # another one may accept messages, and have queues
        nowhere = "no other broker that answers accepts messages: sends may fail"
    return DrainEffects(
        texts=(
            f"producers continue at {', '.join(others)}" if others else nowhere,
            *_only_here(alone, broker_name, known=not asking.silent),
        ),
        draining=draining,
        seen="",
        silent=asking.silent,
        asked_at_ms=asking.at_ms,
    )


def _accepting(topic: TopicDescription) -> set[str]:
    """Return the brokers with queues of a topic that can be written."""
    return {
        there.broker_name
        for there in topic.brokers
        if there.permission & WRITE and there.write_queue_count
    }


def _only_here(topics: Sequence[str], broker_name: str, *, known: bool) -> list[str]:
    if not topics:
        return []
    more = f" and {len(topics) - NAMED_TOPICS:,} more" if len(topics) > NAMED_TOPICS else ""
    names = ", ".join(topics[:NAMED_TOPICS])
    if not known:
        return [
            f"sends to {names}{more} may fail: no other broker that answers has queues for them"
        ]
    return [f"sends to {names}{more} fail, because only {broker_name} has queues for them"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PromotionEffects(Effects):
    """The replicas of a broker. `replicas` are the ids of those that can be promoted."""

    replicas: tuple[str, ...]


async def promotion(source: Source, broker_name: str) -> PromotionEffects:
    """Return the replicas of a broker. Raises MqError with the code BROKER_NOT_EXIST."""
    page = await broker_page(source, broker_name)
    able = [each for each in page.replicas if each.role != "master" and not each.learner]
    able.sort(key=lambda each: (each.in_sync is not False, each.reach), reverse=True)
    texts = [
        f"replica {each.replica_id} at {each.address}: {each.role}, "
        + {True: "in sync", False: "not in sync", None: "in sync or not: unknown"}[each.in_sync]
        + (f", lacks {each.lag_bytes:,} bytes" if each.lag_bytes else "")
        for each in page.replicas
    ]
    texts += losses(page.replicas, page.silent)
    if not able:
        texts.append("no replica can be promoted: the broker keeps one copy, or none answers")
    return PromotionEffects(
        texts=tuple(texts),
        seen=seen_of(page.replicas),
        replicas=tuple(str(each.replica_id) for each in able),
        silent=page.silent,
        asked_at_ms=page.asked_at_ms,
    )


def seen_of(replicas: Sequence[ReplicaDescription]) -> str:
    """Return the digest of the facts on which the consequences of a promotion depend.

    A replica without a master becomes a candidate or a slave by itself, and that changes none.
    """
    led = any(each.role == "master" for each in replicas)
    return digest(
        [
            (each.replica_id, each.role == "master", each.epoch, led or bool(each.in_sync))
            for each in sorted(replicas, key=lambda each: each.replica_id)
        ]
    )


def losses(replicas: Sequence[ReplicaDescription], silent: Sequence[Silent]) -> list[str]:
    """Return texts about the messages that a promotion would lose, for each other replica.

    Args:
        replicas: The replicas that answer.
        silent: What did not answer.
    """
    if any(each.role == "master" for each in replicas):
        return ["the master answers: it hands over, and nothing is lost, also with the unclean way"]
    texts: list[str] = []
    ends = [max(each.end_offset, each.master_end_offset) for each in replicas]
    for each in replicas:
        if each.in_sync:
            texts.append(f"replica {each.replica_id} has each acknowledged message")
            continue
        known = max(ends, default=0) - each.end_offset
        lacks = f"at least {known:,} bytes of messages" if known > 0 else "messages"
        texts.append(
            f"replica {each.replica_id} may lack {lacks}: with the unclean way, it gives up what "
            "only other replicas have"
        )
    if silent and texts:
        texts.append(
            "the replicas that do not answer may have more, and how much is unknown: start one of "
            "them if you can"
        )
    if texts:
        texts.append(
            "if the old master comes back, it cuts the further messages from its log and keeps "
            "them: aerobee broker diverged lists and resends them"
        )
    return texts


async def offset_clone(source: Source, group: str, target: str) -> ResetEffects:
    """Return the effects of moving the group `target` to the offsets of `group`.

    Raises MqError with the code SUBSCRIPTION_GROUP_NOT_EXIST or INVALID_PARAMETER.
    """
    asking, admin = await source.ask(), source.admin
    wanted = await admin.clone_offsets(group, target, dry_run=True)
    found: list[Any] = await gathered(
        asking.of(lambda silent: admin.consume_progress(group, silent=silent)),
        asking.of(lambda silent: admin.consume_progress(target, silent=silent)),
        asking.of(lambda silent: admin.list_clients(target, silent=silent)),
    )
    ends = {_place(each): each.max_offset for each in found[0] or ()}
    before = {_place(each): each.consumer_offset for each in found[1] or ()}
    members = [client.client_id for client in found[2] or ()]
    topics = sorted({each.topic for each in wanted})
    queues = counted(len(wanted), "queue")
    return ResetEffects(
        texts=(
            f"{target} has {figure(len(members), 'member', not asking.silent)}",
            f"{target} moves in {queues} of {', '.join(topics) or 'no topic'}",
        ),
        seen=digest(sorted(map(_place, wanted)), members),
        queues=tuple(
            MovedQueue(*_place(each), before.get(_place(each)), each.queue_offset,
                       ends.get(_place(each), each.queue_offset))
            for each in wanted
        ),
        silent=asking.silent,
        asked_at_ms=asking.at_ms,
    )  # fmt: skip


def _place(queue: QueueProgress | QueueOffset) -> tuple[str, str, int]:
    return queue.topic, queue.broker_name, queue.queue_id


async def _moved(source: Source, queue: QueueStatus, target: ResetTarget) -> QueueOffset:
    """Return the offset to which a reset would move the group in one queue."""
    place = (queue.topic, queue.broker_name, queue.queue_id)
    offset = known_offset(queue, target)
    if offset is None:
        offset = await source.admin.search_offset(*place, target["timestamp_ms"])
    return QueueOffset(*place, offset)
