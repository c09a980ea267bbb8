"""What a broker is made of, and what each part needs of the others. Starts nothing."""

from __future__ import annotations

import os
import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import structlog
from aerobee.broker.v1 import (
    admin_pb2,
    client_pb2,
    message_pb2,
    offset_pb2,
    pop_pb2,
    transaction_pb2,
)

from aerobee_broker.commit.commit import Commit, OnArrivals
from aerobee_broker.commit.durable_log import DurableLog
from aerobee_broker.commit.group_commit import GroupCommit
from aerobee_broker.commit.interval_commit import IntervalCommit
from aerobee_broker.commit.worker_thread import Worker
from aerobee_broker.config import BrokerOptions
from aerobee_broker.delivery.admin import Administration
from aerobee_broker.delivery.delay.level_delivery import LevelDelivery
from aerobee_broker.delivery.delay.level_progress import LevelProgress
from aerobee_broker.delivery.delay.levels import DelayQueues, deliver_time
from aerobee_broker.delivery.delay.redelivery import Redelivery
from aerobee_broker.delivery.delay.router import DelayRouter
from aerobee_broker.delivery.delay.timer_delivery import TimerDelivery
from aerobee_broker.delivery.delay.timer_format import TimerQueue, unit_code
from aerobee_broker.delivery.delay.timer_recall import TimerRecall
from aerobee_broker.delivery.delay.timer_table import TimerTable
from aerobee_broker.delivery.pop.acks import Acknowledgements
from aerobee_broker.delivery.pop.dead_letters import DeadLetters
from aerobee_broker.delivery.pop.expiry import LeaseDeadlines, LeaseExpiry
from aerobee_broker.delivery.pop.invisible_duration import InvisibleDurations
from aerobee_broker.delivery.pop.journal import LeaseJournal
from aerobee_broker.delivery.pop.journal_format import QUEUE_ID
from aerobee_broker.delivery.pop.lease_table import LeaseTable
from aerobee_broker.delivery.pop.leases import Leases
from aerobee_broker.delivery.pop.pop import Pop
from aerobee_broker.delivery.pop.selector import MessageSelector
from aerobee_broker.delivery.pull.access import ReadAccess
from aerobee_broker.delivery.pull.long_polls import LongPolls
from aerobee_broker.delivery.pull.offsets import OffsetQueries
from aerobee_broker.delivery.pull.pull import Pull
from aerobee_broker.delivery.retry.router import RetryRouter
from aerobee_broker.delivery.retry.send_back import SendBack
from aerobee_broker.delivery.send.batch import BatchSender
from aerobee_broker.delivery.send.broker_properties import BrokerProperties
from aerobee_broker.delivery.send.checks import Admission
from aerobee_broker.delivery.send.send import Sender
from aerobee_broker.delivery.transaction.check_schedule import CheckSchedule
from aerobee_broker.delivery.transaction.checks import TransactionChecks
from aerobee_broker.delivery.transaction.open_transactions import OpenTransactions
from aerobee_broker.delivery.transaction.transactions import Transactions
from aerobee_broker.delivery.transaction.upkeep import TransactionUpkeep
from aerobee_broker.disk import Disk
from aerobee_broker.identity import Identity
from aerobee_broker.metadata.consumer_offsets import ConsumerOffsets
from aerobee_broker.metadata.delay_offsets import DelayOffsets
from aerobee_broker.metadata.json_file import JsonFile
from aerobee_broker.metadata.persistent_table import PersistentTable
from aerobee_broker.metadata.subscription_groups import SubscriptionGroups
from aerobee_broker.metadata.table import Table
from aerobee_broker.metadata.topics import Topics
from aerobee_broker.metrics import Meters
from aerobee_broker.registry.clients import Clients, Differences
from aerobee_broker.registry.groups import GroupRegistry
from aerobee_broker.registry.topics import Announce, Spread, TopicRegistry
from aerobee_broker.rpc.admin import AdminRpcs
from aerobee_broker.rpc.clients import ClientRpcs
from aerobee_broker.rpc.messages import MessageRpcs
from aerobee_broker.rpc.offsets import OffsetRpcs
from aerobee_broker.rpc.pop import PopRpcs
from aerobee_broker.rpc.transactions import TransactionRpcs
from aerobee_broker.store.derived.consume_queue import TagsCode
from aerobee_broker.store.message_store import MessageStore
from aerobee_broker.store.messages import Arrival
from aerobee_broker.store.options import HOUR_MS, StoreOptions
from aerobee_chassis.clock import Clock
from aerobee_chassis.lifecycle import Component, Step
from aerobee_chassis.rpc.services import Service, bind
from aerobee_wire import properties as props
from aerobee_wire import topics as names
from aerobee_wire.message_id import UniqueIds

_WARNINGS = frozenset(
    {"allocation_failed", "directory_left", "disk_full", "file_unreadable", "flush_put_off"}
)
_ERRORS = frozenset({"corrupt_record", "store_read_only"})


def store_options(options: BrokerOptions) -> StoreOptions:
    return StoreOptions(
        commit_log_file_size=options.mapped_file_size_commit_log,
        consume_queue_file_size=options.mapped_file_size_consume_queue,
        max_message_size=options.max_message_size,
        whole_crc=options.enabled_append_prop_crc,
        check_crc_on_recover=options.check_crc_on_recover,
        index_enabled=options.message_index_enable,
        index_slot_count=options.max_hash_slot_num,
        index_entry_count=options.max_index_num,
        file_reserved_time_ms=options.file_reserved_time * HOUR_MS,
        delete_when=tuple(int(hour) for hour in options.delete_when.split(";")),
        retain_bytes=options.retain_bytes,
        delete_file_batch_max=options.delete_file_batch_max,
        clean_interval_ms=options.clean_resource_interval,
        disk_max_used_ratio=options.disk_max_used_space_ratio,
        disk_clean_forcibly_ratio=options.disk_space_clean_forcibly_ratio,
        disk_warning_ratio=options.disk_space_warning_level_ratio,
        disk_stop_ratio=options.disk_space_stop_ratio,
        clean_file_forcibly=options.clean_file_forcibly_enable,
        disk_min_free_bytes=options.disk_min_free_bytes,
    )


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a broker gets from outside: the machine, or a test."""

    options: BrokerOptions
    clock: Clock
    disk: Disk
    path: Path  # of the store
    flusher: Worker
    writer: Worker
    rng: random.Random


def open_store(around: Surroundings, meters: Meters, store_host: str) -> MessageStore:
    """Blocks, long after a crash. Raises StoreOpenError."""

    def heard(event: str, fields: Mapping[str, object]) -> None:
        log = structlog.get_logger()
        if event == "corrupt_record":
            meters.corrupted()
        say = log.error if event in _ERRORS else log.warning if event in _WARNINGS else log.info
        say(event, **fields)

    return MessageStore.open(
        around.path,
        store_options(around.options),
        clock=around.clock,
        disk=around.disk,
        store_host=store_host,
        tags_code_of=tags_codes(around.options),
        on_event=heard,
    )


def tags_codes(options: BrokerOptions) -> dict[str, TagsCode]:
    """Topics whose consume-queue units carry something else than the hash of the tags."""
    return {
        names.SCHEDULE_TOPIC: partial(deliver_time, options.delay_levels_ms),
        names.TIMER_TOPIC: unit_code,
    }


def unique_ids(store_host: str, rng: random.Random) -> UniqueIds:
    ip = store_host.rpartition(":")[0].strip("[]")
    return UniqueIds(ip, os.getpid(), rng.getrandbits(32))


def added_properties(options: BrokerOptions) -> dict[str, str]:
    """What every message gets, but for those of a batch."""
    return {
        props.MESSAGE_REGION: options.region_id,
        props.TRACE_ON: "true" if options.trace_on else "false",
        props.CLUSTER: options.broker_cluster_name,
    }


def _tell_of_conflict(meters: Meters, group: str, found: Differences) -> None:
    meters.subscriptions_differ(group)
    for topic, wanted in found.items():
        structlog.get_logger().warning(
            "members_subscribe_differently", group=group, topic=topic, wanted=wanted
        )


class Tables(Component):
    """The tables and their files under `config/`."""

    def __init__(self, around: Surroundings) -> None:
        self._around = around
        self.topics = Topics(around.clock)
        self.groups = SubscriptionGroups(around.clock)
        self.offsets = ConsumerOffsets(around.clock)
        self.delay_offsets = DelayOffsets(around.clock)
        self.saved_topics = self.file_of(self.topics, "topics.json")
        self.saved_groups = self.file_of(self.groups, "subscriptionGroup.json")
        self.saved_offsets = self.file_of(self.offsets, "consumerOffset.json")
        self.saved_delay_offsets = self.file_of(self.delay_offsets, "delayOffset.json")
        self.all_saved = (
            self.saved_topics,
            self.saved_groups,
            self.saved_offsets,
            self.saved_delay_offsets,
        )

    def restore(self) -> None:
        """Raises ConfigFileDamaged."""
        for saved in self.all_saved:
            saved.load()

    async def start(self) -> None:
        """Saves what the other components restored. A full disk does not stop the start: retention
        may make room."""
        await self.save()

    async def stop(self) -> None:
        await self.save()

    async def save(self) -> None:
        for saved in self.all_saved:
            await saved.try_save()

    def file_of(
        self, table: Table, name: str, logged: Callable[[], Awaitable[None]] | None = None
    ) -> PersistentTable:
        file = JsonFile(self._around.disk, self._around.path / "config" / name)
        return PersistentTable(table, file, self._around.writer, logged)


class Broker:
    """The parts, wired. `store_host`: "ip:port". `announce` tells the name servers of topics,
    `spread` the other brokers."""

    def __init__(
        self,
        around: Surroundings,
        store: MessageStore,
        tables: Tables,
        meters: Meters,
        *,
        identity: Identity,
        store_host: str,
        announce: Announce,
        spread: Spread,
    ) -> None:
        options, clock = around.options, around.clock
        self._around = around
        self._store_host = store_host
        self._identity = identity
        self._tables = tables
        self.store = store
        self.polls = LongPolls()
        self.commit = self._make_commit(self._arrived)
        self.log = DurableLog(store, self.commit)
        self.topics = TopicRegistry(
            tables.topics, tables.saved_topics, options, announce=announce, spread=spread
        )
        self.groups = GroupRegistry(tables.groups, tables.saved_groups, self.topics, options)
        self.clients = Clients(
            clock,
            timeout_ms=options.channel_expired_timeout,
            notifies=self._notifies,
            on_conflict=lambda group, found: _tell_of_conflict(meters, group, found),
        )
        self._wire_delays(tables, meters)
        self._wire_transactions(tables, meters)
        self._wire_sending(meters)
        self.send_back = SendBack(
            log=self.log,
            topics=self.topics,
            groups=self.groups,
            delays=self.delays,
            meters=meters,
            broker_permission=options.broker_permission,
            rng=around.rng,
        )
        self._wire_reading(tables, meters)
        self.administration = Administration(
            store=store,
            topics=self.topics,
            groups=self.groups,
            offsets=tables.offsets,
            saved_offsets=tables.saved_offsets,
            clients=self.clients,
            polls=self.polls,
            offset_queries=self.offset_queries,
            levels=self.level_delivery,
            transactions=self.transactions,
            timers=self.timer_delivery,
            meters=meters,
            identity=identity,
            disk=around.disk,
            store_path=around.path,
            leases=self.leases,
        )

    def _wire_delays(self, tables: Tables, meters: Meters) -> None:
        options, store, clock = self._around.options, self.store, self._around.clock
        progress = LevelProgress(store, tables.delay_offsets)
        self.delays = DelayQueues(options.delay_levels_ms, progress.is_empty)
        redelivery = Redelivery(store, self.topics)
        self.level_delivery = LevelDelivery(
            log=self.log,
            queues=self.delays,
            progress=progress,
            redelivery=redelivery,
            meters=meters,
            clock=clock,
        )
        waiting = TimerTable()
        timer_queue = TimerQueue(
            waiting,
            max_delay_ms=options.timer_max_delay_sec * 1_000,
            max_messages=options.timer_max_messages,
        )
        self.timer_delivery = TimerDelivery(
            log=self.log,
            queue=timer_queue,
            table=waiting,
            redelivery=redelivery,
            meters=meters,
            clock=clock,
        )
        self.timer_recall = TimerRecall(self.log, waiting, self.timer_delivery, clock)
        store.cleaning.protect(progress.needed_from)
        store.cleaning.protect(self.timer_delivery.needed_from)
        self.router = DelayRouter(self.delays, timer_queue, clock)

    def _wire_transactions(self, tables: Tables, meters: Meters) -> None:
        options, clock = self._around.options, self._around.clock
        schedule = CheckSchedule(clock, timeout_ms=options.transaction_time_out)
        table = OpenTransactions()
        self.transactions = Transactions(
            log=self.log,
            table=table,
            schedule=schedule,
            topics=self.topics,
            router=self.router,
            meters=meters,
            clock=clock,
        )
        self.transaction_upkeep = TransactionUpkeep(
            self.transactions, log=self.log, table=table, offsets=tables.offsets, clock=clock
        )
        self.store.cleaning.protect(self.transaction_upkeep.needed_from)
        self.checks = TransactionChecks(
            self.transactions,
            schedule,
            self.clients,
            clock,
            interval_ms=options.transaction_check_interval,
            max_checks=options.transaction_check_max,
            reserved_ms=options.file_reserved_time * HOUR_MS,
        )

    def _wire_reading(self, tables: Tables, meters: Meters) -> None:
        access = ReadAccess(self.topics, self.groups, self._around.options)
        self.pull = Pull(
            store=self.store,
            access=access,
            offsets=tables.offsets,
            clients=self.clients,
            polls=self.polls,
            meters=meters,
            options=self._around.options,
        )
        self._wire_pop(tables, meters, access)
        self.offset_queries = OffsetQueries(
            store=self.store,
            topics=self.topics,
            groups=self.groups,
            offsets=tables.offsets,
            saved_offsets=tables.saved_offsets,
            clients=self.clients,
            polls=self.polls,
            on_reset=self.leases.reset,
        )

    def _wire_pop(self, tables: Tables, meters: Meters, access: ReadAccess) -> None:
        options, store, clock = self._around.options, self.store, self._around.clock
        topic = names.pop_journal_topic(options.broker_cluster_name)
        table = self.lease_table = LeaseTable(clock, lambda: store.max_offset(topic, QUEUE_ID))
        journal = self.lease_journal = LeaseJournal(
            log=self.log,
            table=table,
            snapshot=tables.file_of(table, "popLeases.json", logged=self.log.flushed),
            clock=clock,
            topic=topic,
        )
        deadlines = self.lease_deadlines = LeaseDeadlines(clock)
        self.leases = Leases(
            store=store,
            table=table,
            journal=journal,
            deadlines=deadlines,
            polls=self.polls,
            offsets=tables.offsets,
            clock=clock,
        )
        self.acks = Acknowledgements(
            table=table,
            journal=journal,
            deadlines=deadlines,
            polls=self.polls,
            offsets=tables.offsets,
            clock=clock,
        )
        self.invisible_durations = InvisibleDurations(
            table=table,
            journal=journal,
            deadlines=deadlines,
            groups=self.groups,
            clock=clock,
            levels_ms=options.delay_levels_ms,
        )
        self.dead_letters = DeadLetters(
            store=store,
            table=table,
            acks=self.acks,
            topics=self.topics,
            groups=self.groups,
            meters=meters,
        )
        self.lease_expiry = LeaseExpiry(
            deadlines=deadlines,
            table=table,
            groups=self.groups,
            polls=self.polls,
            clock=clock,
            attempts_used_up=self.dead_letters.attempts_used_up,
        )
        self.pop = Pop(
            selector=MessageSelector(
                store=store, table=table, offsets=tables.offsets, journal=journal, clock=clock
            ),
            journal=journal,
            deadlines=deadlines,
            durations=self.invisible_durations,
            polls=self.polls,
            access=access,
            meters=meters,
            long_polling=options.long_polling_enable,
        )

    def _wire_sending(self, meters: Meters) -> None:
        options, clock, rng = self._around.options, self._around.clock, self._around.rng
        admission = Admission(self.topics, options, rng)
        ids = unique_ids(self._store_host, rng)
        properties = BrokerProperties(added_properties(options), ids, clock)
        self.sender = Sender(
            log=self.log,
            admission=admission,
            properties=properties,
            delays=self.router,
            retries=RetryRouter(self.topics, self.groups, meters),
            transactions=self.transactions,
            meters=meters,
            clock=clock,
        )
        self.batch_sender = BatchSender(
            log=self.log,
            admission=admission,
            properties=properties,
            delays=self.router,
            meters=meters,
            clock=clock,
        )

    def components(self) -> tuple[Component, ...]:
        """In the order of their start. Stopped in reverse: delivery ends, then everything is
        flushed, then the tables are saved."""
        return (
            Step(start=self.store.enable_read_retries),
            self._tables,
            Step(restore=self._restore_registries),
            self.transaction_upkeep,
            self.lease_journal,
            Step(stop=self.commit.drain),
            self.level_delivery,
            self.timer_delivery,
            self.leases,
            self.lease_expiry,
        )

    def end_long_calls(self) -> None:
        """Long polls and streams, which would use up the grace of a stop."""
        self.clients.close()
        self.polls.close()

    def _restore_registries(self) -> None:
        """What the tables must hold besides their files."""
        self.topics.create_system_topics()
        self.groups.create_predefined()
        stored = [(topic, self.store.queues(topic)) for topic in self.store.topics()]
        adopted = self.topics.adopt(stored)
        if adopted:
            structlog.get_logger().warning(
                "topics_adopted", topics=adopted, reason="in the commit log and not in topics.json"
            )

    def services(self) -> list[Service]:
        """The gRPC services over these parts."""
        messages = MessageRpcs(
            sender=self.sender,
            batch_sender=self.batch_sender,
            pull=self.pull,
            send_back=self.send_back,
            store=self.store,
            timer_recall=self.timer_recall,
            broker_name=self._identity.broker_name,
            store_host=self._store_host,
        )
        admin = AdminRpcs(self.administration, self.topics, self.groups)
        return [
            bind(message_pb2.DESCRIPTOR.services_by_name["MessageService"], messages),
            bind(
                offset_pb2.DESCRIPTOR.services_by_name["OffsetService"],
                OffsetRpcs(self.offset_queries),
            ),
            bind(
                client_pb2.DESCRIPTOR.services_by_name["ClientService"],
                ClientRpcs(self.clients, self.groups, self.checks),
            ),
            bind(
                transaction_pb2.DESCRIPTOR.services_by_name["TransactionService"],
                TransactionRpcs(self.transactions),
            ),
            bind(
                pop_pb2.DESCRIPTOR.services_by_name["PopService"],
                PopRpcs(
                    self.pop,
                    self.acks,
                    self.invisible_durations,
                    self.dead_letters,
                    broker_name=self._identity.broker_name,
                ),
            ),
            bind(admin_pb2.DESCRIPTOR.services_by_name["AdminService"], admin),
        ]

    def _make_commit(self, on_arrivals: OnArrivals) -> Commit:
        options, flusher = self._around.options, self._around.flusher
        if options.flush_disk_type == "SYNC_FLUSH":
            return GroupCommit(self.store, flusher, on_arrivals, options.sync_flush_timeout)
        return IntervalCommit(
            self.store,
            flusher,
            on_arrivals,
            options.sync_flush_timeout,
            is_awaited=self._somebody_waits,
            interval_ms=options.flush_interval_commit_log,
            least_pages=options.flush_commit_log_least_pages,
            thorough_interval_ms=options.flush_commit_log_thorough_interval,
        )

    def _somebody_waits(self) -> bool:
        """For messages to become visible: a consumer, or the delivery of delayed messages."""
        return self.polls.count > 0 or self.router.unconfirmed

    def _arrived(self, arrivals: list[Arrival]) -> None:
        self.polls.arrived(arrivals)
        for arrival in arrivals:
            if arrival.topic == names.SCHEDULE_TOPIC:
                self.level_delivery.arrived(arrival)
            elif arrival.topic == names.TIMER_TOPIC:
                self.timer_delivery.arrived()

    def _notifies(self, consumer_group: str) -> bool:
        group = self.groups.table.get(consumer_group)
        return self._around.options.notify_consumer_ids_changed_enable and (
            group is None or group.notify_consumer_ids_changed_enable
        )
