"""Each name that a thing can have leads to the page of this thing."""

from __future__ import annotations

from urllib.parse import urljoin, urlsplit

import pytest

from aerobee_console.web import api
from aerobee_console.web.actions import ACTIONS
from aerobee_console.web.names import part
from aerobee_console.web.pages import PAGES
from support.console.access import Users
from support.console.visitor import HOST, Visitor

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
