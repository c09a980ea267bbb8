"""Bodies and names of others as text."""

from __future__ import annotations

import pytest

from aerobee_console.reading.text import MAX_BODY_BYTES, MAX_PRETTY, body_of, printable


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
