"""Compiles SQL92 conditions over the properties of a message into functions.

A condition maps properties, which are strings, to true, false or null. A message matches only if
the result is true. The logic is three-valued (Kleene). The grammar is in `sql92.lark`.

These rules differ from SQL, because users of RocketMQ rely on them:

* A property is read as the type of the number that it is compared with. An integer literal of 32
  bits makes it a 32-bit integer, a larger one a 64-bit integer, and a float literal a float. The
  operator < reads two properties as floats. If a property cannot be read as this type, the whole
  condition does not match, even inside OR or NOT. The exception is an AND or OR that is decided
  before.
* `a = b` is null if only a is missing, false if only b is missing, and true if both are missing.
* CONTAINS, STARTSWITH and ENDSWITH are false if the property is missing, and also with NOT.
* A property alone is never true.

These rules differ from RocketMQ. NOT has a lower precedence than a comparison, as in SQL. In
RocketMQ, `NOT a = 'x'` never matches. Text after a complete condition is an error.
"""

from __future__ import annotations

import functools
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import resources
from types import SimpleNamespace
from typing import Any

from lark import Lark, Token
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

MAX_CHARACTERS = 8_192  # a generated IN list of several hundred values


@dataclass(frozen=True, slots=True)
class Condition:
    text: str
    evaluate: Evaluate

    def matches(self, properties: Properties) -> bool:
        try:
            return self.evaluate(properties) is True
        except NotReadable:
            return False


def compile_condition(text: str) -> Condition:
    """Compile a condition. Raises FilterSyntaxError with the problem and its position."""
    if len(text) > MAX_CHARACTERS:
        raise FilterSyntaxError(
            f"the filter has {len(text)} characters: use at most {MAX_CHARACTERS}", "length"
        )
    try:
        operand: Any = _parser().parse(text)
    except UnexpectedInput as error:
        raise _syntax_error(text, error) from None
    return Condition(text, operand.evaluate)


def _syntax_error(text: str, error: UnexpectedInput) -> FilterSyntaxError:
    if isinstance(error, UnexpectedToken) and error.token.type == "$END":
        problem = "the filter ends too early: write a condition such as price > 10"
        return FilterSyntaxError(problem, "end")
    start = error.pos_in_stream or 0
    where = f"character {start + 1}"
    problem = f"the filter is not understood from {where} on: {text[start:][:24]!r}"
    return FilterSyntaxError(problem, where)


@functools.cache
def _parser() -> Lark:
    grammar = resources.files(__package__).joinpath("sql92.lark").read_text(encoding="utf-8")
    made = {name: partial(_from_parts, operand_of) for name, operand_of in _OPERANDS.items()}
    return Lark(
        grammar,
        parser="lalr",
        lexer="basic",  # keywords are reserved everywhere
        transformer=SimpleNamespace(**made),  # lark calls its functions bottom-up
        g_regex_flags=re.ASCII | re.IGNORECASE,  # in Unicode, "ſ" would match "S"
    )


def _from_parts(operand_of: Callable[..., Operand], parts: Sequence[Operand | Token]) -> Operand:
    return operand_of(*parts)


def _unquoted(token: Token) -> str:
    return token[1:-1].replace("''", "'")


def _among(operand: Operand, *texts: Token) -> Operand:
    return operands.among(operand, frozenset(map(_unquoted, texts)))


def _text(test: Callable[[str, str], bool], operand: Operand, text: Token) -> Operand:
    return operands.text_test(test, operand, _unquoted(text))


def _no_text(test: Callable[[str, str], bool], operand: Operand, text: Token) -> Operand:
    return operands.text_test(lambda value, part: not test(value, part), operand, _unquoted(text))


# Alternative of the grammar → function that creates the operand from its parts.
_OPERANDS: Mapping[str, Callable[..., Operand]] = {
    "start": operands.condition,
    "or_": operands.disjunction,
    "and_": operands.conjunction,
    "not_": operands.negation,
    "equal": operands.equal,
    "not_equal": lambda left, right: operands.negation(operands.equal(left, right)),
    "is_null": operands.is_null,
    "is_not_null": lambda operand: operands.negation(operands.is_null(operand)),
    "greater": partial(operands.ordered, operator.gt),
    "greater_equal": partial(operands.ordered, operator.ge),
    "less": partial(operands.ordered, operator.lt),
    "less_equal": partial(operands.ordered, operator.le),
    "between": operands.between,
    "not_between": operands.not_between,
    "in_": _among,
    "not_in": lambda *parts: operands.negation(_among(*parts)),
    "contains": partial(_text, operator.contains),
    "not_contains": partial(_no_text, operator.contains),
    "starts_with": partial(_text, str.startswith),
    "not_starts_with": partial(_no_text, str.startswith),
    "ends_with": partial(_text, str.endswith),
    "not_ends_with": partial(_no_text, str.endswith),
    "plus": lambda operand: operand,
    "minus": operands.negative,
    "property": lambda name: operands.named(str(name)),
    "string": lambda text: operands.literal(Kind.TEXT, _unquoted(text)),
    "integer": lambda digits: operands.integer(digits.rstrip("Ll")),
    "float": lambda text: operands.floating(str(text)),
    "true": lambda: operands.literal(Kind.BOOLEAN, True),
    "false": lambda: operands.literal(Kind.BOOLEAN, False),
    "null": lambda: operands.literal(Kind.UNKNOWN, None),
}
