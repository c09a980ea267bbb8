"""List message groups that wait behind a message that has failed, and release them."""

from __future__ import annotations

from aerobee.broker.v1 import message_pb2, pop_pb2

from aerobee_client.admin import descriptions as d
from aerobee_client.admin.brokers import Brokers
from aerobee_wire import rpcs
from aerobee_wire.status import Code, MqError


async def blocked_message_groups(brokers: Brokers, group: str) -> list[d.BlockedMessageGroup]:
    """List blocked message groups: see AsyncAdminClient.blocked_message_groups."""
    answers = await brokers.ask_masters(
        rpcs.LIST_BLOCKED_MESSAGE_GROUPS,
        pop_pb2.ListBlockedMessageGroupsRequest(consumer_group=group),
        absent=(Code.SUBSCRIPTION_GROUP_NOT_EXIST,),
    )
    found = [
        d.BlockedMessageGroup.of(name, blocked)
        for name, answer in answers.items()
        for blocked in answer.groups
    ]
    return sorted(found, key=lambda blocked: blocked.since_timestamp_ms)


async def skip_message(
    brokers: Brokers, group: str, message_id: str, *, reason: str
) -> d.BlockedMessageGroup:
    """Dead-letter the message that blocks a group: see AsyncAdminClient.skip_message."""
    masters = await brokers.masters()
    for blocked in await blocked_message_groups(brokers, group):
        if message_id and blocked.message_id == message_id:
            request = pop_pb2.SkipMessageRequest(
                consumer_group=group,
                topic=blocked.topic,
                queue_id=blocked.queue_id,
                queue_offset=blocked.queue_offset,
                failure=message_pb2.Failure(reason=reason),
            )
            address = masters[blocked.broker_name]
            await brokers.ask(blocked.broker_name, address, rpcs.SKIP_MESSAGE, request)
            return blocked
    raise MqError(
        Code.QUERY_NOT_FOUND,
        f"no message group of {group} waits behind a message {message_id!r}: "
        f"see aerobee group blocked {group}",
    )
