"""Views of a topic's route: pure functions from route to route. They do not use the tables."""

from __future__ import annotations

from aerobee_namesrv.routing.rows import MASTER_ID, PERMISSION_WRITE, BrokerData, TopicRoute

# Topics by which the members of a broker name synchronize. Their routes show the real members.
SYNC_MEMBER_GROUP_PREFIX = "rmq_sys_SYNC_BROKER_MEMBER_"


def with_acting_masters(topic: str, route: TopicRoute) -> TopicRoute:
    """Return the route in which the lowest replica of a lost master has id 0.

    This applies to a broker name that allows it (enable_acting_master) and that has no writable
    queues.
    """
    if topic.startswith(SYNC_MEMBER_GROUP_PREFIX):
        return route
    read_only = {
        queue.broker_name for queue in route.queues if not queue.permission & PERMISSION_WRITE
    }
    brokers = tuple(
        _promoted(broker) if broker.broker_name in read_only else broker for broker in route.brokers
    )
    return TopicRoute(route.queues, brokers, route.filter_servers)


def _promoted(broker: BrokerData) -> BrokerData:
    if not broker.enable_acting_master or not broker.addresses or MASTER_ID in broker.addresses:
        return broker
    view = broker.copy()
    view.addresses[MASTER_ID] = view.addresses.pop(min(view.addresses))
    return view


def in_zone(route: TopicRoute, zone_name: str) -> TopicRoute:
    """Return the route without the brokers of other zones.

    A broker name without a master stays in the route of every zone, because its replicas can still
    be read. The case of zone names is ignored.
    """
    dropped = [
        broker
        for broker in route.brokers
        if MASTER_ID in broker.addresses and broker.zone_name.casefold() != zone_name.casefold()
    ]
    names = {broker.broker_name for broker in dropped}
    addresses = {address for broker in dropped for address in broker.addresses.values()}
    return TopicRoute(
        tuple(queue for queue in route.queues if queue.broker_name not in names),
        tuple(broker for broker in route.brokers if broker.broker_name not in names),
        {
            address: servers
            for address, servers in route.filter_servers.items()
            if address not in addresses
        },
    )
