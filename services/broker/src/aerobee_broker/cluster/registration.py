"""Register this broker and its topics with every name server, and keep it registered.

There is one link per name server. Name servers share no data, so each link knows which topics its
own name server has. A link registers, and then holds the stream WatchRegistration open. If the
stream ends, the name server is probably gone. Without any name server the broker serves clients,
and retries to register.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import structlog
from aerobee.namesrv.v1 import namesrv_pb2

from aerobee_broker.cluster.identity import Identity
from aerobee_broker.cluster.twins import Holder, Twins
from aerobee_broker.metadata.topics import TopicConfig, Topics
from aerobee_chassis.lifecycle import Component
from aerobee_chassis.rpc.caller import Caller, ErrorOf
from aerobee_chassis.rpc.transport import CallFailed
from aerobee_cluster.name_servers import due_in_s, places_of
from aerobee_wire import rpcs
from aerobee_wire.certificates import tls_cause
from aerobee_wire.status import Code, MqError, error_from

FIRST_BACK_OFF_S = 0.2
# For up to this time, a restarted name server returns routes without this broker.
LONGEST_BACK_OFF_S = 1.0
# How many seconds a change of topics waits for a name server that does not answer.
ANNOUNCE_TIMEOUT_S = 3.0
UNREGISTER_TIMEOUT_S = 2.0
SHORTEST_PERIOD_MS, LONGEST_PERIOD_MS = 10_000, 60_000


@dataclass(frozen=True, slots=True)
class Timing:
    period_s: float
    timeout_s: float

    @classmethod
    def of(cls, *, period_ms: int, timeout_ms: int) -> Timing:
        clamped = min(max(period_ms, SHORTEST_PERIOD_MS), LONGEST_PERIOD_MS)
        return cls(clamped / 1000, timeout_ms / 1000)


def unreachable(code: Code, kind: str) -> ErrorOf:
    """Return a function that makes the error for a failed call to a name server or broker.

    The error is the one in the answer. If the answer has none, it is an MqError with `code`. `kind`
    names the server in the message.
    """

    def error_of(address: str, failure: CallFailed) -> MqError:
        details = tls_cause(failure.message) or failure.message or failure.status
        return error_from(details, failure.trailers) or MqError(
            code, f"no answer from {kind} {address}: {details}"
        )

    return error_of


class Link:
    """Keep this broker registered with one name server. `stop` closes `caller`."""

    def __init__(
        self,
        address: str,
        caller: Caller,
        identity: Identity,
        topics: Topics,
        *,
        permission: Callable[[], int],
        timing: Timing,
        twins: Twins,
        epoch: Callable[[], int] = lambda: 0,
        will_return: Callable[[], bool] = lambda: False,
    ) -> None:
        """Create the link.

        `twins` is notified whether another process is registered with this broker's number. `epoch`
        returns the newest epoch of a replicated log; a name server refuses a master with an older
        epoch. `will_return` returns whether this broker drains only for a restart.
        """
        self.address = address
        self.registered = False
        self.tried = asyncio.Event()
        self._caller = caller
        # The fields by which a request names this broker.
        self._broker: dict[str, Any] = {
            "cluster": identity.cluster,
            "broker_name": identity.broker_name,
            "broker_id": identity.broker_id,
            "broker_address": identity.address,
        }
        self._identity = identity
        self._twins = twins
        self._topics = topics
        self._permission = permission
        self._timing = timing
        self._epoch = epoch
        self._will_return = will_return
        # The name server last reported that another broker has this name and id.
        self._is_rejected = False
        self._known_revision = -1  # revision of the topics at the name server
        self._changed = asyncio.Event()
        self._updated: asyncio.Future[None] | None = None  # waited for in `announce`
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run(), name=self.address)

    async def announce(self) -> bool:
        """Wait until the name server has the present topics, and return whether it has them."""
        wanted = self._topics.revision
        try:
            async with asyncio.timeout(ANNOUNCE_TIMEOUT_S):
                while self.registered and self._known_revision < wanted:
                    if self._updated is None:
                        self._updated = asyncio.get_running_loop().create_future()
                    self._changed.set()
                    await asyncio.shield(self._updated)
        except TimeoutError:
            return False
        return self.registered

    async def route(self, topic: str, timeout_s: float) -> namesrv_pb2.TopicRoute:
        """Return the route of a topic.

        Raises MqError with the code TOPIC_NOT_EXIST if no broker serves the topic, and other errors
        of the call.
        """
        request = namesrv_pb2.GetTopicRouteRequest(topic=topic)
        response = await self._caller.call(
            self.address, rpcs.GET_TOPIC_ROUTE, request, timeout_s=timeout_s
        )
        return response.route

    def refresh(self) -> None:
        """Register again at once, because the epoch has changed."""
        self._changed.set()

    async def stop(self, *, unregister: bool = True) -> None:
        """Stop the link.

        Set `unregister` to False if another link registers this broker with another role.
        """
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        if self.registered:
            self.registered = False
            if unregister:
                await self._unregister()
        await self._caller.close()

    # ---- the task ----

    async def _run(self) -> None:
        back_off_s = FIRST_BACK_OFF_S
        lost = False
        while True:
            try:
                await self._register(watch_follows=True)
                reason = "it rejects this broker"
                if self.registered:
                    structlog.get_logger().info(
                        "registered", namesrv=self.address, topics=len(self._topics)
                    )
                    back_off_s, lost = FIRST_BACK_OFF_S, False
                    await self._keep_registered()
                    reason = "it ended the stream"
            except MqError as error:
                reason = error.message
            self._on_lost()
            if not lost:
                structlog.get_logger().warning(
                    "namesrv_lost", namesrv=self.address, reason=reason, then="trying again"
                )
                lost = True
            await asyncio.sleep(back_off_s)
            back_off_s = min(2 * back_off_s, LONGEST_BACK_OFF_S)

    async def _keep_registered(self) -> None:
        """Register changes at once, and all topics every period, until the stream ends or fails."""
        stream = asyncio.get_running_loop().create_task(self._watch())
        try:
            while not stream.done():
                changed = asyncio.get_running_loop().create_task(self._changed.wait())
                try:
                    done, _ = await asyncio.wait(
                        [stream, changed],
                        timeout=self._timing.period_s,
                        return_when=asyncio.FIRST_COMPLETED,
                    )
                finally:
                    changed.cancel()
                if stream not in done:
                    await self._register(changes_only=bool(done))
            stream.result()
        finally:
            stream.cancel()
            await asyncio.wait([stream])

    async def _watch(self) -> None:
        request = namesrv_pb2.WatchRegistrationRequest(**self._broker)
        async for notice in self._caller.stream(self.address, rpcs.WATCH_REGISTRATION, request):
            if notice.HasField("min_broker_id_changed"):
                change = notice.min_broker_id_changed
                structlog.get_logger().info(
                    "min_broker_id_changed",
                    min_broker_id=change.min_broker_id,
                    address=change.min_broker_address,
                )

    def _on_lost(self) -> None:
        self.registered = False
        self._known_revision = -1
        self.tried.set()
        self._wake_announcers()

    def _wake_announcers(self) -> None:
        """Wake the callers that wait in `announce`, so that they check again."""
        updated, self._updated = self._updated, None
        if updated is not None:
            updated.set_result(None)

    # ---- requests ----

    async def _register(self, *, changes_only: bool = False, watch_follows: bool = False) -> None:
        self._changed.clear()
        revision = self._topics.revision
        names = self._topics.changed_keys(self._known_revision) if changes_only else None
        if names is None:
            request = self._request(self._topics.all())
        else:
            changed = [(name, self._topics.get(name)) for name in names]
            request = self._request([config for _, config in changed if config])
            request.incremental = True
            request.removed_topics.extend(name for name, config in changed if config is None)
        request.watch_follows = watch_follows
        response = await self._caller.call(
            self.address, rpcs.REGISTER_BROKER, request, timeout_s=self._timing.timeout_s
        )
        if response.HasField("in_use"):
            await self._twins.rejected(self.address, holder_of(response.in_use))
        elif not response.rejected:
            self._twins.registered(self.address)
        elif not self._is_rejected:
            structlog.get_logger().error(
                "registration_rejected",
                namesrv=self.address,
                reason="another address holds this broker name and id with newer state; "
                "give this broker another brokerName or brokerId",
            )
        self._is_rejected = response.rejected
        self.registered = not response.rejected
        self._known_revision = revision
        self.tried.set()
        self._wake_announcers()

    def _request(self, topics: Sequence[TopicConfig]) -> namesrv_pb2.RegisterBrokerRequest:
        permission = self._permission()
        version = self._topics.version
        version = replace(version, state_version=max(version.state_version, self._epoch()))
        return namesrv_pb2.RegisterBrokerRequest(
            **self._broker,
            process_id=self._identity.process_id,
            store_id=self._identity.store_id,
            number=self._identity.number,
            start_timestamp_ms=self._identity.start_timestamp_ms,
            data_version=namesrv_pb2.DataVersion(**asdict(version)),
            topics=[to_message(config, permission) for config in topics],
            enable_acting_master=False,
        )

    async def _unregister(self) -> None:
        request = namesrv_pb2.UnregisterBrokerRequest(
            **self._broker, will_return=self._will_return()
        )
        try:
            await self._caller.call(
                self.address, rpcs.UNREGISTER_BROKER, request, timeout_s=UNREGISTER_TIMEOUT_S
            )
        except MqError as error:
            structlog.get_logger().warning(
                "not_unregistered", namesrv=self.address, reason=error.message
            )


def holder_of(process: namesrv_pb2.BrokerProcess) -> Holder:
    return Holder(process.broker_address, process.store_id, process.start_timestamp_ms)


def to_message(config: TopicConfig, permitted: int = ~0) -> namesrv_pb2.TopicConfig:
    """Return the protobuf message of a topic. `permitted` masks its permission bits."""
    return namesrv_pb2.TopicConfig(
        topic=config.topic,
        read_queue_count=config.read_queue_count,
        write_queue_count=config.write_queue_count,
        permission=config.permission & permitted,
        topic_sys_flag=config.topic_sys_flag,
        order=config.order,
        attributes=config.attributes,
    )


class Registration(Component):
    """Own the links to all name servers. `make_link` is called for each address.

    If the addresses are NameServers, links begin and end with them.
    """

    def __init__(self, addresses: Sequence[str], make_link: Callable[[str], Link]) -> None:
        self._addresses = addresses
        self._make_link = make_link
        self._links: dict[str, Link] = {}  # by address
        self._places: dict[str, str] = {}  # address of a link → the IP address behind it
        self._following: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start the links, and return when each has tried to register.

        Return after ANNOUNCE_TIMEOUT_S at the latest.
        """
        await self._begin(lambda: False)

    async def start_anywhere(self) -> None:
        """Start the links, and return when one name server has registered this broker.

        If none does, return at the same time as `start`. A name server whose machine is lost must
        not delay an election.
        """
        await self._begin(lambda: any(link.registered for link in self._links.values()))

    async def _begin(self, is_enough: Callable[[], bool]) -> None:
        await self._match_links()
        if due_in_s(self._addresses) is not None:
            self._following = asyncio.create_task(self._follow(), name="name servers")
        if not self._links:
            structlog.get_logger().warning(
                "no_namesrv", reason="namesrvAddr is empty: clients that ask for routes see nothing"
            )
        waiting = {asyncio.ensure_future(link.tried.wait()) for link in self._links.values()}
        try:
            async with asyncio.timeout(ANNOUNCE_TIMEOUT_S):
                while waiting and not is_enough():
                    _, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        except TimeoutError:
            pass  # the links keep trying
        finally:
            for task in waiting:
                task.cancel()

    async def _follow(self) -> None:
        while (wait_s := due_in_s(self._addresses)) is not None:
            await asyncio.sleep(wait_s)
            await self._match_links()

    async def _match_links(self) -> None:
        """Start and stop links, so that each present name server has one."""
        places = await places_of(self._addresses)
        gone = [each for each in self._links if places.get(each) != self._places[each]]
        # Without unregistering: if it runs at all, it is the same name server with another address.
        stops = [self._links.pop(each).stop(unregister=False) for each in gone]
        for address in places:
            if address not in self._links:
                self._links[address] = self._make_link(address)
                self._links[address].start()
        self._places = dict(places)
        await asyncio.gather(*stops)

    async def announce(self) -> list[str]:
        """Register changed topics, and return the name servers that did not receive them."""
        links = list(self._links.values())  # they may change before all have answered
        known = await asyncio.gather(*(link.announce() for link in links))
        return [link.address for link, knows in zip(links, known, strict=True) if not knows]

    async def route(self, topic: str, timeout_s: float) -> namesrv_pb2.TopicRoute | None:
        """Return the route from the first name server that answers.

        Return None if no broker serves the topic, or if this broker is not registered at any name
        server. Raises MqError if all calls fail.
        """
        failure: MqError | None = None
        for link in list(self._links.values()):
            if link.registered:
                try:
                    return await link.route(topic, timeout_s)
                except MqError as error:
                    if error.code is Code.TOPIC_NOT_EXIST:
                        return None
                    failure = error
        if failure is not None:
            raise failure
        return None

    def refresh(self) -> None:
        """Register again at every name server at once, because the epoch has changed."""
        for link in self._links.values():
            link.refresh()

    async def stop(self) -> None:
        """Unregister this broker from all name servers."""
        await self._end(unregister=True)

    async def hand_over(self) -> None:
        """End the links but keep this broker registered, because another role follows."""
        await self._end(unregister=False)

    async def _end(self, *, unregister: bool) -> None:
        if self._following is not None:
            self._following.cancel()
            await asyncio.wait([self._following])
        links, self._links = self._links, {}
        await asyncio.gather(*(link.stop(unregister=unregister) for link in links.values()))
