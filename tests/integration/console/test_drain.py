"""Drain, restart and undrain each of two brokers in a browser, while official SDKs send."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from support.clock.polling import until_sync
from support.console.browser import chromium, follow, opened, running
from support.processes.service import ServiceProcess
from support.proxy.official_sdk import newest
from support.proxy.sdk_cluster import INVISIBLE_S, Cluster, sdk_cluster
from support.proxy.sdk_traffic import RECOVERY_S, Traffic

pytestmark = pytest.mark.slow

LANGUAGES = ("python", "node")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    chromium()
    for language in LANGUAGES:
        assert newest(language).built  # or the test is skipped
    lease = f"defaultInvisibleTimeMills={INVISIBLE_S * 1_000}"
    with sdk_cluster(tmp_path, "--set", lease, brokers=2) as cluster:
        yield cluster


@pytest.fixture
def page(cluster: Cluster) -> Iterator[Page]:
    namesrv = cluster.namesrv.address
    console = ServiceProcess("aerobee_console", "--port", "0", "--namesrv", namesrv)
    with console, running() as browser, opened(browser, f"http://{console.address}") as page:
        yield page


def until_all_work(clients: list[Traffic]) -> None:
    since = time.time()
    for traffic in clients:
        until_sync(lambda traffic=traffic: traffic.works_since(since), timeout_s=RECOVERY_S)  # type: ignore[misc]


def test_no_send_fails_while_each_broker_is_restarted(cluster: Cluster, page: Page) -> None:
    with ExitStack() as stack:
        clients = [
            stack.enter_context(Traffic(newest(language), cluster)) for language in LANGUAGES
        ]
        until_all_work(clients)
        for name, process in zip(("broker-a", "broker-b"), cluster.brokers, strict=True):
            page.goto("/brokers")
            follow(page, page.get_by_role("link", name=name), name)
            follow(page, page.get_by_role("link", name="Drain"), f"Drain {name}")
            expect(page.get_by_text("producers continue at")).to_be_visible()
            button = page.get_by_role("button", name="Refuse messages of producers")
            button.click()
            expect(page.get_by_role("heading", name=f"{name} drains", level=1)).to_be_visible()
            follow(page, page.get_by_role("link", name="Continue"), name)
            expect(page.get_by_text("It can be stopped")).to_be_visible()
            process.restart()
            until_all_work(clients)
            undrain = page.get_by_role("link", name="Undrain")
            follow(page, undrain, f"Undrain {name}")
            page.get_by_role("button", name="Accept messages again").click()
            expect(page.get_by_role("heading", name=f"{name} accepts", level=1)).to_be_visible()
            until_all_work(clients)
            for traffic in clients:
                until_sync(
                    lambda traffic=traffic, name=name: name in cluster.takers(traffic.topic),  # type: ignore[misc]
                    timeout_s=RECOVERY_S,
                )
        for traffic in clients:
            traffic.end_of_sending()
            until_sync(traffic.has_all, "all was delivered", timeout_s=RECOVERY_S)
        failed = [error for each in clients for error in each.errors if error.call == "send"]
        assert failed == []
