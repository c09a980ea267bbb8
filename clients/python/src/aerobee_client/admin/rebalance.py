"""Rebalance a topic: create it on brokers that lack it, with the groups that read it."""

from __future__ import annotations

from collections.abc import Mapping

from aerobee.broker.v1 import admin_pb2
from aerobee.namesrv.v1 import namesrv_pb2

from aerobee_client.admin import descriptions as d
from aerobee_client.admin.brokers import Brokers
from aerobee_wire import rpcs
from aerobee_wire.status import Code, MqError
from aerobee_wire.topics import check_topic


async def rebalance(brokers: Brokers, topic: str, *, dry_run: bool) -> list[d.Rebalanced]:
    """Rebalance a topic: see AsyncAdminClient.rebalance_topic.

    If brokers differ in the settings of the topic, the settings with the most write queues are
    used. Groups are created first. Otherwise a consumer of a new message could find a group that a
    client created with the default settings.
    """
    check_topic(topic)
    masters = await brokers.masters()
    configs = await topic_configs(brokers, masters, topic)
    if not configs:
        raise MqError(Code.TOPIC_NOT_EXIST, f"no broker has a topic {topic}: create it first")
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
    if not dry_run:
        for name, address in lacking.items():
            for group in groups[name]:
                request = admin_pb2.PutGroupRequest(group=group)
                await brokers.ask(name, address, rpcs.PUT_GROUP, request)
        put = admin_pb2.PutTopicRequest(topic=config, only_new=True)
        await brokers.ask_each(lacking, rpcs.PUT_TOPIC, put)
    return [
        d.Rebalanced(
            name,
            address,
            config.write_queue_count,
            tuple(group.consumer_group for group in groups[name]),
        )
        for name, address in lacking.items()
    ]


async def topic_configs(
    brokers: Brokers, masters: Mapping[str, str], topic: str
) -> dict[str, namesrv_pb2.TopicConfig]:
    """Return the settings of a topic by the names of the brokers that have it."""
    request = admin_pb2.GetTopicRequest(topic=topic)
    answers = await brokers.ask_having(
        masters, rpcs.GET_TOPIC, request, absent=Code.TOPIC_NOT_EXIST
    )
    return {name: answer.topic for name, answer in answers.items()}


async def _missing_groups(
    brokers: Brokers, masters: Mapping[str, str], having: list[str], lacking: list[str]
) -> dict[str, list[admin_pb2.GroupConfig]]:
    """Return the groups to create: name of a broker that lacks the topic → its missing groups.

    A group is missing if a broker that has the topic has the group.
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
