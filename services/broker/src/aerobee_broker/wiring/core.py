"""Create and connect the shared parts: the log, the registries and the long polls."""

from __future__ import annotations

import structlog

from aerobee_broker.commit.commit import Commit, Replicas
from aerobee_broker.commit.durable_log import DurableLog
from aerobee_broker.commit.group_commit import GroupCommit
from aerobee_broker.commit.interval_commit import FlushTiming, IntervalCommit
from aerobee_broker.delivery.lite.lines import LiteLines, Parents
from aerobee_broker.delivery.metadata_journal import MetadataJournal
from aerobee_broker.delivery.pull.long_polls import Arrivals, LongPolls
from aerobee_broker.delivery.topic_retention import TopicRetention
from aerobee_broker.registry.broker_permission import BrokerPermission
from aerobee_broker.registry.clients import Clients
from aerobee_broker.registry.consumers import Differences
from aerobee_broker.registry.groups import GroupRegistry
from aerobee_broker.registry.handovers import Handovers
from aerobee_broker.registry.queue_locks import QueueLocks
from aerobee_broker.registry.reply_streams import ReplyStreams
from aerobee_broker.registry.topics import Announce, Spread, TopicRegistry
from aerobee_broker.store.format import LITE_TOPICS
from aerobee_broker.store.message_store import MessageStore
from aerobee_broker.wiring.environment import Environment
from aerobee_broker.wiring.tables import Tables


class Core:
    """The objects that the other parts of the wiring share.

    Only the wiring uses this class. Each object receives only the objects that it needs.
    """

    def __init__(
        self,
        environment: Environment,
        store: MessageStore,
        tables: Tables,
        *,
        announce: Announce,
        spread: Spread,
        replicas: Replicas,
    ) -> None:
        options = environment.options
        self.environment = environment
        self.store = store
        self.tables = tables
        self.replicas = replicas
        self.permission = BrokerPermission(options.broker_permission, tables.drain)
        self.polls = LongPolls(is_repairing=lambda: store.damage.is_pending)
        self.arrivals = Arrivals(self.polls)
        self.commit = self._make_commit(replicas)
        self.log = DurableLog(store, self.commit)
        # None for a broker without replicas.
        self.journal = self._make_journal()
        folder, require = environment.path / "lite", environment.format.require
        self.lines = LiteLines(store, environment.disk, folder, require)
        self.parents = Parents(self.lines, self._on_new_parent)
        self.topics = TopicRegistry(
            tables.topics,
            tables.saved_topics,
            options,
            announce=announce,
            spread=spread,
            now_ms=environment.clock.now_ms,
            on_parent=self.parents,
        )
        self.topic_retention = TopicRetention(store, tables.topics, tables.offsets)
        self.groups = GroupRegistry(tables.groups, tables.saved_groups, self.topics, options)
        self.clients = Clients(
            environment.clock.real,
            timeout_ms=options.channel_expired_timeout,
            notifies=self._notifies,
            on_conflict=self._on_conflict,
        )
        self.locks = QueueLocks(self.clients, self.topics, environment.clock.real)
        self.handovers = Handovers(self.clients)
        self.replies = ReplyStreams(environment.clock.real, options.max_message_size)

    def restore_registries(self) -> None:
        """Add system topics, predefined groups and topics of the store to the loaded tables.

        Then expire messages, because components that start next read the store.
        """
        self.topics.create_system_topics(journalled=self.journal is not None)
        self.groups.create_predefined()
        stored = [(topic, self.store.queues(topic)) for topic in self.store.topics()]
        adopted = self.topics.adopt(stored)
        if adopted:
            structlog.get_logger().warning(
                "topics_adopted", topics=adopted, reason="in the commit log and not in topics.json"
            )
        self.topic_retention.restore(self.environment.clock.now_ms())

    def _on_new_parent(self, parent: str) -> None:
        """Prepare for the first message of a parent topic, before the message is sent.

        After that the replicas derive the message in the same way as this broker. Raises the errors
        of the store.
        """
        self.environment.format.require({LITE_TOPICS})
        if self.journal is not None:
            self.journal.create_parent(parent)

    def _make_journal(self) -> MetadataJournal | None:
        if self.tables.journalled is None:
            return None
        return MetadataJournal(self.log, self.tables.journalled, self.environment.clock)

    def _make_commit(self, replicas: Replicas) -> Commit:
        options, flusher = self.environment.options, self.environment.flusher
        timeout_ms = options.slave_timeout if options.is_synchronous else options.sync_flush_timeout
        if options.flush_disk_type == "SYNC_FLUSH":
            return GroupCommit(self.store, flusher, self.arrivals, timeout_ms, replicas=replicas)
        return IntervalCommit(
            self.store,
            flusher,
            self.arrivals,
            timeout_ms,
            is_awaited=self.arrivals.awaited,
            timing=FlushTiming(
                options.flush_interval_commit_log,
                options.flush_commit_log_least_pages,
                options.flush_commit_log_thorough_interval,
            ),
            replicas=replicas,
        )

    def _notifies(self, consumer_group: str) -> bool:
        """Return whether the members of a group are notified that the group changed."""
        group = self.groups.table.get(consumer_group)
        return self.environment.options.notify_consumer_ids_changed_enable and (
            group is None or group.notify_consumer_ids_changed_enable
        )

    def _on_conflict(self, consumer_group: str, found: Differences) -> None:
        self.environment.metrics.subscriptions_differ(consumer_group)
        for topic, subscriptions in found.subscriptions.items():
            structlog.get_logger().warning(
                "members_subscribe_differently",
                group=consumer_group,
                topic=topic,
                wanted=subscriptions,
            )
        for setting, values in found.settings.items():
            structlog.get_logger().warning(
                "members_differ", group=consumer_group, setting=setting, found=values
            )
