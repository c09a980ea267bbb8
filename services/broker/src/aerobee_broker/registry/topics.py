"""Keep the topics of this broker, and create them for administrators, messages and groups.

A topic is published when it is saved in `topics.json` and registered with every reachable name
server. A send to a new topic waits for that. The rules are those of RocketMQ's TopicConfigManager:
an unknown topic inherits from TBW102.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import structlog

from aerobee_broker.config import BrokerOptions
from aerobee_broker.errors import InvalidParameter, NoPermission, TooManyNames, TopicNotExist
from aerobee_broker.metadata.persistent_table import PersistentTable
from aerobee_broker.metadata.topics import (
    MESSAGE_TYPE,
    RESERVE_TIME,
    UNSPECIFIED,
    TopicConfig,
    Topics,
)
from aerobee_broker.registry.creations import Creations
from aerobee_wire import topics as names
from aerobee_wire.properties import whole_number
from aerobee_wire.queues import lite
from aerobee_wire.route import ALL_PERMISSIONS, INHERIT, READ, READ_WRITE
from aerobee_wire.status import Code, MqError

# Register the present topics with the name servers, and return the unreachable name servers.
Announce = Callable[[], Awaitable[list[str]]]
# Create a topic on the other brokers.
Spread = Callable[[TopicConfig], Awaitable[None]]

CLIENT_DEFAULT_QUEUES = 4  # queues of a topic that a send creates without a queue count
MAX_QUEUES = 65_536
MESSAGE_TYPES = (
    UNSPECIFIED,
    "NORMAL",
    "FIFO",
    "DELAY",
    "TRANSACTION",
    "PRIORITY",
    lite.LITE,
    "MIXED",
)
# Attributes with one possible value.
FIXED_ATTRIBUTES = {"queue.type": "SimpleCQ", "cleanup.policy": "DELETE"}
MAX_RESERVE_HOURS = 87_600  # ten years
_ALLOWED = {
    MESSAGE_TYPE: (
        f"use one of {', '.join(MESSAGE_TYPES[:-1])} (MIXED with enableMixedMessageType)"
    ),
    "queue.type": "batches are stored as single messages; remove it, or write SimpleCQ",
    "cleanup.policy": (
        "no topic keeps the last message of each key; remove it, or write DELETE, and let an "
        "application keep the last messages"
    ),
    RESERVE_TIME: (
        f"use 1 to {MAX_RESERVE_HOURS:,} hours, or -1 for the fileReservedTime of the broker"
    ),
}
TOPIC_ATTRIBUTES = frozenset([*_ALLOWED, lite.TTL_ATTRIBUTE])
_UNKNOWN = f"a topic has {', '.join(sorted(TOPIC_ATTRIBUTES))}"
_TRANSACTION_TOPICS = (names.HALF_TOPIC, names.OP_HALF_TOPIC, names.CHECK_MAX_TIME_TOPIC)


@dataclass(frozen=True, slots=True)
class PutResult:
    created: bool
    unreachable_namesrvs: list[str]


class TopicRegistry:
    def __init__(
        self,
        table: Topics,
        saved: PersistentTable,
        options: BrokerOptions,
        *,
        announce: Announce,
        spread: Spread,
        creations: Creations,
        now_ms: Callable[[], int],
        on_parent: Callable[[str], None] = lambda topic: None,
    ) -> None:
        """Create a registry. `on_parent` is called with a LITE topic before it is published."""
        self.table = table
        self._on_parent = on_parent
        self._saved = saved
        self._options = options
        self._announce = announce
        self._spread = spread
        self._creations = creations
        self._now_ms = now_ms
        # Topics created or changed and not published yet, with the task that publishes them. None:
        # the task failed, and the next use of the topic retries it.
        self._publishing: dict[str, asyncio.Task[list[str]] | None] = {}
        # Deleted topics → the task that saves the tables without their data.
        self._forgetting: dict[str, asyncio.Task[None]] = {}
        self._system = names.SYSTEM_TOPICS | {options.broker_cluster_name, options.broker_name}

    async def use(self, options: BrokerOptions) -> None:
        """Use other options, and publish the topic that new topics inherit from if it changes.

        Raises MqError with the code SYSTEM_ERROR or DISK_FULL if that topic cannot be saved.
        """
        before, after = _auto_create_topic(self._options), _auto_create_topic(options)
        self._options = options
        if after == before:
            return
        if after is None:
            self.table.remove(names.AUTO_CREATE_TOPIC)
            await self._saved.save()
            await self._announce()
        else:
            self.table.put(after)
            await self._publish_change(after.topic)

    def is_system(self, topic: str) -> bool:
        return topic in self._system or names.is_system(topic)

    # ---- use ----

    def ready(self, topic: str) -> TopicConfig | None:
        """Return the topic if it is published, or None."""
        return None if topic in self._publishing else self.table.get(topic)

    def get(self, topic: str) -> TopicConfig:
        config = self.table.get(topic)
        if config is None:
            raise TopicNotExist(topic)
        return config

    def is_readable(self, topic: str, queue_id: int) -> bool:
        """Return whether the topic has the read queue `queue_id`."""
        config = self.table.get(topic)
        return config is not None and 0 <= queue_id < config.read_queue_count

    async def for_send(self, topic: str, queue_count: int, creator: str = "") -> TopicConfig:
        """Return the topic. Create it if it is new and auto-creation is enabled.

        `creator` is that of `Creations.check`. Raises TopicNotExist, InvalidParameter,
        TooManyNames, TooManyCreations.
        """
        config = self.table.get(topic)
        if config is None:
            names.check_topic(topic)
            config = self._inherited(topic, queue_count)
            self._check_count()
            self._creations.check(creator)
            self.table.put(config)
            structlog.get_logger().info(
                "topic_created", topic=topic, queues=config.write_queue_count, by="send"
            )
            await self._ensure_published(topic, spread=config)
        elif topic in self._publishing:
            await self._ensure_published(topic)
        return self.get(topic)  # it may have been changed or deleted meanwhile

    async def for_group(self, topic: str, queue_count: int = 1) -> TopicConfig:
        """Return the retry or dead-letter topic of a group. Create it if it is new.

        On a full disk, the topic is published before it is saved. That is safe because the next
        start creates the same topic again.
        """
        config = self.table.get(topic)
        if config is None or config.queue_count < queue_count:
            config = replace(
                config or TopicConfig(topic, queue_count, queue_count, READ_WRITE),
                read_queue_count=queue_count,
                write_queue_count=queue_count,
            )
            self.table.put(config)
            await self._publish_change(topic, must_save=False)
        elif topic in self._publishing:
            await self._ensure_published(topic, must_save=False)
        return config

    async def all_for_group(self, queue_counts: Mapping[str, int]) -> None:
        """Create the missing ones of some retry and dead-letter topics.

        All exist on return, even if one was deleted while another was created. A message for a
        missing topic would be unreadable until the next start.
        """
        missing = queue_counts
        while missing:
            for topic, queue_count in missing.items():
                await self.for_group(topic, queue_count)
            missing = {topic: n for topic, n in queue_counts.items() if topic not in self.table}

    def _check_count(self) -> None:
        """Check that one more topic may be created. Raises TooManyNames."""
        limit = self._options.max_topics
        # Retry and dead-letter topics have a limit of their own, that of groups. Counting all
        # topics takes long, so do it only if there may be too many.
        if len(self.table) >= limit and (
            sum(names.group_of(topic) is None for topic in self.table.rows()) >= limit
        ):
            remedy = "delete topics that are not used ('aerobee topic delete NAME')"
            raise TooManyNames("topics", limit, "maxTopics", remedy)

    def to_create(self, topic: str) -> TopicConfig:
        """Return the topic that a send to a missing topic would create. Raises TopicNotExist."""
        return self._inherited(topic, 0)

    def _inherited(self, topic: str, queue_count: int) -> TopicConfig:
        parent = self.table.get(names.AUTO_CREATE_TOPIC)
        if parent is None or not parent.permission & INHERIT:
            raise TopicNotExist(topic)
        count = min(queue_count or CLIENT_DEFAULT_QUEUES, parent.write_queue_count)
        permission = parent.permission & ~INHERIT
        return TopicConfig(topic, count, count, permission, attributes={MESSAGE_TYPE: UNSPECIFIED})

    # ---- administration ----

    async def put(self, config: TopicConfig, *, only_new: bool = False) -> PutResult:
        """Create or change a topic. With `only_new`, an existing topic stays unchanged.

        Raises InvalidParameter, NoPermission, TooManyNames.
        """
        self.check(config)
        known = self.table.get(config.topic)
        if only_new and known is not None:
            if config.topic in self._publishing:
                await self._ensure_published(config.topic)
            return PutResult(created=False, unreachable_namesrvs=[])
        if known is None:
            self._check_count()
        config = replace(config, shrunk_from=_shrunk_from(known, config))
        if known is not None:
            config = replace(config, inherited_ms=known.inherited_ms)
            config = config.changed_from(known, self._now_ms())
        self._check_type_change(known, config)
        if config.message_type == lite.LITE:
            self._on_parent(config.topic)
        created = self.table.put(config)
        if known == config and config.topic not in self._publishing:
            return PutResult(created=False, unreachable_namesrvs=[])
        structlog.get_logger().info(
            "topic_created" if created else "topic_changed",
            topic=config.topic,
            queues=config.write_queue_count,
            by="admin",
        )
        return PutResult(created, await self._publish_change(config.topic))

    async def specify_type(self, topic: str, message_type: str) -> str:
        """Set the type of a topic without a type, publish it, and return the topic's type.

        Raises TopicNotExist, InvalidParameter.
        """
        config = self.get(topic)
        if config.message_type == UNSPECIFIED:
            attributes = {**config.attributes, MESSAGE_TYPE: message_type}
            specified = replace(config, attributes=attributes)
            self._check_type_change(config, specified)
            self._check_attributes(specified)
            self.table.put(specified)
            structlog.get_logger().info("topic_type_taken", topic=topic, type=message_type)
            await self._publish_change(topic)
        elif topic in self._publishing:
            await self._ensure_published(topic)
        return self.get(topic).message_type

    async def register_all(self) -> list[str]:
        """Register all topics again after a change of the broker's permission.

        Return the unreachable name servers.
        """
        self.table.register_all()
        await self._saved.save()
        return await self._announce()

    async def remove(
        self, topic: str, forget: Callable[[], None], save: Callable[[], Coroutine[Any, Any, None]]
    ) -> bool:
        """Delete a topic. Return False if it does not exist.

        `forget` removes the data of the topic from other tables, in the same iteration of the event
        loop. Raises NoPermission for a system topic, and the errors of `forget`. After an error
        nothing is deleted.

        `save` saves those tables, and this method also raises its errors. A topic that is created
        with this name meanwhile gets no message before that. After a kill, the group's old offsets
        would otherwise hide its messages.
        """
        if self.is_system(topic):
            raise NoPermission(f"{topic} is a system topic: it cannot be deleted")
        if topic not in self.table:
            return False
        forget()
        self.table.remove(topic)
        saving = self._forgetting[topic] = asyncio.create_task(save())
        saving.add_done_callback(lambda saved: self._end_forgetting(topic, saved))
        await asyncio.shield(saving)
        await self._saved.save()
        await self._announce()
        structlog.get_logger().info("topic_deleted", topic=topic)
        return True

    def _end_forgetting(self, topic: str, saved: asyncio.Task[None]) -> None:
        if self._forgetting.get(topic) is saved:  # the topic may have been deleted again
            del self._forgetting[topic]

    def check(self, config: TopicConfig) -> None:
        """Check a configuration. Raises InvalidParameter, NoPermission."""
        names.check_topic(config.topic)
        if self.is_system(config.topic) and self._options.validate_system_topic_when_update_topic:
            raise NoPermission(f"{config.topic} is a system topic: choose another name")
        for count in (config.read_queue_count, config.write_queue_count):
            if not 1 <= count <= MAX_QUEUES:
                raise InvalidParameter(
                    f"a topic has 1 to {MAX_QUEUES} queues to read and to write, not {count}"
                )
        if not 0 < config.permission <= ALL_PERMISSIONS:
            raise InvalidParameter(
                f"permission {config.permission} is unknown: add 4 to read, 2 to write; 6 is both"
            )
        self._check_attributes(config)

    @staticmethod
    def _check_type_change(known: TopicConfig | None, config: TopicConfig) -> None:
        """Check that a topic keeps or never gets the type LITE. Raises InvalidParameter.

        An entry of a consume queue contains either the lite topic or the tag of its message, from
        the first message on.
        """
        if known is None or known.message_type == config.message_type:
            return
        if lite.LITE in (known.message_type, config.message_type):
            raise InvalidParameter(
                f"topic {config.topic} is of the type {known.message_type or 'NORMAL'}: a topic is "
                "of the type LITE from its creation on, or never; delete it and create it again",
                about=MESSAGE_TYPE,
            )

    def _check_attributes(self, config: TopicConfig) -> None:
        lite.ttl_minutes(config.attributes)
        if lite.TTL_ATTRIBUTE in config.attributes and config.message_type != lite.LITE:
            raise InvalidParameter(
                f"topic {config.topic} is of the type {config.message_type or 'NORMAL'}: "
                f"{lite.TTL_ATTRIBUTE}, the TTL of lite topics, needs the type LITE (--type lite)"
            )
        if config.reserved_ms is not None and config.message_type == lite.LITE:
            raise InvalidParameter(
                f"topic {config.topic} is of the type LITE: remove {RESERVE_TIME}, and use "
                f"{lite.TTL_ATTRIBUTE}, the TTL of its lite topics",
                about=RESERVE_TIME,
            )
        for name, value in config.attributes.items():
            if name == MESSAGE_TYPE:
                allowed = value in MESSAGE_TYPES and (
                    value != "MIXED" or self._options.enable_mixed_message_type
                )
            elif name == lite.TTL_ATTRIBUTE:
                allowed = True  # checked above
            elif name == RESERVE_TIME:
                allowed = _is_reserve_time(value)
            else:
                allowed = value == FIXED_ATTRIBUTES.get(name)
            if not allowed:
                raise InvalidParameter(
                    f"attribute {name}={value} is not supported: {_ALLOWED.get(name, _UNKNOWN)}",
                    about=name,
                )

    # ---- at the start ----

    def create_system_topics(self, *, journalled: bool = False) -> None:
        """Create the system topics. `journalled` is True if the log has replicas."""
        options = self._options
        inherit = {
            options.broker_cluster_name: (16, options.cluster_topic_enable),
            options.broker_name: (1, options.broker_topic_enable),
        }
        levels = len(options.delay_levels_ms)
        configs = [
            TopicConfig(names.SELF_TEST_TOPIC, 1, 1),
            TopicConfig(names.BENCHMARK_TOPIC, 1024, 1024),
            TopicConfig(names.OFFSET_MOVED_TOPIC, 1, 1),
            TopicConfig(names.SCHEDULE_TOPIC, levels, levels),
            TopicConfig(names.SCHEDULE_PROGRESS_TOPIC, 1, 1, READ),
            *(TopicConfig(topic, 1, 1, READ) for topic in _TRANSACTION_TOPICS),
            TopicConfig(names.TIMER_TOPIC, 1, 1, READ),
            TopicConfig(names.TIMER_PROGRESS_TOPIC, 1, 1, READ),
            TopicConfig(names.pop_journal_topic(options.broker_cluster_name), 1, 1, READ),
            TopicConfig(names.lite_journal_topic(options.broker_cluster_name), 1, 1, READ),
            TopicConfig(names.LETTER_JOURNAL_TOPIC, 1, 1, READ),
            *(
                TopicConfig(topic, count, count, INHERIT | (READ_WRITE if open_ else 0))
                for topic, (count, open_) in inherit.items()
            ),
        ]
        # Users may change the trace topic, for example its retention time.
        if options.trace_topic_enable and names.TRACE_TOPIC not in self.table:
            configs.append(TopicConfig(names.TRACE_TOPIC, 1, 1))
        if journalled:
            configs.append(TopicConfig(names.METADATA_LOG_TOPIC, 2, 2, READ))
        if parent := _auto_create_topic(options):
            configs.append(parent)
        else:
            self.table.remove(names.AUTO_CREATE_TOPIC)
        for config in configs:
            self.table.put(config)

    def adopt(self, stored: Iterable[tuple[str, Iterable[int]]]) -> list[str]:
        """Add topics and queues of the store that the table lacks, and return the changed topics.

        The table lacks them if `topics.json` is older than the log or was lost. `stored` contains
        topics with their queue ids.
        """
        adopted = []
        for topic, queue_ids in stored:
            count = max(queue_ids, default=-1) + 1
            known = self.table.get(topic)
            if count and known is None:
                self.table.put(TopicConfig(topic, count, count))
                adopted.append(topic)
            elif (
                known
                and max(known.queue_count, known.shrunk_from) < count
                and topic != names.SCHEDULE_TOPIC
            ):
                self.table.put(replace(known, read_queue_count=count))
                adopted.append(topic)
        return adopted

    # ---- publishing ----

    async def _ensure_published(
        self, topic: str, *, spread: TopicConfig | None = None, must_save: bool = True
    ) -> list[str]:
        """Publish a topic, or wait for the task that already publishes it.

        If `spread` is set, create that topic on the other brokers too. If `must_save` is True, fail
        when the disk is full. Return the unreachable name servers.
        """
        task = self._publishing.get(topic)
        if task is None:
            publish = self._publish(topic, spread, must_save=must_save)
            task = asyncio.get_running_loop().create_task(publish)
            self._publishing[topic] = task
        return await asyncio.shield(task)

    async def _publish_change(self, topic: str, *, must_save: bool = True) -> list[str]:
        """Publish a topic after a change.

        A task that already publishes the topic may have read the table before the change. So wait
        for that task first.
        """
        while (task := self._publishing.get(topic)) is not None:
            await asyncio.wait([task])
        return await self._ensure_published(topic, must_save=must_save)

    async def _publish(
        self, topic: str, spread: TopicConfig | None, *, must_save: bool
    ) -> list[str]:
        unreachable: list[str] = []
        try:
            if topic in self._forgetting:
                await asyncio.shield(self._forgetting[topic])
            await self._save(topic, must_save=must_save)
            if spread is not None:
                unreachable, _ = await asyncio.gather(self._announce(), self._spread(spread))
            else:
                unreachable = await self._announce()
        except BaseException:
            self._publishing[topic] = None
            raise
        del self._publishing[topic]
        return unreachable

    async def _save(self, topic: str, *, must_save: bool) -> None:
        try:
            await self._saved.save()
        except MqError as error:
            if must_save or error.code is not Code.DISK_FULL:
                raise
            # The periodic save retries.
            structlog.get_logger().warning("topic_not_saved", topic=topic, reason=error.message)


def _auto_create_topic(options: BrokerOptions) -> TopicConfig | None:
    """Return the topic that new topics inherit from, or None without auto-creation."""
    count = options.default_topic_queue_nums
    if not options.auto_create_topic_enable:
        return None
    return TopicConfig(names.AUTO_CREATE_TOPIC, count, count, READ_WRITE | INHERIT)


def _is_reserve_time(value: str) -> bool:
    hours = whole_number(value)
    return hours is not None and (hours == -1 or 1 <= hours <= MAX_RESERVE_HOURS)


def _shrunk_from(known: TopicConfig | None, config: TopicConfig) -> int:
    """Return the largest number of queues that the topic has had, or 0 if it was not shrunk."""
    most = max(known.queue_count, known.shrunk_from) if known else 0
    return most if most > config.queue_count else 0
