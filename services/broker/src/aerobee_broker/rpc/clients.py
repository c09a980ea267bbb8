"""Implement ClientService: heartbeats, watches and queue locks of clients.

RPCs: Heartbeat, UnregisterClient, WatchClient, ListGroupMembers, LockQueues, UnlockQueues,
ListClients.

Codes: SUBSCRIPTION_GROUP_NOT_EXIST (auto-creation is off), SUBSCRIPTION_PARSE_FAILED,
INVALID_PARAMETER, CONSUMER_NOT_ONLINE (the client that locks is not a member).

Differences from Apache's server: a client keeps a stream open (WatchClient), and is unregistered
when the stream ends. An unknown group has no members, which is not an error.
"""

from __future__ import annotations

from aerobee.broker.v1 import client_pb2 as pb

from aerobee_broker.delivery.pull.long_polls import LongPolls
from aerobee_broker.delivery.transaction.check_back import TransactionChecks
from aerobee_broker.errors import InvalidParameter
from aerobee_broker.registry.clients import CheckNotice, ClientFilter, Clients
from aerobee_broker.registry.groups import GroupRegistry
from aerobee_broker.registry.queue_locks import QueueLocks
from aerobee_broker.registry.reply_streams import Reply, ReplyStreams
from aerobee_broker.rpc import convert
from aerobee_chassis.clock import Clock
from aerobee_chassis.rpc.call import Call
from aerobee_wire.access.policies import PUB, topic_need


class ClientRpcs:
    def __init__(
        self,
        clients: Clients,
        groups: GroupRegistry,
        locks: QueueLocks,
        checks: TransactionChecks,
        replies: ReplyStreams,
        *,
        polls: LongPolls,
        clock: Clock,
    ) -> None:
        self._clients = clients
        self._groups = groups
        self._locks = locks
        self._checks = checks
        self._replies = replies
        self._polls = polls
        self._clock = clock

    async def heartbeat(self, request: pb.HeartbeatRequest, call: Call) -> pb.HeartbeatResponse:
        client = convert.client(request, call)
        self._clients.check_user(client.client_id, convert.user_of(call))
        for consumer_group in client.consumers:
            group = await self._groups.for_client(consumer_group, convert.creator(call))
            await self._groups.ensure_retry_topic(group)
        self._clients.heartbeat(client)
        return pb.HeartbeatResponse(
            capabilities=[pb.SEND_BACK_DELAY, pb.REPLIES], now_timestamp_ms=self._clock.now_ms()
        )

    async def unregister_client(
        self, request: pb.UnregisterClientRequest, call: Call
    ) -> pb.UnregisterClientResponse:
        self._clients.check_user(request.client_id, convert.user_of(call))
        self._clients.unregister(
            request.client_id,
            producer_group=request.producer_group,
            consumer_group=request.consumer_group,
            publishing=request.publishing,
        )
        self._replies.client_left(request.client_id)
        self._polls.client_left(request.client_id)
        return pb.UnregisterClientResponse()

    async def watch_client(self, request: pb.WatchClientRequest, call: Call) -> None:
        if not request.client_id:
            raise InvalidParameter("client_id is empty: give the one of the heartbeat")

        async def write_reply(reply: Reply) -> None:
            await call.write(convert.reply_notice(reply))

        user = convert.user_of(call)
        self._clients.check_user(request.client_id, user)
        watch = self._clients.watch(
            request.client_id, user, lambda topic: call.caller.may(topic_need(topic, PUB))
        )
        replies = self._replies.open(request.client_id, write_reply)
        try:
            await call.write(pb.ClientNotice(watching=pb.Watching()))
            while notices := await watch.next():
                for notice in notices:
                    if isinstance(notice, CheckNotice):
                        await self._check_back(notice.half_message, call)
                    else:
                        changed = pb.GroupMembersChanged(consumer_group=notice)
                        await call.write(pb.ClientNotice(group_members_changed=changed))
        finally:
            self._replies.close(replies)
            self._clients.end_watch(watch)

    async def _check_back(self, half_message: int, call: Call) -> None:
        check = self._checks.check(half_message)
        if check is not None:
            notice = pb.ClientNotice(transaction_check=convert.transaction_check(check))
            await call.write(notice)
            self._checks.asked(half_message)

    async def list_group_members(
        self, request: pb.ListGroupMembersRequest, call: Call
    ) -> pb.ListGroupMembersResponse:
        members = self._clients.listed_members(request.consumer_group)
        return pb.ListGroupMembersResponse(client_ids=members)

    async def lock_queues(self, request: pb.LockQueuesRequest, call: Call) -> pb.LockQueuesResponse:
        group = self._groups.get(request.consumer_group)
        queues = [(queue.topic, queue.queue_id) for queue in request.queues]
        holders = self._locks.lock(request.consumer_group, request.client_id, queues)
        return pb.LockQueuesResponse(
            locks=[pb.QueueLock(client_id=held.client_id, epoch=held.epoch) for held in holders],
            max_reconsume_times=group.retry_max_times,
        )

    async def unlock_queues(
        self, request: pb.UnlockQueuesRequest, call: Call
    ) -> pb.UnlockQueuesResponse:
        queues = [(queue.topic, queue.queue_id) for queue in request.queues]
        self._locks.unlock(request.consumer_group, request.client_id, queues)
        return pb.UnlockQueuesResponse()

    async def list_clients(
        self, request: pb.ListClientsRequest, call: Call
    ) -> pb.ListClientsResponse:
        if request.offset < 0 or request.limit < 0:
            raise InvalidParameter("offset and limit are 0 or more")
        wanted = ClientFilter(
            group=request.group,
            topic=request.topic,
            user=request.user,
            proxy=request.proxy,
            text=request.text,
        )
        found = [client for client in self._clients.all() if wanted.matches(client)]
        end = request.offset + request.limit if request.limit else None
        return pb.ListClientsResponse(
            clients=[
                convert.client_info(client, self._clients, self._locks)
                for client in found[request.offset : end]
            ],
            total=len(found),
            names=[client.client_id for client in found] if request.with_names else (),
        )
