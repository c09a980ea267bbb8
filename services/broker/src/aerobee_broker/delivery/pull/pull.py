"""Pull: reads a message queue for a consumer group, or for anybody who only looks (browse).

Order of the checks and meaning of the answers: facts of PULL_MESSAGE. An answer holds the records
as they lie in the commit log; who asked decodes them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from aerobee_broker.config import BrokerOptions
from aerobee_broker.delivery.pull.long_polls import LongPolls
from aerobee_broker.errors import InvalidParameter, NoPermission, SubscriptionNotExist
from aerobee_broker.filter.filter import Filter, matching_records
from aerobee_broker.metadata.consumer_offsets import ConsumerOffsets
from aerobee_broker.metadata.subscription_groups import SubscriptionGroup
from aerobee_broker.metadata.topics import READ
from aerobee_broker.metrics import Meters
from aerobee_broker.registry.clients import Clients, MessageModel
from aerobee_broker.registry.groups import GroupRegistry
from aerobee_broker.registry.topics import TopicRegistry
from aerobee_broker.store.message_store import MessageStore
from aerobee_broker.store.messages import ReadResult, ReadStatus
from aerobee_wire import topics as names
from aerobee_wire.status import Code, MqError

DEFAULT_MESSAGES = 32
DEFAULT_BYTES = 262_144
MAX_BYTES = 16 * 1024 * 1024
MAX_SUSPEND_MS = 30_000
MASTER_ID = 0


@dataclass(slots=True)
class Pull:
    """What to read. `wanted` None: what the group registered by heartbeat. `commit_offset` None:
    nothing to commit."""

    consumer_group: str
    topic: str
    queue_id: int
    queue_offset: int
    max_messages: int = 0
    max_bytes: int = 0
    commit_offset: int | None = None
    suspend_timeout_ms: int = 0
    wanted: Filter | None = None
    browse: bool = False
    client_id: str = ""


class MessageReader:
    def __init__(
        self,
        *,
        store: MessageStore,
        topics: TopicRegistry,
        groups: GroupRegistry,
        offsets: ConsumerOffsets,
        clients: Clients,
        polls: LongPolls,
        meters: Meters,
        options: BrokerOptions,
    ) -> None:
        self._store = store
        self._topics = topics
        self._groups = groups
        self._offsets = offsets
        self._clients = clients
        self._polls = polls
        self._meters = meters
        self._readable = bool(options.broker_permission & READ)
        self._most = options.pull_batch_max_message_count
        self._long_polling = options.long_polling_enable
        self._sql_filters = options.enable_property_filter

    async def pull(self, pull: Pull) -> tuple[ReadResult, int]:
        """What was read, and the broker id to ask next time."""
        if not self._readable:
            raise NoPermission("this broker gives no messages (brokerPermission): ask a replica")
        group = None if pull.browse else await self._group(pull.consumer_group)
        self._check_queue(pull)
        wanted = pull.wanted or (Filter("TAG", "*") if group is None else self._registered(pull))
        self._check_filter(wanted)
        if group is not None:
            self._check_broadcast(group)
            self._clients.pulls(pull.client_id, pull.consumer_group, pull.topic, pull.queue_id)
            moved = self._settle_offset(pull)
            if moved is not None:
                return moved, group.broker_id
        result = await self._read(pull, wanted)
        if result.message_count and group is not None:
            self._meters.delivered(
                pull.topic, pull.consumer_group, result.message_count, len(result.records)
            )
        return result, MASTER_ID if group is None else group.broker_id

    async def _read(self, pull: Pull, wanted: Filter) -> ReadResult:
        codes = wanted.tags_codes
        result = self._read_once(pull, wanted)
        suspend_ms = min(pull.suspend_timeout_ms, MAX_SUSPEND_MS)
        if result.status is ReadStatus.NO_NEW and suspend_ms > 0 and self._long_polling:
            await self._polls.wait(pull.topic, pull.queue_id, pull.queue_offset, codes, suspend_ms)
            # Also when the time is over: messages that match no tag may have moved the end.
            moved = None if pull.browse else self._moved(pull)
            return moved or self._read_once(pull, wanted)
        return result

    def _read_once(self, pull: Pull, wanted: Filter) -> ReadResult:
        result = self._store.read(
            pull.topic,
            pull.queue_id,
            pull.queue_offset,
            max_messages=min(pull.max_messages or DEFAULT_MESSAGES, self._most),
            max_bytes=min(pull.max_bytes or DEFAULT_BYTES, MAX_BYTES),
            tags=wanted.tags_codes,
        )
        if wanted.condition is None or names.is_retry(pull.topic):
            return result
        # A retry was let through the first time, and its properties may be others now.
        return _matching(wanted, result)

    # ---- checks ----

    def _check_filter(self, wanted: Filter) -> None:
        if wanted.condition is not None and not self._sql_filters:
            raise MqError(
                Code.SUBSCRIPTION_PARSE_FAILED,
                "this broker does not filter by SQL92 (enablePropertyFilter is off): use tags",
            )

    async def _group(self, consumer_group: str) -> SubscriptionGroup:
        group = self._groups.settled(consumer_group)
        if group is None:
            group = await self._groups.for_client(consumer_group)
        if not group.consume_enable:
            raise NoPermission(f"group {consumer_group} may not consume (consumeEnable is off)")
        return group

    def _check_queue(self, pull: Pull) -> None:
        config = self._topics.get(pull.topic)
        if not config.readable:
            raise NoPermission(
                f"topic {pull.topic} gives no messages (permission {config.permission}): "
                "give it read permission"
            )
        if not 0 <= pull.queue_id < config.read_queue_count:
            raise InvalidParameter(
                f"queue {pull.queue_id} of {pull.topic} is out of range: it has queues 0 to "
                f"{config.read_queue_count - 1} to read here"
            )
        if pull.queue_offset < 0 or pull.max_messages < 0 or pull.max_bytes < 0:
            raise InvalidParameter("queue_offset, max_messages and max_bytes are not negative")

    def _registered(self, pull: Pull) -> Filter:
        subscriptions = self._clients.subscriptions(pull.consumer_group)
        if subscriptions is None:
            raise SubscriptionNotExist(
                f"group {pull.consumer_group} has no live consumer here: "
                "send a heartbeat first, or give a subscription"
            )
        subscription = subscriptions.get(pull.topic)
        if subscription is None:
            raise SubscriptionNotExist(
                f"group {pull.consumer_group} has not subscribed to {pull.topic}: "
                "subscribe by heartbeat, or give a subscription"
            )
        return subscription.filter

    def _check_broadcast(self, group: SubscriptionGroup) -> None:
        if group.consume_broadcast_enable:
            return
        consumers = self._clients.consumers(group.consumer_group)
        if any(one.message_model is MessageModel.BROADCASTING for one in consumers):
            raise NoPermission(
                f"group {group.consumer_group} may not broadcast (consumeBroadcastEnable is off)"
            )

    # ---- the group's offset ----

    def _settle_offset(self, pull: Pull) -> ReadResult | None:
        """Commits what comes with the pull, unless the group was moved: then the answer says to
        where."""
        moved = self._moved(pull)
        if moved is None and pull.commit_offset is not None and pull.commit_offset >= 0:
            self._offsets.commit(pull.consumer_group, pull.topic, pull.queue_id, pull.commit_offset)
        return moved

    def _moved(self, pull: Pull) -> ReadResult | None:
        offset = self._offsets.take_reset(pull.consumer_group, pull.topic, pull.queue_id)
        if offset is None:
            return None
        return ReadResult(
            ReadStatus.OFFSET_TOO_LARGE,
            offset,
            self._store.min_offset(pull.topic, pull.queue_id),
            self._store.max_offset(pull.topic, pull.queue_id),
        )


def _matching(wanted: Filter, result: ReadResult) -> ReadResult:
    if result.status is not ReadStatus.FOUND:
        return result
    records = matching_records(wanted, result.records)
    return replace(
        result,
        status=ReadStatus.FOUND if records else ReadStatus.NO_MATCHED,
        records=b"".join(records),
        message_count=len(records),
    )
