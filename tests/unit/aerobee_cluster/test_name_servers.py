"""Name servers by host names: each record is one, and changes are seen without a restart."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

from aerobee_cluster.name_servers import (
    PERIOD_S,
    RETRY_S,
    TIMEOUT_S,
    NameServers,
    hold_each,
    places_of,
    resolve_host,
)
from support.namesrv.stand_in_dns import StandInDns


def name_servers(dns: StandInDns, *addresses: str) -> NameServers:
    return NameServers(addresses, dns.resolve, asyncio.get_running_loop().time)


async def test_a_name_with_several_records_is_a_name_server_for_each() -> None:
    dns = StandInDns(namesrv=["10.0.0.2", "10.0.0.1"], six=["fd00::2", "fd00::1"])
    servers = name_servers(dns, "namesrv:9876", "six:1", "10.0.0.9:9876", "[fd00::9]:2")
    await servers.refresh()
    assert [*servers] == [
        *("10.0.0.1:9876", "10.0.0.2:9876", "[fd00::1]:1", "[fd00::2]:1"),
        *("10.0.0.9:9876", "[fd00::9]:2"),
    ]
    assert dns.asked == ["namesrv", "six"]


async def test_a_name_with_one_record_stays_a_name() -> None:
    servers = name_servers(StandInDns(namesrv=["10.0.0.1"]), "namesrv:9876")
    await servers.refresh()
    assert servers.places == {"namesrv:9876": "10.0.0.1"}


async def test_addresses_without_names_ask_no_dns() -> None:
    dns = StandInDns()
    servers = name_servers(dns, "10.0.0.1:9876", "[::1]:9876")
    await servers.refresh()
    assert (dns.asked, servers.due_in_s) == ([], None)
    assert [*NameServers(["namesrv:9876"])] == ["namesrv:9876"]


async def test_records_are_read_again_after_the_period() -> None:
    dns = StandInDns(namesrv=["10.0.0.1", "10.0.0.2"])
    servers = name_servers(dns, "namesrv:9876")
    await asyncio.gather(servers.refresh(), servers.refresh())
    dns.records["namesrv"] = ["10.0.0.2", "10.0.0.3"]
    assert servers.due_in_s == PERIOD_S
    await servers.refresh()
    assert len(dns.asked) == 1
    await asyncio.sleep(PERIOD_S)
    await servers.refresh()
    assert [*servers] == ["10.0.0.2:9876", "10.0.0.3:9876"]


@pytest.mark.parametrize("hangs", [False, True])
async def test_without_dns_the_last_addresses_stay(hangs: bool) -> None:
    dns = StandInDns(namesrv=["10.0.0.1", "10.0.0.2"])
    servers = name_servers(dns, "namesrv:9876")
    await servers.refresh()
    await asyncio.sleep(PERIOD_S)
    del dns.records["namesrv"]
    dns.hangs = hangs
    began = asyncio.get_running_loop().time()
    await servers.refresh()
    assert asyncio.get_running_loop().time() - began <= TIMEOUT_S
    assert [*servers] == ["10.0.0.1:9876", "10.0.0.2:9876"]


async def test_dns_that_does_not_answer_is_asked_once_at_a_time() -> None:
    """Each call occupies a thread of the process until it ends."""
    asked: list[str] = []
    answer = asyncio.Event()

    async def resolve(host: str) -> list[str]:
        asked.append(host)
        await answer.wait()
        return ["10.0.0.1", "10.0.0.2"]

    servers = NameServers(["namesrv:1"], resolve, asyncio.get_running_loop().time)
    for _ in range(3):
        await servers.refresh()
        await asyncio.sleep(RETRY_S)
    assert asked == ["namesrv"]
    answer.set()
    await servers.refresh()
    assert [*servers] == ["10.0.0.1:1", "10.0.0.2:1"]


async def test_a_cancelled_refresh_does_not_cancel_the_next_one() -> None:
    answer = asyncio.Event()

    async def resolve(host: str) -> list[str]:
        await answer.wait()
        return ["10.0.0.1", "10.0.0.2"]

    servers = NameServers(["namesrv:1"], resolve, asyncio.get_running_loop().time)
    refreshing = asyncio.create_task(servers.refresh())
    await asyncio.sleep(TIMEOUT_S / 2)
    refreshing.cancel()
    await asyncio.wait([refreshing])
    answer.set()
    await servers.refresh()
    assert [*servers] == ["10.0.0.1:1", "10.0.0.2:1"]


async def test_a_name_that_was_never_resolved_is_tried_again_sooner() -> None:
    dns = StandInDns()
    servers = name_servers(dns, "namesrv:9876")
    await servers.refresh()
    assert servers.places == {"namesrv:9876": ""}
    assert servers.due_in_s == RETRY_S
    dns.records["namesrv"] = ["10.0.0.1", "10.0.0.2"]
    await asyncio.sleep(RETRY_S)
    assert [*await places_of(servers)] == ["10.0.0.1:9876", "10.0.0.2:9876"]


class Held:
    """What `hold_each` holds, and the connections that it dropped."""

    def __init__(self) -> None:
        self.now: list[str] = []
        self.began: list[str] = []
        self.dropped: list[str] = []

    async def hold(self, address: str) -> None:
        self.began.append(address)
        self.now.append(address)
        try:
            await asyncio.Event().wait()
        finally:
            self.now.remove(address)

    async def drop(self, address: str) -> None:
        assert address not in self.now
        self.dropped.append(address)


async def test_each_present_name_server_is_held() -> None:
    dns, held = StandInDns(namesrv=["10.0.0.1", "10.0.0.2"]), Held()
    holding = asyncio.create_task(
        hold_each(name_servers(dns, "namesrv:9876"), held.hold, held.drop)
    )
    await asyncio.sleep(1)
    assert held.now == ["10.0.0.1:9876", "10.0.0.2:9876"]
    dns.records["namesrv"] = ["10.0.0.2", "10.0.0.3"]
    await asyncio.sleep(PERIOD_S)
    assert held.now == ["10.0.0.2:9876", "10.0.0.3:9876"]
    assert held.dropped == ["10.0.0.1:9876"]
    assert len(held.began) == 3, "the one that stayed goes on"
    holding.cancel()
    await asyncio.wait([holding])
    assert held.now == []


async def test_a_name_server_that_moves_is_held_by_a_new_connection() -> None:
    dns, held = StandInDns(namesrv=["10.0.0.1"]), Held()
    holding = asyncio.create_task(
        hold_each(name_servers(dns, "namesrv:9876"), held.hold, held.drop)
    )
    await asyncio.sleep(1)
    dns.records["namesrv"] = ["10.0.0.7"]
    await asyncio.sleep(PERIOD_S)
    assert (held.dropped, held.now) == (["namesrv:9876"], ["namesrv:9876"])
    assert len(held.began) == 2
    holding.cancel()
    await asyncio.wait([holding])


@pytest.mark.parametrize("addresses", [(), ("10.0.0.1:9876", "10.0.0.2:9876")])
async def test_holding_ends_when_all_have_ended(addresses: tuple[str, ...]) -> None:
    ended: list[str] = []

    async def hold(address: str) -> None:
        await asyncio.sleep(len(ended))
        ended.append(address)

    await hold_each(addresses, hold, Held().drop)
    assert sorted(ended) == [*addresses]


async def test_a_defect_ends_the_holding_of_all() -> None:
    held = Held()

    async def hold(address: str) -> None:
        if address == "b:1":
            raise ValueError("a defect")
        await held.hold(address)

    with pytest.raises(ValueError, match="a defect"):
        await hold_each(["a:1", "b:1"], hold, held.drop)
    assert held.now == []


@pytest.mark.parametrize(
    ("found", "resolved"),
    [
        (["::1", "127.0.0.1"], ["127.0.0.1"]),
        (["fd00::2", "fd00::1", "fd00::1"], ["fd00::1", "fd00::2"]),
    ],
)
def test_the_system_resolves_to_one_family(
    monkeypatch: pytest.MonkeyPatch, found: list[str], resolved: list[str]
) -> None:
    """Or a name server that listens on both would count twice."""

    def getaddrinfo(*_: Any, **__: Any) -> list[Any]:
        return [
            (socket.AF_INET6 if ":" in each else socket.AF_INET, 0, 0, "", (each, 0))
            for each in found
        ]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    assert asyncio.run(resolve_host("namesrv")) == resolved
