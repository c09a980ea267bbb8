"""Define the rows of the routing tables, and their input and output values.

All classes are immutable except BrokerData. To change an immutable row, the table replaces it. The
module contains no rules and no clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from aerobee_namesrv.routing.watch import Watch

# Bits of topic_sys_flag.
FLAG_UNIT = 1
FLAG_UNIT_SUBSCRIPTION = 2

DEFAULT_HEARTBEAT_TIMEOUT_MS = 120_000  # four periodic registrations of a broker


class BrokerKey(NamedTuple):
    """The key of a row in brokerLiveTable and filterServerTable."""

    cluster: str
    address: str


@dataclass(frozen=True, slots=True, order=True)
class DataVersion:
    """The version of a broker's topics.

    Two versions are equal if all three fields are equal. They are ordered by state version, counter
    and timestamp, which is the order of the fields here.
    """

    state_version: int = 0
    counter: int = 0
    timestamp_ms: int = 0


@dataclass(frozen=True, slots=True)
class QueueData:
    """The queues of a topic on one broker name."""

    broker_name: str
    read_queue_count: int
    write_queue_count: int
    permission: int
    topic_sys_flag: int = 0
    attributes: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AwayBroker:
    """A broker name whose last member has left.

    `topics` are its topics at that time. `is_drained` is true if its master did not accept
    messages for any of them, because an operator was about to remove the broker.
    """

    cluster: str
    broker_name: str
    topics: set[str]
    is_drained: bool


@dataclass(slots=True)
class BrokerData:
    """The members of one broker name.

    `addresses` maps broker id to "host:port"; it has at least one entry. `epoch` is the highest
    state version of a registration since the name has had members. It includes the version of a
    master that has left. Without that, clients would ignore the remaining slaves as outdated.
    """

    cluster: str
    broker_name: str
    addresses: dict[int, str] = field(default_factory=dict)
    zone_name: str = ""
    enable_acting_master: bool = False
    epoch: int = 0
    is_drained: bool = False  # of the master that left last: it had no writable topic

    def ids_of(self, address: str) -> set[int]:
        """Return the set of broker ids that have this address."""
        return {broker_id for broker_id, held in self.addresses.items() if held == address}

    def copy(self) -> BrokerData:
        return BrokerData(
            self.cluster,
            self.broker_name,
            dict(self.addresses),
            self.zone_name,
            self.enable_acting_master,
            self.epoch,
        )


@dataclass(frozen=True, slots=True)
class BrokerMembers:
    """The registered members of one broker name.

    `addresses` and `epoch` are as in BrokerData. `addresses` is empty if no broker is registered.
    """

    cluster: str
    broker_name: str
    addresses: Mapping[int, str] = field(default_factory=dict)
    epoch: int = 0


@dataclass(frozen=True, slots=True)
class BrokerProcess:
    """The identity of a process that registers as a broker.

    It distinguishes processes that use the same broker name and id. `number` is the brokerId in the
    options, independent of the role. `store_id` is empty if the store has no id.
    `start_timestamp_ms` is by the clock of that process, in milliseconds since the epoch.
    """

    process_id: str
    number: int
    store_id: str = ""
    start_timestamp_ms: int = 0


@dataclass(frozen=True, slots=True)
class BrokerConflict:
    """Two processes have the same number of one broker name.

    The `holder` is registered; the `newcomer` was rejected.
    """

    cluster: str
    broker_name: str
    holder_address: str
    holder: BrokerProcess
    newcomer_address: str
    newcomer: BrokerProcess


@dataclass(frozen=True, slots=True)
class BrokerLive:
    """The last sign of life of one broker. Each sign of life creates a new row."""

    broker_name: str
    broker_id: int
    last_update_timestamp_ms: int  # wall clock, for display
    last_sign_ms: int  # monotonic clock, for the expiry
    heartbeat_timeout_ms: int
    data_version: DataVersion
    ha_server_address: str = ""
    watch: Watch | None = None
    process: BrokerProcess | None = None  # None: an early broker, which does not send it


@dataclass(frozen=True, slots=True)
class Registration:
    """The values of a RegisterBrokerRequest, which documents them. `topics` is a map by name."""

    cluster: str
    broker_name: str
    broker_id: int
    address: str
    data_version: DataVersion
    topics: Mapping[str, QueueData] = field(default_factory=dict)
    incremental: bool = False
    ha_server_address: str = ""
    heartbeat_timeout_ms: int = DEFAULT_HEARTBEAT_TIMEOUT_MS
    enable_acting_master: bool | None = None  # None: an old broker, which does not send it
    zone_name: str = ""
    filter_servers: tuple[str, ...] | None = None  # None: leave what is stored
    watch_follows: bool = False
    process: BrokerProcess | None = None  # None: an early broker, which does not send it
    removed_topics: tuple[str, ...] = ()  # only in an incremental registration

    @property
    def key(self) -> BrokerKey:
        return BrokerKey(self.cluster, self.address)


@dataclass(frozen=True, slots=True)
class Registered:
    """The answer to a registration.

    A replica gets the addresses of its master. `conflict` is set if the registration was rejected
    because another process has the same number.
    """

    master_address: str = ""
    ha_server_address: str = ""
    rejected: bool = False
    conflict: BrokerConflict | None = None


class Reason(StrEnum):
    """The reason for unregistering a broker."""

    REQUESTED = "requested"
    EXPIRED = "expired"
    DISCONNECTED = "disconnected"
    MOVED = "moved"
    REJECTED = "rejected"  # another member has a newer state version


@dataclass(frozen=True, slots=True)
class Unregistration:
    """A broker to remove.

    If `live` is set and the table now has another row for the broker, nothing is removed. In this
    case the broker has given a sign of life since then. `will_return` is true if a broker that
    drained did so only for a restart.
    """

    cluster: str
    broker_name: str
    broker_id: int
    address: str
    reason: Reason = Reason.REQUESTED
    live: BrokerLive | None = None
    will_return: bool = False

    @property
    def key(self) -> BrokerKey:
        return BrokerKey(self.cluster, self.address)


@dataclass(frozen=True, slots=True)
class TopicRoute:
    """The brokers and queues of a topic.

    `filter_servers` maps a broker address to filter server addresses.
    """

    queues: tuple[QueueData, ...]
    brokers: tuple[BrokerData, ...]
    filter_servers: Mapping[str, tuple[str, ...]]
