"""Test redaction: replaced values, unchanged values, and equal hashes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aerobee_spark.reading.redaction import Redaction

REDACTION = Redaction(frozenset({"email", "KEYS"}))
SECRET = "anna@example.org"


def body_of(text: str | bytes, **more: Any) -> bytes:
    given_bytes = text.encode() if isinstance(text, str) else text
    return REDACTION.body(given_bytes, **({"is_readable": True} | more))


def test_fields_are_replaced_at_any_depth_and_null_stays() -> None:
    value = {"email": SECRET, "to": [{"email": SECRET, "n": 1.5}], "cc": {"email": None}, "é": "ü"}
    found = json.loads(body_of(json.dumps(value)))
    hashed = REDACTION.hash(SECRET)
    assert found == {
        "email": hashed,
        "to": [{"email": hashed, "n": 1.5}],
        "cc": {"email": None},
        "é": "ü",
    }
    assert len(hashed) == 13 and hashed.startswith("~")


@pytest.mark.parametrize("value", [5, True, ["a"], {"b": 1}, ""])
def test_values_of_any_type_are_replaced(value: Any) -> None:
    found = json.loads(body_of(json.dumps({"email": value})))
    assert found["email"].startswith("~")


def test_an_escaped_name_hides_nothing() -> None:
    assert SECRET.encode() not in body_of('{"\\u0065mail": "anna@example.org"}')
    assert SECRET.encode() not in body_of(json.dumps({"email": SECRET}).encode("utf-16"))


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-32-be"])
@pytest.mark.parametrize("space", ["", " ", "\n\t", "\r\n" * 9])
def test_white_space_before_json_hides_nothing(encoding: str, space: str) -> None:
    body = (space + json.dumps({"email": SECRET})).encode(encoding)
    found = body_of(body)
    assert found != body and SECRET not in found.decode("latin-1").replace("\0", "")


@pytest.mark.parametrize(
    "text", ["", "email: " + SECRET, b"\xff\xfe\x00", '{"other": 1}', "[1, 2]"]
)
def test_what_has_no_such_field_stays_byte_for_byte(text: str | bytes) -> None:
    assert body_of(text) == (text if isinstance(text, bytes) else text.encode())


@pytest.mark.parametrize(
    "text",
    ['{"email": "anna@example.org"', "[" * 100_000 + '"email"', '{"email": 1' + "0" * 5000 + "}"],
)
def test_broken_json_is_hashed_as_a_whole(text: str) -> None:
    assert body_of(text).startswith(b"~") and len(body_of(text)) == 13


def test_a_body_that_cannot_be_inflated_is_hashed_as_a_whole() -> None:
    assert body_of(b"\x78\x9c" + SECRET.encode(), is_readable=False).startswith(b"~")


def test_each_key_is_hashed_by_itself() -> None:
    assert REDACTION.property("KEYS", "a b") == f"{REDACTION.hash('a')} {REDACTION.hash('b')}"
    assert REDACTION.property("email", "a b") == REDACTION.hash("a b")


def test_a_secret_changes_every_hash() -> None:
    keyed = Redaction.of(["email"], b"a secret")
    assert keyed.hash("x") != REDACTION.hash("x") and keyed.hash("x") == keyed.hash("x")


_JSON = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["email", "n"]), inner),
)


@given(_JSON)
def test_no_value_of_a_named_field_is_left(value: Any) -> None:
    text = json.dumps({"v": value})
    found = json.loads(body_of(text))

    def check(before: Any, after: Any) -> None:
        if isinstance(before, dict):
            assert before.keys() == after.keys()
            for name, each in before.items():
                if name == "email":
                    assert after[name] is None if each is None else after[name].startswith("~")
                else:
                    check(each, after[name])
        elif isinstance(before, list):
            for one, other in zip(before, after, strict=True):
                check(one, other)
        else:
            assert before == after

    check({"v": value}, found)
