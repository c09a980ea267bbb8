"""Connect the parts of a replicated broker: its port, its store, and the choice of its role."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from aerobee.broker.v1 import (
    admin_pb2,
    client_pb2,
    dead_letter_pb2,
    lite_pb2,
    message_pb2,
    offset_pb2,
    pop_pb2,
    replica_pb2,
    replication_pb2,
    search_pb2,
    transaction_pb2,
)

from aerobee_broker.cluster.identity import Identity
from aerobee_broker.cluster.registration import unreachable
from aerobee_broker.commit.worker_thread import Worker
from aerobee_broker.config import BrokerOptions
from aerobee_broker.delivery.gauges import StoreGauges
from aerobee_broker.errors import NotServed, StoreOpenError
from aerobee_broker.replication.election.coordinators.etcd import EtcdClient
from aerobee_broker.replication.election.coordinators.etcd_coordinator import EtcdCoordinator
from aerobee_broker.replication.election.coordinators.etcd_tls import etcd_tls
from aerobee_broker.replication.election.coordinators.static_coordinator import StaticCoordinator
from aerobee_broker.replication.election.elections import Elections
from aerobee_broker.replication.election.manual_failover import ManualFailover
from aerobee_broker.replication.election.masters import Masters
from aerobee_broker.replication.election.member import Member
from aerobee_broker.replication.election.metrics import ReplicaMetrics
from aerobee_broker.replication.election.status import replica_status
from aerobee_broker.replication.identity import Replica
from aerobee_broker.replication.log.handshake import LogDescription
from aerobee_broker.replication.log.status import ReplicaStatus
from aerobee_broker.replication.role.integrity.log_repair import LogRepairs
from aerobee_broker.replication.role.integrity.peer_log import read_ranges, readable_ranges
from aerobee_broker.replication.role.master import SUCCESSION_S
from aerobee_broker.replication.role.replica_store import ReplicaStore
from aerobee_broker.replication.role.role_runner import RoleRunner
from aerobee_broker.replication.rpc.replica import ReplicaCalls, ReplicaRpcs
from aerobee_broker.scrubbing import Scrubbing
from aerobee_broker.store.damage import DamagedRange
from aerobee_broker.store.ship import Chunk
from aerobee_broker.upkeep import MEASURE_MS
from aerobee_broker.wiring.environment import Environment
from aerobee_broker.wiring.name_server_registration import NameServerRegistration
from aerobee_broker.wiring.store import store_options
from aerobee_chassis.background import BackgroundTask, PeriodicTask
from aerobee_chassis.lifecycle import Component, Step
from aerobee_chassis.rpc.caller import Caller
from aerobee_chassis.rpc.server import Server
from aerobee_chassis.rpc.services import Service, bind
from aerobee_chassis.rpc.switch import Switch
from aerobee_wire.status import Code, MqError

HEALTH_S = 1.0
_REPLICA_SERVICE = replica_pb2.DESCRIPTOR.services_by_name["ReplicaService"]
_SERVICES = [
    contract.DESCRIPTOR.services_by_name[name]
    for contract, name in (
        (message_pb2, "MessageService"),
        (offset_pb2, "OffsetService"),
        (client_pb2, "ClientService"),
        (transaction_pb2, "TransactionService"),
        (pop_pb2, "PopService"),
        (lite_pb2, "LiteService"),
        (search_pb2, "SearchService"),
        (dead_letter_pb2, "DeadLetterService"),
        (admin_pb2, "AdminService"),
        (replication_pb2, "ReplicationService"),
    )
]


class ReplicaProcess:
    """Connect the parts of a replica.

    `services` is the list of services of the port; it is the same in every role. `components` sets
    `roles`.
    """

    def __init__(
        self,
        environment: Environment,
        identity: Identity,
        reader: Worker,
        stop: Callable[[MqError], None],
    ) -> None:
        """Create the parts. `stop` is called with an error that must end the process."""
        self._environment = environment
        own = self._own = ReplicaStore(environment, identity.store_host, identity.process_id)
        self._name_servers = NameServerRegistration(
            environment, identity, stop, lambda: own.replica.store_id
        )
        self._reader = reader
        self.roles: RoleRunner | None = None
        self._member: Member | None = None
        self._metrics: ReplicaMetrics | None = None
        self._switch = Switch(_SERVICES, self._refusal)
        self._masters = Masters(environment.options, environment.namesrvs)
        rpcs = ReplicaRpcs(
            self._status, self._promotable, self._own.diverged, self._read_log, environment.writer
        )
        replica = bind(_REPLICA_SERVICE, rpcs)
        self.services: list[Service] = [*self._switch.services, replica]

    @property
    def serves(self) -> bool:
        return self.roles is not None and self.roles.serves

    def components(self, server: Server) -> tuple[Component, ...]:
        """Return the components to start after the server."""
        options, own = self._environment.options, self._own
        roles = self.roles = RoleRunner(own, self._name_servers, self._switch, server, self._reader)
        decide = self._elected if options.is_elected else self._static
        closing, member = decide(roles)
        self._member = member
        repairs = LogRepairs(own, self._peers, member.calls)
        scrubbing = Scrubbing(
            lambda: own.store if own.is_open else None,
            options,
            self._environment.clock.real,
            self._reader,
            self._environment.metrics,
        )

        async def report_health() -> None:
            server.set_serving(roles.serves)
            if own.is_open:
                self._measure(roles)

        store_gauges = StoreGauges(
            metrics=self._environment.metrics,
            disk=self._environment.disk,
            path=self._environment.path,
            clock=self._environment.clock,
        )

        async def measure_store() -> None:
            if own.is_open and roles.master is None:  # a master measures it with its other gauges
                store_gauges.measure(own.store)

        measures = PeriodicTask("store measures", MEASURE_MS / 1_000, measure_store)
        return (
            OpenedStore(own),
            closing,
            Step(stop=self._masters.close),
            member,
            BackgroundTask("scrub", scrubbing.run),
            BackgroundTask("repair of the log", repairs.run),
            PeriodicTask("health of a replica", HEALTH_S, report_health),
            *((measures,) if options.exports_metrics else ()),
            Step(stop=self._name_servers.close),
        )

    async def use(self, options: BrokerOptions) -> None:
        """Put the options that may change at run time into effect.

        Raises MqError if a master cannot save the topic that new topics inherit from.
        """
        if self._own.is_open:
            self._own.store.use(store_options(options))
        if self.roles is not None and self.roles.slave is not None:
            self.roles.slave.reads.use(options)
        if self.roles is not None and self.roles.master is not None:
            await self.roles.master.use(options)

    def _calls(self) -> ReplicaCalls:
        options = self._environment.options
        wait_s = options.slave_timeout / 1000 + SUCCESSION_S
        error_of = unreachable(Code.BROKER_UNREACHABLE, "the replica")
        caller = Caller(error_of, options.peer_tls(options.broker_name))
        return ReplicaCalls(caller, wait_s)

    async def _peers(self) -> list[str]:
        """Return the known addresses of other replicas of the group, with the master first."""
        group = await self._masters.group()
        slave = None if self.roles is None else self.roles.slave
        found = [
            slave.master_address if slave is not None else "",
            group.master,
            self._environment.options.ha_master_address,
            *group.addresses.values(),
        ]
        own = {"", self._name_servers.identity.address}
        return [each for each in dict.fromkeys(found) if each not in own]

    async def _read_log(self, caller: LogDescription, ranges: list[DamagedRange]) -> list[Chunk]:
        if not self._own.is_open:
            raise self._refusal()
        readable = readable_ranges(caller, self._own.describe(), ranges)
        shipper = self._own.store.shipper()
        try:
            return await self._reader(partial(read_ranges, shipper, readable))
        finally:
            self._reader(shipper.close)

    def _static(self, roles: RoleRunner) -> tuple[Component, Member]:
        environment = self._environment
        file = environment.path / "config" / "replicas.json"
        return Step(), ManualFailover(
            roles,
            StaticCoordinator(environment.disk, file, environment.writer),
            self._masters,
            self._name_servers.identity.address,
            self._calls(),
        )

    def _elected(self, roles: RoleRunner) -> tuple[Component, Member]:
        options, environment = self._environment.options, self._environment
        group = f"{options.broker_cluster_name}/{options.broker_name}"
        timeout_s = options.etcd_lease_ttl / 2
        etcd = EtcdClient(options.etcd_addresses, timeout_s=timeout_s, tls=etcd_tls(options))

        def coordinator(replica: Replica) -> EtcdCoordinator:
            return EtcdCoordinator(
                etcd,
                f"{options.etcd_key_prefix}/{group}/",
                replica,
                lease_ttl_s=options.etcd_lease_ttl,
                clock=environment.clock,
                rng=environment.rng,
            )

        address = self._name_servers.identity.address
        member = Elections(roles, coordinator, address, self._calls())
        return Step(stop=etcd.close), member

    def _measure(self, roles: RoleRunner) -> None:
        if self._metrics is None:  # only when the port is open: opening it may be tried twice
            self._metrics = ReplicaMetrics(
                self._environment.metrics.registry, self._environment.options.broker_id
            )
        waits_ms = [] if roles.master is None else roles.master.take_waits()
        self._metrics.measure(self._status())
        self._metrics.count(self._own.counts, waits_ms)

    def _refusal(self) -> NotServed:
        return NotServed("starting", "") if self.roles is None else self.roles.refusal()

    def _status(self) -> ReplicaStatus:
        if self.roles is None:
            raise self._refusal()
        address, member = self._name_servers.identity.address, self._member
        if member is None:
            return replica_status(self.roles, address)
        return replica_status(
            self.roles,
            address,
            coordinator_reachable=member.coordinator_reachable,
            set_at_coordinator=member.set_at_coordinator,
            claimed_epoch=member.claimed_epoch,
            waits_because=member.waits_because,
        )

    def _promotable(self) -> Member:
        if self._member is None:
            raise self._refusal()
        return self._member


class OpenedStore(Component):
    """Keep the store of a replica open from start to stop."""

    def __init__(self, own: ReplicaStore) -> None:
        self._own = own

    async def start(self) -> None:
        """Open the store. Raises MqError."""
        await self._own.open()

    async def stop(self) -> None:
        if self._own.is_open:
            await self._own.leases.try_save()
            await self._own.tables.finish()
        await self._own.close()


def refuse_replica(environment: Environment) -> None:
    """Check that the store does not belong to a replica, before an unreplicated broker starts.

    The masters of the replica would not know the writes of such a broker. Raises StoreOpenError.
    """
    epochs = environment.path / "config" / "epochs.json"
    if environment.disk.exists(epochs):
        raise StoreOpenError(
            "this store belongs to a replica, but the options configure a broker without replicas: "
            f"set brokerRole or totalReplicas, or remove {epochs} to stop replicating it for good"
        )
