"""Convert and compare the queue offsets of a stream, which Spark stores in a checkpoint.

Their JSON form is `{"v": 1, "topics": {topic: {broker name: {"0": 23}}}}`. Each offset is the
offset of the next message to read. A batch depends only on the offsets before and after it, so that
it reads the same messages after a restart. This module does no I/O.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from aerobee_spark.errors import CheckpointError
from aerobee_spark.reading.offsets import OffsetRange, Queue, nested
from aerobee_spark.reading.options import ALL_GROUPS, OFFSETS_VERSION, ReadOptions
from aerobee_wire import topics as names

ADVICE = "use the options that it was created with, or a new checkpointLocation"


@dataclass(frozen=True, slots=True)
class Positions:
    """The next offset to read from each queue of a stream.

    `topics` are the topics of the stream, including topics without a queue so far.
    """

    of: Mapping[Queue, int]
    topics: frozenset[str] = frozenset()

    @classmethod
    def parse(cls, value: Mapping[str, Any]) -> Positions:
        """Parse the JSON form of the offsets.

        Raises:
            CheckpointError: the value has another form, or a newer version.
        """
        version = value.get("v")
        if not isinstance(version, int):
            raise CheckpointError(f"the checkpoint has no offsets of this source: {ADVICE}")
        if version > OFFSETS_VERSION:
            raise CheckpointError(
                f"the checkpoint has offsets of version {version}, but this package reads up to "
                f"version {OFFSETS_VERSION}: install the package that wrote it, or a newer one"
            )
        by_topic = value["topics"]
        found = {
            Queue(topic, broker_name, int(queue_id)): offset
            for topic, brokers in by_topic.items()
            for broker_name, queues in brokers.items()
            for queue_id, offset in queues.items()
        }
        return cls(found, frozenset(by_topic))

    def as_json(self) -> dict[str, Any]:
        """Return the JSON form of the offsets.

        Its keys are sorted, because Spark compares the JSON texts to detect new messages.
        """
        filled = nested(self.of.items())
        every = {*self.topics, *filled}
        return {
            "v": OFFSETS_VERSION,
            "topics": {name: filled.get(name, {}) for name in sorted(every)},
        }

    def check(self, options: ReadOptions) -> None:
        """Raise CheckpointError if the topics do not match the topics that `options` select.

        For a pattern or a group, the options may also select topics that were created later.
        """
        strange = sorted(topic for topic in self.topics if not selects(options, topic))
        missing = sorted(set(named_topics(options)) - self.topics)
        if strange or missing:
            raise CheckpointError(
                f"the checkpoint has {', '.join(sorted(self.topics)) or 'no topic'}, but the "
                f"options select {_selection(options)}: {ADVICE}"
            )


def named_topics(options: ReadOptions) -> tuple[str, ...]:
    """Return the topics that the options name explicitly.

    The result is empty if the options select topics by a pattern or a consumer group.
    """
    if options.assigned:
        return tuple(sorted({queue.topic for queue in options.assigned}))
    return options.topics


def selects(options: ReadOptions, topic: str) -> bool:
    """Return whether the options select this topic."""
    if named := named_topics(options):
        return topic in named
    if options.topic_pattern:
        return re.fullmatch(options.topic_pattern, topic) is not None
    if options.consumer_group == ALL_GROUPS:
        tests = {"dlq": names.is_dead_letter, "retry": names.is_retry}
        return any(tests[kind](topic) for kind in options.kinds)
    return topic in topics_of_group(options)


def topics_of_group(options: ReadOptions) -> list[str]:
    make = {"dlq": names.dead_letter_topic, "retry": names.retry_topic}
    return [make[kind](options.consumer_group) for kind in options.kinds]


def _selection(options: ReadOptions) -> str:
    if named := named_topics(options):
        return ", ".join(sorted(named))
    if options.topic_pattern:
        return f"the pattern {options.topic_pattern}"
    if options.consumer_group == ALL_GROUPS:
        return f"the {' and '.join(options.kinds)} topics of every group"
    return ", ".join(topics_of_group(options))


def ranges_between(start: Positions, end: Positions) -> list[OffsetRange]:
    """Return the range of offsets that a batch reads from each queue, sorted by queue.

    A queue that is missing in `start` is not read. A queue whose offset decreases is not read
    either, because its topic was created again. The next batch reads both from their offsets in
    `end`.
    """
    return [
        OffsetRange(queue, start.of[queue], last)
        for queue, last in sorted(end.of.items())
        if start.of.get(queue, last) < last
    ]
