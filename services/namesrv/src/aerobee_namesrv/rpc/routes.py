"""Implement the RPCs of clients: routes, lists of topics and brokers, and watches.

They are GetTopicRoute, ListTopics, GetClusterInfo, WatchBrokers and GetBrokerMemberGroup.

Codes: INVALID_PARAMETER; TOPIC_NOT_EXIST, retryable if the topic was on a broker that has left;
SYSTEM_ERROR, retryable (needWaitForService: not ready yet); NO_PERMISSION (the list is turned off).

Differences from Apache's server: lists are sorted. A list that is turned off is NO_PERMISSION, not
SYSTEM_ERROR.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from aerobee.namesrv.v1 import namesrv_pb2 as pb

from aerobee_chassis.clock import Clock
from aerobee_chassis.rpc.call import Call
from aerobee_chassis.runtime_config import RuntimeConfig
from aerobee_namesrv.config import NamesrvOptions
from aerobee_namesrv.kv_config import KVConfigManager
from aerobee_namesrv.metrics import RouteCounts
from aerobee_namesrv.routing.proxies import ProxyTable
from aerobee_namesrv.routing.route_info_manager import RouteInfoManager
from aerobee_namesrv.rpc import checks, convert
from aerobee_wire.access.policies import TOPIC
from aerobee_wire.status import Code, MqError

Scope = pb.ListTopicsRequest.Scope


class RouteRpcs:
    def __init__(
        self,
        manager: RouteInfoManager,
        kv_config: KVConfigManager,
        options: RuntimeConfig[NamesrvOptions],
        clock: Clock,
        counts: RouteCounts,
        *,
        proxies: ProxyTable,
    ) -> None:
        self._manager = manager
        self._proxies = proxies
        self._kv_config = kv_config
        self._options = options
        self._clock = clock
        self._counts = counts
        self._started_ms = clock.monotonic_ms()

    async def get_topic_route(
        self, request: pb.GetTopicRouteRequest, call: Call
    ) -> pb.GetTopicRouteResponse:
        topic = checks.name("topic", request.topic)
        self._check_ready()
        route = self._manager.pickup_topic_route_data(topic, request.zone_name)
        if route is None:
            self._counts.missed += 1
            raise self._absent(topic)
        self._counts.found += 1
        order = ""
        if self._options.now.order_message_enable:
            order = self._kv_config.order_topic_config().get(topic, "")
        return pb.GetTopicRouteResponse(
            route=convert.to_topic_route(route, order),
            away_brokers=self._manager.away_brokers_of(topic),
        )

    def _absent(self, topic: str) -> MqError:
        if away := self._manager.away_brokers_of(topic):
            return MqError(
                Code.TOPIC_NOT_EXIST,
                f"the topic {topic!r} is on no broker that is registered here; it was on "
                f"{', '.join(away)}, gone by now: wait for that to come back, or start it",
                retryable=True,
                about="topic",
            )
        return MqError(
            Code.TOPIC_NOT_EXIST,
            f"no broker that is registered here has the topic {topic!r}; create it, or see "
            "whether its brokers run and know this name server",
            about="topic",
        )

    async def list_topics(self, request: pb.ListTopicsRequest, call: Call) -> pb.ListTopicsResponse:
        self._check_list_is_on(request.scope)
        if request.scope == Scope.SYSTEM:
            topics, address = self._manager.system_topics()
        else:
            topics, address = self._topics(request), ""
        visible = filter(partial(call.caller.sees, TOPIC), topics)
        return pb.ListTopicsResponse(topics=visible, broker_address=address)

    async def get_cluster_info(
        self, request: pb.GetClusterInfoRequest, call: Call
    ) -> pb.GetClusterInfoResponse:
        brokers = self._manager.broker_addr_table
        clusters = self._manager.cluster_addr_table
        return pb.GetClusterInfoResponse(
            brokers=[convert.to_broker_data(brokers[name]) for name in sorted(brokers)],
            clusters={
                cluster: pb.BrokerNames(names=sorted(names)) for cluster, names in clusters.items()
            },
            live_brokers=[
                convert.to_live_broker(key, live)
                for key, live in sorted(
                    self._manager.broker_live_table.items(), key=lambda row: row[0]
                )
            ],
            conflicts=[convert.to_conflict(each) for each in self._manager.conflicts.all()],
            away_brokers=[
                pb.AwayBroker(cluster=each.cluster, broker_name=each.broker_name)
                for each in self._manager.missing_brokers()
            ],
            proxies=[
                pb.ProxyData(
                    name=each.name,
                    version=each.version,
                    start_timestamp_ms=each.start_timestamp_ms,
                    admin_address=each.admin_address,
                )
                for each in self._proxies.open()
            ],
            away_proxies=[
                pb.AwayProxy(name=name, since_timestamp_ms=since_ms)
                for name, since_ms in self._proxies.away()
            ],
        )

    async def watch_brokers(self, request: pb.WatchBrokersRequest, call: Call) -> None:
        manager = self._manager
        watch = manager.watch_brokers()
        try:
            await self._notify(sorted(manager.broker_addr_table), call)
            async for names in watch.changes():
                await self._notify(names, call)
        finally:
            manager.end_broker_watch(watch)

    async def _notify(self, names: Iterable[str], call: Call) -> None:
        members = (convert.to_broker_members(self._manager.members(name)) for name in names)
        await call.write(pb.WatchBrokersResponse(brokers=members))

    async def get_broker_member_group(
        self, request: pb.GetBrokerMemberGroupRequest, call: Call
    ) -> pb.GetBrokerMemberGroupResponse:
        checks.name("broker_name", request.broker_name)
        data = self._manager.broker_addr_table.get(request.broker_name)
        return pb.GetBrokerMemberGroupResponse(addresses=data.addresses if data else {})

    def _topics(self, request: pb.ListTopicsRequest) -> list[str]:
        table = self._manager.topic_queue_table
        match request.scope:
            case Scope.ALL:
                return table.names()
            case Scope.CLUSTER:
                return self._manager.topics_of_cluster(checks.name("cluster", request.cluster))
            case Scope.BROKER:
                return table.names_on({checks.name("broker_name", request.broker_name)})
            case Scope.UNIT:
                return table.unit_names()
            case Scope.HAS_UNIT_SUBSCRIPTION:
                return table.unit_subscription_names(include_unit=True)
            case Scope.HAS_UNIT_SUBSCRIPTION_AND_NOT_UNIT:
                return table.unit_subscription_names(include_unit=False)
        raise checks.invalid("scope", request.scope, "give one that the contract names")

    def _check_list_is_on(self, scope: int) -> None:
        options = self._options.now
        key, on = (
            ("enableAllTopicList", options.enable_all_topic_list)
            if scope == Scope.ALL
            else ("enableTopicList", options.enable_topic_list or scope == Scope.SYSTEM)
        )
        if not on:
            raise MqError(
                Code.NO_PERMISSION,
                f"this list of topics is turned off; {key}=true turns it on",
                about=key,
            )

    def _check_ready(self) -> None:
        if not self._options.now.need_wait_for_service:
            return
        wait_ms = self._options.now.wait_seconds_for_service * 1_000
        left_ms = self._started_ms + wait_ms - self._clock.monotonic_ms()
        if left_ms > 0:
            raise MqError(
                Code.SYSTEM_ERROR,
                "this name server has just started and waits for its brokers; retry later or "
                "ask another",
                retryable=True,
                retry_after_ms=left_ms,
            )
