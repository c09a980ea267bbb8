"""etcd that takes TLS alone, and asks brokers for a certificate."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import pytest

from aerobee_broker.replication.election.coordinators.etcd import EtcdClient, EtcdNoAnswer, Put
from aerobee_chassis.rpc.transport import ChannelTls
from support.etcd.etcd_process import EtcdMember, EtcdTls, etcd_members
from support.processes import certificates


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> EtcdTls:
    return EtcdTls(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def secured(tls: EtcdTls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdMember]:
    with etcd_members(tmp_path_factory.mktemp("secured"), tls=tls) as [only]:
        yield only


@asynccontextmanager
async def client(member: EtcdMember, tls: ChannelTls | None) -> AsyncIterator[EtcdClient]:
    made = EtcdClient([member.endpoint], timeout_s=10, tls=tls)
    try:
        yield made
    finally:
        await made.close()


def shown(tls: EtcdTls) -> ChannelTls:
    certificate, key = (path.read_bytes() for path in tls.client)
    return ChannelTls(tls.server[0].read_bytes(), certificate, key)


async def test_every_kind_of_call_is_served_over_tls(secured: EtcdMember, tls: EtcdTls) -> None:
    async with client(secured, shown(tls)) as etcd:
        revision = await etcd.write([], [Put("/tls/a", b"1")])
        assert revision
        assert (await etcd.read("/tls/")).items[0].value == b"1"
        lease = await etcd.grant(60)
        await etcd.keep_alive(lease)
        async with aclosing(etcd.watch("/tls/", revision)) as changes:
            assert await anext(changes) == revision
        await etcd.revoke(lease)


async def test_who_shows_no_certificate_believes_another_or_speaks_plaintext_is_not_served(
    secured: EtcdMember, tls: EtcdTls, tmp_path: Path
) -> None:
    stranger = certificates.write(tmp_path)[0].read_bytes()
    authority = tls.server[0].read_bytes()
    own = shown(tls)
    for given in (
        None,
        ChannelTls(authority),
        ChannelTls(stranger, own.certificate, own.key),
    ):
        async with client(secured, given) as etcd:
            with pytest.raises(EtcdNoAnswer):
                await etcd.write([], [Put("/tls/b", b"1")])
