"""Find the sources of a simple consumer: each of its topics at each readable broker.

With a machine room, only nearby brokers are used, like in RocketMQ's strategy MACHINE_ROOM_NEARBY.
These are the brokers in the same room, and in rooms without a member of the group. Brokers are
named "room@name". The client id of a member contains its room.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress

from aerobee.broker.v1 import client_pb2

from aerobee_client.cluster.client_instance import ClientInstance
from aerobee_client.cluster.route_cache import TopicRoute, readable_queues
from aerobee_client.leasing.receiving.answers import Source
from aerobee_client.rebalance import room_of_broker_name, room_of_client_id
from aerobee_wire import rpcs
from aerobee_wire.status import Code, MqError

log = logging.getLogger(__name__)

CALL_TIMEOUT_S = 3.0
LOOK_INTERVAL_S = 20.0  # the time between queries for the rooms of members, without notices


class Sources:
    """The sources of one consumer.

    If `machine_room` is "", all brokers are used. `on_change` is called when the set of nearby
    brokers has changed; `changes` counts these changes.
    """

    def __init__(
        self,
        instance: ClientInstance,
        consumer_group: str,
        machine_room: str,
        *,
        on_change: Callable[[], None],
    ) -> None:
        self.changes = 0
        self._instance = instance
        self._consumer_group = consumer_group
        self._room = machine_room
        self._on_change = on_change
        self._brokers: dict[str, tuple[TopicRoute, Sequence[str]]] = {}  # by topic
        self._missing: set[str] = set()  # topics that do not exist, and were logged
        self._announced: frozenset[str] = frozenset()
        self._announcing = asyncio.Lock()
        self._rooms = frozenset({machine_room})  # rooms of the members
        self._look_now = asyncio.Event()
        self._looking: asyncio.Task[None] | None = None

    async def start(self) -> None:
        if self._room:
            await self._look()
            self._looking = asyncio.create_task(self._look_forever(), name="members by room")

    async def close(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)

    def announce_again(self) -> None:
        """Report the subscriptions of the group to the brokers before the next receive."""
        self._announced = frozenset()
        self._brokers.clear()

    def on_notice(self, _: str, notice: client_pb2.ClientNotice) -> None:
        changed = notice.HasField("group_members_changed")
        if not changed or notice.group_members_changed.consumer_group == self._consumer_group:
            self._look_now.set()

    async def of(self, topics: Collection[str]) -> Sequence[Source]:
        """Return the sources for `topics`, or an empty sequence if no broker is nearby.

        Raises MqError if no topic has readable queues, or if every broker refuses the group.
        """
        sources: list[Source] = []
        failure: MqError | None = None
        readable = False
        for topic in topics:
            try:
                route = await self.route(topic)
            except MqError as error:
                failure = error
                continue
            known = self._brokers.get(topic)
            if known is None or known[0] is not route:
                names = dict.fromkeys(queue.broker_name for queue in readable_queues(topic, route))
                await self._announce()  # again at the next receive, if this one is cancelled
                known = self._brokers[topic] = (route, tuple(names))
            readable = readable or bool(known[1])
            sources += [Source(topic, name) for name in known[1] if self._is_near(name)]
        if not readable:
            raise failure or MqError(
                Code.NO_PERMISSION,
                f"no broker lets topic {', '.join(topics)} be read now",
                retryable=True,
            )
        return sources

    async def route(self, topic: str) -> TopicRoute:
        """Return the route of a topic. Log a warning if the topic does not exist, but only once.

        Raises MqError if no name server knows the route.
        """
        try:
            route = await self._instance.routes.route(topic)
        except MqError as error:
            if error.code is Code.TOPIC_NOT_EXIST and topic not in self._missing:
                self._missing.add(topic)
                log.warning("%s waits for topic %s: %s", self._consumer_group, topic, error)
            raise
        self._missing.discard(topic)
        return route

    def _is_near(self, broker_name: str) -> bool:
        room = room_of_broker_name(broker_name)
        return not self._room or room == self._room or room not in self._rooms

    async def _announce(self) -> None:
        """Register with new brokers. They may create the group only after a heartbeat."""
        async with self._announcing:
            addresses = frozenset(self._instance.routes.master_addresses())
            if not addresses <= self._announced:
                await self._instance.announce()
                self._announced = addresses

    async def _look_forever(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_INTERVAL_S):
                    await self._look_now.wait()
            self._look_now.clear()
            try:
                await self._look()
            except Exception:
                log.exception("members of %s not found out", self._consumer_group)

    async def _look(self) -> None:
        """Find the machine rooms of the group's members, from the first broker that answers.

        If no broker answers, the known rooms stay.
        """
        request = client_pb2.ListGroupMembersRequest(consumer_group=self._consumer_group)
        for address in sorted(self._instance.routes.master_addresses()):
            try:
                answer = await self._instance.transport.call(
                    address, rpcs.LIST_GROUP_MEMBERS, request, timeout_s=CALL_TIMEOUT_S
                )
            except MqError as error:
                log.debug("%s does not say who is in %s: %s", address, self._consumer_group, error)
                continue
            rooms = frozenset({self._room, *map(room_of_client_id, answer.client_ids)})
            if rooms != self._rooms:
                log.info("members of %s are in %s", self._consumer_group, ", ".join(sorted(rooms)))
                self._rooms = rooms
                self.changes += 1
                self._on_change()
            return
