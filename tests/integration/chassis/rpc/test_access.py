"""Each RPC is called as each role over TLS: what docs/permissions.md says, happens.

The handlers do nothing, so that a call has no effect. tests/integration/command/test_secure.py
calls services with their own handlers.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import time
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
import structlog
from aerobee.broker.v1 import message_pb2
from google.protobuf import message_factory
from google.protobuf.descriptor_pool import Default

from aerobee_chassis.rpc.access import Access
from aerobee_chassis.rpc.call import Call, Handler
from aerobee_chassis.rpc.in_flight import InFlight, Reader, failure_of
from aerobee_chassis.rpc.peer_tls import ServerTls
from aerobee_chassis.rpc.server import Server
from aerobee_chassis.rpc.services import Service, declare
from aerobee_chassis.rpc.standard_services import HEALTH, REFLECTION
from aerobee_cli.authority import Authority
from aerobee_wire.access.policies import policies_of
from aerobee_wire.access.signature import AUTHORIZATION_KEY, Signatures, Signer
from aerobee_wire.access.users import User
from aerobee_wire.certificates import ANYBODY_CERTIFICATE, ANYBODY_KEY, CertificateFiles
from aerobee_wire.permissions import TABLE, Permissions
from aerobee_wire.rpcs import DELETE_TOPIC, GET_TOPIC, SEND
from aerobee_wire.status import Code, error_from
from support.permissions.page import (
    BROKER,
    CALLERS,
    CLUSTER,
    WITHOUT_CERTIFICATE,
    Caller,
    Grant,
    may_call,
    method_of,
    read,
    request_for,
    user_may,
)
from support.processes import certificates

SERVICES = sorted(
    {path[1:].rpartition("/")[0] for path in TABLE}
    - {each.full_name for each in (HEALTH, *REFLECTION)}
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
        if caller.name == WITHOUT_CERTIFICATE:
            directory.mkdir()
            (directory / f"{FILE}.crt").write_bytes(ANYBODY_CERTIFICATE)
            (directory / f"{FILE}.key").write_bytes(ANYBODY_KEY)
            continue
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


def services(handler: Handler | None = None) -> list[Service]:
    """Each service, whose RPCs have this handler, or one that does nothing."""
    return [
        declare(Default().FindServiceByName(name), lambda path: handler or handler_of(path))
        for name in SERVICES
    ]


def access(**settings: Any) -> Access:
    return Access(Permissions(CLUSTER, BROKER), enforced=True, **settings)


@asynccontextmanager
async def serving(
    root: Path,
    checks: Access,
    in_flight: InFlight | None = None,
    handler: Handler | None = None,
) -> AsyncIterator[str]:
    own = root / "0"
    files = CertificateFiles(
        str(root / "ca.crt"), str(own / f"{FILE}.crt"), str(own / f"{FILE}.key")
    )
    server = Server(
        services(handler),
        host="127.0.0.1",
        port=0,
        failure_of=failure_of,
        tls=ServerTls(files, "optional"),
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
    method = method_of(path)
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


# ---- calls that users sign ----

SECRET = b"s3cret"
READER = User(
    "reader",
    (SECRET,),
    policies=tuple(
        policies_of({"resource": ["Topic:*", "Group:*", "Cluster:*"], "actions": ["Get", "List"]})
    ),
)
ALL_READING = tuple(Grant(kind, ("Get", "List")) for kind in ("Topic", "Group", "Cluster"))
NOBODY = User("nobody", (SECRET,))
ROOT = User("root", (SECRET,), super=True)


class Users:
    """The users of a server."""

    def __init__(self) -> None:
        users = (READER, NOBODY, ROOT, replace(READER, name="gone", enabled=False))
        self.by_name = {user.name: user for user in users}

    def access(self, **settings: Any) -> Access:
        return access(signatures=Signatures(self.by_name.get, now_ms, now_ms), **settings)


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def signer(name: str, secret: bytes = SECRET) -> Signer:
    return Signer(name, lambda: secret, now_ms)


async def outcome(opened: Any, path: str, header: str, request: bytes = b"") -> str:
    """ "" if the handler was called, else what the error is about: the RPC, or "authorization"."""
    metadata = ((AUTHORIZATION_KEY, header),) if header else ()
    call = opened.unary_stream(path)(request, timeout=20, metadata=metadata)
    try:
        await call.read()
        code = await call.code()
    except grpc.aio.AioRpcError as error:
        code = error.code()
    if code is grpc.StatusCode.OK:
        return ""
    found = error_from(await call.details(), await call.trailing_metadata())
    assert found is not None and found.code is Code.NO_PERMISSION, (path, code, found)
    return found.about


OURS = sorted(
    f"/{service}/{method.name}"
    for service in SERVICES
    for method in Default().FindServiceByName(service).methods
    if not method.client_streaming
)


async def test_each_rpc_is_called_by_users_as_the_page_says(directories: Path) -> None:
    """The caller has no certificate, and its signature decides."""
    (without,) = (caller for caller in CALLERS if caller.name == WITHOUT_CERTIFICATE)
    expected, name = read(), "orders"
    async with (
        serving(directories, Users().access()) as address,
        channel(directories, address, without) as opened,
    ):
        for path in OURS:
            names = {right.field: name for right in expected[path].rights or () if right.field}
            request = request_for(path, names).SerializeToString()
            header = signer("root").sign(path, request)
            served = expected[path].rights is not None
            assert await outcome(opened, path, header, request) == ("" if served else path)
            # Used before, not signed, not this request, another RPC, a wrong secret, a disabled
            # and an unknown user.
            assert await outcome(opened, path, header, request) == AUTHORIZATION_KEY
            assert await outcome(opened, path, "", request) == path
            for wrong in (
                signer("root").sign(path, request + b"\0"),
                signer("root").sign(f"{path}2", request),
                signer("root", b"wrong").sign(path, request),
                signer("gone").sign(path, request),
                signer("stranger").sign(path, request),
            ):
                found = await outcome(opened, path, wrong, request)
                assert found in (AUTHORIZATION_KEY, "" if served else path), path
                assert found, path
            # Rights.
            for user in (NOBODY, READER):
                grants = () if user is NOBODY else ALL_READING
                header = signer(user.name).sign(path, request)
                may = user_may(expected[path], grants, names)
                assert await outcome(opened, path, header, request) == ("" if may else path), path


async def test_replay(directories: Path) -> None:
    """A call that was read is not made again: not as it was, not altered, and not elsewhere."""
    (without,) = (caller for caller in CALLERS if caller.name == WITHOUT_CERTIFICATE)
    made: list[bytes] = []

    async def send(request: Any, call: Call) -> Any:
        made.append(request.SerializeToString())
        return await handler_of(SEND.path[1:])(request, call)

    path, request, late_ms = SEND.path, b"\x12\x08\n\6orders", 31_000
    header = signer("root").sign(path, request)
    scheme, credential, counter, *rest = header.split(" ")
    old = Signer("root", lambda: SECRET, lambda: now_ms() - late_ms).sign(path, request)
    async with (
        serving(directories, Users().access(), handler=send) as address,
        channel(directories, address, without) as opened,
    ):
        await outcome(opened, path, header, request)
        assert made == [request]
        for replayed, given in (
            (header, request),
            (header, request.replace(b"orders", b"others")),
            (" ".join((scheme, credential, str(int(counter) + 1), *rest)), request),
            (old, request),
        ):
            assert await outcome(opened, path, replayed, given) == AUTHORIZATION_KEY
        fresh = signer("root").sign(path, request)
        assert await outcome(opened, DELETE_TOPIC.path, fresh, request) == AUTHORIZATION_KEY
        assert made == [request]
        # TLS protects a large request on its way. A signature counts for large ones of one RPC.
        large = b"\n\xa0\x9c\x01" + b"x" * 20_000 + request
        over_tls = Signer("root", lambda: SECRET, now_ms, over_tls=True)
        header = over_tls.sign(path, large)
        for _ in range(2):
            assert over_tls.sign(path, large) == header
            assert not await outcome(opened, path, header, large)
        assert await outcome(opened, path, header, request) == AUTHORIZATION_KEY
        assert await outcome(opened, DELETE_TOPIC.path, header, large) == AUTHORIZATION_KEY
        past = Signer("root", lambda: SECRET, lambda: now_ms() - late_ms, over_tls=True)
        assert await outcome(opened, path, past.sign(path, large), large) == AUTHORIZATION_KEY
    assert made == [request, large, large]


async def test_checked_request_is_in_memory_once(directories: Path) -> None:
    """The bytes of a request are freed before its handler runs."""
    kept: list[int] = []

    async def measure(_request: Any, _call: Call) -> Any:
        kept.append(tracemalloc.get_traced_memory()[0])
        return message_pb2.SendResponse()

    (without,) = (caller for caller in CALLERS if caller.name == WITHOUT_CERTIFICATE)
    size = 8 * 1024 * 1024
    request = message_pb2.SendRequest(batch={"topic": "orders", "bodies": bytes(size)})
    data = request.SerializeToString()
    async with (
        serving(directories, Users().access(), handler=measure) as address,
        channel(directories, address, without) as opened,
    ):
        tracemalloc.start()
        try:
            header = Signer("root", lambda: SECRET, now_ms, over_tls=True).sign(SEND.path, data)
            assert not await outcome(opened, SEND.path, header, data)
        finally:
            tracemalloc.stop()
    assert kept[0] < size / 2


async def test_a_user_with_the_role_admin_is_a_user(directories: Path) -> None:
    (admin,) = (caller for caller in CALLERS if caller.name == "admin")
    async with (
        serving(directories, Users().access()) as address,
        channel(directories, address, admin) as opened,
    ):
        assert not await outcome(opened, DELETE_TOPIC.path, "")
        header = signer("nobody").sign(DELETE_TOPIC.path, b"\n\6orders")
        assert await outcome(opened, DELETE_TOPIC.path, header, b"\n\6orders")


async def test_a_port_without_authentication_serves_roles_only(directories: Path) -> None:
    (without,) = (caller for caller in CALLERS if caller.name == "without a role")
    async with (
        serving(directories, access()) as address,
        channel(directories, address, without) as opened,
    ):
        header = signer("root").sign(GET_TOPIC.path)
        assert await outcome(opened, GET_TOPIC.path, header) == GET_TOPIC.path


async def test_observed_users_are_logged_and_not_refused(directories: Path) -> None:
    (without,) = (caller for caller in CALLERS if caller.name == "without a role")
    checks = Users().access(observe_only=True)
    with structlog.testing.capture_logs() as logs:
        async with (
            serving(directories, checks) as address,
            channel(directories, address, without) as opened,
        ):
            path, request = SEND.path, b"\x12\x08\n\6orders"
            for name, secret in (("root", SECRET), ("nobody", SECRET), ("root", b"wrong")):
                header = signer(name, secret).sign(path, request)
                assert not await outcome(opened, path, header, request)
            secrets = "/aerobee.access.v1.BrokerAccessService/ListTable"
            assert await outcome(opened, secrets, signer("nobody").sign(secrets)) == secrets
    events = [line["event"] for line in logs if line["log_level"] == "warning"]
    assert events == ["call_would_be_rejected", "call_would_be_rejected", "call_rejected"]


async def test_a_lasting_call_ends_with_its_user(directories: Path) -> None:
    """Polls and streams end when the user is disabled, or loses the right or the secret."""
    users = Users()
    checks = users.access()
    started: asyncio.Queue[str] = asyncio.Queue()

    async def wait(request: Any, call: Call) -> None:
        started.put_nowait(call.caller.user.name if call.caller.user else "")
        await asyncio.Event().wait()

    (without,) = (caller for caller in CALLERS if caller.name == "without a role")
    path, request = GET_TOPIC.path, b"\n\6orders"
    changed = (
        replace(READER, enabled=False),
        replace(READER, policies=()),
        replace(READER, secrets=(b"another",)),
    )
    async with (
        serving(directories, checks, handler=wait) as address,
        channel(directories, address, without) as opened,
    ):
        for user in changed:
            users.by_name["reader"] = READER
            header = signer("reader").sign(path, request)
            lasting = asyncio.create_task(outcome(opened, path, header, request))
            other = asyncio.create_task(
                outcome(opened, path, signer("root").sign(path, request), request)
            )
            assert {await started.get(), await started.get()} == {"reader", "root"}
            checks.recheck({"reader", "root"})  # nothing has changed
            users.by_name["reader"] = user
            checks.recheck({"reader"})
            assert await lasting in (AUTHORIZATION_KEY, path)
            assert not other.done()
            other.cancel()


def test_a_server_with_an_rpc_without_a_row_is_not_made() -> None:
    without = {path: row for path, row in TABLE.items() if path != SEND.path}
    checks = Access(Permissions(CLUSTER, BROKER, without), enforced=False)
    with pytest.raises(TypeError, match="MessageService/Send"):
        Server(services(), host="127.0.0.1", port=0, failure_of=failure_of, access=checks)
