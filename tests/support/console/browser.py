"""A Chromium that tests drive, and axe-core for it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Locator, Page, expect, sync_playwright

from support.repository.tree import ROOT

AXE = ROOT / "build" / "axe" / "node_modules" / "axe-core" / "axe.min.js"
# What a container without user namespaces needs, and what a headless browser does not.
ARGUMENTS = ("--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu")
# The severe half of axe's four impacts.
SEVERE = ("serious", "critical")
PICTURES_VARIABLE = "AEROBEE_PICTURES"
# Playwright's own limit of a click. Its limit of an expectation, 5 s, is the time between two reads
# of an open page.
EXPECT_MS = 30_000


def chromium() -> str:
    """Return the path of a Chromium, or skip the test; fail if AEROBEE_REQUIRE_BROWSER is set."""
    found = shutil.which(os.environ.get("AEROBEE_CHROMIUM") or "chromium")
    if found is not None:
        return found
    if os.environ.get("AEROBEE_REQUIRE_BROWSER"):
        pytest.fail("AEROBEE_REQUIRE_BROWSER is set, but there is no chromium on PATH")
    pytest.skip("needs a Chromium (on Debian: apt-get install chromium, or AEROBEE_CHROMIUM)")


@contextmanager
def running() -> Iterator[Browser]:
    """A browser without a window, until the end of the block."""
    path = chromium()
    expect.set_options(timeout=EXPECT_MS)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=ARGUMENTS)
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def opened(browser: Browser, url: str, **options: Any) -> Iterator[Page]:
    """A page of a new context, for addresses below `url`."""
    context = browser.new_context(base_url=url, **options)
    context.set_default_timeout(EXPECT_MS)
    try:
        yield context.new_page()
    finally:
        context.close()


def follow(page: Page, link: Locator, heading: str) -> None:
    """Click a link, and wait for its page.

    A click does not wait for a page that replaces the content, so that the next step would look
    for its link on the former page.
    """
    link.click()
    expect(page.get_by_role("heading", name=heading, level=1, exact=True)).to_be_visible()


def problems_of_accessibility(page: Page) -> list[str]:
    """What axe-core finds on a page, as far as it is serious or critical."""
    if not AXE.is_file():
        if os.environ.get("AEROBEE_REQUIRE_BROWSER"):
            pytest.fail(f"AEROBEE_REQUIRE_BROWSER is set, but there is no {AXE}")
        pytest.skip("needs axe-core: make build/axe/.installed")
    # Evaluated by the debugger's protocol, which a page's policy does not concern.
    page.evaluate(AXE.read_text(encoding="utf-8"))
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    return [
        f"{each['id']}: {each['help']}: {node['html'][:200]}"
        for each in found["violations"]
        if each["impact"] in SEVERE
        for node in each["nodes"]
    ]


def picture(page: Page, name: str) -> None:
    """Keep a screenshot in build/console, if AEROBEE_PICTURES is set.

    150 of them take as much processor time as half of the checks of accessibility.
    """
    if not os.environ.get(PICTURES_VARIABLE):
        return
    folder = Path(ROOT, "build", "console")
    folder.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=folder / f"{name}.png", full_page=True)
