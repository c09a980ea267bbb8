"""Name servers that one host name stands for, as with a headless Service of Kubernetes.

Broker, proxy and client use all of them, and find those that are added, without a restart."""

from __future__ import annotations

import asyncio
import socket
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from aerobee_broker.app import BrokerApp
from aerobee_broker.config import BrokerOptions
from aerobee_client import (
    AsyncAdminClient,
    AsyncProducer,
    Message,
    NamesrvUnreachable,
    SendResult,
)
from aerobee_cluster import name_servers
from aerobee_proxy.app import ProxyApp
from aerobee_proxy.config import ProxyOptions
from aerobee_wire.identity import BROKER, PROXY
from support.clock.polling import until
from support.processes.service import ServiceProcess
from support.running import secure

NAME = "namesrv.test"
SOON_S = 60.0


class Dns:
    """Replaces the resolver of this process for one name."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *records: str) -> None:
        self.records = records
        original = socket.getaddrinfo

        def getaddrinfo(host: Any, *more: Any, **options: Any) -> Any:
            if host != NAME:
                return original(host, *more, **options)
            return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", (each, 0)) for each in self.records]

        monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)


def namesrv(data: Path, host: str, port: int = 0) -> ServiceProcess:
    return ServiceProcess(
        *("aerobee_namesrv", "--host", host, "--port", str(port), "--data", str(data / host))
    )


async def test_name_servers_of_one_host_name_are_added_and_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(name_servers, "PERIOD_S", 0.5)
    async with AsyncExitStack() as stack:

        async def start(service: ServiceProcess) -> ServiceProcess:
            await asyncio.to_thread(service.start)
            stack.callback(service.kill)
            return service

        first = await start(namesrv(tmp_path, "127.0.0.1"))
        second = await start(namesrv(tmp_path, "127.0.0.2", first.port))
        dns = Dns(monkeypatch, "127.0.0.1", "127.0.0.2")
        address = f"{NAME}:{first.port}"
        broker = BrokerApp(
            BrokerOptions.from_values(
                {
                    "listenPort": 0,
                    "mappedFileSizeCommitLog": 8 << 20,
                    "storePathRootDir": tmp_path / "broker",
                    "namesrvAddr": address,
                    "brokerIP1": "127.0.0.1",
                    **secure.options_in_process(BROKER, "broker-a"),
                }
            )
        )
        await broker.start()
        stack.push_async_callback(broker.stop)
        proxy = ProxyApp(
            ProxyOptions.from_values(
                {
                    "namesrvAddr": address,
                    "bindAddress": "127.0.0.1",
                    "grpcServerPort": 0,
                    "tlsServerMode": "disabled",
                    **secure.options_in_process(PROXY, "proxy"),
                }
            )
        )
        await proxy.start()
        stack.push_async_callback(proxy.stop)
        producer = await stack.enter_async_context(AsyncProducer(namesrv=address))
        await producer.send(Message("orders", b"1"))

        async def registered_at(host: str) -> bool:
            async with AsyncAdminClient(f"{host}:{first.port}") as admin:
                info = await admin.cluster()
                return len(info.brokers) == 1 and len(info.proxies) == 1

        for host in dns.records:
            await until(lambda host=host: registered_at(host), f"both at {host}", timeout_s=SOON_S)  # type: ignore[misc]
        third = await start(namesrv(tmp_path, "127.0.0.3", first.port))
        dns.records = ("127.0.0.2", "127.0.0.3")
        await until(lambda: registered_at("127.0.0.3"), "both at the new one", timeout_s=SOON_S)
        for gone in (first, second):
            await asyncio.to_thread(gone.kill)
        assert third.is_running
        async with AsyncProducer(namesrv=address) as another:
            await another.send(Message("orders", b"2"))

        async def sent() -> SendResult:
            return await producer.send(Message("payments", b"3"))

        # It may have resolved the name just before the second name server ended.
        await until(sent, "the new name server", retry_on=(NamesrvUnreachable,))
