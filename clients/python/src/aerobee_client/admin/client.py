"""Administering topics, groups, offsets and brokers, and reading messages; for asyncio.

Reading changes nothing: browsing needs no consumer group and commits no offset. Changes go to every
master of the cluster, because each broker has its own topics and groups.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import timedelta
from typing import cast

from aerobee.broker.v1 import admin_pb2, client_pb2, message_pb2, offset_pb2
from aerobee.namesrv.v1 import namesrv_pb2

from aerobee_client.admin import blocked
from aerobee_client.admin import descriptions as d
from aerobee_client.admin.brokers import Brokers
from aerobee_client.admin.rebalance import rebalance
from aerobee_client.cluster.client_instance import ClientInstance
from aerobee_client.cluster.transport import Transport
from aerobee_client.facade import AsyncClient
from aerobee_client.message import ReceivedMessage
from aerobee_wire import rpcs
from aerobee_wire.consume_order import ConsumeOrder
from aerobee_wire.message_id import parse_offset_message_id
from aerobee_wire.retry_policy import ExponentialRetryPolicy
from aerobee_wire.status import Code, MqError
from aerobee_wire.topics import check_group, check_topic, group_of

DEFAULT_TIMEOUT = timedelta(seconds=5)
DEFAULT_QUEUES = 8
DEFAULT_MAX_ATTEMPTS = 17  # RocketMQ's 16 retries
READ_WRITE = 6
MESSAGE_TYPES = ("NORMAL", "FIFO", "DELAY", "TRANSACTION", "PRIORITY", "MIXED")


@contextmanager
def _numbers_fit() -> Iterator[None]:
    """Raises INVALID_PARAMETER when the block gives a field of protobuf a number that it cannot
    hold."""
    try:
        yield
    except ValueError as error:
        raise MqError(Code.INVALID_PARAMETER, f"give a smaller number: {error}") from None


class AsyncAdminClient(AsyncClient):
    """`async with AsyncAdminClient(...) as admin:`; closing it ends its connections.

    `timeout`: of each call to a broker. Every method raises MqError: NamesrvUnreachable,
    BrokerUnreachable, RequestTimeout, or the refusal of a broker, which the message names.
    """

    def __init__(
        self,
        namesrv: str | Sequence[str] | None = None,
        *,
        timeout: timedelta = DEFAULT_TIMEOUT,
        transport: Transport | None = None,
    ) -> None:
        self._instance = ClientInstance(namesrv, transport=transport)
        self._brokers = Brokers(self._instance, timeout.total_seconds())

    async def close(self) -> None:
        await self._instance.close()

    # ---- topics ----

    async def create_topic(
        self,
        topic: str,
        *,
        queues: int = DEFAULT_QUEUES,
        permission: int = READ_WRITE,
        message_type: str = "NORMAL",
        order: bool = False,
        attributes: Mapping[str, str] | None = None,
        cluster: str | None = None,
    ) -> list[d.Created]:
        """Creates a topic, or changes it, with `queues` queues on each master (of `cluster`)."""
        check_topic(topic)
        if message_type not in MESSAGE_TYPES:
            raise MqError(
                Code.INVALID_PARAMETER,
                f"{message_type!r} is no message type: choose one of {', '.join(MESSAGE_TYPES)}",
            )
        with _numbers_fit():
            config = namesrv_pb2.TopicConfig(
                topic=topic,
                read_queue_count=queues,
                write_queue_count=queues,
                permission=permission,
                order=order,
                attributes={**(attributes or {}), d.MESSAGE_TYPE: message_type},
            )
        request = admin_pb2.PutTopicRequest(topic=config)
        masters = await self._brokers.masters(cluster)
        answers = await self._brokers.ask_each(masters, rpcs.PUT_TOPIC, request)
        self._instance.routes.forget(topic)
        return [
            d.Created(name, masters[name], answer.created, tuple(answer.unreachable_namesrvs))
            for name, answer in answers.items()
        ]

    async def list_topics(
        self,
        *,
        include_system: bool = False,
        include_derived: bool = False,
        silent: list[MqError] | None = None,
    ) -> list[d.TopicDescription]:
        """Sorted by name. `include_derived`: retry and dead-letter topics too. `silent`: collects
        the errors of brokers that do not answer; without it such an error is raised."""
        masters = await self._brokers.masters()
        request = admin_pb2.ListTopicsRequest(include_system=include_system)
        answers = await self._brokers.ask_each(masters, rpcs.LIST_TOPICS, request, silent=silent)
        found: dict[str, list[d.TopicOnBroker]] = {}
        for name, answer in answers.items():
            for config in answer.topics:
                if include_derived or group_of(config.topic) is None:
                    on_broker = d.TopicOnBroker.of(name, masters[name], config)
                    found.setdefault(config.topic, []).append(on_broker)
        return [d.TopicDescription.of(topic, found[topic]) for topic in sorted(found)]

    async def topic_route(self, topic: str) -> d.RouteDescription:
        """The route that a name server answers now. Raises TOPIC_NOT_EXIST."""
        return d.RouteDescription.of(topic, await self._instance.routes.refresh(topic))

    async def topic_status(self, topic: str) -> list[d.QueueStatus]:
        """The bounds of each queue. Raises TOPIC_NOT_EXIST."""
        request = offset_pb2.GetQueueOffsetsRequest(topic=topic)
        brokers = await self._brokers.of_topic(topic)
        answers = await self._brokers.ask_each(brokers, rpcs.GET_QUEUE_OFFSETS, request)
        return sorted(
            (
                d.QueueStatus.of(topic, name, bounds)
                for name, answer in answers.items()
                for bounds in answer.queues
            ),
            key=lambda status: (status.broker_name, status.queue_id),
        )

    async def delete_topic(self, topic: str) -> bool:
        """From every name server and every master, with the consumer offsets. False: no broker had
        it.

        The routes are deleted first: when a send creates the topic again meanwhile, its broker
        registers it with the name servers at once, and that route must stay.
        """
        masters = await self._brokers.masters()
        await self._instance.namesrv.call_each(
            rpcs.DELETE_TOPIC_ROUTE, namesrv_pb2.DeleteTopicRequest(topic=topic)
        )
        request = admin_pb2.DeleteTopicRequest(topic=topic)
        answers = await self._brokers.ask_each(masters, rpcs.DELETE_TOPIC, request)
        self._instance.routes.forget(topic)
        return any(answer.deleted for answer in answers.values())

    async def rebalance_topic(self, topic: str, *, dry_run: bool = False) -> list[d.Rebalanced]:
        """Creates the topic on the masters that lack it, with the settings that it has elsewhere,
        and there the consumer groups that they lack; draining brokers are left out. Returns what
        each new broker got, with `dry_run` what it would get.

        Raises TOPIC_NOT_EXIST when no broker has the topic.
        """
        made = await rebalance(self._brokers, topic, dry_run=dry_run)
        self._instance.routes.forget(topic)
        return made

    async def search_offset(
        self,
        topic: str,
        broker_name: str,
        queue_id: int,
        timestamp_ms: int,
        *,
        upper: bool = False,
    ) -> int:
        """The first offset stored at or after a time (the maximum when all are older); with
        `upper`, the last stored at or before it."""
        boundary = (
            offset_pb2.SearchOffsetRequest.UPPER if upper else offset_pb2.SearchOffsetRequest.LOWER
        )
        with _numbers_fit():
            request = offset_pb2.SearchOffsetRequest(
                topic=topic, queue_id=queue_id, timestamp_ms=timestamp_ms, boundary=boundary
            )
        response = await self._brokers.ask_broker_of(
            topic, broker_name, rpcs.SEARCH_OFFSET, request
        )
        return response.queue_offset

    # ---- groups ----

    async def create_group(
        self,
        group: str,
        *,
        max_attempts: int | None = None,
        retry_delays: Sequence[timedelta] = (),
        exponential_retry: ExponentialRetryPolicy | None = None,
        order: ConsumeOrder = ConsumeOrder.AUTO,
        consume_enable: bool = True,
        consume_from_min_enable: bool = True,
        attributes: Mapping[str, str] | None = None,
    ) -> list[d.Created]:
        """Creates a consumer group, or changes it, on every master.

        `max_attempts`: deliveries of a message before it is dead-lettered (default 17).
        `retry_delays`: before each retry; the last one repeats. Empty: the broker's delay levels
        from level 3 on. `exponential_retry`: in place of them. `order`: of consumers that pop, that
        is of the official SDKs; AUTO consumes topics of the type FIFO in order. They begin at the
        end of a topic that they have not consumed yet without `consume_from_min_enable`.
        """
        check_group(group)
        if max_attempts is not None and max_attempts < 1:
            raise MqError(
                Code.INVALID_PARAMETER, f"max_attempts is {max_attempts}: give at least 1"
            )
        with _numbers_fit():
            config = admin_pb2.GroupConfig(
                consumer_group=group,
                consume_enable=consume_enable,
                consume_from_min_enable=consume_from_min_enable,
                consume_broadcast_enable=True,
                consume_message_orderly=order is ConsumeOrder.ON,
                order=cast(admin_pb2.ConsumeOrder, order.value),
                retry_queue_count=1,
                retry_max_times=(max_attempts or DEFAULT_MAX_ATTEMPTS) - 1,
                retry_delays_ms=[round(delay.total_seconds() * 1000) for delay in retry_delays],
                exponential_retry=(
                    admin_pb2.ExponentialRetry(**asdict(exponential_retry))
                    if exponential_retry is not None
                    else None
                ),
                which_broker_when_consume_slowly=1,
                notify_consumer_ids_changed_enable=True,
                consume_timeout_minutes=15,
                attributes=attributes,
            )
        masters = await self._brokers.masters()
        request = admin_pb2.PutGroupRequest(group=config)
        answers = await self._brokers.ask_each(masters, rpcs.PUT_GROUP, request)
        return [d.Created(name, masters[name], answer.created) for name, answer in answers.items()]

    async def get_group(self, group: str) -> d.GroupDescription:
        """Raises SUBSCRIPTION_GROUP_NOT_EXIST."""
        answers = await self._brokers.ask_masters(
            rpcs.GET_GROUP,
            admin_pb2.GetGroupRequest(consumer_group=group),
            absent=(Code.SUBSCRIPTION_GROUP_NOT_EXIST,),
        )
        first = next(iter(answers.values()))
        return d.GroupDescription.of(first.group, list(answers))

    async def list_groups(self, *, include_system: bool = False) -> list[d.GroupDescription]:
        """Sorted by name; the settings are those of the first broker that has the group."""
        request = admin_pb2.ListGroupsRequest(include_system=include_system)
        answers = await self._brokers.ask_masters(rpcs.LIST_GROUPS, request)
        configs: dict[str, admin_pb2.GroupConfig] = {}
        brokers: dict[str, list[str]] = {}
        for name, answer in answers.items():
            for config in answer.groups:
                configs.setdefault(config.consumer_group, config)
                brokers.setdefault(config.consumer_group, []).append(name)
        return [d.GroupDescription.of(configs[group], brokers[group]) for group in sorted(configs)]

    async def delete_group(self, group: str, *, remove_offsets: bool = True) -> bool:
        """From every master. False: there was none."""
        request = admin_pb2.DeleteGroupRequest(consumer_group=group, remove_offsets=remove_offsets)
        answers = await self._brokers.ask_masters(rpcs.DELETE_GROUP, request)
        return any(answer.deleted for answer in answers.values())

    async def list_clients(self, group: str = "") -> list[d.ClientDescription]:
        """The connected clients (of `group`), once for each broker that they are connected to."""
        request = client_pb2.ListClientsRequest(group=group)
        answers = await self._brokers.ask_masters(rpcs.LIST_CLIENTS, request)
        return [
            d.ClientDescription.of(name, client)
            for name, answer in answers.items()
            for client in answer.clients
        ]

    async def consume_progress(self, group: str, topic: str = "") -> list[d.QueueProgress]:
        """The consumer offset and lag of `group` in each queue, its retry topic included (only in
        `topic`, when given).

        Raises SUBSCRIPTION_GROUP_NOT_EXIST.
        """
        answers = await self._brokers.ask_masters(
            rpcs.GET_CONSUME_STATS,
            offset_pb2.GetConsumeStatsRequest(consumer_group=group, topic=topic),
            absent=(Code.SUBSCRIPTION_GROUP_NOT_EXIST,),
        )
        progress = [
            d.QueueProgress.of(name, queue)
            for name, answer in answers.items()
            for queue in answer.queues
        ]
        return sorted(progress, key=lambda q: (q.topic, q.broker_name, q.queue_id))

    async def blocked_message_groups(self, group: str) -> list[d.BlockedMessageGroup]:
        """Message groups in which messages wait behind one that `group` failed to consume; first
        those that wait the longest, at most 1,000 of each broker.

        Raises SUBSCRIPTION_GROUP_NOT_EXIST.
        """
        return await blocked.blocked_message_groups(self._brokers, group)

    async def skip_message(
        self, group: str, message_id: str, *, reason: str = "Skipped"
    ) -> d.BlockedMessageGroup:
        """Dead-letters the message that a message group waits for; returns what it held up. Raises
        QUERY_NOT_FOUND, SUBSCRIPTION_GROUP_NOT_EXIST."""
        return await blocked.skip_message(self._brokers, group, message_id, reason=reason)

    async def reset_offsets(
        self,
        group: str,
        topic: str,
        *,
        timestamp_ms: int | None = None,
        queue_offset: int | None = None,
    ) -> list[d.QueueOffset]:
        """Moves the offsets of `group` in every queue of `topic`: to a store time (below 0: the
        end) or to a queue offset. A running consumer follows at its next pull."""
        if (timestamp_ms is None) == (queue_offset is None):
            raise MqError(
                Code.INVALID_PARAMETER, "give either timestamp_ms or queue_offset to reset to"
            )
        with _numbers_fit():
            request = offset_pb2.ResetConsumerOffsetsRequest(
                consumer_group=group,
                topic=topic,
                timestamp_ms=timestamp_ms,
                queue_offset=queue_offset,
            )
        brokers = await self._brokers.of_topic(topic)
        answers = await self._brokers.ask_each(brokers, rpcs.RESET_CONSUMER_OFFSETS, request)
        return [
            d.QueueOffset(offset.topic, name, offset.queue_id, offset.queue_offset)
            for name, answer in answers.items()
            for offset in answer.offsets
        ]

    # ---- cluster ----

    async def cluster(self) -> d.ClusterDescription:
        return d.ClusterDescription.of(await self._brokers.cluster_info())

    async def broker_status(self, broker: str) -> d.BrokerStatus:
        """`broker`: its name, or its address."""
        request = admin_pb2.GetBrokerStatusRequest()
        return d.BrokerStatus.of(
            await self._brokers.ask_named(broker, rpcs.GET_BROKER_STATUS, request)
        )

    async def drain_broker(self, broker: str, *, draining: bool = True) -> bool:
        """Has a broker (name or address) take no more messages of producers, until `draining` is
        taken back; it keeps that through restarts. False: it was so already."""
        request = admin_pb2.SetDrainingRequest(draining=draining)
        answer = await self._brokers.ask_named(broker, rpcs.SET_DRAINING, request)
        return answer.changed

    async def broker_backlog(self, broker: str) -> d.BrokerBacklog:
        """What has yet to leave a broker (name or address) before it can be removed."""
        request = admin_pb2.GetBacklogRequest()
        return d.BrokerBacklog.of(
            broker, await self._brokers.ask_named(broker, rpcs.GET_BACKLOG, request)
        )

    # ---- messages ----

    async def browse(
        self,
        topic: str,
        broker_name: str,
        queue_id: int,
        queue_offset: int,
        *,
        max_messages: int = 32,
        max_bytes: int = 0,
    ) -> d.Browsed:
        """Reads a queue from `queue_offset` on; consumes nothing. `max_bytes`: 0 = 256 KiB."""
        with _numbers_fit():
            request = message_pb2.PullRequest(
                topic=topic,
                queue_id=queue_id,
                queue_offset=queue_offset,
                max_messages=max_messages,
                max_bytes=max_bytes,
                browse=True,
            )
        return d.Browsed.of(
            broker_name, await self._brokers.ask_broker_of(topic, broker_name, rpcs.PULL, request)
        )

    async def get_message(self, offset_message_id: str) -> ReceivedMessage:
        """The record that an offset message id names. Raises QUERY_NOT_FOUND, MESSAGE_CORRUPTED."""
        address, _ = parse_offset_message_id(offset_message_id)
        masters = await self._brokers.masters()
        name = next((name for name, at in masters.items() if at == address), address)
        request = message_pb2.GetMessageRequest(offset_message_id=offset_message_id)
        response = await self._brokers.ask(name, address, rpcs.GET_MESSAGE, request)
        return ReceivedMessage(response.message, name)

    async def query_messages(
        self,
        topic: str,
        *,
        key: str = "",
        unique_id: str = "",
        max_messages: int = 32,
        begin_timestamp_ms: int = 0,
        end_timestamp_ms: int = 0,
        damaged: list[MqError] | None = None,
    ) -> list[ReceivedMessage]:
        """Messages by one of their keys or by their message id, newest first; at most
        `max_messages` of each broker. `damaged`: collects an error for each record that may match
        but cannot be read."""
        if bool(key) == bool(unique_id):
            raise MqError(Code.INVALID_PARAMETER, "give either a key or a unique_id to look for")
        with _numbers_fit():
            request = message_pb2.QueryMessagesRequest(
                topic=topic,
                key=key or unique_id,
                unique=bool(unique_id),
                max_messages=max_messages,
                begin_timestamp_ms=begin_timestamp_ms,
                end_timestamp_ms=end_timestamp_ms,
            )
        brokers = await self._brokers.of_topic(topic)
        answers = await self._brokers.ask_each(brokers, rpcs.QUERY_MESSAGES, request)
        messages = [
            ReceivedMessage(stored, name)
            for name, answer in answers.items()
            for stored in answer.messages
        ]
        if damaged is not None:
            damaged += [
                MqError(Code.MESSAGE_CORRUPTED, f"{name}: {reason}")
                for name, answer in answers.items()
                for reason in answer.damaged
            ]
        return sorted(messages, key=lambda message: message.store_timestamp_ms, reverse=True)
