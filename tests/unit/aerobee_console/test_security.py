"""Other pages in the same browser can neither read the console nor make it change anything."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from aerobee_console.options import Options
from aerobee_console.web.security import Guard, Refused, host_of
from support.console.visitor import HOST, Visitor, call

FOREIGN = ("http://evil.example", "null", "http://127.0.0.1:9999")
HEADERS = {"host": HOST, "origin": f"http://{HOST}"}


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8082", "127.0.0.1.evil.example", ""]
)
async def test_a_foreign_host_gets_nothing(host: str, visitor: Visitor) -> None:
    response = await visitor.get("/topics", host=host)
    assert response.status == 421 and "orders" not in response.text


@pytest.mark.parametrize("host", ["localhost:8082", "127.0.0.1", "[::1]:8082", "LOCALHOST:1"])
async def test_loopback_gets_the_page(host: str, visitor: Visitor) -> None:
    assert (await visitor.get("/topics", host=host)).status == 200


def test_a_configured_name_is_accepted() -> None:
    options = Options(namesrvs=("n:1",), host_names=("Console.example",))
    assert host_of("console.example:443") in options.names


async def test_every_answer_forbids_inline_scripts_and_frames(visitor: Visitor) -> None:
    for address in ("/", "/none", "/topics?page=x", "/static/console.js"):
        headers = (await visitor.get(address)).headers
        policy = headers["content-security-policy"]
        assert "default-src 'self'" in policy and "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert headers["x-frame-options"] == "DENY"
        assert headers["x-content-type-options"] == "nosniff"


async def test_no_page_has_an_inline_script_or_style(visitor: Visitor) -> None:
    for address in ("/", "/brokers", "/topics", "/groups", "/messages", "/clients", "/keys"):
        text = (await visitor.get(address)).text
        assert "<style" not in text and " style=" not in text and "javascript:" not in text
        assert "<script>" not in text and " onclick" not in text


@pytest.mark.parametrize("address", ["/static/../options.py", "/static/vendor/", "/static/x.js"])
async def test_no_other_file_is_served(address: str, visitor: Visitor) -> None:
    assert (await visitor.get(address)).status == 404


@pytest.mark.parametrize("origin", [{}, *({"origin": each} for each in FOREIGN)])
def test_a_change_needs_an_origin(origin: dict[str, str]) -> None:
    guard = Guard(Options(namesrvs=("n:1",)))
    guard.check_origin(HEADERS)
    with pytest.raises(Refused):
        guard.check_origin({"host": HOST, **origin})


@pytest.mark.parametrize("token", ["", "wrong"])
def test_a_change_needs_the_token(token: str) -> None:
    guard = Guard(Options(namesrvs=("n:1",)))
    guard.check_token(guard.token)
    with pytest.raises(Refused):
        guard.check_token(token)


def test_a_read_only_console_refuses_every_change() -> None:
    guard = Guard(Options(namesrvs=("n:1",), read_only=True))
    with pytest.raises(Refused, match="read-only"):
        guard.check_origin(HEADERS)


def test_the_address_that_it_listens_on_is_accepted() -> None:
    assert "127.0.0.2" in Options(namesrvs=("n:1",), host="127.0.0.2").names


async def test_names_of_others_stand_on_a_page_as_text(visitor: Visitor) -> None:
    body = "<script>alert(1)</script>\u202egpj.exe\x00".encode()
    sent = {"TAGS": "<b>", "KEYS": "k\u202e1", "note": "<i>\x1b[31m"}
    await visitor.brokers["a"].send(
        "orders", body, properties={**sent, "UNIQ_KEY": "C00002023D65006101A28F6593060018"}
    )
    text = (await visitor.get("/messages/C00002023D65006101A28F6593060018")).text
    assert "<script>alert" not in text and "&lt;script&gt;alert(1)" in text
    assert "<b>" not in text.split("Tag</dt>")[1][:40] and "<i>" not in text
    assert "\u202e" not in text and "\\u202e" in text
    assert "\x1b" not in text and "\\x1b" in text and "\\x00" in text


async def test_a_body_is_downloaded_as_an_attachment(visitor: Visitor) -> None:
    await visitor.brokers["a"].send(
        "orders", b"<html>", properties={"UNIQ_KEY": "C00002023D65006101A28F6593060018"}
    )
    response = await visitor.get("/messages/C00002023D65006101A28F6593060018/body")
    assert response.body == b"<html>"
    assert response.headers["content-type"] == "application/octet-stream"
    assert response.headers["content-disposition"].startswith("attachment")


@pytest.mark.parametrize("path", ["/topics/orders/send", "/api/v1/topics/orders/send"])
async def test_a_body_without_a_length_has_a_limit(path: str, visitor: Visitor) -> None:
    headers = {**HEADERS, "x-csrf-token": visitor.console.guard.token}
    parts = [bytes(1 << 20)] * 6
    response = await call(visitor.app, "POST", path, headers, *parts)
    assert response.status == 413 and "too large" in response.text


@pytest.mark.parametrize("path", ["/topics/orders/send", "/api/v1/topics/orders/send"])
async def test_the_body_of_a_foreign_page_is_not_read(path: str, visitor: Visitor) -> None:
    headers = {**HEADERS, "origin": "http://evil.example"}
    response = await call(visitor.app, "POST", path, headers, *[bytes(1 << 20)] * 6)
    assert response.status == 403


@pytest.mark.parametrize("path", ["/topics/orders/send", "/api/v1/topics/orders/send"])
@pytest.mark.parametrize("body", [b"\xff", b'{"body": "\\ud800"}', b"[" * 100_000])
async def test_a_body_that_is_not_text_is_refused(path: str, body: bytes, visitor: Visitor) -> None:
    headers = {**HEADERS, "x-csrf-token": visitor.console.guard.token}
    response = await call(visitor.app, "POST", path, headers, body)
    assert response.status in (400, 403)  # a form without the token


# ---- test read only ----
#
# A read-only console shows no buttons and refuses every change.


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
