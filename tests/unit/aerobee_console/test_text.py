"""Bodies and names of others as text."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from aerobee_console.masking import BadMask, Mask
from aerobee_console.reading.text import MAX_BODY_BYTES, MAX_PRETTY, body_of, printable
from aerobee_wire import properties
from support.console.visitor import Visitor


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Zoë, Köln 你好 🙂", "Zoë, Köln 你好 🙂"),
        ("a\u202eb", "a\\u202eb"),
        ("a\u200bb", "a\\u200bb"),
        ("a\x1b[31m", "a\\x1b[31m"),
        ("a\u2028b", "a\\u2028b"),
        ("a\U000e0041b", "a\\U000e0041b"),
        ("a\nb", "a\\x0ab"),
        ("a\xa0b", "a\xa0b"),
    ],
)
def test_hidden_characters_are_escaped(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_a_json_body_is_indented() -> None:
    body = body_of(b'{"a":[1,2]}')
    assert (body.format, body.text) == ("json", '{\n  "a": [\n    1,\n    2\n  ]\n}')


def test_bytes_that_are_not_text_are_shown_in_hex() -> None:
    body = body_of(b"\xff\x00A")
    assert body.format == "hex" and body.text.startswith("00000000  ff 00 41")
    assert body_of(b"\xff", "text").problem == "the body is not text in UTF-8"


def test_text_is_not_called_json() -> None:
    body = body_of(b"hello", "json")
    assert (body.format, body.problem) == ("text", "the body is not JSON")


def test_only_the_first_64_kib_are_shown() -> None:
    body = body_of(b"x" * (MAX_BODY_BYTES + 1))
    assert body.truncated and len(body.text) == MAX_BODY_BYTES and body.size == MAX_BODY_BYTES + 1


def test_a_character_that_the_bound_cuts_does_not_make_text_binary() -> None:
    body = body_of(b"x" * (MAX_BODY_BYTES - 1) + "ë".encode())
    assert body.format == "text" and body.text == "x" * (MAX_BODY_BYTES - 1)


def test_deep_json_is_shown_as_text() -> None:
    assert body_of(b"[" * 20_000).format == "text"


def test_deeply_nested_json_is_shown_as_text() -> None:
    body = body_of(b"[" + b"[" * 500 + b"1," * 30_000 + b"1" + b"]" * 501, "json")
    assert body.format == "text" and len(body.text) < MAX_PRETTY
    assert "too deeply" in body.problem


# ---- test masking ----
#
# Masked values: never shown, in no format, and a body that cannot be masked is hidden.


ID = "C00002023D65006101A28F6593060018"
BODY = {"card": {"number": "90210", "kind": "visa"}, "items": [{"pan": "0815"}, {"pan": "0816"}]}
MASKS = ("$.card.number", "$..pan", "KEYS", "secret", "DLQ_REASON_DESCRIPTION")


@pytest.fixture
async def masked(tmp_path: Path) -> AsyncIterator[Visitor]:
    visitor = await Visitor.begin(tmp_path, mask=Mask.of(MASKS))
    visitor.topic("orders")
    yield visitor
    await visitor.end()


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("$.a", {"a": "***", "b": [{"a": 1}, 2]}),
        ("$..a", {"a": "***", "b": [{"a": "***"}, 2]}),
        ("$.b[*]", {"a": {"a": 3}, "b": ["***", "***"]}),
        ("$.b[1]", {"a": {"a": 3}, "b": [{"a": 1}, "***"]}),
        ("$['b'][0].a", {"a": {"a": 3}, "b": [{"a": "***"}, 2]}),
        ("$.*", {"a": "***", "b": "***"}),
        ("$.none.a", {"a": {"a": 3}, "b": [{"a": 1}, 2]}),
        ("$", "***"),
    ],
)
def test_a_path_masks_the_values_at_its_end(path: str, expected: object) -> None:
    body = json.dumps({"a": {"a": 3}, "b": [{"a": 1}, 2]}).encode()
    assert json.loads(Mask.of([path]).body(body) or b"") == expected


@pytest.mark.parametrize("text", ["$x", "$.a[", "$.", "$[b]", "$...a", "", "UNIQ_KEY"])
def test_a_bad_mask_is_refused(text: str) -> None:
    with pytest.raises(BadMask):
        Mask.of([text])


@pytest.mark.parametrize("body", [b"90210", b"card 90210", b"\xff90210", b"[" * 100_000])
def test_a_body_that_is_not_an_object_is_masked_or_hidden(body: bytes) -> None:
    assert Mask.of(["$"]).body(body) in (None, b'"***"')


@pytest.mark.parametrize("form", ["", "text", "json", "hex"])
async def test_a_masked_value_is_in_no_format(form: str, masked: Visitor) -> None:
    named = {
        properties.UNIQUE_KEY: ID,
        properties.KEYS: "key-90210",
        "secret": "90210",
        "open": "yes",
    }
    body = json.dumps(BODY).encode()
    await masked.brokers["a"].send("orders", body, properties=named)
    page = await masked.get(f"/messages/{ID}?as={form}")
    assert page.status == 200 and "yes" in page.text
    answer = await masked.get(f"/api/v1/messages/{ID}?as={form}")
    found = await masked.get("/messages?topic=orders")
    download = await masked.get(f"/messages/{ID}/body")
    assert json.loads(download.body)["card"] == {"number": "***", "kind": "visa"}
    hidden = [b"90210".hex(" "), "90210", "0815", "0816"]
    for response in (page, answer, found, download):
        assert not [each for each in hidden if each in response.text]


async def test_a_body_that_cannot_be_masked_is_hidden(masked: Visitor) -> None:
    named = {properties.UNIQUE_KEY: ID, properties.DLQ_REASON_DESCRIPTION: "card 90210"}
    await masked.brokers["a"].send("orders", b"card 90210", properties=named)
    for form in ("text", "hex"):
        page = await masked.get(f"/messages/{ID}?as={form}")
        assert "the body is hidden" in page.words
        assert "90210" not in page.text and b"90210".hex(" ") not in page.text
    download = await masked.get(f"/messages/{ID}/body")
    assert download.status == 403 and "90210" not in download.text
    search = await masked.get("/messages?topic=orders&text=90210")
    assert search.status == 400 and "--mask" in search.words
