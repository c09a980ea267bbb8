"""Parse the options of a read: names, defaults and allowed values.

docs/spark.md describes the options. Their aliases are the names that Kafka's connector and
RocketMQ's older connectors use. This module does no I/O.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from aerobee_spark.access import FROM_ENVIRONMENT, Access
from aerobee_spark.access import OPTIONS as ACCESS_OPTIONS
from aerobee_spark.errors import OptionError
from aerobee_spark.options import (
    SHARED_ALIASES,
    WRITE_ONLY,
    boolean,
    count,
    fields_of,
    named,
    of_table,
    redact_key,
    text,
    with_name_server,
)
from aerobee_spark.reading.offsets import (
    AT_EARLIEST,
    AT_LATEST,
    EARLIEST,
    LATEST,
    OffsetsByTopic,
    Position,
    Queue,
    by_queue,
)
from aerobee_wire import properties as props
from aerobee_wire import tags, topics

# alias → name
ALIASES = {
    **SHARED_ALIASES,
    "subscribe": "topic",
    "subscribePattern": "topicPattern",
    "group": "consumerGroup",
    "tags": "subExpression",
}
BATCH_ONLY = (
    "endingOffsets",
    "endingTimestamp",
    "endingOffsetsByTimestamp",
    "failOnUnreachableBroker",
    "pushdown",
)
STREAM_ONLY = ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay")
PLAIN, STORED = "plain", "stored"
_DURATION = re.compile(r"(\d+) ?(ms|s|m|h|d)")
_UNIT_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
# The version of the JSON form of offsets in checkpoints.
OFFSETS_VERSION = 1
KINDS = {"dlq": ("dlq",), "retry": ("retry",), "both": ("dlq", "retry")}
ALL_GROUPS = "*"
_EPOCH_MS = re.compile(r"-?\d+")
_MAX_MS = (1 << 63) - 1
_TIMES_SHAPE = 'write {"topic": {"broker": {"0": 1769846400000}}} (milliseconds since the epoch)'
_OFFSETS_SHAPE = 'write earliest, latest or {"topic": {"broker": {"0": 23, "1": -2}}}'


@dataclass(frozen=True, slots=True)
class ReadOptions:
    name_server: str
    # The user and the certificates of the calls.
    access: Access = FROM_ENVIRONMENT
    # Exactly one of these four fields is set. It selects the queues to read.
    topics: tuple[str, ...] = ()
    topic_pattern: str = ""
    assigned: frozenset[Queue] = frozenset()
    consumer_group: str = ""
    # The topics of the consumer group to read: "dlq", "retry" or both.
    kinds: tuple[str, ...] = ("dlq",)
    starting: Position = AT_EARLIEST
    ending: Position = AT_LATEST
    # The limit for one task, which reads 100,000 messages in one to two seconds.
    max_records_per_partition: int = 100_000
    min_partitions: int = 1
    fail_on_data_loss: bool = True
    fail_on_unreachable_broker: bool = True
    # RocketMQ's default is 32. A chunk costs 0.9 ms of processor time at any size, so a million
    # messages in chunks of 4096 cost 0.2 s more.
    pull_batch_size: int = 16_384
    # Timeout of one pull, including its retries.
    pull_timeout_ms: int = 30_000
    max_bytes_per_pull: int = 8 * 1024 * 1024
    include_body: bool = True
    max_body_bytes: int | None = None
    include_properties: bool = True
    include_headers: bool = False
    # Tags of the messages to keep; empty keeps all.
    tags: frozenset[str] = frozenset()
    # PLAIN decompresses bodies; STORED returns them as the broker stores them.
    body_encoding: str = PLAIN
    # Properties and JSON fields whose values are replaced by short hashes.
    redact: tuple[str, ...] = ()
    # The secret key of these hashes, from the driver's environment. It is not printed.
    redact_key: bytes = field(default=b"", repr=False)
    # If set, filters of a batch query narrow the ranges to read.
    pushdown: bool = False
    # For streams only: the largest and the smallest number of messages of a batch, and the longest
    # time that fewer messages wait for a batch.
    max_per_trigger: int | None = None
    min_per_trigger: int | None = None
    max_trigger_delay_ms: int = 900_000
    # The names of the options that the user set.
    given: frozenset[str] = frozenset()

    @classmethod
    def parse(
        cls, given: Mapping[str, str], environ: Mapping[str, str] = os.environ
    ) -> ReadOptions:
        """Parse the options of a read.

        Args:
            given: option → text, in any letter case, as Spark passes them.
            environ: environment variables of the driver.

        Raises:
            OptionError: an option is unknown (the message names the nearest one), missing or
                invalid.
        """
        if not given:
            raise OptionError(
                "no options were set: Spark does not pass the options of CREATE TABLE; use CREATE "
                "TEMPORARY VIEW v USING rocketmq OPTIONS (…), or SELECT … FROM t WITH "
                "(nameServer = "
                "'…', topic = '…')",
                "topic",
            )
        given = of_table(given)
        _check_of_read(given)
        values = with_name_server(named(given, _NAMES), environ)
        _check_alone(values, "topic", "topicPattern", "assign", "consumerGroup", needed=True)
        for end in ("starting", "ending"):
            ways = (f"{end}Offsets", f"{end}Timestamp", f"{end}OffsetsByTimestamp")
            _check_alone(values, *ways)
        if "kind" in values and "consumerGroup" not in values:
            problem = "the option kind requires consumerGroup: set consumerGroup, or remove kind"
            raise OptionError(problem, "kind")
        key = redact_key(environ)
        found = fields_of(values, OPTIONS)
        access = Access.take(found)
        options = cls(given=frozenset(values), redact_key=key, access=access, **found)
        _check_forwards(options.starting, options.ending)
        least, most = options.min_per_trigger, options.max_per_trigger
        if least is not None and most is not None and least > most:
            raise OptionError(
                f"minOffsetsPerTrigger {least} is greater than maxOffsetsPerTrigger {most}: "
                "lower the first or raise the second",
                "minOffsetsPerTrigger",
            )
        if options.redact and (options.body_encoding == STORED or options.max_body_bytes):
            other = "maxBodyBytes" if options.max_body_bytes else "bodyEncoding=stored"
            raise OptionError(
                f"the options redact and {other} exclude each other: redaction needs the whole, "
                "decompressed body; remove one of them",
                "redact",
            )
        if options.include_headers and not options.include_properties:
            raise OptionError(
                "includeHeaders needs the properties: remove includeProperties=false, or "
                "includeHeaders",
                "includeHeaders",
            )
        if "maxTriggerDelay" in values and least is None:
            problem = "maxTriggerDelay requires minOffsetsPerTrigger: set that option, or remove it"
            raise OptionError(problem, "maxTriggerDelay")
        return options

    def check_batch(self) -> None:
        """Raise OptionError if an option was set that only streams support."""
        for name in STREAM_ONLY:
            if name in self.given:
                raise OptionError(
                    f"the option {name} is only for spark.readStream: a batch ends at "
                    "endingOffsets or endingTimestamp; remove the option, or read a stream",
                    name,
                )

    def check_stream(self) -> None:
        """Raise OptionError if an option was set that only batches support."""
        for name in BATCH_ONLY:
            if name in self.given:
                raise OptionError(
                    f"the option {name} is only for spark.read: a stream has no end, skips no "
                    "messages and accepts no filters; remove the option, or read a batch",
                    name,
                )


def _check_of_read(given: Mapping[str, str]) -> None:
    lower = {name.lower() for name in given}
    for name in WRITE_ONLY:
        if name.lower() in lower:
            raise OptionError(
                f"the option {name} is only for df.write: remove it from the read", name
            )


def _check_alone(values: Mapping[str, str], *names: str, needed: bool = False) -> None:
    found = [name for name in names if name in values]
    if len(found) > 1:
        problem = f"{' and '.join(found)} exclude each other: keep one of them"
        raise OptionError(problem, found[-1])
    if needed and not found:
        problem = f"the queues to read are not selected: set one of {', '.join(names)}"
        raise OptionError(problem, names[0])


def _check_forwards(starting: Position, ending: Position) -> None:
    """Raise OptionError if the end is before the start: such a read would be empty."""
    first_ms, last_ms = starting.timestamp_ms, ending.timestamp_ms
    if first_ms is not None and last_ms is not None and first_ms > last_ms:
        problem = "startingTimestamp is later than endingTimestamp: swap them"
        raise OptionError(problem, "endingTimestamp")
    for queue in {*(starting.ms_by_queue or {}), *(ending.ms_by_queue or {})}:
        first_ms, last_ms = starting.ms_of(queue), ending.ms_of(queue)
        if first_ms is not None and last_ms is not None and first_ms > last_ms:
            raise OptionError(
                f"{queue} starts at {first_ms} and ends at {last_ms} (milliseconds since the "
                "epoch): swap them",
                "endingOffsetsByTimestamp",
            )
    ends = ending.by_queue or {}
    for queue, first in (starting.by_queue or {}).items():
        if 0 <= ends.get(queue, LATEST) < first:
            raise OptionError(
                f"{queue} starts at queue offset {first} and ends at {ends[queue]}: correct "
                "startingOffsets or endingOffsets",
                "endingOffsets",
            )


# ---- values ----


def _topics(value: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in value.split(",") if name.strip())
    if not names:
        raise ValueError("write topic names, separated by commas")
    for name in names:
        topics.check_topic(name)
    return names


def parse_names(value: str) -> tuple[str, ...]:
    """Parse names that are separated by commas. Raise ValueError if the text has no name."""
    names = tuple(name.strip() for name in value.split(",") if name.strip())
    if not redacted_names(names):
        raise ValueError("write names, separated by commas")
    return names


def redacted_names(names: Iterable[str]) -> tuple[str, ...]:
    """Return the names to redact, with the properties that may repeat their values.

    The text of an exception may repeat any value, and the message group is often a key. A name
    after "-" is not redacted.
    """
    kept = {name[1:] for name in names if name.startswith("-")}
    chosen = dict.fromkeys(name for name in names if not name.startswith("-"))
    if chosen:
        repeating = (props.DLQ_REASON_DESCRIPTION, props.DLQ_CAUSE, props.DLQ_STACK_TRACE)
        chosen |= dict.fromkeys(repeating)
    if props.KEYS in chosen:
        chosen |= {props.SHARDING_KEY: None}
    return tuple(name for name in chosen if name not in kept)


def _pattern(value: str) -> str:
    try:
        re.compile(text(value))
    except re.error as error:
        raise ValueError(f"invalid regular expression: {error}") from None
    return value


def _group(value: str) -> str:
    if value != ALL_GROUPS:
        topics.check_group(value)
    return value


def _kinds(value: str) -> tuple[str, ...]:
    if value.lower() not in KINDS:
        raise ValueError(f"choose one of {', '.join(KINDS)}")
    return KINDS[value.lower()]


def _duration_ms(value: str) -> int:
    found = _DURATION.fullmatch(value)
    if found is None or not int(found[1]):
        raise ValueError("write a time such as 30s, 15m or 1h")
    return int(found[1]) * _UNIT_MS[found[2]]


def _encoding(value: str) -> str:
    if value.lower() not in (PLAIN, STORED):
        raise ValueError(f"choose {PLAIN} or {STORED}")
    return value.lower()


def timestamp_ms(value: str) -> int:
    """Parse a time into milliseconds since the epoch.

    Args:
        value: milliseconds since the epoch, or an ISO 8601 time (UTC if it has no zone).

    Raises:
        ValueError: the text is neither, or the number exceeds 64 bits.
    """
    if _EPOCH_MS.fullmatch(value):
        if abs(int(value)) > _MAX_MS:
            raise ValueError("write milliseconds since the epoch that fit into 64 bits")
        return int(value)
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        raise ValueError(
            "write milliseconds since the epoch, or a time such as 2026-01-31T08:00:00Z"
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return round(moment.timestamp() * 1000)


def _json(value: str) -> Any:
    try:
        return json.loads(value)
    except ValueError as error:
        raise ValueError(f"invalid JSON: {error}") from None


def _position(everywhere: int) -> Callable[[str], Position]:
    """Return a parser for startingOffsets or endingOffsets.

    Queues that the JSON of the option omits start or end at `everywhere`.
    """

    def parse(value: str) -> Position:
        named = {"earliest": EARLIEST, "latest": LATEST}
        if value.lower() in named:
            return Position(named[value.lower()])
        if not value.lstrip().startswith("{"):  # such as a misspelled "earliest"
            raise ValueError(_OFFSETS_SHAPE)
        return Position(everywhere, by_queue=by_queue(_offsets(_json(value))))

    return parse


def _offsets(loaded: Any) -> OffsetsByTopic:
    if isinstance(loaded, dict) and isinstance(version := loaded.get("v"), int):
        # Checkpoints store offsets in this form.
        if version > OFFSETS_VERSION:
            raise ValueError(
                f"the offsets have version {version}, but this release reads up to "
                f"{OFFSETS_VERSION}"
            )
        loaded = loaded.get("topics")
    parsed = _nested(loaded, _OFFSETS_SHAPE)
    for offset in by_queue(parsed).values():
        if not isinstance(offset, int) or isinstance(offset, bool) or offset < EARLIEST:
            raise ValueError(
                f"invalid queue offset {offset!r}: use 0 or more, -2 (earliest) or -1 (latest)"
            )
    return parsed


def _nested(loaded: Any, shape: str) -> OffsetsByTopic:
    """Return numbers by topic, broker and queue id. Raise ValueError for another shape."""
    try:
        return {
            topic: {
                broker: {int(queue_id): number for queue_id, number in queues.items()}
                for broker, queues in brokers.items()
            }
            for topic, brokers in loaded.items()
        }
    except (AttributeError, ValueError):
        raise ValueError(shape) from None


def _times_position(everywhere: int) -> Callable[[str], Position]:
    """Return a parser for the times of single queues. Other queues are read from `everywhere`."""

    def parse(value: str) -> Position:
        times = by_queue(_nested(_json(value), _TIMES_SHAPE))
        for ms in times.values():
            if not isinstance(ms, int) or isinstance(ms, bool) or not 0 <= ms <= _MAX_MS:
                raise ValueError(_TIMES_SHAPE)
        return Position(everywhere, ms_by_queue=times)

    return parse


def _timestamp_position(everywhere: int) -> Callable[[str], Position]:
    return lambda value: Position(everywhere, timestamp_ms=timestamp_ms(value))


def _assigned(value: str) -> frozenset[Queue]:
    try:
        queues = frozenset(
            Queue(topic, broker, int(queue_id))
            for topic, brokers in _json(value).items()
            for broker, queue_ids in brokers.items()
            for queue_id in queue_ids
            if not isinstance(queue_id, bool)
        )
    except (AttributeError, TypeError):
        queues = frozenset()
    if not queues:
        raise ValueError('write {"topic": {"broker": [0, 1]}}')
    return queues


# name → (field of ReadOptions, parser)
OPTIONS: Mapping[str, tuple[str, Callable[[str], object]]] = {
    "nameServer": ("name_server", text),
    **ACCESS_OPTIONS,
    "topic": ("topics", _topics),
    "topicPattern": ("topic_pattern", _pattern),
    "assign": ("assigned", _assigned),
    "consumerGroup": ("consumer_group", _group),
    "kind": ("kinds", _kinds),
    "startingOffsets": ("starting", _position(EARLIEST)),
    "startingTimestamp": ("starting", _timestamp_position(EARLIEST)),
    "startingOffsetsByTimestamp": ("starting", _times_position(EARLIEST)),
    "endingOffsets": ("ending", _position(LATEST)),
    "endingTimestamp": ("ending", _timestamp_position(LATEST)),
    "endingOffsetsByTimestamp": ("ending", _times_position(LATEST)),
    "maxRecordsPerPartition": ("max_records_per_partition", count),
    "minPartitions": ("min_partitions", count),
    "failOnDataLoss": ("fail_on_data_loss", boolean),
    "failOnUnreachableBroker": ("fail_on_unreachable_broker", boolean),
    "pullBatchSize": ("pull_batch_size", count),
    "pullTimeoutMs": ("pull_timeout_ms", count),
    "maxBytesPerPull": ("max_bytes_per_pull", count),
    "includeBody": ("include_body", boolean),
    "maxBodyBytes": ("max_body_bytes", count),
    "includeProperties": ("include_properties", boolean),
    "includeHeaders": ("include_headers", boolean),
    "subExpression": ("tags", tags.parse_expression),
    "redact": ("redact", parse_names),
    "bodyEncoding": ("body_encoding", _encoding),
    "pushdown": ("pushdown", boolean),
    "maxOffsetsPerTrigger": ("max_per_trigger", count),
    "minOffsetsPerTrigger": ("min_per_trigger", count),
    "maxTriggerDelay": ("max_trigger_delay_ms", _duration_ms),
}
_NAMES = {name.lower(): name for name in OPTIONS} | {
    alias.lower(): name for alias, name in ALIASES.items()
}
