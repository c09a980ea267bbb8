"""A cluster in one virtual loop: a broker group, its name server, etcd where there is one, and the
network between them.

What must hold of the brokers is looked at again and again (`look`), and when all are back
(`check_alike`); what clients were told is `clients.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import inspect
import json
import random
import tempfile
import traceback
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, MutableMapping
from pathlib import Path
from typing import Any, Concatenate, ParamSpec
from unittest import mock

import pytest
import structlog
from aerobee.broker.v1 import replica_pb2

from aerobee_broker.cluster.registration import unreachable
from aerobee_broker.replication.log.status import ReplicaStatus
from aerobee_broker.replication.rpc.replica import ReplicaCalls
from aerobee_broker.store.message_store import MessageStore
from aerobee_chassis.rpc.caller import Caller
from aerobee_namesrv.app import NamesrvApp
from aerobee_namesrv.config import NamesrvOptions
from aerobee_wire import rpcs
from aerobee_wire.status import Code, MqError
from support.clock.virtual_loop import LoopClock
from support.disk.simulated_disk import PowerCut, SimulatedDisk
from support.disk.stores import visible
from support.etcd.simulated_etcd import SimulatedEtcd, SimulatedEtcdClient
from support.replication.network import SimulatedNetwork
from support.simulation.node import BrokerNode
from support.simulation.process_loop import PROCESS, ProcessLoop
from support.simulation.transport import SimulatedTransport

TWIN, NAMESRV, CLIENT = 50, 100, 200  # machines
NAMESRV_ADDRESS = "10.0.1.1:9876"
DEFECTS = ("handler_failed", "role_failed", "background_work_failed")  # events of the log
RECORD_BYTES = 80  # of which two records differ
Place = tuple[str, int, int]  # topic, queue id, queue offset


class SimulatedCluster:
    """`elected`: etcd says who is master; else the first broker is it by its options. To be made
    inside `simulate`."""

    def __init__(
        self, loop: ProcessLoop, transport: SimulatedTransport, seed: int, directory: Path
    ) -> None:
        self.loop = loop
        self.rng = random.Random(seed)
        self.transport = transport
        self.network = transport.network
        self.outside = contextvars.Context()
        self.etcd = SimulatedEtcd(random.Random(seed + 1))
        self.etcd.on_write = self._check_state
        self.etcd.on_restore = self._read_state
        self.etcd_clients: dict[int, SimulatedEtcdClient] = {}
        self.state: dict[str, Any] = {"epoch": 0, "inSync": []}  # at etcd
        self._is_replaced = False
        self.nodes: list[BrokerNode] = []
        self.failures: list[BaseException] = []  # of tasks that nobody waits for
        self.shown: dict[Place, bytes] = {}
        self.masters: dict[int, tuple[int, int]] = {}  # epoch → number, its start
        self._looked_at: dict[int, tuple[MessageStore, int]] = {}  # up to which offset
        self.vanishing: set[str] = set()  # topics that clients delete
        self.client = loop.process(CLIENT)
        self.caller = Caller(unreachable(Code.BROKER_UNREACHABLE, "broker"))  # of that process
        self._directory = directory
        self._namesrv_starts = 0
        self.is_elected = False
        self._may_elect_unclean = False
        self.namesrv = loop.process(NAMESRV)
        transport.machines[NAMESRV_ADDRESS] = NAMESRV

    # ---- begin ----

    async def begin(self, count: int, common: Mapping[str, Any], *, elected: bool) -> None:
        self.loop.create_task(self.transport.keep_alive(), context=self.outside)
        self.is_elected = elected
        self._may_elect_unclean = bool(common.get("enableElectUncleanMaster"))
        await self.start_namesrv()
        first = 1 if elected else 0
        for number in range(first, first + count):
            options: dict[str, Any] = {"totalReplicas": count, **common}
            if elected:
                options["etcdEndpoints"] = "10.0.2.1:2379"
            elif number:
                options["brokerRole"] = "SLAVE"
            self.add(number, options)

    def add(
        self, number: int, options: Mapping[str, Any], broker_id: int | None = None
    ) -> BrokerNode:
        """Start another broker, of the group unless its options say otherwise."""
        node = BrokerNode(self, number, {"namesrvAddr": NAMESRV_ADDRESS, **options}, broker_id)
        self.transport.machines[node.address] = number
        self.nodes.append(node)
        node.start()
        return node

    def start_twin(self, of: BrokerNode, disk: SimulatedDisk | None) -> BrokerNode:
        """Start a second process with the brokerId of `of`, on another machine. Its disk is empty,
        or a copy of `disk`."""
        twin = BrokerNode(self, TWIN, of.options, broker_id=of.broker_id)
        if disk is not None:
            twin.put_disk_back(disk)
        self.transport.machines[twin.address] = twin.number
        self.nodes.append(twin)
        twin.start()
        return twin

    def has_twin(self, node: BrokerNode) -> bool:
        same = [each for each in self.nodes if each.broker_id == node.broker_id and each.is_up]
        return len(same) > 1

    def remove(self, node: BrokerNode) -> None:
        """Remove a node that is off for good."""
        assert not node.is_up
        self.nodes.remove(node)

    def isolate(self, number: int) -> None:
        """From the other brokers and the name server."""
        others = (node.number for node in self.nodes if node.number != number)
        self.network.part(number, NAMESRV, *others)

    async def stop_namesrv(self) -> None:
        """Kill it. It forgets all that it knows."""
        self.namesrv.kill()
        self.network.break_streams(NAMESRV)
        self.namesrv = self.loop.process(NAMESRV)
        await asyncio.sleep(1)

    async def start_namesrv(self) -> None:
        self._namesrv_starts += 1
        options = NamesrvOptions.from_values(
            {
                "bindAddress": "10.0.1.1",
                "insecure": True,
                "kvConfigPath": self._directory / f"{self._namesrv_starts}" / "kvConfig.json",
            }
        )

        async def start() -> None:
            await NamesrvApp(options, LoopClock()).start()
            await asyncio.Event().wait()

        self.namesrv.spawn(start())

    def etcd_client(self, *_: object, **__: object) -> SimulatedEtcdClient:
        process = PROCESS.get()
        assert process is not None, "a broker makes its client"
        before = self.etcd_clients.get(process.number)
        client = self.etcd_clients[process.number] = self.etcd.client(timeout_s=2.0)
        client.cut = before is not None and before.cut
        return client

    # ---- who is what ----

    def node(self, number: int) -> BrokerNode:
        return next(node for node in self.nodes if node.number == number)

    @property
    def master(self) -> BrokerNode | None:
        """Of the newest epoch, if it is up."""
        leading = [node for node in self.nodes if node.epoch_as_master]
        return max(leading, key=lambda node: node.epoch_as_master, default=None)

    @property
    def elections(self) -> int:
        """The epoch at etcd."""
        return int(self.state["epoch"])

    @property
    def only_electable(self) -> int | None:
        """The number of the broker that alone may be elected, at etcd."""
        in_sync = self.state["inSync"]
        return int(in_sync[0]["id"]) if len(in_sync) == 1 else None

    def _read_state(self) -> None:
        """The data of etcd was replaced: the next state need not follow that one."""
        self._is_replaced = True
        found = [item for item in self.etcd.snapshot("/").items if item.key.endswith("/state")]
        self.state = json.loads(found[0].value) if found else {"epoch": 0, "inSync": []}

    def _check_state(self, key: str, value: bytes | None) -> None:
        """R6, of each write at etcd: who is elected is of the set."""
        if not key.endswith("/state"):
            return
        assert value is not None, "the state was deleted"
        before, self.state = self.state, json.loads(value)
        was_replaced, self._is_replaced = self._is_replaced, False
        if self.state["epoch"] != before["epoch"] and before["epoch"] and not was_replaced:
            assert self.state["epoch"] == before["epoch"] + 1, f"{self.state} follows {before}"
            clean = self.state["master"] in before["inSync"] or self._may_elect_unclean
            assert clean, f"R6: {self.state} follows {before}"

    async def promote(self, node: BrokerNode, *, unclean: bool = False) -> MqError | None:
        """By an operator. Returns why it was refused."""
        self._may_elect_unclean |= unclean
        request = replica_pb2.PromoteRequest(unclean=unclean)
        calling = self.caller.call(node.address, rpcs.PROMOTE, request, timeout_s=40)
        try:
            await self.client.spawn(calling)
        except MqError as error:
            return error
        return None

    async def status(self, node: BrokerNode) -> ReplicaStatus:
        """Raises MqError."""
        return await self.client.spawn(ReplicaCalls(self.caller, 3.0).status(node.address))

    # ---- what must hold ----

    def look(self) -> None:
        """R1: an epoch has one master, of one start. R5: what is visible anywhere stays as it is,
        and is below the confirm offset."""
        if self.etcd.broken is not None:
            raise self.etcd.broken
        for node in self.nodes:
            if node.epoch_as_master:
                known = self.masters.setdefault(node.epoch_as_master, (node.number, node.starts))
                assert known == (node.number, node.starts), (
                    f"R1: epoch {node.epoch_as_master} has the masters {known} and {node.number}"
                )
            store = node.store
            if store is None or self._looked_at.get(node.number) == (store, store.confirmed_offset):
                continue
            self._looked_at[node.number] = store, store.confirmed_offset
            found = store.corruption_count and not node.was_damaged
            assert not found, f"{node.number} found damage: {list(store.damage.suspects)}"
            for (topic, queue_id), messages in visible(store).items():
                if topic in self.vanishing:
                    continue
                for offset, body in messages.items():
                    before = self.shown.setdefault((topic, queue_id, offset), body)
                    assert before == body, (
                        f"{topic}/{queue_id}/{offset} was {before[:30]!r}, and is {body[:30]!r} on "
                        f"{node.number}"
                    )

    def check_acknowledged(self, physical_offset: int, required: int) -> None:
        """R4: a record that was acknowledged just now is on the disks of all that may be elected,
        and on as many as are required."""
        records: Counter[bytes] = Counter()
        off = lacking = 0
        electable = {(each["id"], each["storeId"]) for each in self.state["inSync"]}
        for node in self.nodes:
            store, roles = node.store, node.roles
            if store is None or roles is None:
                off += 1
            elif store.flushed_offset > physical_offset >= store.min_physical_offset:
                records[node.log_bytes(physical_offset, physical_offset + RECORD_BYTES)] += 1
            elif tuple(roles.own.replica) in electable:
                lacking += 1
        assert not lacking, f"R4: acknowledged {physical_offset}, and a replica of the set lacks it"
        held = max(records.values(), default=0) + off
        assert held >= required, f"R4: acknowledged {physical_offset}, on {held} replicas"

    def on_exception(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception") or AssertionError(str(context))
        if not isinstance(error, (MqError, PowerCut)):  # whose caller has gone
            self.failures.append(error)

    def on_log(self, event: str, fields: Mapping[str, Any]) -> None:
        if event in DEFECTS:
            self.failures.append(AssertionError(f"{event}: {fields}"))

    def check_failures(self) -> None:
        """Raises the first of what nobody else has seen."""
        for failure in self.failures:
            raise failure

    def heal(self) -> None:
        """Everything is as at the beginning, and everybody is back."""
        self.network.heal()
        if self.etcd.away:
            self.etcd.come_back()
        for client in self.etcd_clients.values():
            client.cut = False
        for node in self.nodes:
            node.disk.capacity = node.disk.crash_at = None
            if node.process is not None and node.process.is_paused:
                node.process.resume()
            if node.is_up and node.disk_fails:
                node.kill()
            if not node.is_up:
                node.start()

    def is_settled(self) -> bool:
        """Whether a master has everybody in its set, and all have and show the same."""
        master = self.master
        if master is None or any(node.store is None for node in self.nodes):
            return False
        roles = master.roles
        assert roles is not None and roles.master is not None
        if len(roles.master.status().in_sync) < len(self.nodes):
            return False
        if any(node.store is not None and node.store.damage.ranges for node in self.nodes):
            return False
        stores = [node.store for node in self.nodes]
        return len({(s.end_offset, s.confirmed_offset) for s in stores if s is not None}) == 1

    async def settle(self, seconds: float = 120) -> BrokerNode:
        """Until it is settled: returns the master."""
        end = self.loop.time() + seconds
        while self.loop.time() < end:
            await asyncio.sleep(0.25)
            self.look()
            if self.is_settled():
                master = self.master
                assert master is not None
                return master
        raise AssertionError(f"not settled after {seconds} s: {self.describe()}")

    def check_alike(self, master: BrokerNode) -> None:
        """Logs are equal up to the confirm offset, and so is what is shown; all that was ever shown
        is there."""
        store = master.store
        assert store is not None
        found = {
            (topic, queue_id, offset): body
            for (topic, queue_id), messages in visible(store).items()
            for offset, body in messages.items()
        }
        gone = [place for place, body in self.shown.items() if found.get(place) != body]
        gone = [place for place in gone if place[0] not in self.vanishing]
        assert not gone, f"shown and gone: {sorted(gone)[:5]} of {len(self.shown)}"
        confirmed = store.confirmed_offset
        for node in self.nodes:
            other = node.store
            assert other is not None
            assert not other.damage.ranges, f"{node.number} is damaged: {other.damage.ranges}"
            low = max(store.min_physical_offset, other.min_physical_offset)
            assert node.log_bytes(low, confirmed) == master.log_bytes(low, confirmed), (
                f"the log of {node.number} differs from that of {master.number}"
            )
            assert visible(other) == visible(store), f"{node.number} shows something else"

    def keeps_what_was_answered(self, required: int) -> bool:
        """Whether no promotion takes back a settlement, or a change of a topic or group, that was
        answered just now. Without etcd one may, where the master has too few replicas, or another
        one (decision 22): that is left out here also where it cannot be told."""
        if self.is_elected:
            return True
        leading = [node for node in self.nodes if node.epoch_as_master]
        if len(leading) != 1 or leading[0].store is None:
            return False
        end = leading[0].store.written_offset
        last = leading[0].log_bytes(max(0, end - RECORD_BYTES), end)
        alike = [
            node.store.flushed_offset >= end
            and node.log_bytes(max(0, end - RECORD_BYTES), end) == last
            for node in self.nodes
            if node.store is not None and node.roles is not None
        ]
        return sum(alike) >= required

    def describe(self) -> str:
        parts = []
        for node in self.nodes:
            roles, store = node.roles, node.store
            role = "off" if roles is None else "slave" if roles.slave else "none"
            if node.epoch_as_master:
                role = "master"
            parts.append(f"{node.number} {role}")
            if roles is not None:
                parts.append(f"epoch {roles.own.highest_epoch()} trouble {roles.own.trouble!r}")
                if roles.slave is not None:
                    parts.append(f"refusal {roles.slave.refusal!r} ({roles.slave.trouble})")
                if roles.master is not None:
                    parts.append(f"in sync {sorted(map(str, roles.master.status().in_sync))}")
            if store is not None:
                ends = store.end_offset, store.flushed_offset, store.confirmed_offset
                parts.append(f"end, flushed, confirmed {ends}")
        return "; ".join(parts)


Scenario = Callable[[SimulatedCluster], Awaitable[None]]


def simulate(seed: int, scenario: Scenario) -> None:
    """Runs it in a loop of its own. Raises what it raises, mostly AssertionError, and what broke in
    the brokers unseen."""
    network = SimulatedNetwork(random.Random(seed + 2))
    transport = SimulatedTransport(network)
    loop = ProcessLoop(transport.connect)
    with tempfile.TemporaryDirectory() as directory, transport.in_place():
        cluster = SimulatedCluster(loop, transport, seed, Path(directory))
        loop.set_exception_handler(cluster.on_exception)

        async def run() -> None:
            await scenario(cluster)
            cluster.check_failures()

        with (
            mock.patch("aerobee_broker.replication.wiring.EtcdClient", cluster.etcd_client),
            watched_logs(cluster.on_log),
        ):
            loop.end(run())


P = ParamSpec("P")


def simulated(
    *seeds: int,
) -> Callable[[Callable[Concatenate[SimulatedCluster, P], Awaitable[None]]], Callable[P, None]]:
    """Make a test of a scenario, which gets the cluster first. It runs once for each seed."""

    def decorate(
        scenario: Callable[Concatenate[SimulatedCluster, P], Awaitable[None]],
    ) -> Callable[P, None]:
        @functools.wraps(scenario)
        def test(*args: P.args, **arguments: P.kwargs) -> None:
            seed = arguments.pop("seed")
            assert isinstance(seed, int)
            simulate(seed, lambda cluster: scenario(cluster, *args, **arguments))

        _, *own = inspect.signature(scenario).parameters.values()
        seed = inspect.Parameter("seed", inspect.Parameter.KEYWORD_ONLY)
        test.__signature__ = inspect.Signature([*own, seed])  # type: ignore[attr-defined]
        return pytest.mark.parametrize("seed", seeds)(test)

    return decorate


# ---- logs ----
#
# What processes of a simulation log: seen by the test, and not written.


OnLog = Callable[[str, Mapping[str, Any]], None]


@contextlib.contextmanager
def watched_logs(on_log: OnLog) -> Iterator[None]:
    """`on_log` is called with each event and its fields; `exception`: the traceback, where there is
    one."""

    def look(_: object, __: str, fields: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        found = fields.pop("exc_info", None)
        if isinstance(found, BaseException):
            fields["exception"] = "".join(traceback.format_exception(found))
        elif found:
            fields["exception"] = traceback.format_exc()
        on_log(str(fields.pop("event")), fields)
        raise structlog.DropEvent

    processors = structlog.get_config()["processors"]
    before = list(processors)
    processors[:] = [look]
    structlog.configure(processors=processors)
    try:
        yield
    finally:
        processors[:] = before
        structlog.configure(processors=processors)
