"""Tags: Java's hash and tag expressions."""

from __future__ import annotations

import pytest

from aerobee_wire.status import Code
from aerobee_wire.tags import codes_of, java_hash, parse_expression, tags_code
from support.codes import raises_code


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", 0),
        ("a", 97),
        ("ab", 97 * 31 + 98),
        ("TagA", 2598919),
        ("hello world", 1794106052),
        ("polygenelubricants", -(2**31)),
        ("ü", 0xFC),
        ("😀", 0xD83D * 31 + 0xDE00),  # two UTF-16 units
    ],
)
def test_hash_is_javas(text: str, code: int) -> None:
    assert java_hash(text) == code


def test_message_without_tags_has_code_0() -> None:
    assert tags_code(None) == tags_code("") == 0


@pytest.mark.parametrize("expression", ["*", "", "  ", " * "])
def test_star_and_blank_match_everything(expression: str) -> None:
    assert codes_of(parse_expression(expression)) is None


def test_tags_are_split_trimmed_and_made_unique() -> None:
    tags = parse_expression(" UA ||AA|| || UA")
    assert tags == {"UA", "AA"}
    assert codes_of(tags) == frozenset({java_hash("UA"), java_hash("AA")})


def test_expression_without_a_tag_is_refused() -> None:
    with raises_code(Code.SUBSCRIPTION_PARSE_FAILED):
        parse_expression(" || ")
