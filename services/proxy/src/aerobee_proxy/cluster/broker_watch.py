"""Watch for new masters and returning brokers, and update the proxy's routes and availability."""

from __future__ import annotations

from collections.abc import Sequence

import structlog
from aerobee.namesrv.v1.namesrv_pb2 import BrokerMembers

from aerobee_cluster.broker_watch import BrokerWatch
from aerobee_cluster.transport import Transport
from aerobee_proxy.cluster.availability import BrokerAvailability
from aerobee_proxy.cluster.route_cache import RouteCache
from aerobee_wire.status import MqError


def broker_watch(
    transport: Transport,
    namesrvs: Sequence[str],
    route_cache: RouteCache,
    availability: BrokerAvailability,
) -> BrokerWatch:
    """Create the watch of brokers that keeps `route_cache` and `availability` current."""

    def learn(members: BrokerMembers) -> str | None:
        name = members.broker_name
        was_gone = route_cache.is_gone(name)
        former = route_cache.learn(members)
        if former is None and was_gone and not route_cache.is_gone(name):
            availability.back(name)
        return former

    def moved(members: BrokerMembers, former: str) -> None:
        structlog.get_logger().info(
            "master_moved",
            broker=members.broker_name,
            epoch=members.epoch,
            former=former,
            address=members.addresses[0],
        )
        availability.back(members.broker_name)

    return BrokerWatch(transport, namesrvs, learn, on_moved=moved, on_lost=_log_lost)


def _log_lost(namesrv: str, failure: Exception | None) -> None:
    log = structlog.get_logger()
    if failure is None or isinstance(failure, MqError):
        reason = "it ended the stream" if failure is None else failure.message
        log.info("broker_watch_lost", namesrv=namesrv, reason=reason)
    else:
        log.error("broker_watch_failed", namesrv=namesrv, exc_info=failure)
