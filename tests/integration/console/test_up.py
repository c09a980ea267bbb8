"""A stranger with `aerobee up` and a browser: who is behind, why messages died, and a redrive."""

from __future__ import annotations

import json
import re
import threading
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta

import pytest
from playwright.sync_api import Page, expect

from aerobee_client import (
    AdminClient,
    Message,
    Producer,
    PushConsumer,
    ReceivedMessage,
    SimpleConsumer,
)
from aerobee_wire.topics import retry_topic
from support.clock.polling import until_sync
from support.console.browser import chromium, follow, opened, running
from support.console.shop import dead_letters
from support.processes.command import Up

PAYMENTS = 120
LATE = 90  # payments whose bank did not answer; the others are declined
RATE = 50
KEY = "pay-17"
AT_ONCE = RATE // 4  # a job sends the letters of a quarter of a second at once


class Billing:
    """Consumes payments. Each one fails at first; `deliveries` counts them by key."""

    def __init__(self) -> None:
        self.deliveries: Counter[str] = Counter()
        self._lock = threading.Lock()

    def __call__(self, message: ReceivedMessage) -> None:
        number = json.loads(message.body)["id"]
        with self._lock:
            self.deliveries[f"pay-{number}"] += 1
            again = self.deliveries[f"pay-{number}"] > 1
        if number >= LATE:
            raise ValueError(f"payment {number} is declined")
        if not again:
            raise TimeoutError(f"the bank did not answer for payment {number}")


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    chromium()  # skips before the services start
    with Up(tmp_path_factory.mktemp("data")) as up:
        yield up


@pytest.fixture(scope="module")
def billing(up: Up) -> Iterator[Billing]:
    """Payments that all died in "billing", that "mailing" consumed, and that "shipping" did not."""
    decide = Billing()
    with AdminClient(up.namesrv) as admin:
        admin.create_topic("payments", queues=4)
        admin.create_group("billing", max_attempts=1)
        admin.create_group("mailing")
        admin.create_group("shipping")
        with Producer("shop", namesrv=up.namesrv) as producer:
            for number in range(PAYMENTS):
                body = json.dumps({"id": number}).encode()
                producer.send(Message("payments", body, keys=f"pay-{number}"))
        queues = admin.topic_status("payments")
        begins = {(each.topic, each.broker_name, each.queue_id): 0 for each in queues}
        admin.commit_offsets("shipping", begins)
        mailing = SimpleConsumer("mailing", namesrv=up.namesrv)
        mailing.subscribe("payments")
        consumer = PushConsumer("billing", decide, namesrv=up.namesrv)
        consumer.subscribe("payments")
        with consumer, mailing:
            mailed: set[str] = set()

            def receive() -> bool:
                for message in mailing.receive(wait=timedelta(seconds=1)):
                    mailed.update(message.keys)
                    mailing.ack(message)
                return len(mailed) == PAYMENTS

            until_sync(receive, "all are mailed", timeout_s=120)
            until_sync(lambda: dead_letters(admin) == PAYMENTS, "all are dead", timeout_s=120)
            yield decide


@pytest.fixture(scope="module")
def page(up: Up, billing: Billing) -> Iterator[Page]:
    with running() as browser, opened(browser, f"http://{up.console}") as page:
        yield page


def tab(page: Page, name: str) -> None:
    link = page.get_by_role("navigation", name="Pages").get_by_role("link", name=name)
    follow(page, link, name)


def test_a_stranger_finds_who_is_behind(page: Page) -> None:
    page.goto("/")
    behind = page.get_by_role("table", name="Groups with the highest lag")
    expect(behind.get_by_role("row", name=f"shipping {PAYMENTS}")).to_be_visible()
    follow(page, behind.get_by_role("link", name="shipping"), "shipping")
    expect(page.locator("dl.tiles")).to_contain_text(f"{PAYMENTS}")


def test_a_stranger_finds_a_message_by_key_and_who_consumed_it_when_and_why_it_died(
    page: Page,
) -> None:
    page.goto("/")
    tab(page, "Messages")
    page.get_by_label("Topic", exact=True).fill("payments")
    page.get_by_label("Key", exact=True).fill(KEY)
    page.get_by_role("button", name="Find the newest").click()
    found = page.locator("table.rows tbody tr")
    expect(found).to_have_count(1)
    found.locator("a").first.click()
    track = page.get_by_label("Track")
    mailing = track.get_by_role("row").filter(has_text="mailing")
    expect(mailing).to_contain_text("consumed")
    expect(mailing.locator("time")).to_have_count(1)
    expect(mailing.get_by_role("link").nth(1)).to_have_attribute("href", re.compile("/clients"))
    dead = track.get_by_role("row").filter(has_text="billing")
    expect(dead).to_contain_text("dead lettered")
    expect(dead).to_contain_text("TimeoutError")
    expect(dead).to_contain_text("the bank did not answer for payment 17")


def test_a_stranger_sends_just_the_timed_out_ones_again_at_50_a_second_once(
    page: Page, up: Up, billing: Billing
) -> None:
    page.goto("/")
    tab(page, "Dead letters")
    follow(page, page.get_by_role("link", name="billing"), "billing")
    page.get_by_role("link", name="TimeoutError").click()
    expect(page.get_by_text(f"{LATE} letters of the {PAYMENTS} newest")).to_be_visible()
    heading = "Redrive dead letters of billing"
    follow(page, page.get_by_role("link", name="Redrive", exact=True), heading)
    expect(page.get_by_label("Only with the reason")).to_have_value("TimeoutError")
    page.get_by_label("Rate").fill(str(RATE))
    page.get_by_role("button", name="Show the consequences").click()
    expect(page.get_by_text(f"{LATE} letters of billing would be sent")).to_be_visible()
    page.get_by_label("to confirm").fill("billing")
    page.get_by_role("button", name="Start the redrive").click()
    page.get_by_role("link", name="Continue").click()
    state = page.locator("dl.tiles div").filter(has_text="State")
    expect(state).to_contain_text("done")
    expect(page.locator("dl.tiles div.lead")).to_contain_text(str(LATE))

    late = {f"pay-{number}" for number in range(LATE)}
    until_sync(lambda: all(billing.deliveries[key] == 2 for key in late), timeout_s=60)
    assert {key for key, count in billing.deliveries.items() if count > 1} == late
    with AdminClient(up.namesrv) as admin:
        (queue,) = (q for q in admin.topic_status(retry_topic("billing")) if q.max_offset)
        place = (queue.topic, queue.broker_name, queue.queue_id)
        found = admin.browse(*place, 0, max_messages=PAYMENTS).messages()
        times = [message.store_timestamp_ms for message in found]
    assert len(times) == LATE
    assert times[-1] - times[0] >= 0.9 * 1_000 * (LATE - 2 * AT_ONCE) / RATE

    page.get_by_role("link", name="Dead letters").last.click()
    follow(page, page.get_by_role("link", name="Redrive", exact=True), heading)
    page.get_by_label("Only with the reason").fill("TimeoutError")
    page.get_by_role("button", name="Show the consequences").click()
    expect(page.get_by_text("0 letters of billing would be sent")).to_be_visible()
    expect(page.get_by_text(f"{LATE} were sent or dismissed before")).to_be_visible()
