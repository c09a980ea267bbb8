"""The console in a Chromium: pages and changes by mouse, by keys and without scripts."""

from __future__ import annotations

import re
import signal
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from urllib.error import HTTPError

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from aerobee_client import AdminClient
from support.console.browser import (
    EXPECT_MS,
    chromium,
    follow,
    picture,
    problems_of_accessibility,
    running,
)
from support.console.shop import DECLINED, HELD, JOB, OPEN, Shop, shop
from support.console.visitor import unfounded

PAGES = {
    "overview": "/",
    "brokers": "/brokers",
    "broker": "/brokers/broker-a",
    "topics": "/topics",
    "topic": "/topics/payments",
    "groups": "/groups",
    "group": "/groups/billing",
    "messages": "/messages?topic=payments",
    "by_key": "/messages?topic=payments&key=pay-3",
    "dead_letters": "/dead-letters",
    "letters": "/dead-letters/billing",
    "delayed": "/delayed",
    "transactions": "/transactions",
    "leases": "/leases?group=packing",
    "leasing_groups": "/leases",
    "lite": "/lite?topic=sessions",
    "redrives": "/redrives",
    "job": f"/redrives/{JOB}",
    "configuration": "/brokers/broker-a/configuration",
    "of_name_servers": "/name-servers/configuration",
    "option": "/brokers/broker-a/configuration/change?key=fileReservedTime",
    "purge": "/dead-letters/billing/purge?reason=TimeoutError",
    "pause": "/groups/billing/pause",
    "promote": "/brokers/broker-a/promote",
    "clients": "/clients",
    "redrive": "/dead-letters/billing/redrive?target=retry&rate=50",
    "keys": "/keys",
    "create": "/new-topic",
    "delete": "/topics/orders/delete",
    "reset": "/groups/billing/reset?topic=payments&to=earliest",
    "users": "/users",
    "user": "/users/shop",
    "quotas": "/quotas",
    "right": "/rights?user=shop&resource=Topic:payments&action=Pub",
    "audit": "/audit",
    "drain": "/brokers/broker-a/drain",
    "denied": "/rights?user=shop&resource=Topic:orders&action=Pub",
    "delete_user": "/users/shop/delete",
    "policy": "/users/shop/policies/new",
}
# Pages that do not ask broker-b.
OF_ONE_BROKER = {
    *("messages", "keys", "create", "broker", "configuration", "of_name_servers", "option"),
    "promote",
    *("users", "quotas", "right", "denied", "policy"),
}
LIVE_MS = EXPECT_MS  # a page is read again every 5 s
WIDE, NARROW, NARROWEST = 1280, 390, 320


@pytest.fixture(scope="module")
def the_shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    chromium()  # skips before the services start
    with shop(tmp_path_factory.mktemp("shop")) as running_shop:
        yield running_shop


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with running() as found:
        yield found


@pytest.fixture
def context(browser: Browser, the_shop: Shop) -> Iterator[BrowserContext]:
    context = browser.new_context(
        base_url=the_shop.url, viewport={"width": WIDE, "height": 800}, timezone_id="Asia/Tokyo"
    )
    context.set_default_timeout(EXPECT_MS)
    yield context
    context.close()


@pytest.fixture
def page(context: BrowserContext) -> Iterator[Page]:
    """A page that fails the test at an error of a script or of the page's policy."""
    page = context.new_page()
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on(
        "console",
        lambda said: (
            errors.append(said.text)
            if said.type == "error" and "Failed to load resource" not in said.text
            else None
        ),
    )
    yield page
    assert errors == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_page_is_accessible_and_fits_its_window(
    scheme: str, browser: Browser, the_shop: Shop
) -> None:
    context = browser.new_context(
        base_url=the_shop.url, color_scheme="dark" if scheme == "dark" else "light"
    )
    page = context.new_page()
    found: dict[str, object] = {}
    for name, address in PAGES.items():
        page.set_viewport_size({"width": WIDE, "height": 800})
        page.goto(address)
        problems = problems_of_accessibility(page)
        if problems:
            found[name] = problems
        picture(page, f"{name}-{WIDE}-{scheme}")
        for width in (NARROW, NARROWEST):
            page.set_viewport_size({"width": width, "height": 800})
            over = page.evaluate("document.documentElement.scrollWidth - innerWidth")
            if over > 0:
                found[f"{name} at {width}"] = f"{over} px too wide"
            if width == NARROW:
                picture(page, f"{name}-{NARROW}-{scheme}")
    context.close()
    assert found == {}


# The words of options in which a line ends: a word that is on two lines has two boxes.
BROKEN = """() => {
    const found = [];
    for (const element of document.querySelectorAll("h1, td:first-child, dl.fixed dd")) {
        const texts = document.createTreeWalker(element, NodeFilter.SHOW_TEXT);
        while (texts.nextNode()) {
            for (const word of texts.currentNode.data.matchAll(/\\S+/g)) {
                const range = document.createRange();
                range.setStart(texts.currentNode, word.index);
                range.setEnd(texts.currentNode, word.index + word[0].length);
                if (range.getClientRects().length > 1) found.push(word[0]);
            }
        }
    }
    return found;
}"""


def test_a_name_of_an_option_breaks_between_its_words(page: Page) -> None:
    page.set_viewport_size({"width": NARROW, "height": 800})
    for address in (PAGES["configuration"], PAGES["of_name_servers"], PAGES["option"]):
        page.goto(address)
        assert page.evaluate(BROKEN) == []


def test_a_stranger_finds_who_died_of_what_by_mouse(page: Page) -> None:
    page.goto("/")
    follow(page, page.get_by_role("link", name=str(DECLINED), exact=True).first, "Dead letters")
    follow(page, page.get_by_role("link", name="billing"), "billing")
    page.get_by_role("link", name="TimeoutError").click()
    expect(page.get_by_text(f"{DECLINED} letters of the {DECLINED} newest")).to_be_visible()
    page.get_by_label("Dead letters", exact=True).locator("tbody a").first.click()
    expect(page.get_by_text("the bank did not answer for payment").first).to_be_visible()
    expect(page.get_by_label("Body")).to_contain_text('"customer": "Zoë"')
    expect(page.get_by_label("Track")).to_contain_text("billing")
    expect(page.get_by_label("Track")).to_contain_text("dead lettered")
    page.get_by_role("link", name="dead letter", exact=True).click()
    expect(page.get_by_text("%DLQ%billing, broker-")).to_be_visible()


def test_keys_alone_reach_a_row_of_a_list(page: Page) -> None:
    page.goto("/")
    page.keyboard.press("g")
    page.keyboard.press("t")
    expect(page.get_by_role("heading", name="Topics", level=1)).to_be_visible()
    page.keyboard.press("Tab")  # the menu is behind
    expect(page.get_by_role("link", name="Create a topic")).to_be_focused()
    page.keyboard.press("/")
    page.keyboard.type("pay")
    page.keyboard.press("Enter")
    expect(page).to_have_url("/topics?name=pay&type=&sort=name")
    expect(page.locator("table.rows tbody tr")).to_have_count(1)
    page.keyboard.press("Escape")
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="payments", level=1)).to_be_visible()
    page.keyboard.press("?")
    expect(page.get_by_role("heading", name="Keys", level=1)).to_be_visible()


def test_tab_reaches_the_content_by_a_skip_link(page: Page) -> None:
    page.goto("/groups")
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Create a group")).to_be_focused()


def test_a_form_is_sent_once_and_its_error_is_in_focus(page: Page) -> None:
    sent: list[str] = []
    page.on("request", lambda each: sent.append(each.url) if each.method == "POST" else None)
    page.goto("/topics/orders/delete")
    page.get_by_label("to confirm").fill("order")
    page.get_by_role("button", name="Delete the topic").dblclick()
    expect(page.locator("#problem")).to_be_focused()
    expect(page.get_by_role("button", name="Delete the topic")).to_be_enabled()
    assert len(sent) == 1
    page.go_back()
    expect(page.locator("#problem")).to_have_count(0)


def test_times_are_local_with_utc_in_the_title(page: Page) -> None:
    page.goto("/dead-letters/billing")
    time = page.locator("table.rows time").first
    local, title = time.inner_text(), time.get_attribute("title") or ""
    assert "UTC" not in local and title.endswith("UTC")
    assert (int(local[11:13]) - int(title[11:13])) % 24 == 9  # Tokyo


def test_a_topic_lives_and_dies_without_scripts(browser: Browser, the_shop: Shop) -> None:
    context = browser.new_context(base_url=the_shop.url, java_script_enabled=False)
    page = context.new_page()
    page.goto("/topics")
    page.get_by_role("link", name="Create a topic").click()
    page.get_by_label("Name").fill("without-scripts")
    page.get_by_role("button", name="Create").click()
    expect(page.get_by_text("broker-b: created")).to_be_visible()
    page.get_by_role("link", name="Continue").click()
    page.get_by_role("link", name="Send a message").click()
    page.get_by_label("Body").fill("42 apples")
    page.get_by_role("button", name="Send").click()
    page.get_by_role("link", name="Show the message").click()
    expect(page.get_by_label("Body")).to_have_text("42 apples")
    page.goto("/topics/without-scripts/delete")
    expect(page.get_by_text("without-scripts has 1 message")).to_be_visible()
    page.get_by_label("to confirm").fill("without-scripts")
    page.get_by_role("button", name="Delete the topic").click()
    expect(page.get_by_text("was deleted on every broker")).to_be_visible()
    context.close()


def test_a_reset_is_shown_by_queue_and_made_with_scripts(page: Page) -> None:
    page.goto("/groups/shipping")
    page.get_by_role("link", name="Reset offsets").click()
    page.get_by_label("Topic").fill("payments")
    page.get_by_label("To", exact=False).last.fill("earliest")
    page.get_by_role("button", name="Show the consequences").click()
    expect(page.get_by_text("shipping has 0 members")).to_be_visible()
    expect(page.locator("table.rows tbody tr")).to_have_count(4)
    page.get_by_label("to confirm").fill("shipping")
    page.get_by_role("button", name="Reset the offsets").click()
    expect(page.get_by_text("shipping continues at the new offsets").first).to_be_visible()


def test_chosen_transactions_are_rolled_back_by_mouse(page: Page) -> None:
    page.goto("/transactions")
    expect(page.locator("table.rows tbody tr")).to_have_count(OPEN)
    page.get_by_role("checkbox").first.check()
    page.get_by_role("button", name="Roll back the chosen").click()
    expect(page.get_by_text("for invoices is discarded")).to_be_visible()
    page.get_by_label("to confirm").fill("rollback")
    page.get_by_role("button", name="Roll back").click()
    expect(page.get_by_text("1 transaction rolled back").first).to_be_visible()
    page.get_by_role("link", name="Continue").click()
    expect(page.locator("table.rows tbody tr")).to_have_count(OPEN - 1)


def test_a_tick_stays_with_its_transaction_when_an_older_one_ends(
    page: Page, the_shop: Shop
) -> None:
    page.goto("/transactions")
    boxes = page.get_by_role("checkbox")
    before = boxes.count()
    value = boxes.nth(1).get_attribute("value")
    boxes.nth(1).check()
    with AdminClient(the_shop.namesrv) as admin:
        admin.end_transaction(admin.list_transactions().rows[0], commit=False)
    expect(boxes).to_have_count(before - 1, timeout=LIVE_MS)
    assert [box.get_attribute("value") for box in page.locator("input:checked").all()] == [value]


def test_chosen_leases_are_released_without_scripts(browser: Browser, the_shop: Shop) -> None:
    context = browser.new_context(base_url=the_shop.url, java_script_enabled=False)
    page = context.new_page()
    page.goto("/leases")
    page.get_by_role("link", name="packing").click()
    boxes = page.get_by_role("checkbox")
    assert 0 < boxes.count() <= HELD
    boxes.first.check()
    page.get_by_role("button", name="Release the chosen").click()
    expect(page.get_by_text("is delivered again at once")).to_be_visible()
    page.get_by_role("button", name="Release").click()
    expect(page.get_by_text("1 lease of packing released").first).to_be_visible()
    context.close()


def test_an_option_is_changed_and_taken_back_in_the_browser(page: Page) -> None:
    page.goto("/brokers/broker-a")
    page.get_by_role("link", name="Configuration").click()
    page.get_by_label("Option contains").fill("fileReserved")
    page.get_by_role("button", name="Filter").click()
    page.wait_for_url("**?key=fileReserved")  # the link is on the page before, too
    page.get_by_role("link", name="Change fileReservedTime").click()
    page.get_by_role("textbox", name="Value").fill("48")
    page.get_by_role("button", name="Change").click()
    expect(page.get_by_text("fileReservedTime is 48").first).to_be_visible()
    page.get_by_role("link", name="Continue").click()
    expect(page.get_by_role("row", name="fileReservedTime 48 run time Change")).to_be_visible()
    page.get_by_role("link", name="Change fileReservedTime").click()
    page.get_by_label("Take the change back").select_option("yes")
    page.get_by_role("button", name="Change").click()
    expect(page.get_by_text("fileReservedTime was taken back").first).to_be_visible()


def test_a_user_is_created_by_keys_alone_and_its_secret_shown_once(page: Page) -> None:
    page.goto("/")
    page.keyboard.press("g")
    page.keyboard.press("u")
    expect(page.get_by_role("heading", name="Users", level=1)).to_be_visible()
    page.get_by_role("link", name="Create a user").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Create a user", level=1)).to_be_visible()
    page.get_by_label("Name").focus()
    page.keyboard.type("packing")
    page.keyboard.press("Enter")
    expect(page.get_by_text("User packing was created").first).to_be_visible()
    secret = page.get_by_label("Secret key").locator("code").inner_text()
    assert len(secret) == 32
    picture(page, f"secret-{WIDE}-light")
    page.keyboard.press("Escape")
    page.get_by_role("link", name="Continue").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="packing", exact=True)).to_be_visible()
    page.go_back()
    expect(page.get_by_role("heading", name="Create a user", level=1)).to_be_visible()
    assert secret not in page.content()


def test_a_policy_is_added_tested_and_deleted_without_scripts(
    browser: Browser, the_shop: Shop
) -> None:
    context = browser.new_context(base_url=the_shop.url, java_script_enabled=False)
    page = context.new_page()
    page.goto("/users/shop")
    page.get_by_role("link", name="Add a policy").click()
    page.get_by_label("Resource").fill("Topic:orders")
    page.get_by_label("Actions").fill("Pub")
    page.get_by_label("Decision").select_option("DENY")
    page.get_by_role("button", name="Add").click()
    expect(page.get_by_text("DENY Pub on Topic:orders (CUSTOM)")).to_be_visible()
    page.get_by_role("link", name="Continue").click()
    page.get_by_role("link", name="Test a right").last.click()
    page.get_by_label("Resource").fill("Topic:orders")
    page.get_by_label("Action").select_option("Pub")
    page.get_by_role("button", name="Test").click()
    expect(page.get_by_label("Decision")).to_contain_text("decided by DENY Pub on Topic:orders")
    page.get_by_role("link", name="shop").click()
    page.get_by_role("link", name="Delete DENY Pub").click()
    expect(page.get_by_text("1 policy is left")).to_be_visible()
    page.get_by_role("button", name="Delete").click()
    expect(page.get_by_text("for Topic:orders were deleted")).to_be_visible()
    context.close()


def test_a_page_refreshes_and_keeps_focus_and_chosen_row(page: Page, the_shop: Shop) -> None:
    page.goto("/topics")
    page.keyboard.press("j")
    page.keyboard.press("j")
    chosen = page.locator("tr.chosen a").inner_text()
    with page.expect_response(lambda answer: answer.url.endswith("/topics")):
        page.keyboard.press("r")
    expect(page.locator("tr.chosen a")).to_have_text(chosen)
    expect(page.locator("tr.chosen a")).to_be_focused()


def test_an_open_page_follows_and_keeps_focus_choice_and_scroll(page: Page, the_shop: Shop) -> None:
    page.goto("/topics")
    page.set_viewport_size({"width": WIDE, "height": 300})
    page.keyboard.press("j")
    page.evaluate("scrollTo(0, 90)")
    with AdminClient(the_shop.namesrv) as admin:
        admin.create_topic("a-new-topic", queues=1)
        expect(page.get_by_role("link", name="a-new-topic")).to_be_visible(timeout=LIVE_MS)
        expect(page.get_by_role("link", name="emails")).to_be_focused()
        assert page.evaluate("scrollY") == 90
        page.get_by_label("Name contains").fill("nothing yet")
        admin.delete_topic("a-new-topic")
    expect(page.get_by_role("link", name="a-new-topic")).not_to_be_visible(timeout=LIVE_MS)
    expect(page.get_by_label("Name contains")).to_have_value("nothing yet")


def test_a_hidden_tab_has_no_stream(page: Page) -> None:
    hide = """hidden => {
        Object.defineProperty(document, "hidden", {value: hidden, configurable: true});
        document.dispatchEvent(new Event("visibilitychange"));
    }"""
    with page.expect_request("**/live?page=*"):
        page.goto("/groups")
    with page.expect_event("requestfailed", lambda request: "/live" in request.url):
        page.evaluate(hide, True)
    with page.expect_request("**/live?page=%2Fgroups"):
        page.evaluate(hide, False)


LATE = """() => {
    const streams = [], Real = EventSource;
    window.EventSource = class extends Real {
        constructor(address) { super(address); streams.push(this); }
    };
    document.addEventListener("htmx:afterSwap", () => {
        const content = '<main id="content" tabindex="-1"><h1>The former page</h1></main>';
        const data = JSON.stringify({content});
        for (const each of streams) each.dispatchEvent(new MessageEvent("page", {data}));
    });
}"""


def test_a_late_event_of_the_former_page_does_not_replace_the_next_one(page: Page) -> None:
    page.add_init_script(f"({LATE})()")
    with page.expect_request("**/live?page=*"):
        page.goto("/topics")
    page.get_by_role("link", name="Create a topic").click()
    expect(page.get_by_role("heading", name="Create a topic", level=1)).to_be_visible()
    page.get_by_label("Name").fill("x")
    expect(page.get_by_text("The former page")).to_have_count(0)
    expect(page.get_by_role("button", name="Create")).to_be_visible()


def test_a_console_that_stops_is_shown_as_lost_and_comes_back(page: Page, the_shop: Shop) -> None:
    page.goto("/clients")
    the_shop.console.kill()
    try:
        expect(page.get_by_text("connection lost")).to_be_visible(timeout=LIVE_MS)
    finally:
        the_shop.console.start()
    expect(page.get_by_text("connection lost")).not_to_be_visible(timeout=LIVE_MS)


def with_silent_broker_b(the_shop: Shop) -> dict[str, str]:
    """Return the addresses of pages that ask broker-b, by name."""
    with AdminClient(the_shop.namesrv) as admin:
        found = admin.search_messages("payments").messages
        message = next(each for each in found if each.broker_name == "broker-a")
    asking = {name: address for name, address in PAGES.items() if name not in OF_ONE_BROKER}
    return asking | {
        "message": f"/messages/{message.message_id}",
        "silent broker": "/brokers/broker-b",
        "its configuration": "/brokers/broker-b/configuration",
        "its promotion": "/brokers/broker-b/promote",
    }


def test_each_page_with_one_of_two_brokers_hanging_names_it(the_shop: Shop) -> None:
    addresses = with_silent_broker_b(the_shop)

    def text_of(address: str) -> str:
        """Return a page, also that of an error."""
        try:
            answer = urllib.request.urlopen(the_shop.url + address, timeout=EXPECT_MS / 1_000)
        except HTTPError as error:
            answer = error
        with answer:
            return str(answer.read().decode())

    broker = the_shop.brokers["broker-b"]
    broker.send_signal(signal.SIGSTOP)
    try:
        with ThreadPoolExecutor(len(addresses)) as pool:
            texts = dict(zip(addresses, pool.map(text_of, addresses.values()), strict=True))
    finally:
        broker.send_signal(signal.SIGCONT)
    named = re.compile(r"Brokers that did not answer.*<b>[^<]*broker-b[^<]*</b>: ", re.DOTALL)
    assert {name: text for name, text in texts.items() if not named.search(text)} == {}
    assert {name: claims for name, text in texts.items() if (claims := unfounded(text))} == {}


def test_each_page_with_one_of_two_brokers_killed_names_it(page: Page, the_shop: Shop) -> None:
    """The last test: the broker stays dead."""
    addresses = with_silent_broker_b(the_shop)
    the_shop.brokers["broker-b"].kill()
    for name, address in addresses.items():
        page.goto(address)
        expect(page.get_by_label("Brokers that did not answer")).to_contain_text("broker-b")
        assert unfounded(page.content()) == [], name
    picture(page, "without-broker-b")
