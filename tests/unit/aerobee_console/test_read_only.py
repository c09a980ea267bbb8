"""A read-only console shows no buttons and refuses every change."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from support.console.visitor import Visitor


@pytest.fixture
async def reader(tmp_path: Path) -> AsyncIterator[Visitor]:
    visitor = await Visitor.begin(tmp_path, "a", read_only=True, bodies=False)
    visitor.topic("orders")
    await visitor.group("billing")
    yield visitor
    await visitor.end()


async def test_it_has_no_buttons_for_changes(reader: Visitor) -> None:
    for address in ("/topics", "/topics/orders", "/groups", "/groups/billing", "/brokers/a"):
        text = (await reader.get(address)).text
        assert "/new" not in text and "/delete" not in text and "/change" not in text
        assert "/reset" not in text and "/drain" not in text and "/send" not in text


async def test_it_refuses_a_change(reader: Visitor) -> None:
    response = await reader.post("/new-topic", {"topic": "invoices"})
    assert response.status == 403 and "--read-only" in response.words


async def test_it_hides_bodies(reader: Visitor) -> None:
    await reader.brokers["a"].send(
        "orders", b"a secret", properties={"UNIQ_KEY": "C00002023D65006101A28F6593060018"}
    )
    page = await reader.get("/messages/C00002023D65006101A28F6593060018")
    assert page.status == 200 and "a secret" not in page.text and "--no-bodies" in page.words
    body = await reader.get("/messages/C00002023D65006101A28F6593060018/body")
    assert b"a secret" not in body.body


async def test_it_does_not_search_bodies(reader: Visitor) -> None:
    response = await reader.get("/messages?topic=orders&text=a")
    assert response.status == 400 and "--no-bodies" in response.words
    assert "Text in the body" not in (await reader.get("/messages")).words
