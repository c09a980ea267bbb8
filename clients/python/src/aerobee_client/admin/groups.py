"""Administer consumer groups: part of AsyncAdminClient. Changes go to every master."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import timedelta
from typing import Any, cast

from aerobee.broker.v1 import admin_pb2, client_pb2, message_pb2, offset_pb2, pop_pb2

from aerobee_client.admin import descriptions as d
from aerobee_client.admin.brokers import BrokerAdmin, Brokers, missing_on_each, numbers_fit
from aerobee_client.runtime.kinds import checked_class
from aerobee_wire import rpcs
from aerobee_wire.consume_order import ConsumeOrder
from aerobee_wire.retry_policy import ExponentialRetryPolicy
from aerobee_wire.status import Code, MqError, invalid_parameter
from aerobee_wire.topics import check_group, is_retry

DEFAULT_MAX_ATTEMPTS = 17  # RocketMQ's 16 retries


@checked_class
class GroupAdmin(BrokerAdmin):
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
        broker: str | None = None,
        dry_run: bool = False,
        silent: list[MqError] | None = None,
    ) -> list[d.Created]:
        """Create a consumer group on every master.

        Args:
            group: The name of the group.
            max_attempts: Deliveries of a message before it is dead-lettered. Default: 17.
            retry_delays: The delay before each retry; the last delay repeats. If empty, the
                broker's delay levels apply, from level 3 on.
            exponential_retry: A policy that replaces `retry_delays`.
            order: The order for consumers that pop, such as the official SDKs. AUTO consumes topics
                of the type FIFO in order.
            consume_enable: Whether the group may consume.
            consume_from_min_enable: Whether consumers that pop begin at the first message of a new
                topic; otherwise, they begin at its end.
            attributes: Additional attributes of the group.
            broker: Only the master of this broker.
            dry_run: Only check the settings, and return where the group would be created.
            silent: See `create_topic`.

        Returns:
            The group on each master, and whether it was created there.

        Raises:
            AlreadyExists: SUBSCRIPTION_GROUP_EXIST_ALREADY if a broker has the group with other
                settings. Then nothing is changed on any broker. Use `update_group` to change
                settings.
        """
        check_group(group)
        attempts = DEFAULT_MAX_ATTEMPTS if max_attempts is None else max_attempts
        with numbers_fit():
            config = admin_pb2.GroupConfig(
                consumer_group=group,
                consume_enable=consume_enable,
                consume_from_min_enable=consume_from_min_enable,
                consume_broadcast_enable=True,
                retry_queue_count=1,
                which_broker_when_consume_slowly=1,
                notify_consumer_ids_changed_enable=True,
                consume_timeout_minutes=15,
                attributes=attributes,
                **_retries(attempts, retry_delays, exponential_retry),
                **_order(order),
            )
        masters = await self._brokers.masters_to_change(silent, broker=broker)
        existing: dict[str, admin_pb2.GroupConfig] = {}
        # One broker need not be asked first, because it changes nothing if it has the group.
        if dry_run or len(masters) > 1:
            masters, existing = await self._group_configs(masters, group, silent)
        _check_same(config, existing.items())
        if dry_run:
            masters = await check_creation(self._brokers, masters, config, silent)
            return [d.Created(name, masters[name], name not in existing) for name in masters]
        request = admin_pb2.PutGroupRequest(group=config, only_new=True)
        answers = await self._brokers.ask_each(masters, rpcs.PUT_GROUP, request, silent=silent)
        # Another client may have created the group in the meantime.
        found = {name: answer.group for name, answer in answers.items() if answer.HasField("group")}
        _check_same(config, found.items())
        return [d.Created(name, masters[name], answer.created) for name, answer in answers.items()]

    async def update_group(
        self,
        group: str,
        *,
        max_attempts: int | None = None,
        retry_delays: Sequence[timedelta] | None = None,
        exponential_retry: ExponentialRetryPolicy | None = None,
        order: ConsumeOrder | None = None,
        consume_enable: bool | None = None,
        consume_from_min_enable: bool | None = None,
        attributes: Mapping[str, str] | None = None,
        dry_run: bool = False,
        complete: bool = False,
        silent: list[MqError] | None = None,
    ) -> d.Update:
        """Change the given settings on each master that has the group.

        `retry_delays` and `exponential_retry` replace each other. `create_group` describes the
        other settings.

        Args:
            group: The name of the group.
            max_attempts: See `create_group`.
            retry_delays: See `create_group`.
            exponential_retry: See `create_group`.
            order: See `create_group`.
            consume_enable: See `create_group`.
            consume_from_min_enable: See `create_group`.
            attributes: The attributes to change. An attribute with an empty value is removed.
            dry_run: Only return what would change.
            complete: Whether to create the group on the masters that lack it, with the changed
                settings of another one. Then settings are optional.
            silent: See `create_topic`.

        Returns:
            The changes on each master.

        Raises:
            MqError: SUBSCRIPTION_GROUP_NOT_EXIST if no master has the group.
        """
        given: dict[str, Any] = {}
        if max_attempts is not None or retry_delays is not None or exponential_retry is not None:
            given |= _retries(max_attempts, retry_delays, exponential_retry)
        if order is not None:
            given |= _order(order)
        others = {
            "consume_enable": consume_enable,
            "consume_from_min_enable": consume_from_min_enable,
            "attributes": attributes or None,
        }
        given |= {name: value for name, value in others.items() if value is not None}
        if not given and not complete:
            raise invalid_parameter(f"name a setting of {group} to change")
        with numbers_fit():
            config = admin_pb2.GroupConfig(consumer_group=group, **given)
        request = admin_pb2.UpdateGroupRequest(group=config, fields=list(given), dry_run=True)
        masters = await self._brokers.masters_to_change(silent)
        absent = Code.SUBSCRIPTION_GROUP_NOT_EXIST
        # Ask all of them first what would change, so that either all apply it or none.
        reached, would = await self._brokers.check_each(
            masters, rpcs.UPDATE_GROUP, request, absent=absent, silent=silent
        )
        if not would:
            raise missing_on_each(absent, f"consumer group {group!r}", silent)
        lacking = {name: at for name, at in reached.items() if complete and name not in would}
        after = next(iter(would.values())).after
        lacking = await check_creation(self._brokers, lacking, after, silent)
        if not dry_run:
            request.dry_run = False
            having = {name: masters[name] for name in would}
            would = await self._brokers.ask_each(having, rpcs.UPDATE_GROUP, request, silent=silent)
            put = admin_pb2.PutGroupRequest(group=after, only_new=True)
            made = await self._brokers.ask_each(lacking, rpcs.PUT_GROUP, put, silent=silent)
            lacking = {name: at for name, at in lacking.items() if name in made}
        changes = [
            change
            for name, answer in would.items()
            for change in _differences(name, answer.before, answer.after)
        ]
        changes += [d.creation(group, name) for name in lacking]
        return d.Update(tuple(changes))

    async def get_group(
        self, group: str, *, silent: list[MqError] | None = None
    ) -> d.GroupDescription:
        """Return the settings of a group.

        Args:
            group: The name of the group.
            silent: See `list_topics`.

        Returns:
            The settings on the first broker that has the group, and the names of all of these.

        Raises:
            MqError: SUBSCRIPTION_GROUP_NOT_EXIST if no master has the group.
        """
        answers = await self._brokers.ask_each(
            await self._brokers.masters_to_ask(silent),
            rpcs.GET_GROUP,
            admin_pb2.GetGroupRequest(consumer_group=group),
            absent=(Code.SUBSCRIPTION_GROUP_NOT_EXIST,),
            silent=silent,
        )
        first = next(iter(answers.values()))
        return d.GroupDescription.of(first.group, list(answers))

    async def list_groups(
        self, *, include_system: bool = False, silent: list[MqError] | None = None
    ) -> list[d.GroupDescription]:
        """Return all groups, sorted by name, with the settings of the first broker.

        Args:
            include_system: Whether to include groups of the system.
            silent: See `list_topics`.

        Returns:
            The groups.
        """
        request = admin_pb2.ListGroupsRequest(include_system=include_system)
        answers = await self._brokers.ask_masters(rpcs.LIST_GROUPS, request, silent=silent)
        configs: dict[str, admin_pb2.GroupConfig] = {}
        brokers: dict[str, list[str]] = {}
        for name, answer in answers.items():
            for config in answer.groups:
                configs.setdefault(config.consumer_group, config)
                brokers.setdefault(config.consumer_group, []).append(name)
        return [d.GroupDescription.of(configs[group], brokers[group]) for group in sorted(configs)]

    async def groups_of_brokers(
        self, *, silent: list[MqError] | None = None
    ) -> dict[str, list[d.GroupDescription]]:
        """Return the groups of each broker, with their settings there.

        Args:
            silent: See `list_topics`.

        Returns:
            The groups, by broker name.
        """
        masters = await self._brokers.masters_to_ask(silent)
        request = admin_pb2.ListGroupsRequest()
        answers = await self._brokers.ask_each(masters, rpcs.LIST_GROUPS, request, silent=silent)
        return {
            name: [d.GroupDescription.of(config, [name]) for config in answer.groups]
            for name, answer in answers.items()
        }

    async def delete_group(
        self,
        group: str,
        *,
        remove_offsets: bool = True,
        silent: list[MqError] | None = None,
    ) -> bool:
        """Delete a group on every master.

        Args:
            group: The name of the group.
            remove_offsets: Whether to delete the consumer offsets and the retries of the group too.
            silent: See `create_topic`.

        Returns:
            False if no master had the group.
        """
        request = admin_pb2.DeleteGroupRequest(consumer_group=group, remove_offsets=remove_offsets)
        masters = await self._brokers.masters_to_change(silent)
        answers = await self._brokers.ask_each(masters, rpcs.DELETE_GROUP, request, silent=silent)
        return any(answer.deleted for answer in answers.values())

    async def list_clients(
        self, group: str = "", topic: str = "", *, silent: list[MqError] | None = None
    ) -> list[d.ClientDescription]:
        """Return the connected clients, sorted by id. These are classic clients and official SDKs.

        Args:
            group: Only clients of this group.
            topic: Only clients that subscribe or publish to this topic.
            silent: See `list_topics`.

        Returns:
            The clients.
        """
        request = client_pb2.ListClientsRequest(group=group, topic=topic)
        masters = await self._brokers.masters_to_ask(silent)
        answers = await self._brokers.ask_each(masters, rpcs.LIST_CLIENTS, request, silent=silent)
        found = d.merged_clients({name: each.clients for name, each in answers.items()})
        # A broker of an earlier version does not filter by topic.
        return [each for each in found if not topic or each.uses(topic)]

    async def consume_progress(
        self, group: str, topic: str = "", *, silent: list[MqError] | None = None
    ) -> list[d.QueueProgress]:
        """Return the consumer offset and lag of a group in each queue, including its retry topic.

        Args:
            group: The name of the group.
            topic: Only this topic.
            silent: See `list_topics`.

        Returns:
            The progress in each queue.

        Raises:
            MqError: SUBSCRIPTION_GROUP_NOT_EXIST or TOPIC_NOT_EXIST.
        """
        answers = await self._brokers.ask_each(
            await self._brokers.masters_to_ask(silent),
            rpcs.GET_CONSUME_STATS,
            offset_pb2.GetConsumeStatsRequest(consumer_group=group, topic=topic),
            absent=(Code.SUBSCRIPTION_GROUP_NOT_EXIST,),
            silent=silent,
        )
        progress = [
            d.QueueProgress.of(name, queue)
            for name, answer in answers.items()
            for queue in answer.queues
        ]
        if topic and not progress:
            # raises: an absent topic is an error, not an empty list
            await self._brokers.of_topic(topic)
        return sorted(progress, key=lambda q: (q.topic, q.broker_name, q.queue_id))

    async def blocked_message_groups(
        self,
        group: str,
        *,
        omitted: dict[str, int] | None = None,
        silent: list[MqError] | None = None,
    ) -> list[d.BlockedMessageGroup]:
        """Return message groups that wait behind a message that the group failed to consume.

        The message group that has waited longest comes first. Each broker returns at most 1,000.

        Args:
            group: The name of the consumer group.
            omitted: Collects how many further ones a broker has, by broker name.
            silent: See `list_topics`.

        Returns:
            The blocked message groups.

        Raises:
            MqError: SUBSCRIPTION_GROUP_NOT_EXIST if no master has the group.
        """
        answers = await self._brokers.ask_each(
            await self._brokers.masters_to_ask(silent),
            rpcs.LIST_BLOCKED_MESSAGE_GROUPS,
            pop_pb2.ListBlockedMessageGroupsRequest(consumer_group=group),
            absent=(Code.SUBSCRIPTION_GROUP_NOT_EXIST,),
            silent=silent,
        )
        if omitted is not None:
            further = {name: each.total - len(each.groups) for name, each in answers.items()}
            omitted.update((name, count) for name, count in further.items() if count > 0)
        found = [
            d.BlockedMessageGroup.of(name, blocked)
            for name, answer in answers.items()
            for blocked in answer.groups
        ]
        return sorted(found, key=lambda blocked: blocked.since_timestamp_ms)

    async def skip_message(
        self,
        group: str,
        message_id: str,
        *,
        reason: str = "Skipped",
        silent: list[MqError] | None = None,
    ) -> d.BlockedMessageGroup:
        """Dead-letter the message that blocks a message group.

        Args:
            group: The name of the consumer group.
            message_id: The message id of the message that blocks.
            reason: The failure reason to store.
            silent: See `list_topics`. The error QUERY_NOT_FOUND names these brokers.

        Returns:
            The message group that the message blocked.

        Raises:
            MqError: QUERY_NOT_FOUND or SUBSCRIPTION_GROUP_NOT_EXIST.
        """
        masters = await self._brokers.masters()
        omitted: dict[str, int] = {}
        for blocked in await self.blocked_message_groups(group, omitted=omitted, silent=silent):
            if message_id and blocked.message_id == message_id:
                request = pop_pb2.SkipMessageRequest(
                    consumer_group=group,
                    topic=blocked.topic,
                    queue_id=blocked.queue_id,
                    queue_offset=blocked.queue_offset,
                    failure=message_pb2.Failure(reason=reason),
                )
                address = masters[blocked.broker_name]
                await self._brokers.ask(blocked.broker_name, address, rpcs.SKIP_MESSAGE, request)
                return blocked
        listed = "listed " if omitted else ""
        unknown = "".join(f"; {error.message}" for error in silent or ())
        where = " on a broker that answers" if unknown else ""
        raise MqError(
            Code.QUERY_NOT_FOUND,
            f"no {listed}message group of {group} waits behind a message {message_id!r}{where}: "
            f"see aerobee group blocked {group}{unknown}",
        )

    async def commit_offsets(self, group: str, offsets: Mapping[tuple[str, str, int], int]) -> None:
        """Store offsets of a group as one of its consumers would. Offsets may also move backwards.

        If a broker refuses one of its offsets, it stores none of them.

        Args:
            group: The name of the group.
            offsets: The queue offset of the next message, by (topic, broker name, queue id).

        Raises:
            MqError: SUBSCRIPTION_GROUP_NOT_EXIST, TOPIC_NOT_EXIST, BROKER_NOT_EXIST, or
                INVALID_PARAMETER if an offset is beyond the end of its queue. The others are then
                stored.
        """
        requests: dict[str, offset_pb2.UpdateConsumerOffsetsRequest] = {}
        for (topic, broker_name, queue_id), offset in offsets.items():
            request = requests.setdefault(
                broker_name, offset_pb2.UpdateConsumerOffsetsRequest(consumer_group=group)
            )
            with numbers_fit():
                request.offsets.add(topic=topic, queue_id=queue_id, queue_offset=offset)
        masters = await self._brokers.masters() if requests else {}
        beyond_end: list[str] = []
        for broker_name, request in requests.items():
            if broker_name not in masters:
                raise MqError(
                    Code.BROKER_NOT_EXIST,
                    f"no broker {broker_name!r} is registered: offsets there are not committed",
                    retryable=True,
                )
            answer = await self._brokers.ask(
                broker_name, masters[broker_name], rpcs.UPDATE_CONSUMER_OFFSETS, request
            )
            beyond_end += [
                f"{each.queue_offset} for queue {each.queue_id} of {each.topic} at {broker_name}"
                for each in answer.beyond_end
            ]
        if beyond_end:
            raise invalid_parameter(
                f"queue offsets beyond the end of their queues are not stored: "
                f"{', '.join(beyond_end)}; give the offset of the next message",
                about="offsets",
            )

    async def reset_offsets(
        self,
        group: str,
        topic: str,
        *,
        timestamp_ms: int | None = None,
        queue_offset: int | None = None,
        requested_by: str = "",
        queues: Collection[tuple[str, int]] = (),
        silent: list[MqError] | None = None,
    ) -> list[d.QueueOffset]:
        """Move the offsets of a group in a topic.

        A running consumer continues at the new offsets with its next pull.

        Args:
            group: The name of the group.
            topic: The name of the topic.
            timestamp_ms: The store time to move to, in milliseconds since the epoch; negative for
                the end. Give either this or `queue_offset`.
            queue_offset: The queue offset to move to. In a queue that ends before this offset, the
                group moves to the end.
            queues: The queues to move, as broker name and queue id. Default: every queue.
            requested_by: The operator, which `track_message` names for messages that are skipped.
                Default: the address of this client.
            silent: See `create_topic`. With `queues`, only the brokers of these are called.

        Returns:
            The new offset of each queue.

        Raises:
            MqError: SUBSCRIPTION_GROUP_NOT_EXIST, TOPIC_NOT_EXIST, INVALID_PARAMETER if every queue
                ends before `queue_offset` or a queue does not exist, or BROKER_NOT_EXIST if a
                broker does not have the topic. Nothing is moved then.
        """
        if (timestamp_ms is None) == (queue_offset is None):
            raise invalid_parameter("give either timestamp_ms or queue_offset to reset to")
        brokers = await self._brokers.of_topic(topic, silent=None if queues else silent)
        ids = _ids_by_broker(topic, queues, brokers)
        with numbers_fit():
            requests = {
                name: offset_pb2.ResetConsumerOffsetsRequest(
                    consumer_group=group,
                    topic=topic,
                    timestamp_ms=timestamp_ms,
                    queue_offset=queue_offset,
                    queue_ids=chosen,
                    requested_by=requested_by,
                )
                for name, chosen in ids.items()
            }
        brokers = await self._check_within(brokers, topic, queue_offset or 0, ids, silent)
        answers = await self._brokers.ask_several(
            brokers, rpcs.RESET_CONSUMER_OFFSETS, requests, silent=silent
        )
        return [
            d.QueueOffset(offset.topic, name, offset.queue_id, offset.queue_offset)
            for name, answer in answers.items()
            for offset in answer.offsets
        ]

    async def clone_offsets(
        self,
        source: str,
        target: str,
        *,
        topic: str = "",
        dry_run: bool = False,
        silent: list[MqError] | None = None,
    ) -> list[d.QueueOffset]:
        """Move a group to the offsets of another group.

        The target then consumes what the source consumes from now on, and what is on lease there.
        Retries of the source are its own, and are not cloned.

        Args:
            source: The name of the group whose offsets are read.
            target: The name of the group that is moved. It must exist.
            topic: Only this topic. Default: every topic in which the source has offsets.
            dry_run: Move nothing.
            silent: See `create_topic`.

        Returns:
            The new offset of each queue.

        Raises:
            MqError: SUBSCRIPTION_GROUP_NOT_EXIST, TOPIC_NOT_EXIST, or INVALID_PARAMETER if both are
                the same group.
        """
        if source == target:
            raise invalid_parameter(f"the groups are the same, {source}: name two", about="target")
        await self.get_group(target, silent=None if silent is None else [])
        found = [
            d.QueueOffset(each.topic, each.broker_name, each.queue_id, each.consumer_offset)
            for each in await self.consume_progress(source, topic, silent=silent)
            if each.consumer_offset is not None and not is_retry(each.topic)
        ]
        if dry_run:
            return found
        moved: list[d.QueueOffset] = []
        for each in found:
            place = (each.broker_name, each.queue_id)
            moved += await self.reset_offsets(
                target, each.topic, queue_offset=each.queue_offset, queues=[place]
            )
        return moved

    async def _check_within(
        self,
        brokers: Mapping[str, str],
        topic: str,
        queue_offset: int,
        ids: Mapping[str, Collection[int]],
        silent: list[MqError] | None,
    ) -> dict[str, str]:
        """Check that the queues in `ids` exist, and that one of them reaches `queue_offset`.

        Raises MqError with the code INVALID_PARAMETER otherwise. Such a number is more likely a
        time, or an offset of another topic, than a request to skip every message. An empty
        collection of ids means all queues of the broker. Return the brokers of `ids` that answer.
        """
        reached, answers = await self._brokers.check_each(
            {name: brokers[name] for name in ids},
            rpcs.GET_QUEUE_OFFSETS,
            offset_pb2.GetQueueOffsetsRequest(topic=topic, without_timestamps=True),
            absent=None,
            silent=silent,
        )
        ends = {
            (name, queue.queue_id): queue.max_offset
            for name, answer in answers.items()
            for queue in answer.queues
        }
        chosen = [(name, queue_id) for name in reached for queue_id in ids[name]]
        for name, queue_id in chosen:
            if (name, queue_id) not in ends:
                raise invalid_parameter(
                    f"{topic} has no queue {queue_id} on broker {name}: see aerobee topic status "
                    f"{topic}",
                    about="queues",
                )
        end = max((ends[each] for each in chosen or ends), default=0)
        if queue_offset > end:
            raise invalid_parameter(
                f"queue offset {queue_offset} is beyond the end of every queue of {topic}; the "
                f"longest ends at {end}: give a smaller one, a store time, or the end",
                about="queue_offset",
            )
        return reached

    async def forget_offsets(
        self,
        group: str,
        topic: str,
        *,
        dry_run: bool = False,
        silent: list[MqError] | None = None,
    ) -> list[d.QueueOffset]:
        """Delete the offsets of a group in a topic that it no longer consumes, on every master.

        If the group consumes the topic again, it begins like a new group.

        Args:
            group: The name of the group.
            topic: The name of the topic.
            dry_run: Only return what would be deleted.
            silent: See `create_topic`.

        Returns:
            The deleted offsets; [] if there were none.

        Raises:
            MqError: SUBSCRIPTION_GROUP_NOT_EXIST, ILLEGAL_OPERATION while a member consumes the
                topic, or INVALID_PARAMETER for a parent of lite topics and for the group's own
                retry topic.
        """
        masters = await self._brokers.masters_to_change(silent)
        absent = Code.SUBSCRIPTION_GROUP_NOT_EXIST
        request = offset_pb2.ForgetConsumerOffsetsRequest(
            consumer_group=group, topic=topic, dry_run=True
        )
        # Ask all of them first, so that either all do it or none.
        _, answers = await self._brokers.check_each(
            masters, rpcs.FORGET_CONSUMER_OFFSETS, request, absent=absent, silent=silent
        )
        if not answers:
            raise missing_on_each(absent, f"consumer group {group!r}", silent)
        if not dry_run:
            request.dry_run = False
            having = {name: masters[name] for name in answers}
            answers = await self._brokers.ask_each(
                having, rpcs.FORGET_CONSUMER_OFFSETS, request, silent=silent
            )
        return [
            d.QueueOffset(offset.topic, name, offset.queue_id, offset.queue_offset)
            for name, answer in answers.items()
            for offset in answer.offsets
        ]

    async def _group_configs(
        self, brokers: Mapping[str, str], group: str, silent: list[MqError] | None
    ) -> tuple[dict[str, str], dict[str, admin_pb2.GroupConfig]]:
        """Return the brokers that answer, and the settings of a group on each that has it."""
        request = admin_pb2.GetGroupRequest(consumer_group=group)
        absent = Code.SUBSCRIPTION_GROUP_NOT_EXIST
        reached, answers = await self._brokers.check_each(
            brokers, rpcs.GET_GROUP, request, absent=absent, silent=silent
        )
        return reached, {name: answer.group for name, answer in answers.items()}


async def check_creation(
    brokers: Brokers,
    masters: Mapping[str, str],
    config: admin_pb2.GroupConfig,
    silent: list[MqError] | None,
) -> dict[str, str]:
    """Let each of `masters` check the creation of a group. Return those that answer.

    Raises the error of a broker that would refuse the group. A broker of version 0.1 checks
    nothing.
    """
    request = admin_pb2.UpdateGroupRequest(group=config, dry_run=True, allow_missing=True)
    absent = Code.SUBSCRIPTION_GROUP_NOT_EXIST
    reached, _ = await brokers.check_each(
        masters, rpcs.UPDATE_GROUP, request, absent=absent, silent=silent
    )
    return reached


def _retries(
    max_attempts: int | None,
    retry_delays: Sequence[timedelta] | None,
    exponential_retry: ExponentialRetryPolicy | None,
) -> dict[str, Any]:
    """Return the fields of GroupConfig for retries. An argument of None leaves its field out.

    Fixed delays and the exponential policy are always set together, because one replaces the other.
    Raises MqError with the code INVALID_PARAMETER for less than one attempt.
    """
    fields: dict[str, Any] = {}
    if max_attempts is not None:
        if max_attempts < 1:
            raise invalid_parameter(f"max_attempts is {max_attempts}: give at least 1")
        fields["retry_max_times"] = max_attempts - 1
    if retry_delays is not None or exponential_retry is not None:
        fields["retry_delays_ms"] = [
            round(delay.total_seconds() * 1000) for delay in retry_delays or ()
        ]
        fields["exponential_retry"] = (
            admin_pb2.ExponentialRetry(**asdict(exponential_retry)) if exponential_retry else None
        )
    return fields


def _order(order: ConsumeOrder) -> dict[str, Any]:
    return {
        "order": cast(admin_pb2.ConsumeOrder, order.value),
        "consume_message_orderly": order is ConsumeOrder.ON,
    }


def _check_same(
    wanted: admin_pb2.GroupConfig, found: Iterable[tuple[str, admin_pb2.GroupConfig]]
) -> None:
    """Raise AlreadyExists if the settings in `found` differ from `wanted`.

    `found` pairs the name of each broker with the settings on that broker.
    """
    different = [change for name, there in found for change in _differences(name, there, wanted)]
    if different:
        code = Code.SUBSCRIPTION_GROUP_EXIST_ALREADY
        raise d.AlreadyExists(code, "group", wanted.consumer_group, different)


def _differences(
    broker_name: str, before: admin_pb2.GroupConfig, after: admin_pb2.GroupConfig
) -> list[d.Change]:
    old, new = (d.GroupDescription.of(config, [broker_name]) for config in (before, after))
    return d.differences(before.consumer_group, broker_name, old, new)


def _ids_by_broker(
    topic: str, queues: Collection[tuple[str, int]], brokers: Mapping[str, str]
) -> dict[str, list[int]]:
    """Return the chosen queue ids of each broker; without chosen queues, an empty list for each.

    Raises MqError with the code BROKER_NOT_EXIST if a broker does not have the topic.
    """
    if not queues:
        return {name: [] for name in brokers}
    ids: dict[str, list[int]] = {}
    for name, queue_id in queues:
        if name not in brokers:
            raise MqError(
                Code.BROKER_NOT_EXIST,
                f"{topic} has no queues on a broker {name!r}: it has some on "
                f"{', '.join(sorted(brokers))}",
                about=name,
            )
        ids.setdefault(name, []).append(queue_id)
    return ids
