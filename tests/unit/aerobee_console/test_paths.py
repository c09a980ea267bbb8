"""Test the paths of addresses: the base path of the console, and names as a part of a path."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urljoin, urlsplit

import pytest

from aerobee_console.web import api
from aerobee_console.web.actions import ACTIONS
from aerobee_console.web.pages import PAGES
from aerobee_console.web.paths import BadBasePath, base_path, part
from support.console.servers import Users
from support.console.visitor import HOST, Visitor, call

# ---- test base path ----
#
# A console at a path of a host: links, redirects and cookies have it, and requests need it.


BASE = "/tools/aerobee"


@pytest.fixture
async def below(tmp_path: Path) -> AsyncIterator[Visitor]:
    visitor = await Visitor.begin(tmp_path, base_path=BASE)
    visitor.topic("orders")
    await visitor.group("billing")
    yield visitor
    await visitor.end()


@pytest.mark.parametrize(
    "page",
    ["", "/", "/topics", "/topics/orders", "/groups/billing", "/new-topic", "/new-user", "/none"],
)
async def test_every_address_of_a_page_has_the_path(page: str, below: Visitor) -> None:
    answer = await below.get(BASE + page)
    assert answer.status == (404 if page == "/none" else 200)
    addresses = re.findall(r'\b(?:href|src|action)="(/[^"]*)"', answer.text)
    assert len(addresses) > 10
    assert [each for each in addresses if not each.startswith(f"{BASE}/")] == []
    assert [each for each in addresses if each.startswith(BASE * 2)] == []


async def test_a_link_of_a_page_leads_to_a_page(below: Visitor) -> None:
    answer = await below.get(f"{BASE}/topics")
    found = re.search(r'href="([^"]*/orders)"', answer.text)
    assert found is not None
    assert "orders" in (await below.get(found[1])).words
    assert (await below.get(f"{BASE}/static/console.css")).status == 200


@pytest.mark.parametrize("address", ["/", "/topics", f"{BASE}x/topics", "/static/console.css"])
async def test_other_paths_of_the_host_are_not_the_console(address: str, below: Visitor) -> None:
    answer = await below.get(address)
    assert answer.status == 404 and f"{BASE}/" in answer.text and "orders" not in answer.text


@pytest.mark.parametrize(
    ("address", "location"),
    [
        (f"{BASE}/topics/", f"{BASE}/topics"),
        (f"{BASE}/messages?id=a%20b", f"{BASE}/messages/a%20b"),
    ],
)
async def test_a_redirect_has_the_path_and_no_host(
    address: str, location: str, below: Visitor
) -> None:
    answer = await below.get(address)
    assert answer.status in (303, 307) and answer.headers["location"] == location


async def test_a_text_of_a_user_is_not_changed(below: Visitor) -> None:
    name = 'href="/topics"'
    page = await below.get(f"{BASE}/topics?name=href%3D%22/topics%22")
    assert name in page.text.replace("&#34;", '"')
    assert f'value="href=&#34;{BASE}' not in page.text


async def test_a_change_is_made_at_the_path(below: Visitor) -> None:
    done = await below.post(f"{BASE}/new-topic", {"topic": "invoices"})
    assert "Topic invoices exists" in done.words
    refused = await below.post(f"{BASE}/new-topic", {"topic": "x"}, origin="http://evil.example")
    assert refused.status == 403


async def test_the_description_of_the_api_names_the_path(below: Visitor) -> None:
    answer = await below.get(f"{BASE}/api/v1/openapi.json")
    assert json.loads(answer.body)["servers"] == [{"url": BASE}]
    assert json.loads((await below.get(f"{BASE}/api/v1/topics")).body)["total"] == 1


async def test_only_the_path_is_served_by_post_too(below: Visitor) -> None:
    headers = {"host": HOST, "origin": f"http://{HOST}"}
    assert (await call(below.app, "POST", "/new-topic", headers, b"topic=x")).status == 404


@pytest.mark.parametrize(
    ("value", "path"), [("", ""), ("/", ""), ("/a", "/a"), ("/a/", "/a"), ("/a/b-c.d", "/a/b-c.d")]
)
def test_a_base_path_has_no_slash_at_its_end(value: str, path: str) -> None:
    assert base_path(value) == path


@pytest.mark.parametrize(
    "value", ["a", "//a", "/a//b", "/a b", '/a"', "/a/../b", "/.", "/ä", "/a?b"]
)
def test_a_bad_base_path_is_refused(value: str) -> None:
    with pytest.raises(BadBasePath):
        base_path(value)


# ---- test names ----
#
# Each name that a thing can have leads to the page of this thing.


# Names that are a part of some path, and the parts that browsers remove.
NAMES = sorted({word for path in (*ACTIONS, *PAGES) for word in path.split("/") if word.isalpha()})
DOTS = [".", "..", "~.", "~~..", "~", "~x", "..."]


def is_hidden(one: str, other: str) -> bool:
    """Return whether both paths have an address in common."""
    pairs = list(zip(one.split("/"), other.split("/"), strict=False))
    return one.count("/") == other.count("/") and all(
        a == b or "{" in a or "{" in b for a, b in pairs
    )


@pytest.mark.parametrize("paths", [(*ACTIONS, *PAGES), (*ACTIONS, *api.ENDPOINTS)])
def test_no_path_is_also_that_of_a_name(paths: tuple[str, ...]) -> None:
    every = sorted(paths)
    assert len(every) == len(set(every))
    found = [
        (one, other)
        for number, one in enumerate(every)
        for other in every[number + 1 :]
        if is_hidden(one, other)
    ]
    assert found == []


async def test_a_user_of_any_name_has_a_page(visitor: Visitor) -> None:
    users = Users(visitor)
    for name in (*NAMES, *DOTS):
        await users.add(name)
    shown = await visitor.get("/users")
    for name in (*NAMES, *DOTS):
        address = urlsplit(urljoin(f"http://{HOST}/users", f"/users/{part(name)}")).path
        assert f'href="{address}"' in shown.text
        page = await visitor.get(address)
        assert page.status == 200 and f"<h1>{name}</h1>" in page.text, name
        change = await visitor.get(f"{address}/change")
        assert change.status == 200 and f"Change {name}" in change.words, name


@pytest.mark.parametrize("name", ["new", "delete", "%RETRY%new"])
async def test_topics_and_groups_of_any_name_have_pages(name: str, visitor: Visitor) -> None:
    made = await visitor.post("/new-topic", {"topic": name})
    assert made.status == 200 or "%" in name
    visitor.topic(name)
    await visitor.group(name)
    for kind in ("topics", "groups"):
        page = await visitor.get(f"/{kind}/{part(name)}")
        assert page.status == 200 and f"<h1>{name}</h1>" in page.text
        assert (await visitor.get(f"/{kind}/{part(name)}/delete")).status == 200
