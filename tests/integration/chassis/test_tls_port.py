"""A server on a port that takes TLS and plaintext, over real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import random
import resource
import shutil
import socket
import ssl
from pathlib import Path
from typing import Any

import grpc
import pytest
import structlog

from aerobee_chassis import healthcheck
from aerobee_chassis.addresses import join_address
from aerobee_chassis.errors import CertificateError, PortInUse
from aerobee_chassis.port_limits import PortLimits
from aerobee_chassis.rpc.http2 import hello, sockets
from aerobee_chassis.tls_port.settings import TlsSettings
from support.chassis.tls_port import (
    Response,
    Stream,
    TlsTestServer,
    alone,
    check,
    dial,
    last_name,
    running,
    trusting,
    trusting_anything,
    watch,
)
from support.clock.polling import until
from support.codes import raises_about
from support.processes import certificates

# The preface of an HTTP/2 client and an empty SETTINGS frame.
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes.fromhex("000000040000000000")
FRAME_HEAD = 9  # bytes
SETTINGS = 4
MANY = 2_000
HANDSHAKES = 200


def ipv6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


async def test_plaintext_and_tls_clients_are_served_by_address() -> None:
    async with running() as server:
        async with server.plaintext() as plaintext, await server.tls() as tls:
            assert (await check(plaintext)).status == Response.SERVING
            assert (await check(tls)).status == Response.SERVING
        assert len(set(server.handlers.peers)) == 2
        assert server.handlers.over_tls == [False, True]
        for peer in server.handlers.peers:
            host, _, port = peer.rpartition(":")
            assert host == "127.0.0.1" and port.isdigit()
        counts = server.counts
        assert (counts.plaintext, counts.tls) == (1, 2), "both are counted"


@pytest.mark.filterwarnings("ignore:.*TLSv1_1 is deprecated")
@pytest.mark.parametrize("client", ["TLS 1.1", "plaintext"])
async def test_downgrade(client: str) -> None:
    """A client with less than TLS 1.2 gets an alert, and the log of the server says why."""
    with structlog.testing.capture_logs() as logs:
        async with running(mode="enforcing") as server:
            counts = server.counts
            if client == "plaintext":
                reader, writer = await dial(server.port, tls=False)
                writer.write(PREFACE)
                assert await reader.read() == hello.NO_PLAINTEXT
                writer.close()
                await until(lambda: counts.refused_plaintext == 1, "it is counted")
            else:
                with pytest.raises(OSError):
                    await asyncio.open_connection("127.0.0.1", server.port, ssl=tls_1_1())
                await until(lambda: counts.failed_handshakes == 1, "it is counted")
    (line,) = (line for line in logs if line["event"] == "connection_refused")
    wanted = "plaintext" if client == "plaintext" else "UNSUPPORTED_PROTOCOL"
    assert wanted in line["reason"] and line["peer"].startswith("127.0.0.1:")


def tls_1_1() -> ssl.SSLContext:
    old = trusting_anything()
    old.set_ciphers("DEFAULT:@SECLEVEL=0")
    old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_1
    return old


@pytest.mark.filterwarnings("ignore:.*TLSv1_1 is deprecated")
async def test_alpn_is_http2_and_tls_1_1_is_refused() -> None:
    async with running() as server:
        _, writer = await dial(server.port, tls=True)
        tls = writer.get_extra_info("ssl_object")
        assert tls.selected_alpn_protocol() == "h2"
        assert tls.version() in ("TLSv1.2", "TLSv1.3")
        writer.close()

        with pytest.raises(OSError):
            await asyncio.open_connection("127.0.0.1", server.port, ssl=tls_1_1())
        counts = server.counts
        await until(lambda: counts.failed_handshakes == 1, "it is counted")


async def test_changed_certificate_is_loaded_under_open_connections(tmp_path: Path) -> None:
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
        shown_one = server.certificate
        assert shown_one is not None
        await until(lambda: shown_one.failed_reloads > 0, "half a change is reported")
        assert await asyncio.to_thread(certificates.shown, server.port) != wanted

        shutil.copy(renewed, certificate)

        async def shown() -> bool:
            return await asyncio.to_thread(certificates.shown, server.port) == wanted

        await until(shown, "the new certificate is shown")
        assert not watching.done()
        await check(first)
        async with trusting(renewed.read_text(), server.port) as second:
            await check(second)


async def test_bad_certificate_fails_the_start(tmp_path: Path) -> None:
    certificate, _ = certificates.write(tmp_path)
    _, key = certificates.write(tmp_path, "other")
    with pytest.raises(CertificateError):
        async with running(cert_path=str(certificate), key_path=str(key)):
            pass


async def test_port_in_use_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        taken = TlsTestServer(TlsSettings(), port=port)
        with raises_about(PortInUse, f"127.0.0.1:{port}"):
            await taken.start()
        await taken.stop()


@pytest.mark.parametrize(("host", "dialled"), [("::", "127.0.0.1"), ("::", "::1"), ("::1", "::1")])
async def test_ipv6_clients_are_served_by_address(host: str, dialled: str) -> None:
    if not ipv6():
        pytest.skip("this machine has no IPv6")
    server = TlsTestServer(TlsSettings(), host)
    try:
        await server.start()
        address = join_address(dialled, server.port)
        async with grpc.aio.insecure_channel(address, options=alone()) as channel:
            await check(channel)
        [peer] = server.handlers.peers
        assert peer.startswith(join_address(dialled, 0).removesuffix("0"))
    finally:
        await server.stop()


async def test_all_addresses_of_a_name_are_bound() -> None:
    listeners = await asyncio.to_thread(sockets.listen, "localhost", 0)
    try:
        found = [listener.getsockname() for listener in listeners]
        known = socket.getaddrinfo("localhost", 0, type=socket.SOCK_STREAM)
        assert {host for host, *_ in found} == {address[0] for *_, address in known}
        assert len({port for _, port, *_ in found}) == 1
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
        counts = server.counts
        await until(lambda: counts.refused_plaintext > 0, "it is counted")
        # A health check verifies no certificate.
        assert await asyncio.to_thread(healthcheck.serving, f"127.0.0.1:{server.port}")


async def test_calls_in_progress_end_before_the_port_closes() -> None:
    async with running(grace_s=0.1) as server, server.plaintext() as channel:
        watching = await watch(channel)
        await server.stop()
        with pytest.raises(grpc.aio.AioRpcError):
            await watching.read()
        with pytest.raises(OSError):
            await dial(server.port, tls=False)


async def test_two_thousand_connections_are_served_at_once() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(3 * MANY + 1_000, hard), hard))
    try:
        async with running(
            limits=PortLimits(connections_per_address=2 * MANY, silent_ms=60_000)
        ) as server:

            async def connect(_: int) -> Stream:
                reader, writer = await dial(server.port, tls=False)
                writer.write(PREFACE)
                frame = await reader.readexactly(9)
                assert frame[3] == 4  # the server's SETTINGS
                return reader, writer

            streams = await asyncio.gather(*map(connect, range(MANY)))
            async with await server.tls() as channel:
                await check(channel)
            await until(lambda: server.counts.plaintext == MANY, "all are counted")
            for _, writer in streams:
                writer.close()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_many_handshakes_at_once_are_served() -> None:
    async with running(limits=PortLimits(silent_ms=60_000)) as server:
        streams = await asyncio.gather(*(dial(server.port, tls=True) for _ in range(HANDSHAKES)))
        async with server.plaintext() as channel:
            await check(channel)
        assert (server.counts.tls, server.counts.failed_handshakes) == (HANDSHAKES, 0)
        for _, writer in streams:
            writer.close()


async def test_no_certificate_is_made_before_a_client_uses_tls() -> None:
    def made() -> list[object]:
        return [line for line in logs if line["event"] == "self_signed_certificate"]

    with structlog.testing.capture_logs() as logs:
        async with running() as server:
            async with server.plaintext() as channel:
                await check(channel)
            assert made() == []
            streams = await asyncio.gather(*(dial(server.port, tls=True) for _ in range(3)))
            assert len(made()) == 1, "one, for all that waited"
            for _, writer in streams:
                writer.close()


@pytest.mark.parametrize("tls", [False, True])
async def test_large_messages_pass_both_ways_unchanged(tls: bool) -> None:
    name = random.Random(1).randbytes(1_500_000).hex()
    async with running() as server:
        channel = await server.tls() if tls else server.plaintext()
        async with channel:
            await check(channel, name)
            assert await last_name(channel) == name


async def test_silent_connections_are_closed_after_the_timeout() -> None:
    async with running(limits=PortLimits(silent_ms=1_000)) as server:
        talking, writer = await dial(server.port, tls=False)
        writer.write(PREFACE)
        await talking.readexactly(FRAME_HEAD)
        silent, _ = await dial(server.port, tls=False)
        # Begins a handshake and stops in the middle.
        halting, halting_writer = await dial(server.port, tls=False)
        halting_writer.write(b"\x16\x03\x01")
        # Completes it, and stops.
        secured, secured_writer = await dial(server.port, tls=True)
        assert await silent.read() == b""
        assert await halting.read() == b""
        with contextlib.suppress(ssl.SSLError):  # the end comes without a close_notify
            assert (await secured.read())[3] == SETTINGS
        await until(lambda: server.counts.silent == 2, "both are counted")
        secured_writer.close()

        async with server.plaintext() as channel:
            await check(channel)
        assert not talking.at_eof()
        writer.close()


async def test_garbage_fails_its_handshake_only() -> None:
    async with running() as server:
        for garbage in (b"\x16" + b"\xff" * 100, b"\x16\x03\x01\x00\x04\xff\x00\x00\x00"):
            reader, writer = await dial(server.port, tls=False)
            writer.write(garbage)
            with contextlib.suppress(ConnectionResetError):
                await reader.read()  # at most an alert, and the end
            writer.close()
        await until(lambda: server.counts.failed_handshakes == 2, "both are counted")
        async with await server.tls() as channel:
            await check(channel)


async def test_a_handshake_byte_by_byte_succeeds() -> None:
    async with running() as server:
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = trusting_anything().wrap_bio(incoming, outgoing)
        reader, writer = await dial(server.port, tls=False)
        while True:
            with contextlib.suppress(ssl.SSLWantReadError):
                tls.do_handshake()
                break
            for byte in outgoing.read():
                writer.write(bytes([byte]))
                await writer.drain()
            incoming.write(await reader.read(65_536))
        tls.write(PREFACE)
        writer.write(outgoing.read())
        answer = b""
        while not answer:
            incoming.write(await reader.read(65_536))
            with contextlib.suppress(ssl.SSLWantReadError):
                answer = tls.read(100)
        assert answer[3] == SETTINGS
        writer.close()


async def test_connections_that_have_not_begun_end_with_the_port() -> None:
    async with running() as server:
        silent, silent_writer = await dial(server.port, tls=False)
        halting, halting_writer = await dial(server.port, tls=False)
        halting_writer.write(b"\x16\x03\x01")
        await until(lambda: server.counts.open == 2, "both are accepted")
        await server.stop()
        for reader, writer in ((silent, silent_writer), (halting, halting_writer)):
            with contextlib.suppress(ConnectionResetError):
                assert await reader.read() == b""
            writer.close()
        assert server.counts.open == 0


@pytest.mark.parametrize(
    ("limits", "count"),
    [(PortLimits(connections_per_address=1), "refused"), (PortLimits(connections=1), "too_many")],
    ids=["of an address", "in total"],
)
async def test_a_connection_above_a_limit_is_closed_at_once(limits: PortLimits, count: str) -> None:
    async with running(limits=limits) as server, server.plaintext() as channel:
        await check(channel)
        reader, writer = await dial(server.port, tls=False)
        assert await reader.read() == b""
        writer.close()
        assert getattr(server.counts, count) == 1
        await check(channel)
