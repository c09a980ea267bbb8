"""The relay process of a TLS port: the bytes of its connections, and its own life."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import ssl
import sys
from pathlib import Path

import grpc
import pytest
import structlog

from aerobee_chassis.tls_port import supervisor
from aerobee_chassis.tls_port.certificates import Certificates
from aerobee_chassis.tls_port.poller import Poller
from aerobee_chassis.tls_port.settings import TlsSettings
from support.chassis.tls_port import check, dial, relaying, running, trusting_anything
from support.clock.polling import until
from support.processes import certificates
from support.processes.command import children

HELLO_TIMEOUT_MS = 1_000


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Certificate and key."""
    return certificates.write(tmp_path_factory.mktemp("certificates"))


# ---- bytes ----


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Until the client ends its direction; then "goodbye"."""
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


async def test_a_client_that_half_closes_gets_the_answer(files: tuple[Path, Path]) -> None:
    async with relaying(echo, files) as (_, port):
        reader, writer = await dial(port, tls=False)
        writer.write(b"hello")
        writer.write_eof()
        assert await reader.read() == b"hellogoodbye"
        writer.close()


@pytest.mark.parametrize("tls", [False, True])
async def test_last_bytes_of_the_server_arrive_before_the_end(
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
async def test_a_client_that_does_not_read_slows_the_server(
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
        # Reading lets the server go on.
        await reader.readexactly(seen + (1 << 20))
        writer.close()


async def test_silent_connections_are_closed_after_the_timeout(files: tuple[Path, Path]) -> None:
    async with relaying(echo, files, HELLO_TIMEOUT_MS) as (server, port):
        talking, writer = await dial(port, tls=False)
        writer.write(b"P")
        await talking.readexactly(1)
        silent, _ = await dial(port, tls=False)
        # Begins a handshake and stops in the middle.
        halting, halting_writer = await dial(port, tls=False)
        halting_writer.write(b"\x16\x03\x01")
        assert await silent.read() == b""
        assert await halting.read() == b""
        await until(lambda: server.counts.silent == 2, "both are counted")

        writer.write(b"still here")
        assert await talking.readexactly(10) == b"still here"
        writer.close()


async def test_garbage_fails_its_handshake_only(files: tuple[Path, Path]) -> None:
    async with relaying(echo, files) as (server, port):
        for garbage in (b"\x16" + b"\xff" * 100, b"\x16\x03\x01\x00\x04\xff\x00\x00\x00"):
            reader, writer = await dial(port, tls=False)
            writer.write(garbage)
            with contextlib.suppress(ConnectionResetError):
                await reader.read()  # at most an alert, and the end
            writer.close()
        await until(lambda: server.counts.failed_handshakes == 2, "both are counted")
        reader, writer = await dial(port, tls=True)
        writer.write(b"hello")
        assert await reader.readexactly(5) == b"hello"
        writer.close()


async def test_a_handshake_byte_by_byte_succeeds(files: tuple[Path, Path]) -> None:
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


async def test_connections_are_closed_when_the_server_is_gone(files: tuple[Path, Path]) -> None:
    async with relaying(echo, files) as (server, port):
        await asyncio.to_thread(Path(server.backend).unlink)
        reader, writer = await dial(port, tls=False)
        writer.write(b"P")
        with contextlib.suppress(ConnectionResetError):
            assert await reader.read() == b""
        writer.close()


# ---- the process ----


def test_a_self_signed_certificate_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    poller, events, shown = Poller(), list[str](), list[ssl.SSLContext]()

    def report(event: str, **fields: object) -> None:
        events.append(event)
        poller.stop()

    made = Certificates(TlsSettings(), str(tmp_path), poller, report)
    made.start()
    monkeypatch.setattr("aerobee_chassis.tls_port.certificates.MAKER", "aerobee_chassis.none")
    made.when_ready(shown.append)
    poller.run()
    assert events == ["no_self_signed_certificate"]
    assert shown == []

    monkeypatch.undo()
    made.when_ready(shown.append)
    made.when_ready(shown.append)
    poller.run()
    assert events[1:] == ["self_signed_certificate"]  # one, for all that waited
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


async def test_a_relay_that_does_not_start_is_tried_again(tmp_path: Path) -> None:
    certificate, key = certificates.write(tmp_path)
    before = set(children(os.getpid()))
    async with running(cert_path=str(certificate), key_path=str(key)) as server:
        [relay] = set(children(os.getpid())) - before
        whole = key.read_text()
        await asyncio.to_thread(key.write_text, "broken")
        with structlog.testing.capture_logs() as logs:
            os.kill(relay, signal.SIGKILL)
            await until(
                lambda: any(line["event"] == "relay_not_started" for line in logs), "it is logged"
            )
        await asyncio.to_thread(key.write_text, whole)
        async with server.plaintext() as channel:
            await until(lambda: check(channel), "served again", retry_on=(grpc.aio.AioRpcError,))


async def test_a_relay_that_hangs_at_its_start_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "hanging_relay.py").write_text("import time\ntime.sleep(600)\n")
    before = set(children(os.getpid()))
    async with running() as server:
        [relay] = set(children(os.getpid())) - before
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        monkeypatch.setattr(supervisor, "START_TIMEOUT_S", 1.0)
        monkeypatch.setattr(supervisor, "STOP_TIMEOUT_S", 0.1)
        monkeypatch.setattr(supervisor, "RELAY", "hanging_relay")
        with structlog.testing.capture_logs() as logs:
            os.kill(relay, signal.SIGKILL)
            await until(
                lambda: [line for line in logs if "does not start" in line.get("error", "")]
            )
        monkeypatch.undo()
        async with server.plaintext() as channel:
            await until(lambda: check(channel), "served again", retry_on=(grpc.aio.AioRpcError,))
    assert set(children(os.getpid())) == before


async def test_a_relay_without_tls_imports_no_heavy_module() -> None:
    """All processes of `aerobee up` together shall stay below 200 MB."""
    heavy = "asyncio", "dataclasses", "grpc", "pathlib", "ssl", "structlog", "subprocess", "typing"
    found = f"[name for name in {heavy} if name in sys.modules]"
    script = f"import sys, {supervisor.RELAY}\nprint(*{found})"
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", script, stdout=asyncio.subprocess.PIPE
    )
    loaded, _ = await process.communicate()
    assert (loaded, process.returncode) == (b"\n", 0)


async def test_signals_do_not_end_the_relay_before_its_server() -> None:
    before = set(children(os.getpid()))
    async with running() as server, server.plaintext() as channel:
        await check(channel)
        [relay] = set(children(os.getpid())) - before
        os.kill(relay, signal.SIGINT)
        os.kill(relay, signal.SIGTERM)
        await check(channel)
        assert set(children(os.getpid())) - before == {relay}
