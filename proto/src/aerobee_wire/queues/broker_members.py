"""What a client makes of what name servers tell of the members of a broker: by a stream, and in the
routes that it asks for. Several name servers tell, and some are behind. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from aerobee.namesrv.v1.namesrv_pb2 import TopicRoute

# After that an epoch that nobody has told since is forgotten: the group may have begun anew. A name
# server that no longer hears of a master has removed it by then.
FORGET_MS = 180_000


class NewestEpochs:
    """By broker name. Times in ms of one monotonic clock."""

    def __init__(self) -> None:
        self._told: dict[str, tuple[int, int]] = {}  # epoch, when

    def believes(self, broker_name: str, epoch: int, now_ms: int) -> bool:
        """Whether nobody has told of a higher epoch of late."""
        newest, told_ms = self._told.get(broker_name, (0, now_ms))
        if epoch < newest and now_ms - told_ms < FORGET_MS:
            return False
        self._told[broker_name] = epoch, now_ms
        return True


def names_broker(route: TopicRoute, broker_name: str) -> bool:
    return any(data.broker_name == broker_name for data in route.brokers)


def with_addresses(
    route: TopicRoute, brokers: Collection[str], addresses: Mapping[str, Mapping[int, str]]
) -> TopicRoute:
    """The route with the addresses of these brokers: name → id → "host:port". The same object where
    it has no other ones."""
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
