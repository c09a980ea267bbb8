"""Plan a read: look up the queues and their offsets at the name server and the brokers.

`offsets.py` computes the ranges from the offsets. Functions import the client themselves, so that
this module loads fast.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING

from aerobee_spark.access import FROM_ENVIRONMENT, Access
from aerobee_spark.errors import Code, MqError, OptionError
from aerobee_spark.packages import check_packages, without_collection
from aerobee_spark.reading.offsets import (
    Bounds,
    Narrowing,
    OffsetRange,
    Position,
    Queue,
    check_known,
    range_of,
)
from aerobee_spark.reading.options import ALL_GROUPS, ReadOptions
from aerobee_wire import topics
from aerobee_wire.route import MASTER_ID, READ

if TYPE_CHECKING:
    from aerobee_client import AdminClient
    from aerobee_client.admin.descriptions import TopicBounds

EVERYTHING = Narrowing()
CALL_TIMEOUT = timedelta(seconds=10)


def connect(name_server: str, access: Access = FROM_ENVIRONMENT) -> AdminClient:
    """Return a client for these name servers.

    Raise MqError if the address is malformed, a Python package is missing, or the secret key cannot
    be read.
    """
    check_packages()
    with without_collection():
        from aerobee_client import AdminClient

    return AdminClient(name_server, timeout=CALL_TIMEOUT, **access.settings())


def plan(
    admin: AdminClient, options: ReadOptions, narrowing: Narrowing = EVERYTHING
) -> list[OffsetRange]:
    """Return the range to read from every queue that `options` select, sorted by queue.

    The ranges are cut to `narrowing`. The result includes empty ranges.

    Raises:
        MqError: a topic or group does not exist, an offset names a queue that is not read, a
            broker does not answer, or messages were deleted.
    """
    queues = queues_of(admin, options)
    check_known(options.starting, queues, "startingOffsets")
    check_known(options.ending, queues, "endingOffsets")
    bounds = bounds_of_queues(admin, filter(narrowing.takes, queues))
    for answer in bounds.values():
        if isinstance(answer, MqError) and options.fail_on_unreachable_broker:
            raise answer
    known = {queue: found for queue, found in bounds.items() if not isinstance(found, MqError)}
    ranges = ranges_of(admin, options, known)
    if narrowing == EVERYTHING:
        return ranges
    return [_narrowed(admin, wanted, narrowing) for wanted in ranges]


def _narrowed(admin: AdminClient, wanted: OffsetRange, narrowing: Narrowing) -> OffsetRange:
    queue, start, end = wanted.queue, wanted.start, wanted.end
    if narrowing.first_offset is not None:
        start = max(start, narrowing.first_offset)
    if narrowing.last_offset is not None:
        end = min(end, narrowing.last_offset + 1)
    if start < end and narrowing.first_ms is not None:
        start = max(start, admin.search_offset(*queue, narrowing.first_ms))
    if start < end and narrowing.last_ms is not None:
        end = min(end, admin.search_offset(*queue, narrowing.last_ms + 1))
    return OffsetRange(queue, start, max(start, end))


def queues_of(admin: AdminClient, options: ReadOptions) -> list[Queue]:
    """Return the queues that `options` select, sorted.

    Raise MqError with the code TOPIC_NOT_EXIST or SUBSCRIPTION_GROUP_NOT_EXIST if the topic or the
    consumer group does not exist.
    """
    if options.assigned:
        return sorted(options.assigned)
    if options.consumer_group and options.consumer_group != ALL_GROUPS:
        return queues_of_group(admin, options.consumer_group, options.kinds)
    names: Iterable[str] = options.topics or _matching_topics(admin, options)
    return sorted({queue for name in names for queue in queues_of_topic(admin, name)})


def queues_of_group(admin: AdminClient, group: str, kinds: Iterable[str]) -> list[Queue]:
    """Return the queues of the group's retry and dead-letter topics, sorted.

    The list is empty if the group exists but has no such topic yet. Raise MqError with the code
    SUBSCRIPTION_GROUP_NOT_EXIST if the group does not exist.
    """
    named = {"dlq": topics.dead_letter_topic, "retry": topics.retry_topic}
    queues: list[Queue] = []
    for kind in kinds:
        try:
            queues += queues_of_topic(admin, named[kind](group))
        except MqError as error:
            if error.code is not Code.TOPIC_NOT_EXIST:
                raise
    if not queues:
        admin.get_group(group)
    return sorted(queues)


def queues_of_topic(admin: AdminClient, topic: str) -> list[Queue]:
    """Return the readable queues of a topic.

    Raise MqError with the code TOPIC_NOT_EXIST if the topic does not exist.
    """
    return [
        Queue(topic, data.broker_name, queue_id)
        for data in admin.topic_route(topic).queues
        if data.permission & READ
        for queue_id in range(data.read_queue_count)
    ]


def _matching_topics(admin: AdminClient, options: ReadOptions) -> list[str]:
    """Return the topics that match topicPattern, or the topics of all consumer groups.

    The topics of a group are its dead-letter and retry topics, as the option kind selects.
    """
    names = [topic.topic for topic in admin.list_topics(include_derived=True)]
    if options.consumer_group:
        tests = {"dlq": topics.is_dead_letter, "retry": topics.is_retry}
        return [name for name in names if any(tests[kind](name) for kind in options.kinds)]
    pattern = re.compile(options.topic_pattern)
    matching = [name for name in names if pattern.fullmatch(name)]
    if not matching:
        raise OptionError(
            f"no topic matches topicPattern {options.topic_pattern!r}: the pattern must match "
            "the whole name",
            "topicPattern",
        )
    return matching


def bounds_of_queues(admin: AdminClient, queues: Iterable[Queue]) -> dict[Queue, Bounds | MqError]:
    """Return the minimum and maximum offset of each queue, or the error of its broker.

    A broker that is unavailable does not affect the queues of other brokers. There is one call for
    each topic and broker, and all calls run at the same time.
    """
    wanted = list(queues)
    try:
        addresses = broker_addresses(admin) if wanted else {}
    except MqError as error:
        return dict.fromkeys(wanted, error)
    places = {(queue.topic, queue.broker_name) for queue in wanted}
    answers = admin.topic_bounds(sorted(at for at in places if at[1] in addresses), addresses)
    return {
        queue: _bounds(queue, answers.get((queue.topic, queue.broker_name))) for queue in wanted
    }


def broker_addresses(admin: AdminClient) -> dict[str, str]:
    """Return the address of the master of each broker that a name server knows, by broker name."""
    return {
        broker.broker_name: broker.addresses[MASTER_ID]
        for broker in admin.cluster().brokers
        if MASTER_ID in broker.addresses
    }


def _bounds(queue: Queue, answer: TopicBounds | MqError | None) -> Bounds | MqError:
    if answer is None:
        problem = (
            f"the broker {queue.broker_name} is not registered with the name server: start it, "
            "or correct its name"
        )
        return MqError(Code.BROKER_NOT_EXIST, problem, about=str(queue))
    if isinstance(answer, MqError):
        return answer
    if queue.queue_id not in answer.bounds:
        problem = f"{queue} does not exist: the topic has {len(answer.bounds)} queues there"
        return MqError(Code.QUEUE_NOT_EXIST, problem, about=str(queue))
    return Bounds(*answer.bounds[queue.queue_id])


def ranges_of(
    admin: AdminClient, options: ReadOptions, bounds: Mapping[Queue, Bounds]
) -> list[OffsetRange]:
    """Return the range to read from each queue.

    Raise DataLossError if messages at the start or end of a range no longer exist, unless
    failOnDataLoss is false.
    """
    return [
        range_of(
            queue,
            found,
            _offset(admin, options.starting, queue, found),
            _offset(admin, options.ending, queue, found),
            fail_on_data_loss=options.fail_on_data_loss,
        )
        for queue, found in bounds.items()
    ]


def _offset(admin: AdminClient, position: Position, queue: Queue, bounds: Bounds) -> int:
    timestamp_ms = position.ms_of(queue)
    if timestamp_ms is None:
        return position.of(queue)
    if bounds.min_offset == bounds.max_offset:
        return bounds.max_offset
    found = admin.search_offset(*queue, timestamp_ms)
    # Retention may raise the minimum offset between the two calls. That does not lose wanted data.
    return min(max(found, bounds.min_offset), bounds.max_offset)
