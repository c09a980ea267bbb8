"""Brokers whose etcd takes TLS alone."""

from __future__ import annotations

from pathlib import Path

from support.broker.calls import BrokerCaller
from support.clock.polling import until_sync
from support.etcd.etcd_process import EtcdTls, etcd_members
from support.processes.broker_group import broker_group


async def test_a_master_is_elected_at_an_etcd_that_asks_for_certificates(tmp_path: Path) -> None:
    tls = EtcdTls(tmp_path)
    with (
        etcd_members(tmp_path, tls=tls) as [etcd],
        broker_group(tmp_path / "group", first=1) as group,
    ):
        endpoint = f"etcdEndpoints={etcd.endpoint}"
        member = group.add("brokerRole=ASYNC_MASTER", endpoint, *tls.settings())
        until_sync(member.leads_now, "it leads", timeout_s=60)
        async with BrokerCaller(member.address) as caller:
            await caller.send("orders", b"a")
