"""A port that takes TLS and plaintext: a relay process between real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import random
import resource
import shutil
import signal
import socket
import ssl
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, TypeAlias

import grpc
import pytest
import structlog
from grpc_health.v1 import health_pb2

from aerobee_chassis import healthcheck
from aerobee_chassis.addresses import join_address
from aerobee_chassis.errors import CertificateError, PortInUse, StartError
from aerobee_chassis.rpc.call import Call
from aerobee_chassis.rpc.server import Server
from aerobee_chassis.rpc.services import bind
from aerobee_chassis.tls_port import supervisor
from aerobee_chassis.tls_port.certificates import Certificates
from aerobee_chassis.tls_port.poller import Poller
from aerobee_chassis.tls_port.server import TlsServer
from aerobee_chassis.tls_port.settings import TlsSettings
from aerobee_chassis.tls_port.supervisor import TlsPort
from support.clock.polling import until
from support.processes import certificates
from support.processes.command import children

# grpc's own health service, under another name, stands for any service.
DESCRIPTOR = health_pb2.DESCRIPTOR.services_by_name["Health"]
SERVICE = "test.Service"
Request: TypeAlias = health_pb2.HealthCheckRequest
Response: TypeAlias = health_pb2.HealthCheckResponse

HELLO_TIMEOUT_MS = 1_000
# The preface of an HTTP/2 client and an empty SETTINGS frame.
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes.fromhex("000000040000000000")
MANY = 2_000

Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Handlers:
    """Keeps who called."""

    def __init__(self) -> None:
        self.peers: list[str] = []

    async def check(self, request: Request, call: Call) -> Response:
        self.peers.append(call.peer)
        return Response(status=Response.SERVING)

    async def list(self, request: object, call: Call) -> health_pb2.HealthListResponse:
        return health_pb2.HealthListResponse()

    async def watch(self, request: object, call: Call) -> None:
        """One message, and then it stays open."""
        await call.write(Response(status=Response.SERVING))
        await asyncio.Event().wait()


class Running:
    """A gRPC server behind a shared port."""

    def __init__(self, tls: TlsSettings, host: str = "127.0.0.1", grace_s: float = 0.0) -> None:
        self.handlers = Handlers()
        self.server = TlsServer(self._make, host=host, port=0, tls=tls)
        self._grace_s = grace_s

    @property
    def port(self) -> int:
        return self.server.port

    def _make(self, host: str, port: int) -> Server:
        services = [dataclasses.replace(bind(DESCRIPTOR, self.handlers), name=SERVICE)]
        return Server(
            services, host=host, port=port, failure_of=lambda _: None, grace_s=self._grace_s
        )

    def plaintext(self) -> grpc.aio.Channel:
        return grpc.aio.insecure_channel(f"127.0.0.1:{self.port}", options=alone())

    async def tls(self) -> grpc.aio.Channel:
        """Trusts what the port shows now."""
        pem = await asyncio.to_thread(ssl.get_server_certificate, ("127.0.0.1", self.port))
        return trusting(pem, self.port)


def alone() -> list[tuple[str, object]]:
    """A channel with connections of its own."""
    return [("grpc.use_local_subchannel_pool", 1)]


def trusting(pem: str, port: int) -> grpc.aio.Channel:
    credentials = grpc.ssl_channel_credentials(pem.encode())
    return grpc.aio.secure_channel(f"localhost:{port}", credentials, options=alone())


async def check(channel: grpc.aio.Channel) -> Response:
    call = channel.unary_unary(f"/{SERVICE}/Check", Request.SerializeToString, Response.FromString)
    answer: Response = await call(Request(), timeout=20)
    return answer


async def watch(channel: grpc.aio.Channel) -> grpc.aio.UnaryStreamCall[Request, Response]:
    """A stream that has begun and does not end."""
    call = channel.unary_stream(f"/{SERVICE}/Watch", Request.SerializeToString, Response.FromString)
    watching = call(Request())
    first: Response = await watching.read()
    assert first.status == Response.SERVING
    return watching


@contextlib.asynccontextmanager
async def running(grace_s: float = 0.0, **tls: Any) -> AsyncIterator[Running]:
    made = Running(TlsSettings(**tls), grace_s=grace_s)
    try:
        await made.server.start()
        yield made
    finally:
        await made.server.stop()


@contextlib.asynccontextmanager
async def relaying(
    serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
    files: tuple[Path, Path],
    hello_timeout_ms: int = 10_000,
) -> AsyncIterator[tuple[TlsPort, int]]:
    """A shared port before any server of bytes."""
    settings = TlsSettings(cert_path=str(files[0]), key_path=str(files[1]))
    shared = TlsPort("127.0.0.1", 0, settings, hello_timeout_ms=hello_timeout_ms)
    shared.open()
    server = await asyncio.start_unix_server(serve, shared.backend.removeprefix("unix:"))
    try:
        yield shared, await shared.start()
    finally:
        shared.drain()
        server.close()
        await shared.stop()


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Certificate and key."""
    return certificates.write(tmp_path_factory.mktemp("certificates"))


def trusting_anything() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    return context


async def dial(port: int, *, tls: bool) -> Stream:
    context = trusting_anything() if tls else None
    return await asyncio.open_connection("127.0.0.1", port, ssl=context)


def ipv6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


# ---- gRPC ----


async def test_both_kinds_of_clients_are_served_on_one_port_and_known_by_address() -> None:
    async with running() as server:
        async with server.plaintext() as plaintext, await server.tls() as tls:
            assert (await check(plaintext)).status == Response.SERVING
            assert (await check(tls)).status == Response.SERVING
        assert len(set(server.handlers.peers)) == 2
        for peer in server.handlers.peers:
            host, _, port = peer.rpartition(":")
            assert host == "127.0.0.1" and port.isdigit()
        counts = server.server.counts
        await until(lambda: (counts.plaintext, counts.tls) == (1, 2), "both are counted")


@pytest.mark.filterwarnings("ignore:.*TLSv1_1 is deprecated")
async def test_alpn_agrees_on_http2_and_old_versions_of_tls_are_refused() -> None:
    async with running() as server:
        _, writer = await dial(server.port, tls=True)
        tls = writer.get_extra_info("ssl_object")
        assert tls.selected_alpn_protocol() == "h2"
        assert tls.version() in ("TLSv1.2", "TLSv1.3")
        writer.close()

        old = trusting_anything()
        old.set_ciphers("DEFAULT:@SECLEVEL=0")
        old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_1
        with pytest.raises(OSError):
            await asyncio.open_connection("127.0.0.1", server.port, ssl=old)
        counts = server.server.counts
        await until(lambda: counts.failed_handshakes == 1, "it is counted")


async def test_given_certificate_is_shown_and_replaced_while_clients_are_connected(
    tmp_path: Path,
) -> None:
    certificate, key = certificates.write(tmp_path)
    given: dict[str, Any] = {
        "cert_path": str(certificate),
        "key_path": str(key),
        "watch_interval_ms": 50,
    }
    async with running(**given) as server, trusting(certificate.read_text(), server.port) as first:
        await check(first)
        watching = await watch(first)

        renewed, renewed_key = certificates.write(tmp_path, "renewed")
        wanted = certificates.serial(renewed)
        shutil.copy(renewed_key, key)
        counts = server.server.counts
        await until(lambda: counts.failed_reloads > 0, "half a change is told")
        assert await asyncio.to_thread(certificates.shown, server.port) != wanted

        shutil.copy(renewed, certificate)

        async def shown() -> bool:
            return await asyncio.to_thread(certificates.shown, server.port) == wanted

        await until(shown, "the new certificate is shown")
        assert not watching.done()
        await check(first)
        async with trusting(renewed.read_text(), server.port) as second:
            await check(second)


async def test_bad_certificate_is_an_error_at_the_start_and_leaves_nothing(tmp_path: Path) -> None:
    certificate, _ = certificates.write(tmp_path)
    _, key = certificates.write(tmp_path, "other")
    before = children(os.getpid())
    with pytest.raises(CertificateError, match="is not the one of the certificate"):
        async with running(cert_path=str(certificate), key_path=str(key)):
            pass
    assert children(os.getpid()) == before


async def test_port_in_use_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        shared = TlsPort("127.0.0.1", port, TlsSettings())
        with pytest.raises(PortInUse, match=f"cannot listen on 127.0.0.1:{port}"):
            shared.open()
        await shared.stop()


async def test_a_directory_with_a_long_path_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = tmp_path / ("x" * 100)
    await asyncio.to_thread(long.mkdir)
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    async with running() as server, server.plaintext() as channel:
        await check(channel)
        assert await asyncio.to_thread(os.listdir, long) == []


async def test_no_directory_for_sockets_is_an_error_at_the_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/nowhere")
    before = children(os.getpid())
    with pytest.raises(StartError, match=r"/nowhere/aerobee-.*\); set TMPDIR"):
        async with running():
            pass
    assert children(os.getpid()) == before


@pytest.mark.parametrize(("host", "dialled"), [("::", "127.0.0.1"), ("::", "::1"), ("::1", "::1")])
async def test_ipv6_is_listened_on_and_its_clients_are_known(host: str, dialled: str) -> None:
    if not ipv6():
        pytest.skip("this machine has no IPv6")
    server = Running(TlsSettings(), host)
    try:
        await server.server.start()
        address = join_address(dialled, server.port)
        async with grpc.aio.insecure_channel(address, options=alone()) as channel:
            await check(channel)
        [peer] = server.handlers.peers
        assert peer.startswith(join_address(dialled, 0).removesuffix("0"))
    finally:
        await server.server.stop()


async def test_a_name_is_listened_on_at_all_its_addresses() -> None:
    listeners = await asyncio.to_thread(supervisor.listen, "localhost", 0)
    try:
        found = [listener.getsockname() for listener in listeners]
        known = socket.getaddrinfo("localhost", 0, type=socket.SOCK_STREAM)
        assert {one[0] for one in found} == {address[0] for *_, address in known}
        assert len({one[1] for one in found}) == 1
    finally:
        for listener in listeners:
            listener.close()


async def test_plaintext_is_refused_where_tls_is_enforced() -> None:
    async with running(mode="enforcing") as server:
        async with server.plaintext() as plaintext:
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await check(plaintext)
            assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
        async with await server.tls() as tls:
            await check(tls)
        counts = server.server.counts
        await until(lambda: counts.refused_plaintext > 0, "it is counted")
        # A health check looks at no certificate.
        assert await asyncio.to_thread(healthcheck.serving, f"127.0.0.1:{server.port}")


async def test_calls_in_progress_end_before_the_port_does() -> None:
    async with running(grace_s=0.1) as server, server.plaintext() as channel:
        watching = await watch(channel)
        await server.server.stop()
        with pytest.raises(grpc.aio.AioRpcError):
            await watching.read()
        with pytest.raises(OSError):
            await dial(server.port, tls=False)


async def test_two_thousand_connections_are_served_at_once() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(3 * MANY + 1_000, hard), hard))
    try:
        async with running() as server:

            async def connect(_: int) -> Stream:
                reader, writer = await dial(server.port, tls=False)
                writer.write(PREFACE)
                frame = await reader.readexactly(9)
                assert frame[3] == 4  # the server's SETTINGS
                return reader, writer

            streams = await asyncio.gather(*map(connect, range(MANY)))
            async with await server.tls() as channel:
                await check(channel)
            await until(lambda: server.server.counts.plaintext == MANY, "all are counted")
            for _, writer in streams:
                writer.close()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


# ---- bytes ----


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Until the client's end is seen; then says goodbye."""
    while data := await reader.read(65_536):
        writer.write(data)
        await writer.drain()
    writer.write(b"goodbye")
    writer.close()


@pytest.mark.parametrize("tls", [False, True])
async def test_megabytes_pass_both_ways_unchanged(tls: bool, files: tuple[Path, Path]) -> None:
    sent = b"P" + random.Random(1).randbytes(8 << 20)
    async with relaying(echo, files) as (_, port):
        reader, writer = await dial(port, tls=tls)

        async def write() -> None:
            for start in range(0, len(sent), 100_000):
                writer.write(sent[start : start + 100_000])
                await writer.drain()

        writing = asyncio.create_task(write())
        assert await reader.readexactly(len(sent)) == sent
        await writing
        writer.close()


async def test_a_client_that_has_said_its_last_still_gets_the_answer(
    files: tuple[Path, Path],
) -> None:
    async with relaying(echo, files) as (_, port):
        reader, writer = await dial(port, tls=False)
        writer.write(b"hello")
        writer.write_eof()
        assert await reader.read() == b"hellogoodbye"
        writer.close()


@pytest.mark.parametrize("tls", [False, True])
async def test_what_the_server_said_last_arrives_before_the_end(
    tls: bool, files: tuple[Path, Path]
) -> None:
    last = b"x" * (3 << 20)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(1)
        writer.write(last)
        writer.close()

    async with relaying(serve, files) as (_, port):
        reader, writer = await dial(port, tls=tls)
        writer.write(b"?")
        assert await reader.read() == last
        writer.close()


@pytest.mark.parametrize("tls", [False, True])
async def test_a_client_that_does_not_read_holds_the_server_back(
    tls: bool, files: tuple[Path, Path]
) -> None:
    written = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal written
        writer.transport.set_write_buffer_limits(0)
        with contextlib.suppress(OSError):
            while True:
                writer.write(bytes(65_536))
                await writer.drain()
                written += 65_536

    async with relaying(serve, files) as (_, port):
        reader, writer = await dial(port, tls=tls)
        writer.write(b"P")
        seen = -1

        def stands_still() -> bool:
            nonlocal seen
            before, seen = seen, written
            return 0 < before == seen

        await until(stands_still, "the server waits")
        assert written < 64 << 20
        # The client that reads gets on.
        await reader.readexactly(seen + (1 << 20))
        writer.close()


async def test_one_that_says_nothing_is_closed_and_one_that_talks_is_not(
    files: tuple[Path, Path],
) -> None:
    async with relaying(echo, files, HELLO_TIMEOUT_MS) as (shared, port):
        talking, writer = await dial(port, tls=False)
        writer.write(b"P")
        await talking.readexactly(1)
        silent, _ = await dial(port, tls=False)
        # Begins a handshake and does not go on.
        halting, halting_writer = await dial(port, tls=False)
        halting_writer.write(b"\x16\x03\x01")
        assert await silent.read() == b""
        assert await halting.read() == b""
        await until(lambda: shared.counts.silent == 2, "both are counted")

        writer.write(b"still here")
        assert await talking.readexactly(10) == b"still here"
        writer.close()


async def test_garbage_is_no_handshake_and_does_no_harm(files: tuple[Path, Path]) -> None:
    async with relaying(echo, files) as (shared, port):
        for garbage in (b"\x16" + b"\xff" * 100, b"\x16\x03\x01\x00\x04\xff\x00\x00\x00"):
            reader, writer = await dial(port, tls=False)
            writer.write(garbage)
            with contextlib.suppress(ConnectionResetError):
                await reader.read()  # at most an alert, and the end
            writer.close()
        await until(lambda: shared.counts.failed_handshakes == 2, "both are counted")
        reader, writer = await dial(port, tls=True)
        writer.write(b"hello")
        assert await reader.readexactly(5) == b"hello"
        writer.close()


async def test_a_handshake_that_comes_byte_by_byte_succeeds(files: tuple[Path, Path]) -> None:
    async with relaying(echo, files) as (_, port):
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = trusting_anything().wrap_bio(incoming, outgoing)
        reader, writer = await dial(port, tls=False)
        while True:
            with contextlib.suppress(ssl.SSLWantReadError):
                tls.do_handshake()
                break
            for byte in outgoing.read():
                writer.write(bytes([byte]))
                await writer.drain()
            incoming.write(await reader.read(65_536))
        tls.write(b"hello")
        writer.write(outgoing.read())
        answer = b""
        while not answer:
            incoming.write(await reader.read(65_536))
            with contextlib.suppress(ssl.SSLWantReadError):
                answer = tls.read(100)
        assert answer == b"hello"
        writer.close()


async def test_a_server_that_is_gone_closes_its_clients(files: tuple[Path, Path]) -> None:
    async with relaying(echo, files) as (shared, port):
        await asyncio.to_thread(Path(shared.backend.removeprefix("unix:")).unlink)
        reader, writer = await dial(port, tls=False)
        writer.write(b"P")
        with contextlib.suppress(ConnectionResetError):
            assert await reader.read() == b""
        writer.close()


# ---- the process ----


def test_a_self_signed_certificate_that_cannot_be_made_is_told_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    poller, told, shown = Poller(), list[str](), list[ssl.SSLContext]()

    def tell(event: str, **fields: object) -> None:
        told.append(" ".join([event, *map(str, fields.values())]))
        poller.stop()

    made = Certificates(TlsSettings(), str(tmp_path), poller, tell)
    made.start()
    monkeypatch.setattr("aerobee_chassis.tls_port.certificates.MAKER", "aerobee_chassis.none")
    made.when_ready(shown.append)
    poller.run()
    assert told == ["no self-signed certificate the program that makes one ended with 1"]
    assert shown == []

    monkeypatch.undo()
    made.when_ready(shown.append)
    made.when_ready(shown.append)
    poller.run()
    assert told[1:] == ["self-signed certificate"]  # one, for all who waited
    assert len(shown) == 2 and shown[0] is shown[1]
    assert list(tmp_path.iterdir()) == []


async def test_a_relay_that_dies_is_replaced_on_the_same_port() -> None:
    before = set(children(os.getpid()))
    async with running() as server:
        async with server.plaintext() as channel:
            await check(channel)
            [relay] = set(children(os.getpid())) - before
            os.kill(relay, signal.SIGKILL)

            await until(lambda: check(channel), "served again", retry_on=(grpc.aio.AioRpcError,))
        async with await server.tls() as tls:
            await check(tls)
    assert set(children(os.getpid())) == before


async def test_a_relay_that_cannot_be_replaced_yet_is_tried_again(tmp_path: Path) -> None:
    certificate, key = certificates.write(tmp_path)
    before = set(children(os.getpid()))
    async with running(cert_path=str(certificate), key_path=str(key)) as server:
        [relay] = set(children(os.getpid())) - before
        whole = key.read_text()
        await asyncio.to_thread(key.write_text, "broken")
        with structlog.testing.capture_logs() as logs:
            os.kill(relay, signal.SIGKILL)
            await until(lambda: any("not start" in line["event"] for line in logs), "it is told")
        await asyncio.to_thread(key.write_text, whole)
        async with server.plaintext() as channel:
            await until(lambda: check(channel), "served again", retry_on=(grpc.aio.AioRpcError,))


async def test_a_relay_weighs_little_until_it_speaks_tls() -> None:
    """It is the third process of a suite that shall stay below 200 MB."""
    heavy = "asyncio", "dataclasses", "grpc", "pathlib", "ssl", "structlog", "subprocess", "typing"
    found = f"[name for name in {heavy} if name in sys.modules]"
    script = f"import sys, {supervisor.RELAY}\nprint(*{found})"
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", script, stdout=asyncio.subprocess.PIPE
    )
    loaded, _ = await process.communicate()
    assert (loaded, process.returncode) == (b"\n", 0)


async def test_ctrl_c_of_a_terminal_does_not_end_the_relay_before_its_server() -> None:
    before = set(children(os.getpid()))
    async with running() as server, server.plaintext() as channel:
        await check(channel)
        [relay] = set(children(os.getpid())) - before
        os.kill(relay, signal.SIGINT)
        os.kill(relay, signal.SIGTERM)
        await check(channel)
        assert set(children(os.getpid())) - before == {relay}
