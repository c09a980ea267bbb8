"""SQL92 conditions over the properties of a message, compiled once into functions.

Knows no subscription and no message: a condition maps properties, all of them strings, to true,
false or null; only true is a match. Logic is three-valued (Kleene). The grammar is `sql92.lark`.

Different from SQL, and relied on by RocketMQ's users:

* A property is read as the type of the number that it is compared with: against an integer literal
  of 32 bits as such an integer, against a larger one as 64 bits, against a float literal as a
  float. Two properties compare with < as floats. A property that cannot be read as that type makes
  the whole condition fail: no match, whatever else stands under OR or NOT, unless AND or OR was
  decided before.
* `a = b` is null without a, false without b alone, and true without both.
* CONTAINS, STARTSWITH, ENDSWITH are false without the property, and so are their NOT forms.
* A property alone is never true.

Differs from RocketMQ: NOT binds looser than a comparison, as in SQL (there `NOT a = 'x'` never
matches), and text after a complete condition is an error.
"""

from __future__ import annotations

import functools
import operator
import re
from collections.abc import Callable
from dataclasses import dataclass
from importlib import resources
from typing import Any

from lark import Lark, Token, Transformer, v_args
from lark.exceptions import UnexpectedInput, UnexpectedToken

from aerobee_broker.filter import sql92_operands as operands
from aerobee_broker.filter.sql92_operands import (
    Evaluate,
    FilterSyntaxError,
    Kind,
    NotReadable,
    Operand,
    Properties,
)

MAX_CHARACTERS = 8_192  # a generated IN list of some hundred values


@dataclass(frozen=True, slots=True)
class Condition:
    """A compiled condition."""

    text: str
    evaluate: Evaluate

    def matches(self, properties: Properties) -> bool:
        try:
            return self.evaluate(properties) is True
        except NotReadable:
            return False


def compile_condition(text: str) -> Condition:
    """Raises FilterSyntaxError, whose message says what is wrong and where."""
    if len(text) > MAX_CHARACTERS:
        raise FilterSyntaxError(
            f"the filter has {len(text)} characters: use at most {MAX_CHARACTERS}"
        )
    try:
        operand: Any = _parser().parse(text)
    except UnexpectedInput as error:
        raise FilterSyntaxError(_syntax_error(text, error)) from None
    return Condition(text, operand.evaluate)


def _syntax_error(text: str, error: UnexpectedInput) -> str:
    if isinstance(error, UnexpectedToken) and error.token.type == "$END":
        return "the filter ends too early: write a condition such as price > 10"
    start = error.pos_in_stream or 0
    return f"the filter is not understood from character {start + 1} on: {text[start:][:24]!r}"


@functools.cache
def _parser() -> Lark:
    grammar = resources.files(__package__).joinpath("sql92.lark").read_text(encoding="utf-8")
    return Lark(
        grammar,
        parser="lalr",
        lexer="basic",  # keywords are reserved everywhere
        transformer=_Meaning(),
        g_regex_flags=re.ASCII | re.IGNORECASE,  # in Unicode "ſ" would be an "S"
    )


def _unquoted(token: Token) -> str:
    return token[1:-1].replace("''", "'")


def _not(test: Callable[[str, str], bool]) -> Callable[[str, str], bool]:
    return lambda text, part: not test(text, part)


@v_args(inline=True)
class _Meaning(Transformer[Token, Operand]):
    """The operand for each alternative of the grammar; the parser calls these bottom-up."""

    def start(self, operand: Operand) -> Operand:
        return operands.condition(operand)

    def or_(self, *parts: Operand) -> Operand:
        return operands.disjunction(parts)

    def and_(self, *parts: Operand) -> Operand:
        return operands.conjunction(parts)

    def not_(self, operand: Operand) -> Operand:
        return operands.negation(operand)

    def equal(self, left: Operand, right: Operand) -> Operand:
        return operands.equal(left, right)

    def not_equal(self, left: Operand, right: Operand) -> Operand:
        return operands.negation(operands.equal(left, right))

    def is_null(self, operand: Operand) -> Operand:
        return operands.is_null(operand)

    def is_not_null(self, operand: Operand) -> Operand:
        return operands.negation(operands.is_null(operand))

    def greater(self, left: Operand, right: Operand) -> Operand:
        return operands.ordered(operator.gt, left, right)

    def greater_equal(self, left: Operand, right: Operand) -> Operand:
        return operands.ordered(operator.ge, left, right)

    def less(self, left: Operand, right: Operand) -> Operand:
        return operands.ordered(operator.lt, left, right)

    def less_equal(self, left: Operand, right: Operand) -> Operand:
        return operands.ordered(operator.le, left, right)

    def between(self, operand: Operand, low: Operand, high: Operand) -> Operand:
        return operands.between(operand, low, high)

    def not_between(self, operand: Operand, low: Operand, high: Operand) -> Operand:
        return operands.not_between(operand, low, high)

    def in_(self, operand: Operand, *texts: Token) -> Operand:
        return operands.among(operand, frozenset(map(_unquoted, texts)))

    def not_in(self, operand: Operand, *texts: Token) -> Operand:
        return operands.negation(self.in_(operand, *texts))

    def contains(self, operand: Operand, text: Token) -> Operand:
        return operands.text_test(operator.contains, operand, _unquoted(text))

    def not_contains(self, operand: Operand, text: Token) -> Operand:
        return operands.text_test(_not(operator.contains), operand, _unquoted(text))

    def starts_with(self, operand: Operand, text: Token) -> Operand:
        return operands.text_test(str.startswith, operand, _unquoted(text))

    def not_starts_with(self, operand: Operand, text: Token) -> Operand:
        return operands.text_test(_not(str.startswith), operand, _unquoted(text))

    def ends_with(self, operand: Operand, text: Token) -> Operand:
        return operands.text_test(str.endswith, operand, _unquoted(text))

    def not_ends_with(self, operand: Operand, text: Token) -> Operand:
        return operands.text_test(_not(str.endswith), operand, _unquoted(text))

    def plus(self, operand: Operand) -> Operand:
        return operand

    def minus(self, operand: Operand) -> Operand:
        return operands.negative(operand)

    def property(self, name: Token) -> Operand:
        return operands.named(str(name))

    def string(self, text: Token) -> Operand:
        return operands.literal(Kind.TEXT, _unquoted(text))

    def integer(self, digits: Token) -> Operand:
        return operands.integer(digits.rstrip("Ll"))

    def float(self, text: Token) -> Operand:
        return operands.floating(str(text))

    def true(self) -> Operand:
        return operands.literal(Kind.BOOLEAN, True)

    def false(self) -> Operand:
        return operands.literal(Kind.BOOLEAN, False)

    def null(self) -> Operand:
        return operands.literal(Kind.UNKNOWN, None)
