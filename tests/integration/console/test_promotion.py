"""Promote a replica in a browser: handed over by its master, or with a loss that the page shows."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import pytest
from playwright.sync_api import Page, expect

from aerobee_client import AdminClient
from aerobee_wire.status import MqError
from support.broker.calls import BrokerCaller
from support.clock.polling import until_sync
from support.console.browser import chromium, follow, opened, running
from support.etcd.etcd_process import etcd_members, require_etcd
from support.processes.broker_group import BROKER, BrokerGroup, broker_group
from support.processes.sending import Sending
from support.processes.service import ServiceProcess

TOPIC = "orders"
T = TypeVar("T")


@pytest.fixture
def group(tmp_path: Path) -> Iterator[BrokerGroup]:
    """Two replicas, in sync, whose master etcd keeps."""
    chromium()
    require_etcd()
    with etcd_members(tmp_path) as [etcd], broker_group(tmp_path / "group", first=1) as group:
        etcd_setting = f"etcdEndpoints={etcd.endpoint}"
        settings = ("brokerRole=SYNC_MASTER", "totalReplicas=2", "inSyncReplicas=1")
        group.add_all(2, *settings, etcd_setting)
        yield group


@pytest.fixture
def page(group: BrokerGroup) -> Iterator[Page]:
    console = ServiceProcess("aerobee_console", "--port", "0", "--namesrv", group.namesrv)
    with console, running() as browser, opened(browser, f"http://{console.address}") as page:
        yield page


def open_form(page: Page) -> None:
    page.goto("/brokers")
    follow(page, page.get_by_role("link", name=BROKER), BROKER)
    link = page.get_by_role("link", name="Promote")
    follow(page, link, f"Promote a replica of {BROKER}")


def promote(page: Page, number: int, *, unclean: bool = False) -> None:
    page.get_by_label("Replica").select_option(str(number))
    page.get_by_label("Even if acknowledged").select_option("yes" if unclean else "no")
    page.get_by_label("to confirm").fill(BROKER)
    page.get_by_role("button", name="Promote the replica").click()


def in_thread(calls: Coroutine[Any, Any, T]) -> T:
    """Run coroutines. The browser's library has the loop of this thread."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, calls).result()


async def bodies(address: str) -> set[bytes]:
    async with BrokerCaller(address) as caller:
        return {message.body for message in await caller.read(TOPIC)}


def test_a_master_hands_over_without_a_failed_send(group: BrokerGroup, page: Page) -> None:
    master = group.until_led()
    (other,) = (each for each in group.members if each is not master)
    group.until_in_sync(master, other)
    with Sending(group.namesrv, TOPIC) as sending:
        open_form(page)
        expect(page.get_by_text("it hands over, and nothing is lost")).to_be_visible()
        promote(page, other.number)
        title = f"Replica {other.number} is the master of {BROKER}"
        expect(page.get_by_role("heading", name=title)).to_be_visible()
        expect(page.get_by_text("the previous master handed over")).to_be_visible()
        sending.until_more()
        page.get_by_role("link", name="Continue").click()
        replicas = page.get_by_role("region", name="Replicas").locator("tbody tr")
        row = replicas.filter(has_text=other.address)
        expect(row).to_contain_text("master")
        group.until_in_sync(other, master)
    assert not sending.failed


async def send(address: str, body: bytes) -> None:
    async with BrokerCaller(address) as caller:
        await caller.send(TOPIC, body)


def test_the_page_says_what_an_unclean_promotion_gives_up(group: BrokerGroup, page: Page) -> None:
    master = group.until_led()
    (late,) = (each for each in group.members if each is not master)
    group.until_in_sync(master, late)
    with AdminClient(group.namesrv) as admin:
        admin.create_topic(TOPIC, queues=1)
    in_thread(send(master.address, b"on both"))
    in_thread(group.until_confirmed(master, late))
    late.process.stop()
    group.until_in_sync(master)
    in_thread(send(master.address, b"on the master alone"))
    master.process.kill()
    late.start()
    until_sync(
        lambda: late.number in in_thread(group.statuses()), "it answers",
        timeout_s=60, retry_on=(MqError,),
    )  # fmt: skip

    open_form(page)
    consequences = page.get_by_label("Consequences")
    expect(consequences).to_contain_text(f"replica {late.number} may lack")
    expect(consequences).to_contain_text("do not answer may have more, and how much is unknown")
    promote(page, late.number)
    expect(page.get_by_label("Problem")).to_contain_text("--unclean")
    assert not late.leads_now()
    promote(page, late.number, unclean=True)
    title = f"Replica {late.number} is the master of {BROKER}"
    expect(page.get_by_role("heading", name=title)).to_be_visible()
    expect(page.get_by_text("the previous master did not answer")).to_be_visible()
    assert in_thread(bodies(late.address)) == {b"on both"}
    master.start()
    group.until_in_sync(late, master)
    with AdminClient(group.namesrv) as admin:
        assert [each.size for each in admin.list_diverged(BROKER)]
