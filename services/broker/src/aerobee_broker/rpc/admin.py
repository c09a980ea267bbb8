"""Implement AdminService: topics, consumer groups, and the status of the running broker.

Codes: INVALID_PARAMETER, NO_PERMISSION (a system topic or group), TOPIC_NOT_EXIST,
SUBSCRIPTION_GROUP_NOT_EXIST, SYSTEM_ERROR (a table could not be saved).

Difference from Apache's server: PutTopic is answered only after the topic is durable and registered
at the name servers. The answer lists the unreachable name servers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from aerobee.broker.v1 import admin_pb2 as pb
from aerobee.broker.v1 import offset_pb2

from aerobee_broker.cluster.identity import Identity
from aerobee_broker.cluster.registration import to_message
from aerobee_broker.config import BrokerOptions
from aerobee_broker.delivery.admin import Administration
from aerobee_broker.delivery.draining import Draining
from aerobee_broker.delivery.gauges import Backlog
from aerobee_broker.delivery.statistics.listing import Listing, Page
from aerobee_broker.delivery.statistics.sampler import Kind
from aerobee_broker.disk import Disk
from aerobee_broker.errors import InvalidParameter
from aerobee_broker.metrics import BrokerMetrics, memory_limit, resident_memory
from aerobee_broker.registry.broker_permission import Drain
from aerobee_broker.registry.groups import GroupRegistry
from aerobee_broker.registry.queue_locks import QueueLocks
from aerobee_broker.registry.topics import TopicRegistry
from aerobee_broker.rpc import convert
from aerobee_broker.store.message_store import MessageStore
from aerobee_broker.store.options import HOUR_MS
from aerobee_chassis.clock import Clock
from aerobee_chassis.rpc.call import Call
from aerobee_wire.access.policies import GROUP, TOPIC
from aerobee_wire.status import Code, MqError


@dataclass(slots=True, kw_only=True)
class StatusReport:
    """Report the status and the counters of the broker. Counters start with the process."""

    identity: Identity
    store: MessageStore
    metrics: BrokerMetrics
    backlog: Backlog
    drain: Drain
    disk: Disk
    store_path: Path
    options: BrokerOptions
    clock: Clock

    def use(self, options: BrokerOptions) -> None:
        """Report these options."""
        self.options = options

    def status(self, physical_offsets: Sequence[int] = ()) -> pb.GetBrokerStatusResponse:
        """Return the status, with the expiry times of the records at `physical_offsets`."""
        usage = self.disk.usage(self.store_path)
        identity, metrics, store = self.identity, self.metrics, self.store
        options, now_ms = self.options, self.clock.now_ms()
        expiries = store.expiries(physical_offsets, now_ms)
        return pb.GetBrokerStatusResponse(
            cluster=identity.cluster,
            broker_name=identity.broker_name,
            broker_id=identity.broker_id,
            broker_address=identity.address,
            version=identity.version,
            start_timestamp_ms=identity.start_timestamp_ms,
            min_physical_offset=store.min_physical_offset,
            max_physical_offset=store.end_offset,
            flushed_physical_offset=store.flushed_offset,
            read_only_reason=store.flush.read_only_reason,
            messages_in_total=metrics.messages_in,
            messages_out_total=metrics.messages_out,
            dead_letters_total=metrics.dead_letters,
            corrupted_records_total=metrics.corrupted_records,
            store_path=str(self.store_path),
            disk_free_bytes=usage.free,
            disk_total_bytes=usage.used + usage.free,
            parked_pulls=self.backlog.polls.parked_pulls,
            parked_pops=self.backlog.polls.parked_pops,
            delayed_messages=self.backlog.delayed(),
            resident_memory_bytes=resident_memory(),
            draining_since_ms=self.drain.since_ms,
            now_timestamp_ms=now_ms,
            disk_max_used_percent=options.disk_max_used_space_ratio,
            disk_full_percent=options.disk_space_warning_level_ratio,
            disk_min_free_bytes=options.disk_min_free_bytes,
            memory_limit_bytes=memory_limit(),
            file_reserved_time_ms=options.file_reserved_time * HOUR_MS,
            delete_when=options.delete_hours,
            commit_log_file_bytes=options.mapped_file_size_commit_log,
            expiry_timestamps_ms=expiries,
            damaged_ranges=len(store.damage.ranges),
            damaged_bytes=store.damage.damaged_bytes,
        )


# Limit of one GetBrokerStatus: the expiry of each offset costs a read of one or two records.
MOST_OFFSETS = 4096
MOST_SUBJECTS = 1_000  # topics and groups of one GetStats or WatchStats


@dataclass(frozen=True, slots=True)
class AdminRpcs:
    administration: Administration
    draining: Draining
    report: StatusReport
    topics: TopicRegistry
    groups: GroupRegistry
    listing: Listing
    locks: QueueLocks

    # ---- topics ----

    async def put_topic(self, request: pb.PutTopicRequest, call: Call) -> pb.PutTopicResponse:
        put = await self.topics.put(convert.topic(request.topic), only_new=request.only_new)
        now = self.topics.table.get(request.topic.topic)  # it may have been deleted meanwhile
        return pb.PutTopicResponse(
            created=put.created,
            unreachable_namesrvs=put.unreachable_namesrvs,
            topic=to_message(now) if now else None,
        )

    async def update_topic(
        self, request: pb.UpdateTopicRequest, call: Call
    ) -> pb.UpdateTopicResponse:
        update = await self.administration.update_topic(
            convert.topic(request.topic),
            request.fields,
            dry_run=request.dry_run,
            force=request.force,
            allow_missing=request.allow_missing,
        )
        return pb.UpdateTopicResponse(
            before=to_message(update.before) if update.before else None,
            after=to_message(update.after),
            unreadable=[
                pb.UpdateTopicResponse.UnreadableQueue(queue_id=queue_id, messages=messages)
                for queue_id, messages in update.unreadable.items()
            ],
            unreachable_namesrvs=update.unreachable_namesrvs,
        )

    async def specify_message_type(
        self, request: pb.SpecifyMessageTypeRequest, call: Call
    ) -> pb.SpecifyMessageTypeResponse:
        message_type = await self.topics.specify_type(request.topic, request.message_type)
        return pb.SpecifyMessageTypeResponse(message_type=message_type)

    async def delete_topic(
        self, request: pb.DeleteTopicRequest, call: Call
    ) -> pb.DeleteTopicResponse:
        deleted = await self.administration.delete_topic(request.topic)
        return pb.DeleteTopicResponse(deleted=deleted)

    async def get_topic(self, request: pb.GetTopicRequest, call: Call) -> pb.GetTopicResponse:
        return pb.GetTopicResponse(topic=to_message(self.topics.get(request.topic)))

    async def list_topics(self, request: pb.ListTopicsRequest, call: Call) -> pb.ListTopicsResponse:
        found = await self.listing.topics(
            _page(request, convert.topic_order(request.order)),
            name_part=request.name_part,
            message_types=request.message_types,
            include_system=request.include_system,
            exclude_derived=request.exclude_derived,
            visible=partial(call.caller.sees, TOPIC),
        )
        return pb.ListTopicsResponse(
            topics=map(to_message, found.configs),
            statistics=map(convert.topic_statistics, found.statistics),
            total=len(found.names),
            names=found.names if request.with_names else (),
        )

    async def describe_topic(
        self, request: pb.DescribeTopicRequest, call: Call
    ) -> pb.DescribeTopicResponse:
        found = self.listing.describe_topic(request.topic)
        return pb.DescribeTopicResponse(
            topic=to_message(found.config),
            statistics=convert.topic_statistics(found.statistics),
            queues=[offset_pb2.QueueBounds(**asdict(queue)) for queue in found.queues],
            groups=[pb.DescribeTopicResponse.Group(**asdict(group)) for group in found.groups],
            producers=found.producers,
        )

    # ---- groups ----

    async def put_group(self, request: pb.PutGroupRequest, call: Call) -> pb.PutGroupResponse:
        group = convert.group(request.group)
        created = await self.groups.put(group, only_new=request.only_new)
        now = self.groups.table.get(group.consumer_group)  # it may have been deleted meanwhile
        return pb.PutGroupResponse(created=created, group=convert.to_group(now) if now else None)

    async def update_group(
        self, request: pb.UpdateGroupRequest, call: Call
    ) -> pb.UpdateGroupResponse:
        before, after = await self.groups.update(
            convert.group(request.group),
            convert.group_settings(request.fields),
            dry_run=request.dry_run,
            allow_missing=request.allow_missing,
        )
        return pb.UpdateGroupResponse(
            before=convert.to_group(before) if before else None, after=convert.to_group(after)
        )

    async def delete_group(
        self, request: pb.DeleteGroupRequest, call: Call
    ) -> pb.DeleteGroupResponse:
        deleted = await self.administration.delete_group(
            request.consumer_group, remove_offsets=request.remove_offsets
        )
        return pb.DeleteGroupResponse(deleted=deleted)

    async def get_group(self, request: pb.GetGroupRequest, call: Call) -> pb.GetGroupResponse:
        return pb.GetGroupResponse(group=convert.to_group(self.groups.get(request.consumer_group)))

    async def list_groups(self, request: pb.ListGroupsRequest, call: Call) -> pb.ListGroupsResponse:
        found = await self.listing.groups(
            _page(request, convert.group_order(request.order)),
            name_part=request.name_part,
            consume_types=convert.consume_types(request.consume_types),
            include_system=request.include_system,
            visible=partial(call.caller.sees, GROUP),
        )
        return pb.ListGroupsResponse(
            groups=map(convert.to_group, found.configs),
            statistics=map(convert.group_statistics, found.statistics),
            total=len(found.names),
            names=found.names if request.with_names else (),
        )

    async def describe_group(
        self, request: pb.DescribeGroupRequest, call: Call
    ) -> pb.DescribeGroupResponse:
        found = await self.listing.describe_group(request.consumer_group)
        clients = self.listing.queries.clients
        return pb.DescribeGroupResponse(
            group=convert.to_group(found.group),
            statistics=convert.group_statistics(found.statistics),
            queues=[
                pb.DescribeGroupResponse.Queue(
                    progress=offset_pb2.QueueConsumeStats(**asdict(queue.progress)),
                    oldest_timestamp_ms=queue.oldest_timestamp_ms,
                )
                for queue in found.queues
            ],
            members=[convert.client_info(each, clients, self.locks) for each in found.members],
            blocked_message_groups=found.leases.blocked_groups,
            leased=found.leases.leased,
            waiting=found.leases.waiting,
        )

    # ---- the broker ----

    async def get_broker_status(
        self, request: pb.GetBrokerStatusRequest, call: Call
    ) -> pb.GetBrokerStatusResponse:
        if len(request.physical_offsets) > MOST_OFFSETS:
            raise MqError(
                Code.INVALID_PARAMETER,
                f"{len(request.physical_offsets)} physical offsets are asked for: at most "
                f"{MOST_OFFSETS} at once",
            )
        return self.report.status(request.physical_offsets)

    async def get_stats(self, request: pb.GetStatsRequest, call: Call) -> pb.GetStatsResponse:
        ring = convert.ring(request.period)
        topics, groups = self._existing(request)
        sampler = self.listing.sampler
        end_ms = sampler.end_timestamp_ms
        period_ms = ring.seconds * 1_000
        return pb.GetStatsResponse(
            end_timestamp_ms=None if end_ms is None else end_ms // period_ms * period_ms,
            period_ms=period_ms,
            broker=convert.history(sampler, Kind.BROKER, "", ring),
            topics=[convert.history(sampler, Kind.TOPIC, topic, ring) for topic in topics],
            groups=[convert.history(sampler, Kind.GROUP, group, ring) for group in groups],
            omitted=sampler.omitted,
        )

    async def watch_stats(self, request: pb.WatchStatsRequest, call: Call) -> None:
        self._existing(request)
        for count in (request.busiest_topics, request.busiest_groups):
            _check_count(count)
        sampler = self.listing.sampler
        while await sampler.next_sample():
            topics, groups = self._existing(request)
            topics += sampler.busiest(Kind.TOPIC, request.busiest_topics)
            groups += sampler.busiest(Kind.GROUP, request.busiest_groups)
            await call.write(
                pb.WatchStatsResponse(
                    end_timestamp_ms=sampler.end_timestamp_ms,
                    broker=convert.latest(sampler, Kind.BROKER, ""),
                    topics=[
                        convert.latest(sampler, Kind.TOPIC, topic) for topic in sorted({*topics})
                    ],
                    groups=[
                        convert.latest(sampler, Kind.GROUP, group) for group in sorted({*groups})
                    ],
                    omitted=sampler.omitted,
                )
            )

    def _existing(
        self, request: pb.GetStatsRequest | pb.WatchStatsRequest
    ) -> tuple[list[str], list[str]]:
        """Return the topics and groups of a request that exist. Raises InvalidParameter."""
        _check_count(len(request.topics) + len(request.groups))
        return (
            [topic for topic in request.topics if topic in self.topics.table],
            [group for group in request.groups if group in self.groups.table],
        )

    async def set_draining(
        self, request: pb.SetDrainingRequest, call: Call
    ) -> pb.SetDrainingResponse:
        changed, unreachable = await self.draining.put(request.draining)
        return pb.SetDrainingResponse(changed=changed, unreachable_namesrvs=unreachable)

    async def get_backlog(self, request: pb.GetBacklogRequest, call: Call) -> pb.GetBacklogResponse:
        remaining = asdict(await self.draining.remaining())
        remaining["lags"] = [
            pb.GetBacklogResponse.GroupLag(consumer_group=group, topic=topic, messages=messages)
            for group, topic, messages in remaining["lags"]
        ]
        return pb.GetBacklogResponse(**remaining)


def _check_count(count: int) -> None:
    if not 0 <= count <= MOST_SUBJECTS:
        raise InvalidParameter(
            f"{count} topics and groups are asked for: ask for 0 to {MOST_SUBJECTS} at once"
        )


def _page(request: pb.ListTopicsRequest | pb.ListGroupsRequest, order: str) -> Page:
    return Page(
        order=order,
        descending=request.descending,
        offset=request.offset,
        limit=request.limit,
        with_statistics=request.with_statistics,
    )
