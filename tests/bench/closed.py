"""What closed ports cost, each against the same without: TLS, users with policies, memory.

Real processes on this machine, with synchronous flush. A user has 100 policies and a quota that it
does not reach, and each server has an audit log. Signing is in the figures, because the client
shares the cores. Rounds are many and short: what else the machine does then hits both sides alike.
"""

from __future__ import annotations

import asyncio
import io
import itertools
import statistics
import tempfile
import time
from contextlib import ExitStack, redirect_stdout
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import grpc
from aerobee.access.v1 import access_pb2
from aerobee.broker.v1 import admin_pb2, message_pb2
from aerobee.namesrv.v1 import namesrv_pb2
from aerobee_foreign.apache.rocketmq.v2 import definition_pb2 as d
from aerobee_foreign.apache.rocketmq.v2 import service_pb2 as s

from aerobee_cli.authority import Authority, settings_of
from aerobee_client import AdminClient, Tls
from aerobee_client.admin.descriptions import PolicyDescription
from aerobee_cluster.access.store import AccessStore, save_in
from aerobee_wire.access.signature import AUTHORIZATION_KEY, Signer
from aerobee_wire.access.table import Record, Version
from aerobee_wire.access.users import User
from aerobee_wire.identity import Identity
from aerobee_wire.rpcs import SEND
from bench.load import METADATA, NAME, message
from bench.measure import Operation, Result, private_mb, rate, resident_mb
from bench.servers.echo import OPTIONS
from bench.throughput import BATCH, IN_FLIGHT, QUEUES, TOPIC, batch_request, pull
from support.clock.polling import until
from support.processes.command import children
from support.processes.service import ServiceProcess, broker_process, namesrv_process, proxy_process
from support.proxy.client import signed
from support.stubs import Stub

ROUNDS = 20
ROUND_S = 0.4
WARM_UP_S = 1.0
PROXY_IN_FLIGHT = 64
CLUSTER, USER, SECRET = "DefaultCluster", "bench", "a secret key"
POLICIES = 100
USERS = 10_000
PLAIN_PORT = "--set=tlsServerMode=disabled"
CHECKED = ("--set=authenticationEnabled=true", "--set=authorizationEnabled=true")
TARGETS = {
    "closed_ingest_access": 0.96,
    "closed_unary_access": 0.92,
    "closed_ingest_tls": 0.75,
    "closed_pull_tls": 0.75,
    "closed_unary_tls": 0.88,
}
MEMORY_LIMIT_MB = 8.0
VISIBLE_LIMIT_S = 2.0
TURN_LIMIT_MS = 10.0


class Site:
    """An open cluster and a closed one, each with a name server, a broker and proxies."""

    def __init__(self, home: Path, stack: ExitStack) -> None:
        self.home, self._stack = home, stack
        self.secure = home / "secure"
        hosts = ["localhost", "127.0.0.1"]
        Authority(self.secure, datetime.now(UTC)).init(CLUSTER, "broker-a", hosts, 1)
        self.namesrv = self._run(namesrv_process(home / "namesrv"))
        self.broker = self._run(broker_process(home / "broker", namesrv=self.namesrv.address))
        self.proxy = self._proxy(self.namesrv, PLAIN_PORT)
        self.shared = self._proxy(self.namesrv)
        self.checked = self._proxy(self.namesrv, PLAIN_PORT, *CHECKED, self._audit("checked"))
        closed = self._settings
        self.closed_namesrv = self._run(namesrv_process(home / "n", *closed("namesrv")))
        address = self.closed_namesrv.address
        self.closed_broker = self._run(
            broker_process(home / "b", *closed("broker"), namesrv=address)
        )
        self.closed_proxy = self._proxy(self.closed_namesrv, *closed("proxy"))
        certificates = [each for each in closed("proxy") if "=tls" in each and "Mode" not in each]
        self.caller = self._proxy(self.closed_namesrv, *certificates, PLAIN_PORT)
        pair = [each for each in closed("broker") if "tlsCertPath" in each or "tlsKeyPath" in each]
        self.tls_broker = self._run(
            broker_process(
                home / "tls",
                *("--set=tlsServerMode=enforcing", "--set=tlsServerNeedClientAuth=none", *pair),
            )
        )
        admin = self.secure / "admin.crt"
        self.tls = Tls(self.secure / "ca.crt", admin, admin.with_suffix(".key"))
        for namesrv, tls in ((self.namesrv, None), (self.closed_namesrv, self.tls)):
            self._make_user(namesrv.address, tls)

    def channel(self, broker: ServiceProcess) -> grpc.aio.Channel:
        """Open a channel with TLS, and the certificate of the administrator."""
        paths = (self.tls.ca, self.tls.key, self.tls.certificate)
        credentials = grpc.ssl_channel_credentials(*(Path(path).read_bytes() for path in paths))
        name = ("grpc.ssl_target_name_override", f"broker.{CLUSTER}.aerobee")
        return grpc.aio.secure_channel(broker.address, credentials, options=[*OPTIONS, name])

    def _run(self, process: ServiceProcess) -> ServiceProcess:
        return self._stack.enter_context(process)

    def _proxy(self, namesrv: ServiceProcess, *options: str) -> ServiceProcess:
        return self._run(proxy_process(namesrv.address, *options))

    def _audit(self, name: str) -> str:
        return f"--set=auditLogPath={self.home / name}.audit"

    def _settings(self, role: str) -> list[str]:
        name = "broker-a" if role == "broker" else role
        settings = settings_of(self.secure, Identity(CLUSTER, role, name))
        settings.pop("brokerName", None)
        return [*(f"--set={key}={value}" for key, value in settings.items()), self._audit(role)]

    def _make_user(self, namesrv: str, tls: Tls | None) -> None:
        own = [PolicyDescription(f"{kind}:{TOPIC}", ("All",)) for kind in ("Topic", "Group")]
        others = [PolicyDescription(f"Topic:other-{n}", ("Pub",)) for n in range(POLICIES - 2)]
        with AdminClient(namesrv, tls=tls) as admin:
            admin.create_user(USER, SECRET)
            admin.create_policies(USER, [*own, *others])
            admin.set_quota(f"User:{USER}", messages_in=10**9, bytes_in=10**12, calls=10**9)


async def compared(
    name: str, ours: Operation, baseline: Operation, in_flight: int, note: str
) -> Result:
    for operation in (ours, baseline):
        await rate(operation, in_flight, WARM_UP_S)
    rounds = [
        [await rate(operation, in_flight, ROUND_S) for operation in (ours, baseline)]
        for _ in range(ROUNDS)
    ]
    value, base = (statistics.median(column) for column in zip(*rounds, strict=True))
    ratio = statistics.median(one / other for one, other in rounds)
    return Result(name, "messages/s", value, base, ratio, TARGETS[name], note)


def ingest(channel: grpc.aio.Channel, signer: Signer | None = None) -> Operation:
    """Send batches, which `signer` signs."""
    send = channel.unary_unary(SEND.path, None, message_pb2.SendResponse.FromString)
    unique, turn = itertools.count(), itertools.count()

    async def one() -> int:
        request = batch_request(next(turn) % QUEUES, unique).SerializeToString()
        metadata = () if signer is None else ((AUTHORIZATION_KEY, signer.sign(SEND.path, request)),)
        answer = await send(request, metadata=metadata)
        return len(answer.batch_result.physical_offsets)

    return one


async def sending(channel: grpc.aio.Channel, address: str, *, is_signed: bool) -> Operation:
    """Send messages to a proxy, as a user or not."""
    stub = Stub(s, channel)
    metadata = signed(USER, SECRET) if is_signed else METADATA
    host, _, port = address.rpartition(":")
    endpoints = d.Endpoints(
        scheme=d.AddressScheme.IPv4, addresses=[d.Address(host=host, port=int(port))]
    )
    route = s.QueryRouteRequest(topic=NAME, endpoints=endpoints)

    async def is_served() -> bool:  # the rights have arrived
        answer = await stub.QueryRoute(route, metadata=metadata)
        return bool(answer.status.code == d.Code.OK)

    await until(is_served)
    numbers = itertools.count()

    async def one() -> int:
        answer = await stub.SendMessage(message(next(numbers)), metadata=metadata)
        if answer.status.code != d.Code.OK:
            raise RuntimeError(answer.status.message)
        return 1

    return one


async def create_topic(channel: grpc.aio.Channel) -> None:
    topic = namesrv_pb2.TopicConfig(
        topic=TOPIC, read_queue_count=QUEUES, write_queue_count=QUEUES, permission=6
    )
    await Stub(admin_pb2, channel).PutTopic(admin_pb2.PutTopicRequest(topic=topic))


async def at_brokers(site: Site) -> list[Result]:
    """Ingest and pull: TLS against plaintext, and users against none, both with TLS."""
    async with (
        grpc.aio.insecure_channel(site.broker.address, options=OPTIONS) as plain,
        site.channel(site.tls_broker) as tls,
        site.channel(site.closed_broker) as closed,
    ):
        for channel in (plain, tls, closed):
            await create_topic(channel)
        now_ms = lambda: time.time_ns() // 1_000_000  # noqa: E731
        signer = Signer(USER, SECRET.encode, now_ms, over_tls=True)
        how = f"{BATCH} x 1 KiB, {IN_FLIGHT} in flight"
        results = [
            await compared(
                "closed_ingest_tls", ingest(tls), ingest(plain), IN_FLIGHT, f"{how}: TLS"
            ),
            await compared(
                "closed_ingest_access",
                ingest(closed, signer),
                ingest(tls),
                IN_FLIGHT,
                f"{how}: {POLICIES} policies, quota and audit, signed; both with TLS",
            ),
        ]
        ours, base = (pull(Stub(message_pb2, channel), 50 * BATCH) for channel in (tls, plain))
        note = f"{how}, every record decoded: TLS"
        return [*results, await compared("closed_pull_tls", ours, base, IN_FLIGHT, note)]


async def at_proxies(site: Site) -> list[Result]:
    """Unary sends: users against none, and mTLS from proxy to broker against plaintext."""
    async with (
        grpc.aio.insecure_channel(site.proxy.address, options=OPTIONS) as plain,
        grpc.aio.insecure_channel(site.checked.address, options=OPTIONS) as checked,
        grpc.aio.insecure_channel(site.caller.address, options=OPTIONS) as caller,
    ):
        base = await sending(plain, site.proxy.address, is_signed=False)
        users = await sending(checked, site.checked.address, is_signed=True)
        mutual = await sending(caller, site.caller.address, is_signed=False)
        how = f"1 KiB, {PROXY_IN_FLIGHT} in flight"
        note = f"{how}: {POLICIES} policies, quota and audit, signed"
        return [
            await compared("closed_unary_access", users, base, PROXY_IN_FLIGHT, note),
            await compared(
                "closed_unary_tls", mutual, base, PROXY_IN_FLIGHT, f"{how}: mTLS to the broker"
            ),
        ]


def memory(site: Site) -> list[Result]:
    """Resident memory of each server after its start, with the processes that it started.

    The note has the part of it that no other process shares: the rest are pages of libraries.
    """

    def weights(process: ServiceProcess) -> list[float]:
        pids = [process.pid, *children(process.pid)]
        return [sum(map(measure, pids)) for measure in (resident_mb, private_mb)]

    pairs = {
        "namesrv": (site.closed_namesrv, site.namesrv),
        "broker": (site.closed_broker, site.broker),
        "proxy": (site.closed_proxy, site.shared),
    }
    results = []
    for name, pair in pairs.items():
        (closed, closed_private), (plain, plain_private) = map(weights, pair)
        more, private = closed - plain, closed_private - plain_private
        note = (
            f"{closed:.1f} MB closed, {plain:.1f} MB open, idle; {private:.1f} MB more are "
            "private; baseline: the limit"
        )
        results.append(
            Result(
                f"closed_memory_{name}", "MB", more, MEMORY_LIMIT_MB, more / MEMORY_LIMIT_MB, 1.0,
                note,
            )
        )  # fmt: skip
    return results


async def visible(site: Site) -> Result:
    """Seconds until name server, broker and proxy have a change, with USERS users."""
    records = [
        access_pb2.TableRecord(
            version=access_pb2.Version(time_ms=time.time_ns() // 1_000_000, node="bench"),
            username=f"user-{number}",
            user=access_pb2.TableRecord.User(secrets=[f"secret-{number}"], enabled=True),
        )
        for number in range(USERS)
    ]
    async with grpc.aio.insecure_channel(site.namesrv.address, options=OPTIONS) as channel:
        merge = channel.unary_unary(
            "/aerobee.access.v1.NamesrvAccessService/MergeTable",
            access_pb2.MergeTableRequest.SerializeToString,
            access_pb2.ChangeResponse.FromString,
        )
        for at in range(0, USERS, 1_000):
            await merge(access_pb2.MergeTableRequest(records=records[at : at + 1_000]))
    host, _, port = site.checked.address.rpartition(":")
    endpoints = d.Endpoints(
        scheme=d.AddressScheme.IPv4, addresses=[d.Address(host=host, port=int(port))]
    )
    route = s.QueryRouteRequest(topic=NAME, endpoints=endpoints)
    took = []
    async with (
        grpc.aio.insecure_channel(site.checked.address, options=OPTIONS) as to_proxy,
        grpc.aio.insecure_channel(site.broker.address, options=OPTIONS) as to_broker,
    ):
        stub = Stub(s, to_proxy)
        get = to_broker.unary_unary(
            "/aerobee.access.v1.BrokerAccessService/GetUser",
            access_pb2.GetUserRequest.SerializeToString,
            access_pb2.GetUserResponse.FromString,
        )

        async def seen(name: str) -> bool:
            """Whether the proxy knows the secret, and the broker the user."""
            answer = await stub.QueryRoute(route, metadata=signed(name, SECRET))
            if "lacks" not in answer.status.message:
                return False
            try:
                await get(access_pb2.GetUserRequest(username=name))
            except grpc.aio.AioRpcError:
                return False
            return True

        with AdminClient(site.namesrv.address) as admin:
            await until(lambda: seen_table(admin), "the table", timeout_s=120)
            for number in range(5):
                name = f"new-{number}"
                began = time.perf_counter()
                await asyncio.to_thread(admin.create_user, name, SECRET)
                await until(partial(seen, name), name, timeout_s=60)
                took.append(time.perf_counter() - began)
    value = statistics.median(took)
    note = f"{USERS:,} users, median of {len(took)}, worst {max(took):.2f} s; baseline: the limit"
    return Result(
        "closed_user_visible_s", "s", value, VISIBLE_LIMIT_S, value / VISIBLE_LIMIT_S, 1.0, note
    )


async def seen_table(admin: AdminClient) -> bool:
    """Whether a change finds no process that lacks the table."""
    change = await asyncio.to_thread(admin.create_user, f"probe-{time.time_ns()}", SECRET)
    return not change.lacking


async def longest_turn(home: Path) -> Result:
    """Milliseconds by which a change with USERS users delays the event loop at most."""
    store = AccessStore("bench", lambda: time.time_ns() // 1_000_000, save_in(home / "table.json"))
    await store.merge(
        [Record(User(f"user-{n}", (b"secret",)), Version(1, "bench")) for n in range(USERS)]
    )
    worst, loop, running = 0.0, asyncio.get_running_loop(), True

    async def tick() -> None:
        nonlocal worst
        while running:
            began = loop.time()
            await asyncio.sleep(0.001)
            worst = max(worst, loop.time() - began - 0.001)

    async def idle() -> float:
        nonlocal worst
        worst = 0.0
        await asyncio.sleep(1)
        return worst * 1_000

    async def change(number: int) -> float:
        nonlocal worst
        worst = 0.0
        user = User(f"user-{number}", (b"another",))

        def make(_table: Any, now_ms: int, node: str) -> list[Record]:
            return [Record(user, Version(now_ms, node))]

        await store.change(make)
        await asyncio.sleep(0.01)
        return worst * 1_000

    ticking = asyncio.create_task(tick())
    await change(0)  # the first one encodes all records, in a thread
    before = await idle()
    turns = [await change(number) for number in range(1, 11)]
    running = False
    await ticking
    value = statistics.median(turns)
    note = (
        f"{USERS:,} users, median of {len(turns)}, {before:.1f} ms when idle; baseline: the limit"
    )
    return Result(
        "closed_user_turn_ms", "ms", value, TURN_LIMIT_MS, value / TURN_LIMIT_MS, 1.0, note
    )


async def results() -> list[Result]:
    # The processes print their logs when they end.
    with (
        tempfile.TemporaryDirectory() as folder,
        redirect_stdout(io.StringIO()),
        ExitStack() as stack,
    ):
        home = Path(folder)
        site = Site(home, stack)
        weights = memory(site)
        return [
            *await at_brokers(site),
            *await at_proxies(site),
            *weights,
            await visible(site),
            await longest_turn(home),
        ]
