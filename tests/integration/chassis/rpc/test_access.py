"""Each RPC is called as each role over TLS: what docs/permissions.md says, happens.

The handlers do nothing, so that a call has no effect. tests/integration/command/test_secure.py
calls services with their own handlers.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
import structlog
from google.protobuf import message_factory
from google.protobuf.descriptor_pool import Default

from aerobee_chassis.rpc.access import Access
from aerobee_chassis.rpc.call import Call, Handler
from aerobee_chassis.rpc.in_flight import InFlight, Reader
from aerobee_chassis.rpc.peer_tls import ServerTls
from aerobee_chassis.rpc.server import Server
from aerobee_chassis.rpc.services import Service, declare
from aerobee_chassis.rpc.standard_services import HEALTH, REFLECTION
from aerobee_cli.authority import Authority
from aerobee_namesrv.app import failure_of
from aerobee_wire.certificates import CertificateFiles
from aerobee_wire.permissions import TABLE, Permissions
from aerobee_wire.rpcs import DELETE_TOPIC, GET_TOPIC, SEND
from aerobee_wire.status import Code, error_from
from support.permissions.page import BROKER, CALLERS, CLUSTER, Caller, may_call, read
from support.processes import certificates

SERVICES = sorted(
    {path[1:].rpartition("/")[0] for path in TABLE} - {HEALTH.full_name, REFLECTION.full_name}
)
FILE = "process"


@pytest.fixture(scope="module")
def directories(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory for each caller: its certificate, and the authority that servers trust.

    An authority of the cluster signs for callers of another cluster too: their URI alone differs.
    """
    root = tmp_path_factory.mktemp("callers")
    now = datetime.datetime.now(datetime.UTC)
    trusted = b""
    for number, caller in enumerate(CALLERS):
        directory = root / str(number)
        if caller.identity is None:
            directory.mkdir()
            certificate, _ = certificates.write(directory, FILE)
            trusted += certificate.read_bytes()
            continue
        authority = Authority(directory, now)
        authority.init(caller.identity.cluster, BROKER, ["localhost"], 90)
        issued = authority.issue(caller.identity.role, caller.identity.name, ["localhost"], 90)
        for suffix in ("crt", "key"):
            (directory / issued.file).with_suffix(f".{suffix}").rename(
                directory / f"{FILE}.{suffix}"
            )
        trusted += (directory / "ca.crt").read_bytes()
    (root / "ca.crt").write_bytes(trusted)
    return root


def directory_of(root: Path, caller: Caller) -> Path:
    return root / str(CALLERS.index(caller))


def handler_of(path: str) -> Handler:
    service, _, name = path.partition("/")
    method = Default().FindServiceByName(service).methods_by_name[name]
    response = message_factory.GetMessageClass(method.output_type)

    async def handle(request: Any, call: Call) -> Any:
        return response()

    return handle


def services() -> list[Service]:
    return [declare(Default().FindServiceByName(name), handler_of) for name in SERVICES]


def access(**settings: Any) -> Access:
    return Access(Permissions(CLUSTER, BROKER), enforced=True, **settings)


@asynccontextmanager
async def serving(
    root: Path, checks: Access, in_flight: InFlight | None = None
) -> AsyncIterator[str]:
    own = root / "0"
    files = CertificateFiles(
        str(root / "ca.crt"), str(own / f"{FILE}.crt"), str(own / f"{FILE}.key")
    )
    server = Server(
        services(),
        host="127.0.0.1",
        port=0,
        failure_of=failure_of,
        tls=ServerTls(files, require_client=True),
        access=checks,
        in_flight=in_flight,
        grace_s=0,
    )
    await server.start()
    try:
        yield server.address
    finally:
        await server.stop()


@asynccontextmanager
async def channel(root: Path, address: str, caller: Caller) -> AsyncIterator[grpc.aio.Channel]:
    own = directory_of(root, caller)
    pem = (own / f"{FILE}.key").read_bytes(), (own / f"{FILE}.crt").read_bytes()
    credentials = grpc.ssl_channel_credentials((root / "0" / "ca.crt").read_bytes(), *pem)
    name = (("grpc.ssl_target_name_override", "localhost"),)
    async with grpc.aio.secure_channel(address, credentials, options=name) as opened:
        yield opened


async def refusal(opened: Any, path: str, **fields: str) -> str:
    """The RPC that the caller may not call, or "" if the handler was called."""
    service, _, name = path[1:].partition("/")
    method = Default().FindServiceByName(service).methods_by_name[name]
    request = message_factory.GetMessageClass(method.input_type)(**fields)
    call: Any
    if method.client_streaming:
        call = opened.stream_stream(path)(timeout=20)
    else:
        call = opened.unary_stream(path)(request.SerializeToString(), timeout=20)
    try:
        if method.client_streaming:  # a call that is refused may have ended already
            with contextlib.suppress(asyncio.InvalidStateError):
                await call.done_writing()
        await call.read()
        code = grpc.StatusCode.OK if method.server_streaming else await call.code()
    except grpc.aio.AioRpcError as error:
        code = error.code()
    finally:
        call.cancel()
    if code is grpc.StatusCode.OK:
        return ""
    found = error_from(await call.details(), await call.trailing_metadata())
    assert code is grpc.StatusCode.PERMISSION_DENIED and found is not None, code
    assert found.code is Code.NO_PERMISSION and found.about == path
    return found.about


@pytest.mark.parametrize("caller", CALLERS, ids=lambda caller: caller.name)
async def test_each_rpc_is_called_as_the_page_says(directories: Path, caller: Caller) -> None:
    expected = read()
    async with (
        serving(directories, access()) as address,
        channel(directories, address, caller) as opened,
    ):
        allowed = set()
        for path in TABLE:
            named = {expected[path].own: BROKER} if expected[path].own else {}
            if not await refusal(opened, path, **named):
                allowed.add(path)
    assert allowed == {path for path in expected if may_call(expected[path], caller)}


async def test_a_broker_speaks_for_its_own_name_only(directories: Path) -> None:
    (broker,) = (caller for caller in CALLERS if caller.name == "another broker")
    async with (
        serving(directories, access()) as address,
        channel(directories, address, broker) as opened,
    ):
        for path, said in read().items():
            if said.own:
                assert await refusal(opened, path, **{said.own: BROKER})
                assert not await refusal(opened, path, **{said.own: "broker-b"})


class Sizes(InFlight):
    """`sizes`: of the requests that were read."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []

    def arrived(self, reader: Reader, reserved: int, size: int) -> None:
        self.sizes.append(size)
        super().arrived(reader, reserved, size)


async def test_the_request_of_a_refused_caller_is_not_read(directories: Path) -> None:
    """Nothing is in flight for a caller whose role may not send, however large its request is."""
    (console,) = (caller for caller in CALLERS if caller.name == "console")
    in_flight = Sizes()
    async with (
        serving(directories, access(), in_flight) as address,
        channel(directories, address, console) as opened,
    ):
        assert await refusal(opened, SEND.path, producer_group="x" * 1_000_000)
        assert not in_flight.sizes
        assert not await refusal(opened, GET_TOPIC.path, topic="x" * 1_000)
        assert in_flight.sizes


async def test_observed_calls_are_logged_once_and_not_refused(directories: Path) -> None:
    (client,) = (caller for caller in CALLERS if caller.name == "client")
    checks = access(observe_only=True)
    with structlog.testing.capture_logs() as logs:
        async with (
            serving(directories, checks) as address,
            channel(directories, address, client) as opened,
        ):
            for _ in range(3):
                assert not await refusal(opened, DELETE_TOPIC.path, topic="orders")
                assert not await refusal(opened, GET_TOPIC.path, topic="orders")
    assert checks.rejected == 3
    (line,) = (line for line in logs if line["log_level"] == "warning")
    assert (line["event"], line["rpc"]) == ("call_would_be_rejected", DELETE_TOPIC.path)
    assert line["caller"] == str(client.identity)


async def test_secrets_are_not_open_to_observed_calls(directories: Path) -> None:
    (client,) = (caller for caller in CALLERS if caller.name == "client")
    async with (
        serving(directories, access(observe_only=True)) as address,
        channel(directories, address, client) as opened,
    ):
        for service in ("Namesrv", "Broker"):
            for method in ("ListTable", "PutUser", "MergeTable"):
                path = f"/aerobee.access.v1.{service}AccessService/{method}"
                assert await refusal(opened, path), path


def test_a_server_with_an_rpc_without_a_row_is_not_made() -> None:
    without = {path: row for path, row in TABLE.items() if path != SEND.path}
    checks = Access(Permissions(CLUSTER, BROKER, without), enforced=False)
    with pytest.raises(TypeError, match="MessageService/Send"):
        Server(services(), host="127.0.0.1", port=0, failure_of=failure_of, access=checks)
