"""Determine the members of a broker, for a client, from reports of name servers.

This module does no I/O.

Name servers report members by a stream, and in the routes that the client requests. If there are
several name servers, some of them may be outdated.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from aerobee.namesrv.v1.namesrv_pb2 import TopicRoute

# An epoch that no name server has repeated for this time is forgotten, because the group may have
# started again from a low epoch. A name server removes a lost master within this time.
FORGET_MS = 180_000


class NewestEpochs:
    """Remember the newest epoch of each broker name. Times are ms of one monotonic clock."""

    def __init__(self) -> None:
        self._reported: dict[str, tuple[int, int]] = {}  # epoch, time of the report

    def believes(self, broker_name: str, epoch: int, now_ms: int) -> bool:
        """Return whether to accept a report with this epoch, and store the epoch if so.

        The result is False if a name server recently reported a higher epoch.
        """
        newest, reported_ms = self._reported.get(broker_name, (0, now_ms))
        if epoch < newest and now_ms - reported_ms < FORGET_MS:
            return False
        self._reported[broker_name] = epoch, now_ms
        return True


def names_broker(route: TopicRoute, broker_name: str) -> bool:
    return any(data.broker_name == broker_name for data in route.brokers)


def with_addresses(
    route: TopicRoute, brokers: Collection[str], addresses: Mapping[str, Mapping[int, str]]
) -> TopicRoute:
    """Return the route with these addresses for `brokers`.

    `addresses` maps broker name to broker id to "host:port". If the route has the same addresses
    already, return the same object.
    """
    differ = [
        index
        for index, data in enumerate(route.brokers)
        if data.broker_name in brokers and dict(data.addresses) != dict(addresses[data.broker_name])
    ]
    if not differ:
        return route
    changed = TopicRoute()
    changed.CopyFrom(route)
    for index in differ:
        data = changed.brokers[index]
        data.addresses.clear()
        data.addresses.update(addresses[data.broker_name])
    return changed
