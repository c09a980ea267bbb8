"""The client's HTTP/2 over real sockets, against gRPC's own server: limits, ends, TLS."""

from __future__ import annotations

import asyncio
import datetime
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf import empty_pb2

from aerobee_cli.authority import Authority
from aerobee_client import Tls
from aerobee_client.cluster.transport import Channels, GrpcTransport, TlsConnect, translated
from aerobee_client.errors import BrokerUnreachable
from aerobee_http2.calls import CallFailed
from aerobee_http2.channel import CLOSED, MAX_REPEATS, Channel
from aerobee_http2.connection import Times
from aerobee_wire.rpcs import GET_BROKER_STATUS, Rpc
from support.clock.polling import until

ECHO, COUNT, HANG, FAIL = "/t.T/Echo", "/t.T/Count", "/t.T/Hang", "/t.T/Fail"
UNLIMITED = (("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1))
CLUSTER = "prod"


class Peer:
    """A server of gRPC's own, and what it has seen."""

    def __init__(self) -> None:
        self.peers: set[str] = set()  # connections
        self.metadata: dict[str, Any] = {}
        self.remaining_s: float | None = None
        self.go = asyncio.Event()  # ends the calls that hang
        self.running = self.most = self.cancelled = self.counted = 0

    async def echo(self, request: bytes, context: Any) -> bytes:
        self.peers.add(context.peer())
        self.metadata = dict(context.invocation_metadata())
        self.remaining_s = context.time_remaining()
        self.running += 1
        self.most = max(self.most, self.running)
        await asyncio.sleep(0.001)
        self.running -= 1
        return request

    async def count(self, request: bytes, context: Any) -> AsyncIterator[bytes]:
        for _ in range(int(request)):
            self.counted += 1
            yield bytes(50_000)

    async def hang(self, request: bytes, context: Any) -> bytes:
        self.running += 1
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return request

    async def fail(self, request: bytes, context: Any) -> None:
        trailers = (("reason", "full"), ("raw-bin", bytes(range(256))))
        await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "no room: 100 % é", trailers)


@asynccontextmanager
async def serving(
    peer: Peer,
    *options: tuple[str, int],
    credentials: grpc.ServerCredentials | None = None,
    port: int = 0,
    compression: grpc.Compression | None = None,
) -> AsyncIterator[str]:
    server = grpc.aio.server(options=(*UNLIMITED, *options), compression=compression)
    unary = grpc.unary_unary_rpc_method_handler
    handlers = {
        "Echo": unary(peer.echo),
        "Hang": unary(peer.hang),
        "Fail": unary(peer.fail),
        "Count": grpc.unary_stream_rpc_method_handler(peer.count),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("t.T", handlers),))
    address = f"127.0.0.1:{port}"
    if credentials is None:
        port = server.add_insecure_port(address)
    else:
        port = server.add_secure_port(address, credentials)
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(None)


@asynccontextmanager
async def connected(address: str, **options: Any) -> AsyncIterator[Channel]:
    channel = Channel(address, **options)
    try:
        yield channel
    finally:
        await channel.close(None)


@pytest.fixture
def peer() -> Peer:
    return Peer()


async def status(channel: Channel, path: str = ECHO, timeout_s: float = 10) -> CallFailed:
    with pytest.raises(CallFailed) as caught:
        await channel.unary(path, b"q", timeout_s)
    return caught.value


# ---- calls ----


@pytest.mark.parametrize("size", [0, 1, 16_384, 65_536, 1_000_000, 20_000_000])
async def test_requests_and_responses_of_any_size_arrive(peer: Peer, size: int) -> None:
    body = (bytes(range(251)) * (size // 251 + 1))[:size]
    async with serving(peer) as address, connected(address) as channel:
        answers = await asyncio.gather(*(channel.unary(ECHO, body, 60) for _ in range(3)))
    assert answers == [body] * 3


async def test_calls_beyond_the_server_s_limit_wait(peer: Peer) -> None:
    async with (
        serving(peer, ("grpc.max_concurrent_streams", 8)) as address,
        connected(address) as channel,
    ):
        bodies = [b"%d" % number for number in range(200)]
        answers = await asyncio.gather(*(channel.unary(ECHO, body, 60) for body in bodies))
    assert answers == bodies and peer.most <= 8 and len(peer.peers) == 1


async def test_no_call_fails_when_connections_get_old(peer: Peer) -> None:
    """The server ends each connection gracefully after 50 ms."""
    async with (
        serving(peer, ("grpc.max_connection_age_ms", 50)) as address,
        connected(address) as channel,
    ):

        async def worker() -> None:
            while len(peer.peers) < 6:
                assert await channel.unary(ECHO, b"q", 10) == b"q"

        await asyncio.gather(*(worker() for _ in range(8)))


async def test_a_slow_reader_slows_the_server(peer: Peer) -> None:
    async with serving(peer) as address, connected(address) as channel:
        messages = channel.stream(COUNT, b"2000")
        assert await anext(messages) == bytes(50_000)
        # At most the windows of the client, and what gRPC and the kernel keep.
        seen = -1
        while seen != peer.counted:
            seen = peer.counted
            await asyncio.sleep(0.2)
        assert peer.counted < 1_000
        assert sum([1 async for _ in messages]) == 1_999
    assert peer.counted == 2_000


async def test_the_server_knows_the_deadline_and_the_end_of_a_call(peer: Peer) -> None:
    async with serving(peer) as address, connected(address) as channel:
        await channel.unary(ECHO, b"q", 7.5)
        assert peer.remaining_s is not None and 0 < peer.remaining_s <= 7.6
        assert (await status(channel, HANG, 0.1)).status == "DEADLINE_EXCEEDED"
        await until(lambda: peer.cancelled == 1, "the server has noticed the deadline")
        asking = asyncio.create_task(channel.unary(HANG, b"q", 30))
        await until(lambda: peer.running == 2, "it runs")
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        await until(lambda: peer.cancelled == 2, "the server has noticed the cancellation")
        assert await channel.unary(ECHO, b"q", 10) == b"q" and len(peer.peers) == 1


async def test_metadata_is_text_and_bytes_in_both_directions(peer: Peer) -> None:
    raw = bytes(range(255))
    async with serving(peer) as address, connected(address) as channel:
        await channel.unary(ECHO, b"q", 10, (("signature", "a b"), ("raw-bin", raw)))
        failure = await status(channel, FAIL)
    assert peer.metadata["signature"] == "a b" and peer.metadata["raw-bin"] == raw
    assert (failure.status, failure.details) == ("RESOURCE_EXHAUSTED", "no room: 100 % é")
    trailers = dict(failure.trailers)
    assert trailers["reason"] == "full" and trailers["raw-bin"] == bytes(range(256))


async def test_an_unknown_method_is_unimplemented(peer: Peer) -> None:
    async with serving(peer) as address, connected(address) as channel:
        assert (await status(channel, "/t.T/None")).status == "UNIMPLEMENTED"


async def test_a_compressed_response_is_refused(peer: Peer) -> None:
    """gRPC's server compresses although the client does not accept it; ours do not."""
    async with (
        serving(peer, compression=grpc.Compression.Gzip) as address,
        connected(address) as channel,
    ):
        with pytest.raises(CallFailed, match="compressed") as caught:
            await channel.unary(ECHO, bytes(100_000), 10)
        assert caught.value.status == "INTERNAL"
        assert await channel.unary(ECHO, b"short", 10) == b"short"


# ---- connections ----


async def test_many_calls_open_one_connection_and_close_ends_them(peer: Peer) -> None:
    async with serving(peer) as address, connected(address) as channel:
        asking = [asyncio.create_task(channel.unary(HANG, b"q", 30)) for _ in range(20)]
        await until(lambda: peer.running == 20, "they run")
        await channel.close(None)
        failures = await asyncio.gather(*asking, return_exceptions=True)
        assert {str(each) for each in failures} == {CLOSED}
        assert (await status(channel)).status == "CANCELLED"
        await until(lambda: peer.cancelled == 20, "the server has noticed")


async def test_a_closed_channel_lets_its_calls_end(peer: Peer) -> None:
    async with serving(peer) as address:
        channel = Channel(address)
        asking = asyncio.create_task(channel.unary(HANG, b"q", 30))
        await until(lambda: peer.running == 1, "it runs")
        closing = asyncio.create_task(channel.close(30))
        await asyncio.sleep(0)
        assert (await status(channel)).details == CLOSED
        peer.go.set()
        await closing
        assert await asking == b"q"


async def test_an_address_that_refuses_is_tried_again_after_a_pause(peer: Peer) -> None:
    async with serving(peer) as address:
        port = int(address.rpartition(":")[2])
    slow = Times(first_backoff_s=60, last_backoff_s=60)
    async with connected(address) as channel, connected(address, times=slow) as patient:
        for each in (channel, patient):
            failure = await status(each)
            assert (failure.status, failure.details) == ("UNAVAILABLE", "connection refused")
        async with serving(peer, port=port):
            call = channel.unary
            assert await until(lambda: call(ECHO, b"q", 10), retry_on=(CallFailed,)) == b"q"
            assert (await status(patient)).details == "connection refused", "the pause is not over"


async def test_a_connection_that_breaks_is_made_again(peer: Peer) -> None:
    async with serving(peer) as address:
        port = int(address.rpartition(":")[2])
        channel = Channel(address)
        asking = asyncio.create_task(channel.unary(HANG, b"q", 30))
        await until(lambda: peer.running == 1, "it runs")
    with pytest.raises(CallFailed) as caught:
        await asking
    assert caught.value.status in ("UNAVAILABLE", "CANCELLED")
    async with serving(peer, port=port):
        call = channel.unary
        assert await until(lambda: call(ECHO, b"q", 10), retry_on=(CallFailed,)) == b"q"
        await channel.close(None)


Handle = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Any]
SETTINGS = bytes(3) + b"\x04" + bytes(5)  # an empty frame
GOAWAY = b"\x00\x00\x08\x07" + bytes(13)  # it has seen no stream


@asynccontextmanager
async def speaking(
    first: bytes, *, then_closes: bool = False
) -> AsyncIterator[tuple[str, list[int]]]:
    """A server that says `first` and then nothing, and a list with an item for each connection."""
    connections: list[int] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(1)
        writer.write(first)
        with suppress(ConnectionError):
            while not then_closes and await reader.read(65_536):
                pass
        writer.close()

    async with await asyncio.start_server(handle, "127.0.0.1", 0) as server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}", connections


@pytest.mark.parametrize(
    ("first", "times", "details"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", Times(), "failed to connect: it does not use HTTP/2"),
        (b"", Times(connect_s=0.1), "the connection timed out"),
        (SETTINGS, Times(silence_s=0.05, ping_timeout_s=0.05), "it does not answer pings"),
    ],
)
async def test_a_peer_that_does_not_answer_is_unavailable(
    first: bytes, times: Times, details: str
) -> None:
    async with speaking(first) as (address, _), connected(address, times=times) as channel:
        failure = await status(channel, timeout_s=30)
        assert (failure.status, failure.details) == ("UNAVAILABLE", details)


async def test_an_address_without_a_port_is_named() -> None:
    async with connected("localhost") as channel:
        assert (await status(channel)).details == "the address 'localhost' has no port"


async def test_the_deadline_includes_the_time_to_connect() -> None:
    async with speaking(b"") as (address, _), connected(address) as channel:
        assert (await status(channel, timeout_s=0.1)).status == "DEADLINE_EXCEEDED"


@pytest.mark.parametrize("is_dropped", [False, True])
async def test_a_call_that_waits_for_a_connection_uses_the_channel_that_replaces_it(
    peer: Peer, is_dropped: bool
) -> None:
    """New certificates replace channels. A master that was replaced must not get the call."""
    rpc = Rpc(ECHO, empty_pb2.Empty, empty_pb2.Empty)
    async with speaking(b"") as (silent, connections), serving(peer) as address:
        servers = iter((silent, address))
        channels = Channels(lambda *_: Channel(next(servers)))
        transport = GrpcTransport(channels)
        calling = asyncio.create_task(
            transport.call("broker:1", rpc, empty_pb2.Empty(), timeout_s=30)
        )
        await until(lambda: len(connections) == 1, "it waits for the settings of the server")
        if is_dropped:
            await transport.drop("broker:1")
            with pytest.raises(BrokerUnreachable, match="for a new master"):
                await calling
        else:
            channels.replace("broker:1")
            assert await calling == empty_pb2.Empty()
        await transport.close()


async def test_a_peer_that_closes_at_once_may_need_tls() -> None:
    async with (
        speaking(b"", then_closes=True) as (address, _),
        connected(address) as channel,
    ):
        error = translated(await status(channel), address, 3)
    assert "it may require TLS" in error.message


@pytest.mark.parametrize("first", [SETTINGS + GOAWAY, SETTINGS])
async def test_a_peer_that_ends_each_connection_is_not_called_in_a_loop(first: bytes) -> None:
    async with (
        speaking(first, then_closes=True) as (address, connections),
        connected(address, times=Times(first_backoff_s=60)) as channel,
    ):
        for _ in range(3):
            assert (await status(channel)).status == "UNAVAILABLE"
        assert len(connections) <= 3 * (MAX_REPEATS + 1)


# ---- TLS ----


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return certificates(tmp_path_factory.mktemp("cluster") / "secure")


def certificates(directory: Path) -> Path:
    made = Authority(directory, datetime.datetime.now(datetime.UTC))
    made.init(CLUSTER, "broker-a", ["localhost"], 90)
    return directory


def server_side(directory: Path, *, needs_client: bool = False) -> grpc.ServerCredentials:
    read = {name: (directory / name).read_bytes() for name in ("broker.key", "broker.crt")}
    pair = (read["broker.key"], read["broker.crt"])
    authority = (directory / "ca.crt").read_bytes() if needs_client else None
    return grpc.ssl_server_credentials([pair], authority, needs_client)


def over_tls(address: str, tls: Tls) -> Channel:
    return TlsConnect(tls)(address, GET_BROKER_STATUS.path)


def tls_of(directory: Path, role: str = "", **options: Any) -> Tls:
    pair = (directory / f"{role}.crt", directory / f"{role}.key") if role else ("", "")
    return Tls(directory / "ca.crt", *pair, **{"cluster": CLUSTER, **options})


async def test_messages_of_any_size_arrive_over_tls(peer: Peer, secure: Path) -> None:
    body = bytes(range(256)) * 40_000
    async with serving(peer, credentials=server_side(secure)) as address:
        for called, tls in (
            (address, tls_of(secure)),
            (address.replace("127.0.0.1", "localhost"), tls_of(secure, verify="host")),
        ):
            channel = over_tls(called, tls)
            answers = await asyncio.gather(*(channel.unary(ECHO, body, 60) for _ in range(3)))
            assert answers == [body] * 3
            assert sum([len(each) async for each in channel.stream(COUNT, b"40")]) == 2_000_000
            await channel.close(None)


async def test_a_server_can_require_a_certificate(peer: Peer, secure: Path) -> None:
    async with serving(peer, credentials=server_side(secure, needs_client=True)) as address:
        with_one, without = (over_tls(address, tls_of(secure, role)) for role in ("proxy", ""))
        assert await with_one.unary(ECHO, b"q", 10) == b"q"
        error = translated(await status(without), address, 3)
        assert "tlsCertPath" in error.message  # with or without TLS' own alert
        for channel in (with_one, without):
            await channel.close(None)


async def test_a_server_with_another_certificate_is_refused(
    peer: Peer, secure: Path, tmp_path: Path
) -> None:
    other = certificates(tmp_path / "secure")
    async with serving(peer, credentials=server_side(secure)) as address:
        for tls, problem in (
            (tls_of(other), "no authority of tlsTrustCertPath has signed"),
            (tls_of(secure, cluster="another"), "another name"),
            (tls_of(secure, verify="host"), "another name"),  # it has none for 127.0.0.1
        ):
            channel = over_tls(address, tls)
            error = translated(await status(channel), address, 3)
            assert problem in error.message
            await channel.close(None)
    assert not peer.peers


async def test_tls_and_plaintext_do_not_mix(peer: Peer, secure: Path) -> None:
    async with serving(peer) as address:
        channel = over_tls(address, tls_of(secure))
        assert "does not use TLS" in translated(await status(channel), address, 3).message
        await channel.close(None)
    async with (
        serving(peer, credentials=server_side(secure)) as address,
        connected(address) as channel,
    ):
        assert "it may require TLS" in translated(await status(channel), address, 3).message


async def test_a_server_must_choose_http2_in_tls(secure: Path) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(secure / "broker.crt", secure / "broker.key")

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            await reader.read()
        writer.close()

    async with await asyncio.start_server(handle, "127.0.0.1", 0, ssl=context) as server:
        address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        channel = over_tls(address, tls_of(secure))
        assert (await status(channel)).details == "it does not use HTTP/2"
        await channel.close(None)
