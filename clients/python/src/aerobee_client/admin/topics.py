"""Administer topics: part of AsyncAdminClient. Changes go to every master of the cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any

from aerobee.broker.v1 import admin_pb2, offset_pb2
from aerobee.namesrv.v1 import namesrv_pb2

from aerobee_client.admin import descriptions as d
from aerobee_client.admin.brokers import BrokerAdmin, Brokers, missing_on_each, numbers_fit
from aerobee_client.admin.groups import check_creation as check_group_creation
from aerobee_client.runtime.kinds import checked_class
from aerobee_wire import rpcs
from aerobee_wire.route import READ_WRITE
from aerobee_wire.status import Code, MqError, illegal_operation, invalid_parameter
from aerobee_wire.topics import check_topic, group_of, is_system

DEFAULT_QUEUES = 8
MESSAGE_TYPES = ("NORMAL", "FIFO", "DELAY", "TRANSACTION", "PRIORITY", "LITE", "MIXED")


@checked_class
class TopicAdmin(BrokerAdmin):
    async def create_topic(
        self,
        topic: str,
        *,
        queues: int = DEFAULT_QUEUES,
        read_queues: int | None = None,
        write_queues: int | None = None,
        permission: int = READ_WRITE,
        message_type: str = "NORMAL",
        order: bool = False,
        attributes: Mapping[str, str] | None = None,
        cluster: str | None = None,
        broker: str | None = None,
        dry_run: bool = False,
        silent: list[MqError] | None = None,
    ) -> list[d.Created]:
        """Create a topic on each master.

        Args:
            topic: The name of the topic.
            queues: The number of queues on each broker.
            read_queues: The number of readable queues. Default: `queues`.
            write_queues: The number of writable queues. Default: `queues`.
            permission: Bits: 4 read, 2 write.
            message_type: NORMAL, FIFO, DELAY, TRANSACTION, PRIORITY, LITE or MIXED.
            order: The `order` setting of RocketMQ.
            attributes: Additional attributes of the topic.
            cluster: Only masters of this cluster.
            broker: Only the master of this broker.
            dry_run: Only check the settings, and return where the topic would be created.
            silent: Collects the errors of brokers that do not answer, have no master, or are not
                registered any more without having been drained. Only the others are changed then.
                Brokers that it already names are not called. Without it, the error of a registered
                broker is raised, and nothing is changed.

        Returns:
            The topic on each master, and whether it was created there.

        Raises:
            AlreadyExists: TOPIC_EXIST_ALREADY if a broker has the topic with other settings. Then
                nothing is changed on any broker. Use `update_topic` to change settings.
        """
        check_topic(topic)
        _check_type(message_type)
        _check_type_once(attributes)
        with numbers_fit():
            config = namesrv_pb2.TopicConfig(
                topic=topic,
                read_queue_count=queues if read_queues is None else read_queues,
                write_queue_count=queues if write_queues is None else write_queues,
                permission=permission,
                order=order,
                attributes={**(attributes or {}), d.MESSAGE_TYPE: message_type},
            )
        masters = await self._brokers.masters_to_change(silent, cluster=cluster, broker=broker)
        existing: dict[str, namesrv_pb2.TopicConfig] = {}
        # One broker need not be asked first, because it changes nothing if it has the topic.
        if dry_run or len(masters) > 1:
            masters, existing = await _topic_configs(self._brokers, masters, topic, silent)
        if not is_system(topic):  # the brokers refuse system topics
            _check_same(config, existing.items())
        if dry_run:
            masters = await _check_creation(self._brokers, masters, config, silent)
            return [d.Created(name, masters[name], name not in existing) for name in masters]
        request = admin_pb2.PutTopicRequest(topic=config, only_new=True)
        answers = await self._brokers.ask_each(masters, rpcs.PUT_TOPIC, request, silent=silent)
        self._instance.routes.forget(topic)
        # Another client may have created the topic in the meantime.
        _check_same(config, _found(answers))
        return [
            d.Created(name, masters[name], answer.created, tuple(answer.unreachable_namesrvs))
            for name, answer in answers.items()
        ]

    async def update_topic(
        self,
        topic: str,
        *,
        queues: int | None = None,
        read_queues: int | None = None,
        write_queues: int | None = None,
        permission: int | None = None,
        message_type: str | None = None,
        order: bool | None = None,
        attributes: Mapping[str, str] | None = None,
        cluster: str | None = None,
        dry_run: bool = False,
        force: bool = False,
        complete: bool = False,
        silent: list[MqError] | None = None,
    ) -> d.Update:
        """Change the given settings on each master that has the topic.

        Args:
            topic: The name of the topic.
            queues: The number of readable and writable queues.
            read_queues: The number of readable queues.
            write_queues: The number of writable queues.
            permission: Bits: 4 read, 2 write.
            message_type: See `create_topic`.
            order: See `create_topic`.
            attributes: The attributes to change. An attribute with an empty value is removed.
            cluster: Only masters of this cluster.
            dry_run: Only return what would change.
            force: Whether to apply changes that make messages unreadable.
            complete: Whether to create the topic on the masters that lack it, with the changed
                settings of another one. Then settings are optional.
            silent: See `create_topic`.

        Returns:
            The changes on each master, and the queues that become unreadable.

        Raises:
            MqError: TOPIC_NOT_EXIST, or ILLEGAL_OPERATION if messages would become unreadable
                without `force`. Then nothing is changed on any broker.
        """
        read = queues if read_queues is None else read_queues
        write = queues if write_queues is None else write_queues
        attributes = dict(attributes or {})
        if message_type is not None:
            _check_type(message_type)
            _check_type_once(attributes)
            attributes[d.MESSAGE_TYPE] = message_type
        settings: dict[str, Any] = {
            "read_queue_count": read,
            "write_queue_count": write,
            "permission": permission,
            "order": order,
            "attributes": attributes or None,
        }
        given = {name: value for name, value in settings.items() if value is not None}
        if not given and not complete:
            raise invalid_parameter(f"name a setting of {topic} to change")
        with numbers_fit():
            config = namesrv_pb2.TopicConfig(topic=topic, **given)
        request = admin_pb2.UpdateTopicRequest(topic=config, fields=list(given), dry_run=True)
        masters = await self._brokers.masters_to_change(silent, cluster=cluster)
        # Ask all of them first what would change, so that either all apply it or none.
        reached, would = await self._brokers.check_each(
            masters, rpcs.UPDATE_TOPIC, request, absent=Code.TOPIC_NOT_EXIST, silent=silent
        )
        if not would:
            raise missing_on_each(Code.TOPIC_NOT_EXIST, f"topic {topic!r}", silent)
        lacking = {name: at for name, at in reached.items() if complete and name not in would}
        after = next(iter(would.values())).after
        lacking = await _check_creation(self._brokers, lacking, after, silent)
        unreadable = tuple(
            d.UnreadableQueue(topic, name, queue.queue_id, queue.messages)
            for name, answer in would.items()
            for queue in answer.unreadable
        )
        if not dry_run:
            if unreadable and not force:
                raise _would_be_unreadable(topic, unreadable)
            request.dry_run, request.force = False, force
            having = {name: masters[name] for name in would}
            would = await self._brokers.ask_each(having, rpcs.UPDATE_TOPIC, request, silent=silent)
            put = admin_pb2.PutTopicRequest(topic=after, only_new=True)
            made = await self._brokers.ask_each(lacking, rpcs.PUT_TOPIC, put, silent=silent)
            lacking = {name: at for name, at in lacking.items() if name in made}
            self._instance.routes.forget(topic)
        changes = [
            change
            for name, answer in would.items()
            for change in _differences(name, answer.before, answer.after)
        ]
        changes += [d.creation(topic, name) for name in lacking]
        unreachable = {each for answer in would.values() for each in answer.unreachable_namesrvs}
        return d.Update(tuple(changes), unreadable, tuple(sorted(unreachable)))

    async def get_topic(
        self, topic: str, *, silent: list[MqError] | None = None
    ) -> d.TopicDescription:
        """Return the settings of a topic on each master that has it.

        Args:
            topic: The name of the topic.
            silent: See `list_topics`.

        Returns:
            The topic.

        Raises:
            MqError: TOPIC_NOT_EXIST if no master has the topic.
        """
        masters = await self._brokers.masters_to_ask(silent)
        answers = await self._brokers.ask_each(
            masters,
            rpcs.GET_TOPIC,
            admin_pb2.GetTopicRequest(topic=topic),
            absent=(Code.TOPIC_NOT_EXIST,),
            silent=silent,
        )
        there = [
            d.TopicOnBroker.of(name, masters[name], answer.topic)
            for name, answer in answers.items()
        ]
        return d.TopicDescription.of(topic, there)

    async def list_topics(
        self,
        *,
        include_system: bool = False,
        include_derived: bool = False,
        silent: list[MqError] | None = None,
    ) -> list[d.TopicDescription]:
        """Return all topics, sorted by name.

        Args:
            include_system: Whether to include topics of the system.
            include_derived: Whether to include retry and dead-letter topics.
            silent: Collects the errors of brokers that do not answer, have no master, or are not
                registered any more without having been drained. Without it, the error of a
                registered broker is raised.

        Returns:
            The topics.
        """
        masters = await self._brokers.masters_to_ask(silent)
        request = admin_pb2.ListTopicsRequest(include_system=include_system)
        answers = await self._brokers.ask_each(masters, rpcs.LIST_TOPICS, request, silent=silent)
        found: dict[str, list[d.TopicOnBroker]] = {}
        for name, answer in answers.items():
            for config in answer.topics:
                if include_derived or group_of(config.topic) is None:
                    on_broker = d.TopicOnBroker.of(name, masters[name], config)
                    found.setdefault(config.topic, []).append(on_broker)
        return [d.TopicDescription.of(topic, found[topic]) for topic in sorted(found)]

    async def topic_names(self, *, include_derived: bool = False) -> list[str]:
        """Return the names of the topics that a name server knows, sorted, without system topics.

        This call does not ask brokers.

        Args:
            include_derived: Whether to include retry and dead-letter topics.

        Returns:
            The names.
        """
        call, scopes = self._instance.namesrv.call, namesrv_pb2.ListTopicsRequest
        known = await call(rpcs.LIST_TOPIC_ROUTES, scopes(scope=scopes.ALL))
        system = await call(rpcs.LIST_TOPIC_ROUTES, scopes(scope=scopes.SYSTEM))
        return [
            topic
            for topic in known.topics
            if topic not in system.topics
            and not is_system(topic)
            and (include_derived or group_of(topic) is None)
        ]

    async def routed_topics(self, broker_name: str) -> list[str]:
        """Return the topics whose routes contain a broker, sorted, including system topics.

        One call to a name server returns all of them.

        Args:
            broker_name: The name of the broker.

        Returns:
            The names of the topics.

        Raises:
            MqError: NO_PERMISSION if the list is turned off (enableTopicList).
        """
        scopes = namesrv_pb2.ListTopicsRequest
        request = scopes(scope=scopes.BROKER, broker_name=broker_name)
        return list((await self._instance.namesrv.call(rpcs.LIST_TOPIC_ROUTES, request)).topics)

    async def topic_route(self, topic: str) -> d.RouteDescription:
        """Return the current route of a topic from a name server.

        Raises:
            MqError: TOPIC_NOT_EXIST if the topic has no route.
        """
        return d.RouteDescription.of(topic, await self._instance.routes.refresh(topic))

    async def topic_status(
        self, topic: str, *, silent: list[MqError] | None = None
    ) -> list[d.QueueStatus]:
        """Return the bounds of each queue of a topic.

        Args:
            topic: The name of the topic.
            silent: See `list_topics`.

        Returns:
            The queues, by broker and id.

        Raises:
            MqError: TOPIC_NOT_EXIST if the topic has no route.
        """
        request = offset_pb2.GetQueueOffsetsRequest(topic=topic)
        brokers = await self._brokers.of_topic(topic, reads=True, silent=silent)
        answers = await self._brokers.ask_each(
            brokers, rpcs.GET_QUEUE_OFFSETS, request, silent=silent
        )
        return sorted(
            (
                d.QueueStatus.of(topic, name, bounds)
                for name, answer in answers.items()
                for bounds in answer.queues
            ),
            key=lambda status: (status.broker_name, status.queue_id),
        )

    async def topic_bounds(
        self, places: Iterable[tuple[str, str]], addresses: Mapping[str, str]
    ) -> dict[tuple[str, str], d.TopicBounds | MqError]:
        """Return the bounds of all queues of several topics on several brokers.

        The client sends one request for each pair of topic and broker, all at once, and does not
        ask a name server.

        Args:
            places: The pairs of topic and broker name.
            addresses: The addresses by broker name, as `cluster` returns them.

        Returns:
            The bounds for each pair, or the error if they are unknown.
        """

        async def asked(topic: str, broker_name: str) -> d.TopicBounds | MqError:
            request = offset_pb2.GetQueueOffsetsRequest(topic=topic, without_timestamps=True)
            address = addresses[broker_name]
            try:
                answer = await self._brokers.ask(
                    broker_name, address, rpcs.GET_QUEUE_OFFSETS, request
                )
            except MqError as error:
                return error
            return d.TopicBounds.of(topic, broker_name, answer)

        keys = list(dict.fromkeys(places))
        answers = await asyncio.gather(*(asked(*key) for key in keys))
        return dict(zip(keys, answers, strict=True))

    async def delete_topic(self, topic: str, *, silent: list[MqError] | None = None) -> bool:
        """Delete a topic, with its consumer offsets, from every name server and every master.

        The routes are deleted first, because a send may create the topic again in the meantime. Its
        broker then registers the topic at once, and that route must stay.

        Args:
            topic: The name of the topic.
            silent: See `create_topic`. It also collects the errors of name servers that do not
                answer, unless none answers.

        Returns:
            False if no broker had the topic.
        """
        masters = await self._brokers.masters_to_change(silent)
        namesrvs = {address: address for address in await self._instance.namesrv.present()}
        routes = namesrv_pb2.DeleteTopicRequest(topic=topic)
        await self._brokers.ask_each(namesrvs, rpcs.DELETE_TOPIC_ROUTE, routes, silent=silent)
        request = admin_pb2.DeleteTopicRequest(topic=topic)
        answers = await self._brokers.ask_each(masters, rpcs.DELETE_TOPIC, request, silent=silent)
        self._instance.routes.forget(topic)
        return any(answer.deleted for answer in answers.values())

    async def rebalance_topic(
        self, topic: str, *, dry_run: bool = False, silent: list[MqError] | None = None
    ) -> list[d.Rebalanced]:
        """Create a topic on the masters that lack it, with its settings on other brokers.

        Consumer groups that these masters lack are created too. Draining brokers are left out.

        Args:
            topic: The name of the topic.
            dry_run: Only return what would be created.
            silent: See `create_topic`.

        Returns:
            The topic and groups that were created on each broker.

        Raises:
            AlreadyExists: TOPIC_EXIST_ALREADY if another client creates the topic in the meantime,
                with other settings.
            MqError: TOPIC_NOT_EXIST if no broker has the topic, or the error of a broker that
                refuses the topic or a group. Then nothing is created on any broker.
        """
        made = await _rebalance(self._brokers, topic, dry_run=dry_run, silent=silent)
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
        """Return the first offset that was stored at or after a time.

        Args:
            topic: The name of the topic.
            broker_name: The broker of the queue.
            queue_id: The id of the queue.
            timestamp_ms: The time, in milliseconds since the epoch.
            upper: Return the last offset that was stored at or before the time instead.

        Returns:
            The queue offset; the maximum offset if all messages are older.
        """
        boundary = (
            offset_pb2.SearchOffsetRequest.UPPER if upper else offset_pb2.SearchOffsetRequest.LOWER
        )
        with numbers_fit():
            request = offset_pb2.SearchOffsetRequest(
                topic=topic, queue_id=queue_id, timestamp_ms=timestamp_ms, boundary=boundary
            )
        response = await self._brokers.ask_broker_of(
            topic, broker_name, rpcs.SEARCH_OFFSET, request
        )
        return response.queue_offset


def _check_type(message_type: str) -> None:
    if message_type not in MESSAGE_TYPES:
        raise invalid_parameter(
            f"invalid message type {message_type!r}: choose one of {', '.join(MESSAGE_TYPES)}"
        )


def _check_type_once(attributes: Mapping[str, str] | None) -> None:
    """Refuse an attribute that `message_type` would overwrite."""
    if attributes and d.MESSAGE_TYPE in attributes:
        raise invalid_parameter(
            f"the attribute {d.MESSAGE_TYPE}={attributes[d.MESSAGE_TYPE]} says the type of the "
            "messages a second time: give only message_type (--type)",
            about="attributes",
        )


def _check_same(
    wanted: namesrv_pb2.TopicConfig, found: Iterable[tuple[str, namesrv_pb2.TopicConfig]]
) -> None:
    """Raise AlreadyExists if the settings in `found` differ from `wanted`.

    `found` pairs the name of each broker with the settings on that broker. Raises MqError with the
    code TOPIC_EXIST_ALREADY for the topic that has a broker's own name.
    """
    different = [change for name, there in found for change in _differences(name, there, wanted)]
    if any(change.broker_name == wanted.topic for change in different):
        raise MqError(
            Code.TOPIC_EXIST_ALREADY,
            f"{wanted.topic} is the topic of the broker's own name, which each broker has "
            "(brokerTopicEnable): choose another name for the topic, or another brokerName",
        )
    if different:
        raise d.AlreadyExists(Code.TOPIC_EXIST_ALREADY, "topic", wanted.topic, different)


def _differences(
    broker_name: str, before: namesrv_pb2.TopicConfig, after: namesrv_pb2.TopicConfig
) -> list[d.Change]:
    old, new = (d.TopicOnBroker.of(broker_name, "", config) for config in (before, after))
    return d.differences(before.topic, broker_name, old, new)


def _would_be_unreadable(topic: str, queues: Iterable[d.UnreadableQueue]) -> MqError:
    listed = ", ".join(
        f"{queue.messages} in queue {queue.queue_id} of {queue.broker_name}" for queue in queues
    )
    return illegal_operation(
        f"messages of {topic} would become unreadable ({listed}), and nothing was changed: take "
        "fewer queues to write first, and fewer to read when these are consumed; or force it"
    )


async def _rebalance(
    brokers: Brokers, topic: str, *, dry_run: bool, silent: list[MqError] | None
) -> list[d.Rebalanced]:
    """Rebalance a topic as TopicAdmin.rebalance_topic describes.

    If brokers differ in the settings of the topic, the settings with the most write queues are
    used. Groups are created before the topic. Otherwise a client that consumes the topic could
    create a group with the default settings first.
    """
    check_topic(topic)
    masters = await brokers.masters_to_change(silent)
    masters, configs = await _topic_configs(brokers, masters, topic, silent)
    if not configs:
        raise missing_on_each(Code.TOPIC_NOT_EXIST, f"topic {topic!r}", silent)
    config = max(configs.values(), key=lambda found: found.write_queue_count)
    statuses = await brokers.ask_each(
        {name: address for name, address in masters.items() if name not in configs},
        rpcs.GET_BROKER_STATUS,
        admin_pb2.GetBrokerStatusRequest(),
    )
    lacking = {
        name: masters[name] for name, status in statuses.items() if not status.draining_since_ms
    }
    groups = await _missing_groups(brokers, masters, list(configs), list(lacking))
    lacking = await _check_creation(brokers, lacking, config, silent)
    for name, address in lacking.items():
        for group in groups[name]:
            await check_group_creation(brokers, {name: address}, group, None)
    if not dry_run:
        for name, address in lacking.items():
            for group in groups[name]:
                request = admin_pb2.PutGroupRequest(group=group, only_new=True)
                await brokers.ask(name, address, rpcs.PUT_GROUP, request)
        put = admin_pb2.PutTopicRequest(topic=config, only_new=True)
        answers = await brokers.ask_each(lacking, rpcs.PUT_TOPIC, put)
        # Another client may have created the topic in the meantime.
        _check_same(config, _found(answers))
    return [
        d.Rebalanced(
            name,
            address,
            config.write_queue_count,
            tuple(group.consumer_group for group in groups[name]),
        )
        for name, address in lacking.items()
    ]


def _found(
    answers: Mapping[str, admin_pb2.PutTopicResponse],
) -> list[tuple[str, namesrv_pb2.TopicConfig]]:
    """Return the topic that each broker has after a creation. Version 0.1 does not report it."""
    return [(name, answer.topic) for name, answer in answers.items() if answer.HasField("topic")]


async def _check_creation(
    brokers: Brokers,
    masters: Mapping[str, str],
    config: namesrv_pb2.TopicConfig,
    silent: list[MqError] | None,
) -> dict[str, str]:
    """Let each of `masters` check the creation of a topic. Return those that answer.

    Raises the error of a broker that would refuse the topic. A broker of version 0.1 checks
    nothing.
    """
    request = admin_pb2.UpdateTopicRequest(topic=config, dry_run=True, allow_missing=True)
    reached, _ = await brokers.check_each(
        masters, rpcs.UPDATE_TOPIC, request, absent=Code.TOPIC_NOT_EXIST, silent=silent
    )
    return reached


async def _topic_configs(
    brokers: Brokers, masters: Mapping[str, str], topic: str, silent: list[MqError] | None
) -> tuple[dict[str, str], dict[str, namesrv_pb2.TopicConfig]]:
    """Return the brokers that answer, and the settings of a topic on each that has it."""
    request = admin_pb2.GetTopicRequest(topic=topic)
    reached, answers = await brokers.check_each(
        masters, rpcs.GET_TOPIC, request, absent=Code.TOPIC_NOT_EXIST, silent=silent
    )
    return reached, {name: answer.topic for name, answer in answers.items()}


async def _missing_groups(
    brokers: Brokers, masters: Mapping[str, str], having: list[str], lacking: list[str]
) -> dict[str, list[admin_pb2.GroupConfig]]:
    """Return the groups to create on each broker that lacks the topic, by broker name.

    These are the groups of the brokers in `having` that the broker does not have.
    """
    if not lacking:
        return {}
    asked = {name: masters[name] for name in (*having, *lacking)}
    answers = await brokers.ask_each(asked, rpcs.LIST_GROUPS, admin_pb2.ListGroupsRequest())
    known: dict[str, admin_pb2.GroupConfig] = {}
    for name in having:
        for group in answers[name].groups:
            known.setdefault(group.consumer_group, group)
    return {
        name: [
            known[group]
            for group in sorted(known.keys() - {own.consumer_group for own in answers[name].groups})
        ]
        for name in lacking
    }
