"""Filters of subscriptions: tags by code and by text, SQL92 by condition."""

from __future__ import annotations

import pytest

from aerobee_broker.filter.filter import ExpressionType, compile_filter
from aerobee_wire.status import Code
from aerobee_wire.tags import tags_code
from support.codes import raises_code


@pytest.mark.parametrize("expression", ["*", "", "  ", " * "])
def test_an_empty_expression_matches_everything(expression: str) -> None:
    filter_ = compile_filter("TAG", expression)
    assert filter_.everything
    assert filter_.tags_codes is None
    assert filter_.matches({}) and filter_.matches({"TAGS": "A"})


@pytest.mark.parametrize("expression", ["A||B", " A || B ", "A||||B", "||A||B||"])
def test_only_the_tags_of_the_expression_match(expression: str) -> None:
    filter_ = compile_filter("TAG", expression)
    assert not filter_.everything
    assert filter_.tags_codes == frozenset(map(tags_code, "AB"))
    assert filter_.matches({"TAGS": "A"}) and filter_.matches({"TAGS": "B"})
    assert not filter_.matches({"TAGS": "a"})
    assert not filter_.matches({"TAGS": "A||B"})
    assert not filter_.matches({})


def test_tags_with_the_same_code_are_distinguished() -> None:
    filter_ = compile_filter("TAG", "AaAa")
    assert filter_.tags_codes == frozenset([tags_code("BBBB")])
    assert not filter_.matches({"TAGS": "BBBB"})


def test_a_condition_excludes_no_unit_by_its_tags_code() -> None:
    filter_ = compile_filter("SQL92", "price > 20")
    assert filter_.tags_codes is None
    assert not filter_.everything
    assert filter_.matches({"price": "21"})
    assert not filter_.matches({"price": "20"})


def test_an_expression_is_compiled_once() -> None:
    assert compile_filter("SQL92", "a = 'x'") is compile_filter("SQL92", "a = 'x'")


@pytest.mark.parametrize(("kind", "expression"), [("TAG", "||"), ("SQL92", "price >")])
def test_an_invalid_expression_is_refused(kind: ExpressionType, expression: str) -> None:
    with raises_code(Code.SUBSCRIPTION_PARSE_FAILED):
        compile_filter(kind, expression)
