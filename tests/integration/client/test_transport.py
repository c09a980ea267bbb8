"""The client's transport over real sockets: streams, channels that are replaced, metadata.

Its errors are in tests/unit/aerobee_client/cluster, and connections that fail in `test_http2.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any

import grpc
import pytest
from aerobee.broker.v1 import client_pb2

from aerobee_client.cluster import transport as transport_module
from aerobee_client.cluster.transport import Channels, GrpcTransport, plaintext
from aerobee_client.errors import BrokerUnreachable
from aerobee_http2.channel import Channel
from aerobee_wire import rpcs
from aerobee_wire.status import Code, MqError
from support.clock.polling import until

REQUEST = client_pb2.ListGroupMembersRequest(consumer_group="g")
WATCH = client_pb2.WatchClientRequest(client_id="c")
Answer = Callable[[Any, grpc.aio.ServicerContext[Any, Any]], Awaitable[Any]]


class Peer:
    """A server of two RPCs: members, answered by `answer`, and a stream that says "watching" and
    then stays open."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.port = 0
        self.server: grpc.aio.Server | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def start(self) -> None:
        service, _, _ = rpcs.LIST_GROUP_MEMBERS.path[1:].partition("/")
        handlers = {
            "ListGroupMembers": grpc.unary_unary_rpc_method_handler(
                self.answer,
                request_deserializer=client_pb2.ListGroupMembersRequest.FromString,
                response_serializer=client_pb2.ListGroupMembersResponse.SerializeToString,
            ),
            "WatchClient": grpc.unary_stream_rpc_method_handler(
                self.watch,
                request_deserializer=client_pb2.WatchClientRequest.FromString,
                response_serializer=client_pb2.ClientNotice.SerializeToString,
            ),
        }
        self.server = grpc.aio.server()
        self.server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(service, handlers),)
        )
        self.port = self.server.add_insecure_port(f"127.0.0.1:{self.port}")
        await self.server.start()

    async def watch(self, request: Any, context: Any) -> AsyncIterator[Any]:
        yield client_pb2.ClientNotice(watching=client_pb2.Watching())
        await asyncio.Event().wait()

    async def stop(self) -> None:
        if self.server is not None:
            await self.server.stop(None)
            self.server = None


async def members(request: Any, context: Any) -> Any:
    return client_pb2.ListGroupMembersResponse(client_ids=[request.consumer_group])


@pytest.fixture
async def peer() -> AsyncIterator[Peer]:
    peer = Peer(members)
    await peer.start()
    yield peer
    await peer.stop()


@pytest.fixture
async def transport() -> AsyncIterator[GrpcTransport]:
    transport = GrpcTransport()
    yield transport
    await transport.close()


async def ask(transport: GrpcTransport, address: str, timeout_s: float = 5) -> list[str]:
    response = await transport.call(address, rpcs.LIST_GROUP_MEMBERS, REQUEST, timeout_s=timeout_s)
    return list(response.client_ids)


async def test_a_broken_stream_is_unreachable(transport: GrpcTransport, peer: Peer) -> None:
    async with aclosing(transport.stream(peer.address, rpcs.WATCH_CLIENT, WATCH)) as notices:
        first = await anext(notices)
        assert first.HasField("watching")
        await peer.stop()
        with pytest.raises(BrokerUnreachable):
            await anext(notices)


async def test_abandoned_stream_is_cancelled_at_the_peer(transport: GrpcTransport) -> None:
    ended = asyncio.Event()

    class Watched(Peer):
        async def watch(self, request: Any, context: Any) -> AsyncIterator[Any]:
            try:
                async for notice in super().watch(request, context):
                    yield notice
            finally:
                ended.set()

    peer = Watched(members)
    await peer.start()
    async with aclosing(transport.stream(peer.address, rpcs.WATCH_CLIENT, WATCH)) as notices:
        await anext(notices)
    await ended.wait()
    await peer.stop()


async def test_a_bad_address_is_unreachable(transport: GrpcTransport) -> None:
    with pytest.raises(MqError) as caught:
        await ask(transport, "no-such-host.invalid:1", timeout_s=3)
    assert caught.value.code in (Code.BROKER_UNREACHABLE, Code.REQUEST_TIMEOUT)


async def test_a_replaced_channel_ends_its_calls_and_new_ones_take_another() -> None:
    arrived, go = asyncio.Event(), asyncio.Event()
    connected: list[str] = []

    async def slow(request: Any, context: Any) -> Any:
        if request.consumer_group == "slow":
            arrived.set()
            await go.wait()
        return await members(request, context)

    peer = Peer(slow)
    await peer.start()

    def connect(address: str, path: str) -> Channel:
        connected.append(address)
        return plaintext(address, path)

    channels = Channels(connect)
    transport = GrpcTransport(channels)
    under_way = asyncio.create_task(
        transport.call(
            peer.address,
            rpcs.LIST_GROUP_MEMBERS,
            client_pb2.ListGroupMembersRequest(consumer_group="slow"),
            timeout_s=30,
        )
    )
    await arrived.wait()
    channels.replace(peer.address)
    channels.replace("10.0.0.1:1")  # has none
    await transport.call(peer.address, rpcs.LIST_GROUP_MEMBERS, REQUEST, timeout_s=30)
    still_waits = not under_way.done()
    go.set()
    assert list((await under_way).client_ids) == ["slow"]
    await transport.close()
    await peer.stop()
    assert connected == [peer.address] * 2 and still_waits


async def test_a_call_has_metadata_from_its_path_and_its_serialized_request() -> None:
    seen: list[Any] = []

    async def note(request: Any, context: Any) -> Any:
        seen.append(dict(context.invocation_metadata())["signature"])
        return await members(request, context)

    def sign(path: str, request: bytes) -> list[tuple[str, str | bytes]]:
        return [("signature", f"{path} {request.hex()}")]

    peer = Peer(note)
    await peer.start()
    transport = GrpcTransport(Channels(metadata=sign))
    await transport.call(peer.address, rpcs.LIST_GROUP_MEMBERS, REQUEST, timeout_s=30)
    async with aclosing(transport.stream(peer.address, rpcs.WATCH_CLIENT, WATCH)) as notices:
        assert (await anext(notices)).HasField("watching")
    await transport.close()
    await peer.stop()
    assert seen == [f"{rpcs.LIST_GROUP_MEMBERS.path} {REQUEST.SerializeToString().hex()}"]


async def test_another_key_takes_a_new_channel(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise lasting calls would stay signed with a key that the user may lose."""
    monkeypatch.setattr(transport_module, "RELOAD_S", 0.02)
    connected: list[str] = []
    changes = iter([False, True])

    def connect(address: str, path: str) -> Channel:
        connected.append(address)
        return plaintext(address, path)

    peer = Peer(members)
    await peer.start()
    transport = GrpcTransport(Channels(connect, key_changed=lambda: next(changes, False)))

    async def connects_again() -> bool:
        await transport.call(peer.address, rpcs.LIST_GROUP_MEMBERS, REQUEST, timeout_s=30)
        return len(connected) == 2

    await until(connects_again)
    await transport.close()
    await peer.stop()
