"""The console with a login, at a path behind a reverse proxy with HTTPS, in a Chromium."""

from __future__ import annotations

import ssl
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import pytest
from playwright.sync_api import Browser, Page, expect

from aerobee_client import AdminClient, Tls
from aerobee_client.admin.descriptions import PolicyDescription
from support.console.browser import EXPECT_MS, chromium, picture, problems_of_accessibility, running
from support.console.reverse_proxy import reverse_proxy
from support.processes import certificates
from support.processes.command import Up
from support.processes.service import ServiceProcess

BASE = "/tools/aerobee"
SECRET = "a secret key"
LIVE_MS = EXPECT_MS


@dataclass
class Site:
    """`url` is the address of the reverse proxy, and `console` that of the console behind it."""

    url: str
    console: str
    namesrv: str
    tls: Tls


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    chromium()  # skips before the services start
    data = tmp_path_factory.mktemp("site")
    with ExitStack() as stack:
        up = stack.enter_context(Up(data, "--secure", "--one-process"))
        secure = data / "secure"
        tls = Tls(secure / "ca.crt", secure / "admin.crt", secure / "admin.key")
        with AdminClient(up.namesrv, tls=tls) as admin:
            admin.create_topic("orders")
            admin.create_user("ops", SECRET, super=True)
            admin.create_user("reader", SECRET)
            rights = (("Cluster:*", ("Get", "List")), ("Topic:*", ("Get", "List")))
            admin.create_policies("reader", [PolicyDescription(*each) for each in rights])
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.setenv("AEROBEE_TLS_TRUST_CERT_PATH", str(secure / "ca.crt"))
        options = ("--login", "--trusted-proxy", "127.0.0.0/8", "--base-path", BASE)
        console = stack.enter_context(
            ServiceProcess("aerobee_console", "--port", "0", "--namesrv", up.namesrv, *options)
        )
        certificate, key = certificates.write(tmp_path_factory.mktemp("proxy"))
        url = stack.enter_context(reverse_proxy(console.address, BASE, certificate, key))
        yield Site(url, console.address, up.namesrv, tls)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with running() as found:
        yield found


def visit(browser: Browser, site: Site, **options: object) -> Page:
    context = browser.new_context(
        base_url=site.url,
        ignore_https_errors=True,
        **options,  # type: ignore[arg-type]
    )
    context.set_default_timeout(LIVE_MS)
    return context.new_page()


def log_in(page: Page, user: str) -> None:
    page.get_by_label("User").fill(user)
    page.get_by_label("Secret key").fill(SECRET)
    page.get_by_role("button", name="Log in").click()


def test_a_visit_from_the_login_to_the_logout(browser: Browser, site: Site) -> None:
    page = visit(browser, site)
    outside: list[str] = []
    page.on("request", lambda each: outside.append(each.url) if BASE not in each.url else None)
    page.goto(f"{BASE}/topics?sort=lag")
    expect(page).to_have_url(f"{site.url}{BASE}/login?next=%2Ftopics%3Fsort%3Dlag")
    page.get_by_label("User").fill("ops")
    page.get_by_label("Secret key").fill("another key")
    page.keyboard.press("Enter")
    expect(page.get_by_text("the user or the secret key is not valid")).to_be_visible()
    page.get_by_label("Secret key").fill(SECRET)
    with page.expect_request(f"**{BASE}/live?page=%2Ftopics%3Fsort%3Dlag"):
        page.keyboard.press("Enter")
    expect(page).to_have_url(f"{site.url}{BASE}/topics?sort=lag")
    (cookie,) = page.context.cookies()
    assert (cookie["path"], cookie["secure"], cookie["httpOnly"], cookie["sameSite"]) == (
        BASE, True, True, "Strict",
    )  # fmt: skip
    with AdminClient(site.namesrv, tls=site.tls) as admin:
        admin.create_topic("parcels")
    expect(page.get_by_role("link", name="parcels")).to_be_visible(timeout=LIVE_MS)
    page.keyboard.press("g")
    page.keyboard.press("u")
    page.get_by_role("link", name="Create a user").click()
    expect(page.get_by_role("heading", name="Create a user", level=1)).to_be_visible()
    page.get_by_label("Name").fill("packing")
    page.get_by_role("button", name="Create").click()
    expect(page.get_by_text("User packing was created").first).to_be_visible()
    page.keyboard.press("?")
    expect(page.get_by_role("heading", name="Keys", level=1)).to_be_visible()
    page.get_by_role("button", name="Log out").click()
    expect(page).to_have_url(f"{site.url}{BASE}/login")
    page.goto(f"{BASE}/topics")
    expect(page.get_by_role("button", name="Log in")).to_be_visible()
    assert outside == []
    page.context.close()


def test_the_login_works_without_scripts_and_a_reader_sees_no_buttons(
    browser: Browser, site: Site
) -> None:
    page = visit(browser, site, java_script_enabled=False)
    page.goto(f"{BASE}/users")
    log_in(page, "reader")
    expect(page.get_by_role("heading", name="Users", level=1)).to_be_visible()
    expect(page.get_by_text("read-only")).to_be_visible()
    expect(page.get_by_role("link", name="Create a user")).to_have_count(0)
    page.get_by_role("link", name="ops").click()
    expect(page.get_by_text("A SUPER user needs no policies.")).to_be_visible()
    page.get_by_role("link", name="Test a right").last.click()
    page.get_by_label("Resource").fill("Topic:orders")
    page.get_by_role("button", name="Test").click()
    expect(page.get_by_label("Decision")).to_contain_text("the user is SUPER")
    page.get_by_role("button", name="Log out").click()
    expect(page.get_by_role("button", name="Log in")).to_be_visible()
    page.context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_login_is_accessible_and_fits_its_window(
    scheme: str, browser: Browser, site: Site
) -> None:
    page = visit(browser, site, color_scheme=scheme)
    found: list[str] = []
    for width in (1280, 390, 320):
        page.set_viewport_size({"width": width, "height": 800})
        page.goto(f"{BASE}/login")
        log_in(page, "nobody")
        expect(page.get_by_text("is not valid")).to_be_visible()
        found += problems_of_accessibility(page)
        assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0, width
        picture(page, f"login-{width}-{scheme}")
    assert found == []
    page.context.close()


def test_the_login_by_keys_alone(browser: Browser, site: Site) -> None:
    page = visit(browser, site)
    page.goto(f"{BASE}/login")
    for _ in range(3):  # the skip link, and the name of the product
        page.keyboard.press("Tab")
    expect(page.get_by_label("User")).to_be_focused()
    page.keyboard.type("ops")
    page.keyboard.press("Tab")
    page.keyboard.type(SECRET)
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Overview", level=1)).to_be_visible()
    page.context.close()


def test_the_console_itself_answers_only_the_proxy(site: Site) -> None:
    """Without the header of the proxy, which says that the browser uses HTTPS."""
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(f"http://{site.console}{BASE}/login", timeout=30)
    assert caught.value.code == 403
    context = ssl._create_unverified_context()
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(f"{site.url}/topics", timeout=30, context=context)
    assert caught.value.read() == b"another program of this host"
