"""Own the routing tables, and implement the rules for registering and removing brokers.

The tables are in memory only. The event loop of the process owns them, so they need no lock. This
module does not use transport, files or tasks. The names of the tables are RocketMQ's:

    topic_queue_table    topic → broker name → QueueData              topic_queue_table.py
    broker_addr_table    broker name → BrokerData
    cluster_addr_table   cluster → broker names
    broker_live_table    (cluster, address) → BrokerLive              broker_live_table.py
    filter_server_table  (cluster, address) → filter server addresses

The manager also remembers the topics of the brokers that left last. So it can distinguish a topic
whose brokers have left from a topic that does not exist.

One rule differs from RocketMQ's: an address belongs to one broker name. If a broker returns under
another name or cluster, its old entry is removed at once. In RocketMQ, the old entry would stay
forever.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import structlog

from aerobee_chassis.clock import Clock
from aerobee_chassis.runtime_config import RuntimeConfig
from aerobee_namesrv.config import NamesrvOptions
from aerobee_namesrv.routing.broker_live_table import BrokerLiveTable
from aerobee_namesrv.routing.rows import (
    AwayBroker,
    BrokerConflict,
    BrokerData,
    BrokerKey,
    BrokerMembers,
    QueueData,
    Reason,
    Registered,
    Registration,
    TopicRoute,
    Unregistration,
)
from aerobee_namesrv.routing.topic_queue_table import TopicQueueTable
from aerobee_namesrv.routing.watch import BrokerWatch, MinBrokerIdChanged
from aerobee_wire.epochs import can_reach
from aerobee_wire.route import MASTER_ID, WRITE
from aerobee_wire.status import Code, MqError

KEPT_MS = 120_000  # a rejected process that still runs registers again every second


class Conflicts:
    """The last conflict for each address of a rejected process.

    A registration is rejected if another process holds the broker's number.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._found: dict[BrokerKey, tuple[int, BrokerConflict]] = {}

    def __len__(self) -> int:
        """Return the number of conflicts in memory."""
        return len(self._found)

    def add(self, conflict: BrokerConflict) -> bool:
        """Store a conflict and return whether it is new."""
        key = BrokerKey(conflict.cluster, conflict.newcomer_address)
        self._forget()
        before = self._found.get(key)
        self._found[key] = (self._clock.monotonic_ms(), conflict)
        return before is None or before[1] != conflict

    def end(self, key: BrokerKey) -> None:
        """Remove the conflict of an address, because its broker is registered now."""
        self._found.pop(key, None)

    def all(self) -> list[BrokerConflict]:
        """Return the conflicts of the last KEPT_MS, sorted."""
        self._forget()
        return sorted(
            (conflict for _, conflict in self._found.values()),
            key=lambda each: (each.broker_name, each.newcomer.number, each.newcomer_address),
        )

    def _forget(self) -> None:
        oldest_ms = self._clock.monotonic_ms() - KEPT_MS
        self._found = {key: each for key, each in self._found.items() if each[0] >= oldest_ms}


# Members of a broker name synchronize by these topics. Their routes show the real members.
SYNC_MEMBER_GROUP_PREFIX = "rmq_sys_SYNC_BROKER_MEMBER_"


def with_acting_masters(topic: str, route: TopicRoute) -> TopicRoute:
    """Return the route with id 0 for the lowest replica of each broker name that lost its master.

    This applies to a broker name that allows it (enable_acting_master) and that has no writable
    queues.
    """
    if topic.startswith(SYNC_MEMBER_GROUP_PREFIX):
        return route
    read_only = {queue.broker_name for queue in route.queues if not queue.permission & WRITE}
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
    be read. Zone names are compared without case.
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


# The number of broker names that have left and whose topics are remembered.
MOST_AWAY = 64


class RouteInfoManager:
    def __init__(
        self,
        options: RuntimeConfig[NamesrvOptions],
        broker_live_table: BrokerLiveTable,
        conflicts: Conflicts,
    ) -> None:
        self._options = options
        self.conflicts = conflicts
        self.topic_queue_table = TopicQueueTable()
        self.broker_addr_table: dict[str, BrokerData] = {}
        self.cluster_addr_table: dict[str, set[str]] = {}
        self.broker_live_table = broker_live_table
        self.filter_server_table: dict[BrokerKey, tuple[str, ...]] = {}
        # The number of unregistered brokers since the start, by reason, for the metrics.
        self.unregistered: Counter[Reason] = Counter()
        self._watches: set[BrokerWatch] = set()
        # By broker name. The one that left last is at the end.
        self._away: dict[str, AwayBroker] = {}

    # ---- registration ----

    def register_broker(self, registration: Registration) -> Registered:
        """Add or refresh a broker and its topics.

        The answer is `rejected` if another address holds the broker id with a newer state version.
        It is also `rejected` if another live process holds the number of this broker.

        Raises MqError with the code SYSTEM_ERROR for a first registration with exactly one topic.
        """
        if conflict := self._conflict(registration):
            return Registered(rejected=True, conflict=conflict)
        self._refuse_single_topic(registration)
        self._leave_elsewhere(registration)
        before = self.members(registration.broker_name)
        try:
            return self._register(registration)
        finally:
            if self.members(registration.broker_name) != before:
                self._notify(registration.broker_name)

    def _register(self, registration: Registration) -> Registered:
        name, broker_id = registration.broker_name, registration.broker_id
        first = name not in self.broker_addr_table
        data = self.broker_addr_table.setdefault(name, BrokerData(registration.cluster, name))
        # An empty group counts as if its lowest id was 0, so its first member notifies no others.
        lowest_changed = broker_id < min(data.addresses, default=0)
        for other_id in data.ids_of(registration.address) - {broker_id}:
            del data.addresses[other_id]  # the broker changed its role
        if self._is_outdated(data, registration):
            self._withdraw(registration)
            return Registered(rejected=True)
        self.cluster_addr_table.setdefault(registration.cluster, set()).add(name)
        data.enable_acting_master = bool(registration.enable_acting_master)
        data.zone_name = registration.zone_name
        first = first or broker_id not in data.addresses
        data.addresses[broker_id] = registration.address
        epoch = registration.data_version.state_version
        if can_reach(epoch, data.epoch):
            data.epoch = max(data.epoch, epoch)
        self._update_topics(data, registration, first)
        self.broker_live_table.put(registration)
        self._update_filter_servers(registration)
        if first:
            _log("broker_registered", registration, topics=len(registration.topics))
        if lowest_changed:
            self._notify_min_broker_id_changed(data, ha=registration.ha_server_address)
        return self._answer(data, registration)

    def _withdraw(self, registration: Registration) -> None:
        """Remove the broker of a rejected registration from the tables.

        Without its row in the live table, its address would never expire and stay in routes.
        """
        self.unregister(
            [
                Unregistration(
                    registration.cluster,
                    registration.broker_name,
                    registration.broker_id,
                    registration.address,
                    Reason.REJECTED,
                )
            ]
        )

    def _conflict(self, registration: Registration) -> BrokerConflict | None:
        """Return the conflict with a live process that holds the number of this broker, or None.

        The registration is then rejected: a process that was started with this number by mistake
        must not replace the live one. The stream of a dead process is closed or ends soon, so a
        dead process does not block its successor for long.
        """
        found = self.broker_live_table.holder_of(registration)
        if found is None or registration.process is None:
            self.conflicts.end(registration.key)
            return None
        conflict = BrokerConflict(
            registration.cluster,
            registration.broker_name,
            *found,
            registration.address,
            registration.process,
        )
        if self.conflicts.add(conflict):
            address, holder = found
            _log(
                "broker_number_in_use",
                registration,
                number=holder.number,
                other_address=address,
                other_store_id=holder.store_id,
            )
        return conflict

    def _leave_elsewhere(self, registration: Registration) -> None:
        here = (registration.cluster, registration.broker_name)
        moved = [
            Unregistration(key.cluster, live.broker_name, live.broker_id, key.address, Reason.MOVED)
            for key, live in self.broker_live_table.items()
            if key.address == registration.address and (key.cluster, live.broker_name) != here
        ]
        if moved:
            # If this event repeats, two brokers advertise the same address.
            _log("broker_moved", registration, previous_name=moved[0].broker_name)
            self.unregister(moved)

    def _refuse_single_topic(self, registration: Registration) -> None:
        """Reject an unknown broker that registers a single topic.

        A single topic is a change to the topics of a registered broker. This check runs before the
        broker is added to the tables, so that a rejected broker leaves nothing behind.
        """
        data = self.broker_addr_table.get(registration.broker_name)
        known = (
            data is not None
            and data.cluster == registration.cluster
            and registration.broker_id in data.addresses
        )
        if not known and len(registration.topics) == 1:
            raise MqError(
                Code.SYSTEM_ERROR,
                f"broker {registration.broker_name!r} with id {registration.broker_id} is not "
                "known here and names one topic only; register all its topics first",
            )

    def _is_outdated(self, data: BrokerData, registration: Registration) -> bool:
        """Return whether another address holds the broker id with a newer state version.

        For a master, a newer state version of any other member also makes it outdated, unless that
        member is corrupt: its group cannot have reached that version.
        """
        if registration.broker_id == MASTER_ID and self._is_deposed(data, registration):
            return True
        holder = data.addresses.get(registration.broker_id, registration.address)
        stored = self.broker_live_table.data_version(BrokerKey(registration.cluster, holder))
        if holder == registration.address or stored is None:
            return False
        outdated = stored.state_version > registration.data_version.state_version
        event = "registration_rejected" if outdated else "broker_replaced"
        _log(event, registration, other_address=holder)
        return outdated

    def _is_deposed(self, data: BrokerData, registration: Registration) -> bool:
        others = set(data.addresses.values()) - {registration.address}
        own = registration.data_version.state_version
        epochs = (self._epoch_at(data, each) for each in others)
        newest = max((epoch for epoch in epochs if can_reach(epoch, own)), default=0)
        deposed = newest > own
        if deposed:
            _log("registration_rejected", registration, newer_state_version=newest)
        return deposed

    def _update_topics(self, data: BrokerData, registration: Registration, first: bool) -> None:
        """Store the topics of a master.

        Store the topics of the replica with the lowest id too, if its broker sends
        enable_acting_master.
        """
        stands_in = (
            registration.broker_id != MASTER_ID
            and registration.broker_id == min(data.addresses)
            and registration.enable_acting_master is not None
        )
        if registration.broker_id != MASTER_ID and not stands_in:
            return
        table = self.topic_queue_table
        if self._options.now.delete_topic_with_broker_registration:
            if not registration.incremental:
                table.keep_only(data.broker_name, registration.topics.keys())
            for topic in registration.removed_topics:
                table.delete(topic, {data.broker_name})
        if not registration.incremental:
            self._away.pop(data.broker_name, None)
        stored = self.broker_live_table.data_version(registration.key)
        table.update(
            registration.topics,
            overwrite=first or stored != registration.data_version,
            read_only=stands_in and data.enable_acting_master,
        )

    def _update_filter_servers(self, registration: Registration) -> None:
        if registration.filter_servers:
            self.filter_server_table[registration.key] = registration.filter_servers
        elif registration.filter_servers is not None:
            self.filter_server_table.pop(registration.key, None)

    def _answer(self, data: BrokerData, registration: Registration) -> Registered:
        master = data.addresses.get(MASTER_ID)
        if registration.broker_id == MASTER_ID or master is None:
            return Registered()
        live = self.broker_live_table.get(BrokerKey(registration.cluster, master))
        return Registered(master, live.ha_server_address) if live else Registered()

    # ---- unregistration ----

    def unregister(self, batch: Iterable[Unregistration]) -> None:
        """Remove brokers, except those that gave a sign of life after they were submitted."""
        removed: dict[str, BrokerData] = {}
        reduced: set[str] = set()
        for each in batch:
            if self._is_void(each):
                continue
            self.broker_live_table.drop(each.key)
            self.filter_server_table.pop(each.key, None)
            data = self.broker_addr_table.get(each.broker_name)
            if data is None or not data.ids_of(each.address):
                continue
            self.unregistered[each.reason] += 1
            _log("broker_unregistered", each, reason=each.reason.value)
            if MASTER_ID in data.ids_of(each.address):
                is_writable = self.topic_queue_table.is_writable(each.broker_name)
                data.is_drained = not is_writable and not each.will_return
            self._remove_address(data, each.address)
            self._notify(each.broker_name)
            if data.addresses:
                reduced.add(each.broker_name)
            else:
                removed[each.broker_name] = data
        if removed:
            self._note_away(removed, self.topic_queue_table.drop_brokers(removed))
        if read_only := {
            name for name in reduced - removed.keys() if self._has_lost_its_master(name)
        }:
            self.topic_queue_table.wipe_write(read_only)

    def _is_void(self, unregistration: Unregistration) -> bool:
        live = self.broker_live_table.get(unregistration.key)
        if unregistration.live is not None:
            return live is not unregistration.live
        return live is not None and live.broker_name != unregistration.broker_name

    def _remove_address(self, data: BrokerData, address: str) -> None:
        ids = data.ids_of(address)
        was_lowest = min(data.addresses) in ids
        for broker_id in ids:
            del data.addresses[broker_id]
        if not data.addresses:
            self._remove_broker_name(data.broker_name)
        elif was_lowest and data.enable_acting_master:
            self._notify_min_broker_id_changed(data, offline=address)

    def _note_away(self, removed: Mapping[str, BrokerData], topics: Mapping[str, set[str]]) -> None:
        for broker_name in sorted(removed):
            data = removed[broker_name]
            self._away.pop(broker_name, None)
            self._away[broker_name] = AwayBroker(
                data.cluster, broker_name, topics[broker_name], data.is_drained
            )
        for broker_name in list(self._away)[:-MOST_AWAY]:
            del self._away[broker_name]

    def _remove_broker_name(self, broker_name: str) -> None:
        del self.broker_addr_table[broker_name]
        for cluster, names in list(self.cluster_addr_table.items()):
            names.discard(broker_name)
            if not names:
                del self.cluster_addr_table[cluster]

    def _has_lost_its_master(self, broker_name: str) -> bool:
        data = self.broker_addr_table[broker_name]
        return data.enable_acting_master and MASTER_ID not in data.addresses

    def _notify_min_broker_id_changed(
        self, data: BrokerData, *, offline: str = "", ha: str = ""
    ) -> None:
        """Notify the members of a new lowest id, except the broker that registered with that id."""
        if not self._options.now.notify_min_broker_id_changed:
            return
        lowest = min(data.addresses)
        notice = MinBrokerIdChanged(lowest, data.addresses[lowest], offline, ha)
        everyone = offline != "" or len(data.addresses) == 1
        for broker_id, address in data.addresses.items():
            live = self.broker_live_table.get(BrokerKey(data.cluster, address))
            if live and live.watch and (everyone or broker_id != lowest):
                live.watch.notify(notice)

    # ---- members ----

    def members(self, broker_name: str) -> BrokerMembers:
        """Return the members of a broker name. The result has no addresses for an unknown name."""
        data = self.broker_addr_table.get(broker_name)
        if data is None:
            return BrokerMembers("", broker_name)
        return BrokerMembers(data.cluster, broker_name, dict(data.addresses), data.epoch)

    def watch_brokers(self) -> BrokerWatch:
        """Watch for broker names whose members change. End the watch with `end_broker_watch`."""
        watch = BrokerWatch()
        self._watches.add(watch)
        return watch

    def end_broker_watch(self, watch: BrokerWatch) -> None:
        self._watches.discard(watch)

    def close_broker_watches(self) -> None:
        """End the streams of all watches when the name server stops."""
        for watch in self._watches:
            watch.close()

    def _notify(self, broker_name: str) -> None:
        for watch in self._watches:
            watch.add(broker_name)

    def _epoch_at(self, data: BrokerData, address: str) -> int:
        version = self.broker_live_table.data_version(BrokerKey(data.cluster, address))
        return version.state_version if version else 0

    # ---- routes ----

    def pickup_topic_route_data(self, topic: str, zone_name: str = "") -> TopicRoute | None:
        """Return the route of a topic, or None if no known broker has the topic.

        With a zone name, the route leaves out the brokers of other zones.
        """
        queues = self.topic_queue_table.queues_of(topic)
        names = sorted(queues)
        brokers = tuple(
            self.broker_addr_table[name].copy() for name in names if name in self.broker_addr_table
        )
        if not brokers:
            return None
        route = TopicRoute(
            tuple(queues[name] for name in names), brokers, self._filter_servers_of(brokers)
        )
        if self._options.now.support_acting_master:
            route = with_acting_masters(topic, route)
        return in_zone(route, zone_name) if zone_name else route

    def away_brokers_of(self, topic: str) -> list[str]:
        """Return the names of the brokers that had a topic when they left, sorted."""
        return sorted(name for name, away in self._away.items() if topic in away.topics)

    def missing_brokers(self) -> list[AwayBroker]:
        """Return the brokers that left without being drained before, sorted by name."""
        return [self._away[name] for name in sorted(self._away) if not self._away[name].is_drained]

    def _filter_servers_of(self, brokers: Sequence[BrokerData]) -> dict[str, tuple[str, ...]]:
        keys = (BrokerKey(b.cluster, address) for b in brokers for address in b.addresses.values())
        table = self.filter_server_table
        return {key.address: table[key] for key in keys if key in table}

    # ---- edits and lists that need to know the brokers ----

    def register_topic(self, topic: str, queues: Sequence[QueueData]) -> bool:
        """Store the queues of a topic. Return False, and store nothing, if a broker is unknown."""
        if any(queue.broker_name not in self.broker_addr_table for queue in queues):
            return False
        self.topic_queue_table.put(topic, queues)
        return True

    def delete_topic(self, topic: str, cluster: str = "") -> None:
        """Remove a topic. With a cluster, remove it only from the brokers of that cluster."""
        names = self.cluster_addr_table.get(cluster, set()) if cluster else None
        self.topic_queue_table.delete(topic, names)
        for away in self._away.values():
            away.topics.discard(topic)

    def topics_of_cluster(self, cluster: str) -> list[str]:
        """Return the topics of a cluster, sorted, or an empty list for an unknown cluster."""
        return self.topic_queue_table.names_on(self.cluster_addr_table.get(cluster, set()))

    def system_topics(self) -> tuple[list[str], str]:
        """Return the system topics, sorted, and the address of any broker, or "".

        Each cluster name and each broker name is also a system topic.
        """
        names = set(self.cluster_addr_table).union(*self.cluster_addr_table.values())
        addresses = (next(iter(b.addresses.values())) for b in self.broker_addr_table.values())
        return sorted(names), next(addresses, "")


def _log(event: str, broker: Registration | Unregistration, **fields: object) -> None:
    structlog.get_logger().info(
        event,
        cluster=broker.cluster,
        broker_name=broker.broker_name,
        broker_id=broker.broker_id,
        address=broker.address,
        **fields,
    )
