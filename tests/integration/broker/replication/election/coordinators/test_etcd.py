"""The client of etcd, on a real one of one member and of three."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
from aerobee_foreign.etcd.v3 import etcd_pb2

from aerobee_broker.replication.election.coordinators.etcd import TXN, EtcdClient, EtcdNoAnswer, Put
from support.clock.polling import until
from support.etcd.etcd_contract import EtcdContract, EtcdThatForgets, prefix
from support.etcd.etcd_process import EtcdMember, etcd_members

__all__ = ["prefix"]


@pytest.fixture
async def etcd(member: EtcdMember) -> AsyncIterator[EtcdClient]:
    client = EtcdClient([member.endpoint], timeout_s=10)
    yield client
    await client.close()


class TestEtcd(EtcdContract, EtcdThatForgets):
    @pytest.fixture(autouse=True)
    def _forgetful(self, member: EtcdMember, etcd: EtcdClient) -> None:
        self.endpoint, self.client = member.endpoint, etcd

    async def compact(self) -> None:
        """By an RPC that brokers do not use: its request has the revision as field 1."""
        revision = (await self.client.read("/")).revision
        request = etcd_pb2.LeaseRevokeRequest(id=revision).SerializeToString()

        def call() -> None:
            with grpc.insecure_channel(self.endpoint) as channel:
                channel.unary_unary("/etcdserverpb.KV/Compact", None, None)(request, timeout=10)

        await asyncio.to_thread(call)


async def test_a_key_that_is_no_text_hides_no_other(
    etcd: EtcdClient, member: EtcdMember, prefix: str
) -> None:
    """Put there by hand: the tasks of a coordinator that read it would have ended."""
    put = etcd_pb2.PutRequest(key=prefix.encode() + b"\xff", value=b"x")
    request = etcd_pb2.TxnRequest(success=[etcd_pb2.RequestOp(put=put)])
    await etcd._caller.call(member.endpoint, TXN, request, timeout_s=10)
    await etcd.write([], [Put(prefix + "a", b"1")])
    found = (await etcd.read(prefix)).items
    assert [(item.key, item.value) for item in found] == [
        (prefix + "a", b"1"),
        (prefix + "\ufffd", b"x"),
    ]


async def test_without_an_endpoint_that_answers_every_call_says_so() -> None:
    client = EtcdClient(["127.0.0.1:1", "127.0.0.1:2"], timeout_s=5)
    try:
        with pytest.raises(EtcdNoAnswer):
            await client.read("/a")
        with pytest.raises(EtcdNoAnswer):
            await client.write([], [Put("/a", b"")])
        with pytest.raises(EtcdNoAnswer):
            await client.keep_alive(1)
        with pytest.raises(EtcdNoAnswer):
            await anext(client.watch("/a", 1))
    finally:
        await client.close()


async def test_with_one_member_of_three_gone_another_answers(tmp_path: Path) -> None:
    with etcd_members(tmp_path, 3) as members:
        client = EtcdClient([member.endpoint for member in members], timeout_s=5)
        try:
            assert await client.write([], [Put("/a", b"1")])
            lease = await client.grant(60)
            await asyncio.to_thread(members[0].kill)

            assert (await client.read("/a")).items[0].value == b"1"
            await client.keep_alive(lease)

            async def written() -> int | None:
                return await client.write([], [Put("/a", b"2")])

            assert await until(written, retry_on=(EtcdNoAnswer,), timeout_s=60)
            await asyncio.to_thread(members[1].kill)
            with pytest.raises(EtcdNoAnswer):
                await client.write([], [Put("/a", b"3")])
        finally:
            await client.close()
