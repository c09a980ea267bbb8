"""A server with gRPC's own TLS and a caller with certificates, over each transport."""

from __future__ import annotations

import asyncio
import datetime
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from grpc_health.v1 import health_pb2

from aerobee_chassis.rpc import caller as caller_module
from aerobee_chassis.rpc import peer_tls
from aerobee_chassis.rpc.call import Call, Failure
from aerobee_chassis.rpc.caller import Caller
from aerobee_chassis.rpc.peer_tls import PeerTls, ServerTls
from aerobee_chassis.rpc.server import Server
from aerobee_chassis.rpc.standard_services import HEALTH
from aerobee_chassis.rpc.transport import CallFailed
from aerobee_cli.authority import Authority
from aerobee_wire.certificates import CertificateFiles
from support.clock.polling import until

CLUSTER = "prod"


class Check:
    path = f"/{HEALTH.full_name}/Check"
    response = health_pb2.HealthCheckResponse


class Watch(Check):
    path = f"/{HEALTH.full_name}/Watch"


class Refused(Exception):
    pass


def refused(_address: str, failure: CallFailed) -> Exception:
    return Refused(failure.message)


def no_failure(_error: Exception) -> Failure | None:
    return None


def authority(directory: Path, days: int = 90) -> Authority:
    made = Authority(directory, datetime.datetime.now(datetime.UTC))
    made.init(CLUSTER, "broker-a", ["localhost"], days)
    return made


def files(directory: Path, role: str) -> CertificateFiles:
    if not role:
        return CertificateFiles(str(directory / "ca.crt"))
    certificate, key = directory / f"{role}.crt", directory / f"{role}.key"
    return CertificateFiles(str(directory / "ca.crt"), str(certificate), str(key))


def copied(directory: Path, other: Path) -> CertificateFiles:
    """Return the files of a caller, in a directory of its own."""
    shutil.copytree(directory, other)
    return files(other, "proxy")


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("cluster") / "secure"
    authority(directory)
    return directory


@asynccontextmanager
async def serving(directory: Path, *, require_client: bool = True) -> AsyncIterator[str]:
    tls = ServerTls(files(directory, "broker"), require_client=require_client)
    server = Server([], host="127.0.0.1", port=0, failure_of=no_failure, tls=tls)
    await server.start()
    try:
        yield server.address
    finally:
        await server.stop()


async def ask(address: str, tls: PeerTls | None) -> int:
    caller = Caller(refused, tls)
    try:
        request = health_pb2.HealthCheckRequest()
        return int((await caller.call(address, Check, request, timeout_s=10)).status)
    finally:
        await caller.close()


async def test_a_caller_with_a_certificate_of_the_cluster_is_served(secure: Path) -> None:
    async with serving(secure) as address:
        assert (
            await ask(address, PeerTls(files(secure, "proxy"), CLUSTER)) == Check.response.SERVING
        )


async def test_an_old_connection_gets_no_new_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Calls and streams do not fail, until the server does not trust the certificate any more."""
    monkeypatch.setattr(peer_tls, "MAX_AGE_MS", 300)
    peers: set[str] = set()
    run = Server._run

    async def running(self: Server, service: str, method: Any, request: Any, call: Call) -> Any:
        peers.add(call.peer)
        return await run(self, service, method, request, call)

    monkeypatch.setattr(Server, "_run", running)
    directory = tmp_path / "secure"
    authority(directory)
    request = health_pb2.HealthCheckRequest()
    async with serving(directory) as address:
        caller = Caller(refused, PeerTls(copied(directory, tmp_path / "caller"), CLUSTER))
        stream = caller.stream(address, Watch, request)
        await anext(stream)

        async def connects_again() -> bool:
            answers = (caller.call(address, Check, request, timeout_s=10) for _ in range(50))
            await asyncio.gather(*answers)
            return len(peers) > 3

        await until(connects_again)
        waiting = asyncio.ensure_future(anext(stream))
        await asyncio.sleep(0)
        assert not waiting.done()
        authority(tmp_path / "other")
        (tmp_path / "other" / "ca.crt").replace(directory / "ca.crt")

        async def is_refused() -> bool:
            try:
                await caller.call(address, Check, request, timeout_s=10)
            except Refused:
                return True
            return False

        await until(is_refused)
        waiting.cancel()
        await caller.close()


async def test_no_other_caller_is_served(secure: Path, tmp_path: Path) -> None:
    authority(tmp_path / "secure")
    foreign = CertificateFiles(
        str(secure / "ca.crt"),
        str(tmp_path / "secure" / "proxy.crt"),
        str(tmp_path / "secure" / "proxy.key"),
    )
    async with serving(secure) as address:
        for tls in (None, PeerTls(files(secure, ""), CLUSTER), PeerTls(foreign, CLUSTER)):
            with pytest.raises(Refused):
                await ask(address, tls)


async def test_a_caller_refuses_another_authority_name_and_plaintext(
    secure: Path, tmp_path: Path
) -> None:
    authority(tmp_path / "secure")
    async with serving(secure, require_client=False) as address:
        assert await ask(address, PeerTls(files(secure, ""), CLUSTER)) == Check.response.SERVING
        for tls in (
            PeerTls(files(tmp_path / "secure", ""), CLUSTER),
            PeerTls(files(secure, ""), "another"),
            PeerTls(files(secure, ""), ""),  # no certificate of this test has the name 127.0.0.1
        ):
            with pytest.raises(Refused):
                await ask(address, tls)
    plain = Server([], host="127.0.0.1", port=0, failure_of=no_failure)
    await plain.start()
    with pytest.raises(Refused):
        await ask(plain.address, PeerTls(files(secure, "proxy"), CLUSTER))
    await plain.stop()


async def test_new_certificates_and_a_new_authority_need_no_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(caller_module, "RELOAD_S", 0.02)
    old, new = tmp_path / "old" / "secure", tmp_path / "new" / "secure"
    authority(old)
    authority(new)
    request = health_pb2.HealthCheckRequest()
    peers = PeerTls(files(old, "proxy"), CLUSTER)
    caller = Caller(refused, peers)

    async def call() -> None:
        answer = await caller.call(address, Check, request, timeout_s=10)
        assert answer.status == Check.response.SERVING

    def take(*names: str) -> None:
        for name in names:
            (old / name).write_bytes((new / name).read_bytes())

    async with serving(old) as address:
        watch = caller.stream(address, Watch, request)
        assert (await anext(watch)).status == Check.response.SERVING
        # First both sides trust both authorities, then they change their own certificates.
        both = (old / "ca.crt").read_bytes() + (new / "ca.crt").read_bytes()
        (old / "ca.crt").write_bytes(both)
        await until(lambda: peers.of(Check.path).authorities == both)
        await call()
        take("broker.crt", "broker.key")
        await call()
        take("proxy.crt", "proxy.key")
        own = (new / "proxy.crt").read_bytes()
        await until(lambda: peers.of(Check.path).certificate == own)
        await call()
        take("ca.crt")
        await until(lambda: peers.of(Check.path).authorities not in (b"", both))
        await call()

        async def serves_the_new_authority() -> bool:
            status = await ask(address, PeerTls(files(new, "proxy"), CLUSTER))
            return bool(status == Check.response.SERVING)

        await until(serves_the_new_authority, retry_on=(Refused,))
        await watch.aclose()
        await caller.close()
