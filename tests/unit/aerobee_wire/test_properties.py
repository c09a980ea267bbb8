"""The properties string."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aerobee_wire import properties
from aerobee_wire.status import Code, MqError
from support.codes import raises_code
from support.user_properties import ACCEPTED, REFUSED, REFUSED_BY_BROKERS

text = st.text(
    st.characters(blacklist_characters="\x01\x02", blacklist_categories=["Cs"]), min_size=1
)


def test_last_separator_is_written_too() -> None:
    """Name 0x01 value 0x02, repeated."""
    assert properties.encode({"KEYS": "a b", "TAGS": "é"}) == b"KEYS\x01a b\x02TAGS\x01\xc3\xa9\x02"
    assert properties.encode({}) == b""


@given(st.dictionaries(text, text))
def test_decode_returns_what_was_encoded(values: dict[str, str]) -> None:
    assert properties.decode(properties.encode(values)) == values


@pytest.mark.parametrize("values", [{"a\x01b": "c"}, {"a": "b\x02"}])
def test_separator_inside_is_refused(values: dict[str, str]) -> None:
    with raises_code(Code.MESSAGE_ILLEGAL):
        properties.encode(values)


def test_entries_without_name_or_value_are_dropped_and_bad_utf8_is_replaced() -> None:
    encoded = b"\x01v\x02a\x01\x02b\x02c\x01\xff\x02"
    assert properties.decode(encoded) == {"c": "�"}


@given(st.dictionaries(text, text), st.frozensets(text))
def test_split_returns_the_chosen_properties_and_the_entries_of_the_others(
    values: dict[str, str], more: frozenset[str]
) -> None:
    chosen = frozenset(list(values)[::2]) | more
    found, others = properties.split(properties.encode(values), chosen)
    assert found == {name: value for name, value in values.items() if name in chosen}
    assert others.encode() == properties.encode(
        {name: value for name, value in values.items() if name not in chosen}
    )


@given(st.dictionaries(text, text))
def test_fields_are_names_and_values_in_their_order(values: dict[str, str]) -> None:
    names, found = properties.fields(properties.encode(values)) or ((), [])
    assert [name.decode() for name in names] == list(values)
    assert [value.decode() for value in found] == list(values.values())


@pytest.mark.parametrize(
    "encoded",
    [
        b"a\x01b",
        b"a\x02",
        b"a\x01\x02",
        b"\x01b\x02",
        b"a\x01b\x02a\x01c\x02",
        b"a\x01b\x02\x02",
        b"a\x01b\x01c\x02d\x02",
    ],
)
def test_fields_leave_irregular_entries_to_decode(encoded: bytes) -> None:
    assert properties.fields(encoded) is None


def test_split_drops_what_decode_drops_and_ends_each_entry() -> None:
    encoded = b"\x01v\x02a\x01\x02b\x02A\x01\x02c\x01\xff\x02A\x011\x02d\x01x\x01y\x02A\x012"
    assert properties.split(encoded, frozenset("A")) == ({"A": "2"}, "c\x01�\x02d\x01x\x01y\x02")
    assert properties.split(b"c\x01d", frozenset("A")) == ({}, "c\x01d\x02")
    assert properties.split(b"", frozenset("A")) == ({}, "")


@given(st.dictionaries(text, text), text)
def test_one_value_is_found_without_decoding_all(values: dict[str, str], name: str) -> None:
    found = properties.get(properties.encode(values), name.encode() + b"\x01")
    assert (found.decode() if found else None) == values.get(name)


def test_name_inside_another_name_or_value_is_not_found() -> None:
    encoded = properties.encode({"MYTAGS": "x", "KEYS": "TAGS", "TAGS": "y"})
    assert properties.get(encoded, b"TAGS\x01") == b"y"
    assert properties.get(encoded[:-7], b"TAGS\x01") is None


@pytest.mark.parametrize(
    ("value", "number"),
    [("0", 0), ("-7", -7), (b"18", 18), ("", None), ("²", None), ("--1", None), ("1 ", None)],
)
def test_whole_number_is_ascii_digits_with_or_without_a_minus(
    value: str | bytes, number: int | None
) -> None:
    assert properties.whole_number(value) == number
    assert properties.whole_number("1" * 5_000) is None


@given(st.text(), st.integers(min_value=0, max_value=40))
def test_a_cut_text_fits_and_is_a_prefix(text: str, limit: int) -> None:
    cut = properties.cut(text, limit)
    assert len(cut.encode()) <= limit
    assert text.encode("utf-8", "replace").decode().startswith(cut)


@pytest.mark.parametrize(("name", "value"), REFUSED)
def test_property_that_a_user_may_not_set_is_refused(name: str, value: str) -> None:
    with raises_code(Code.MESSAGE_ILLEGAL):
        properties.check_user_property(name, value)


@pytest.mark.parametrize(("name", "value"), ACCEPTED)
def test_property_of_printable_text_passes(name: str, value: str) -> None:
    properties.check_user_property(name, value)
    properties.check_sent(properties.encode({"UNIQ_KEY": "1", name: value}))


def test_of_several_illegal_properties_the_first_by_name_is_reported() -> None:
    pairs = [("b", "\n"), ("a", "\n"), ("c", "\n")]
    for ordered in (pairs, pairs[::-1]):
        with pytest.raises(MqError, match="'a'"):
            properties.check_sent_properties(dict(ordered))


@pytest.mark.parametrize(("name", "value"), REFUSED_BY_BROKERS)
def test_encoded_property_that_a_user_may_not_set_is_refused(name: str, value: str) -> None:
    sent = {"UNIQ_KEY": "1", name: value}
    with raises_code(Code.MESSAGE_ILLEGAL):
        properties.check_sent(properties.encode(sent))
    for stored_before in (properties.REDRIVE_TIMES, properties.RESENT_FROM):
        properties.check_sent(properties.encode({**sent, stored_before: "1"}))


def test_encoded_property_of_the_system_may_hold_lines() -> None:
    properties.check_sent(properties.encode({properties.DLQ_REASON_DESCRIPTION: "a\nb"}))


@given(st.dictionaries(text, text))
def test_plain_bytes_pass_the_check_by_name(values: dict[str, str]) -> None:
    """`is_plain` is a shortcut, and lets nothing through."""
    values = {name: value for name, value in values.items() if name not in properties.RESERVED}
    if properties.is_plain(properties.encode(values)):
        properties.check_sent_properties(values)
