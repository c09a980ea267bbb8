"""Administering topics, groups, offsets and brokers, and reading messages; for asyncio.

Reading changes nothing: browsing needs no consumer group and commits no offset. Changes go to every
master of the cluster, because each broker has its own topics and groups.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from aerobee.broker.v1 import admin_pb2, message_pb2
from aerobee.namesrv.v1 import namesrv_pb2

from aerobee_client.admin import descriptions as d
from aerobee_client.admin.brokers import numbers_fit
from aerobee_client.admin.diverged.calls import DivergedAdmin
from aerobee_client.admin.groups import GroupAdmin
from aerobee_client.admin.lite import LiteAdmin
from aerobee_client.admin.topics import TopicAdmin
from aerobee_client.errors import BrokerUnreachable
from aerobee_client.message import ReceivedMessage
from aerobee_wire import rpcs
from aerobee_wire.message_id import parse_offset_message_id
from aerobee_wire.status import Code, MqError


class AsyncAdminClient(TopicAdmin, GroupAdmin, LiteAdmin, DivergedAdmin):
    """`async with AsyncAdminClient(...) as admin:`; closing it ends its connections.

    `timeout`: of each call to a broker. Every method raises MqError: NamesrvUnreachable,
    BrokerUnreachable, RequestTimeout, or the refusal of a broker, which the message names.
    """

    # ---- cluster ----

    async def cluster(self) -> d.ClusterDescription:
        return d.ClusterDescription.of(await self._brokers.cluster_info())

    async def broker_status(
        self, broker: str, *, physical_offsets: Sequence[int] = ()
    ) -> d.BrokerStatus:
        """`broker`: its name, or its address. `physical_offsets`: of records whose expiry is asked
        for, at most 4096."""
        request = admin_pb2.GetBrokerStatusRequest(physical_offsets=physical_offsets)
        return d.BrokerStatus.of(
            await self._brokers.ask_named(broker, rpcs.GET_BROKER_STATUS, request)
        )

    async def broker_times_ms(self) -> dict[str, int]:
        """Return each master's clock as it answers, milliseconds since the epoch, by broker name.
        Store times are by these clocks."""
        request = admin_pb2.GetBrokerStatusRequest()
        answers = await self._brokers.ask_masters(rpcs.GET_BROKER_STATUS, request)
        return {name: answer.now_timestamp_ms for name, answer in answers.items()}

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
        address: str | None = None,
    ) -> d.Browsed:
        """Reads a queue from `queue_offset` on; consumes nothing. `max_bytes`: 0 = 256 KiB.
        `address`: of the broker, when it is known; then no route is asked for."""
        with numbers_fit():
            request = message_pb2.PullRequest(
                topic=topic,
                queue_id=queue_id,
                queue_offset=queue_offset,
                max_messages=max_messages,
                max_bytes=max_bytes,
                browse=True,
            )
        if address is not None:
            answer = await self._brokers.ask(broker_name, address, rpcs.PULL, request)
        else:
            answer = await self._brokers.ask_broker_of(topic, broker_name, rpcs.PULL, request)
        return d.Browsed.of(broker_name, answer)

    async def get_message(self, offset_message_id: str) -> ReceivedMessage:
        """The record that an offset message id names. The host in it may be an earlier master's:
        where nobody answers there, every broker is asked for a record of that host. Raises
        QUERY_NOT_FOUND, MESSAGE_CORRUPTED."""
        address, _ = parse_offset_message_id(offset_message_id)
        brokers = (await self._brokers.cluster_info()).brokers
        name = next(
            (each.broker_name for each in brokers if address in each.addresses.values()), address
        )
        request = message_pb2.GetMessageRequest(offset_message_id=offset_message_id)
        try:
            response = await self._brokers.ask(name, address, rpcs.GET_MESSAGE, request)
        except BrokerUnreachable as error:
            return await self._message_of_host(address, request, brokers, error)
        return ReceivedMessage(response.message, name)

    async def _message_of_host(
        self,
        host: str,
        request: message_pb2.GetMessageRequest,
        brokers: Sequence[namesrv_pb2.BrokerData],
        unreachable: MqError,
    ) -> ReceivedMessage:
        """Of the broker whose log has the record of that host: an offset alone names one in each
        log. Raises `unreachable` where none has it."""
        others = {
            each.broker_name: each.addresses[min(each.addresses)]
            for each in brokers
            if each.addresses
        }
        absent = (Code.QUERY_NOT_FOUND, Code.BROKER_UNREACHABLE)
        answers = await asyncio.gather(
            *(
                self._brokers.ask(name, at, rpcs.GET_MESSAGE, request)
                for name, at in others.items()
            ),
            return_exceptions=True,
        )
        for name, answer in zip(others, answers, strict=True):
            if isinstance(answer, message_pb2.GetMessageResponse):
                if answer.message.store_host == host:
                    return ReceivedMessage(answer.message, name)
            elif not (isinstance(answer, MqError) and answer.code in absent):
                raise answer
        raise unreachable

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
        with numbers_fit():
            request = message_pb2.QueryMessagesRequest(
                topic=topic,
                key=key or unique_id,
                unique=bool(unique_id),
                max_messages=max_messages,
                begin_timestamp_ms=begin_timestamp_ms,
                end_timestamp_ms=end_timestamp_ms,
            )
        brokers = await self._brokers.of_topic(topic, reads=True)
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
