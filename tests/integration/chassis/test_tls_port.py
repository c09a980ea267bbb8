"""A gRPC server on a port that takes TLS and plaintext: a relay process between real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import shutil
import socket
import ssl
import tempfile
from pathlib import Path
from typing import Any

import grpc
import pytest
import structlog

from aerobee_chassis import healthcheck
from aerobee_chassis.addresses import join_address
from aerobee_chassis.errors import CertificateError, PortInUse, StartError
from aerobee_chassis.port_limits import PortLimits
from aerobee_chassis.tls_port import supervisor
from aerobee_chassis.tls_port.settings import TlsSettings
from support.chassis.tls_port import (
    Response,
    Stream,
    TlsTestServer,
    alone,
    check,
    dial,
    running,
    trusting,
    trusting_anything,
    watch,
)
from support.clock.polling import until
from support.codes import raises_about
from support.processes import certificates
from support.processes.command import children

# The preface of an HTTP/2 client and an empty SETTINGS frame.
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes.fromhex("000000040000000000")
MANY = 2_000


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
        counts = server.server.counts
        await until(lambda: (counts.plaintext, counts.tls) == (1, 2), "both are counted")


@pytest.mark.filterwarnings("ignore:.*TLSv1_1 is deprecated")
@pytest.mark.parametrize("client", ["TLS 1.1", "plaintext"])
async def test_downgrade(client: str) -> None:
    """A client with less than TLS 1.2 gets no answer, and the log of the server says why."""
    with structlog.testing.capture_logs() as logs:
        async with running(mode="enforcing") as server:
            counts = server.server.counts
            if client == "plaintext":
                reader, writer = await dial(server.port, tls=False)
                writer.write(PREFACE)
                with contextlib.suppress(ConnectionResetError):  # of the bytes that it did not read
                    assert await reader.read() == b""
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
        counts = server.server.counts
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
        counts = server.server.counts
        await until(lambda: counts.failed_reloads > 0, "half a change is reported")
        assert await asyncio.to_thread(certificates.shown, server.port) != wanted

        shutil.copy(renewed, certificate)

        async def shown() -> bool:
            return await asyncio.to_thread(certificates.shown, server.port) == wanted

        await until(shown, "the new certificate is shown")
        assert not watching.done()
        await check(first)
        async with trusting(renewed.read_text(), server.port) as second:
            await check(second)


async def test_bad_certificate_fails_the_start_and_leaves_nothing(tmp_path: Path) -> None:
    certificate, _ = certificates.write(tmp_path)
    _, key = certificates.write(tmp_path, "other")
    before = children(os.getpid())
    with pytest.raises(CertificateError):
        async with running(cert_path=str(certificate), key_path=str(key)):
            pass
    assert children(os.getpid()) == before


async def test_port_in_use_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        taken = TlsTestServer(TlsSettings(), port=port)
        with raises_about(PortInUse, f"127.0.0.1:{port}"):
            await taken.server.start()
        await taken.server.stop()


async def test_a_directory_too_long_for_sockets_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = tmp_path / ("x" * 100)
    await asyncio.to_thread(long.mkdir)
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    async with running() as server, server.plaintext() as channel:
        await check(channel)
        assert await asyncio.to_thread(os.listdir, long) == []


async def test_no_directory_for_sockets_fails_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/nowhere")
    before = children(os.getpid())
    with raises_about(StartError, "TMPDIR"):
        async with running():
            pass
    assert children(os.getpid()) == before


@pytest.mark.parametrize(("host", "dialled"), [("::", "127.0.0.1"), ("::", "::1"), ("::1", "::1")])
async def test_ipv6_clients_are_served_by_address(host: str, dialled: str) -> None:
    if not ipv6():
        pytest.skip("this machine has no IPv6")
    server = TlsTestServer(TlsSettings(), host)
    try:
        await server.server.start()
        address = join_address(dialled, server.port)
        async with grpc.aio.insecure_channel(address, options=alone()) as channel:
            await check(channel)
        [peer] = server.handlers.peers
        assert peer.startswith(join_address(dialled, 0).removesuffix("0"))
    finally:
        await server.server.stop()


async def test_all_addresses_of_a_name_are_bound() -> None:
    listeners = await asyncio.to_thread(supervisor.listen, "localhost", 0)
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
        counts = server.server.counts
        await until(lambda: counts.refused_plaintext > 0, "it is counted")
        # A health check verifies no certificate.
        assert await asyncio.to_thread(healthcheck.serving, f"127.0.0.1:{server.port}")


async def test_calls_in_progress_end_before_the_port_closes() -> None:
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
            await until(lambda: server.server.counts.plaintext == MANY, "all are counted")
            for _, writer in streams:
                writer.close()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
