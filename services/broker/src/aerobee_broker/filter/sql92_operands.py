"""The semantics of SQL92 conditions, which are built from operands.

An operand is a function of the properties of a message. Most functions of this module combine
operands to a new operand, or raise FilterSyntaxError. The module does not depend on the syntax:
`sql92.py` describes the rules, and calls this module while it parses.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from aerobee_wire.status import Code, MqError

MAX_DEPTH = 64  # far below the recursion limit of Python; real filters have less than 10

INT_RANGE = range(-(2**31), 2**31)
LONG_RANGE = range(-(2**63), 2**63)
MIN_DOUBLE = 5e-324  # the lowest above zero; RocketMQ rejects a lower literal, even 0.0
MAX_DIGITS = 64

Properties = Mapping[str, str]
Value = str | int | float | bool | None
Evaluate = Callable[[Properties], Value]
Read = Callable[[Any], Any]

_INTEGER = re.compile(r"[+-]?[0-9]+")
# Like Java's Double.valueOf, without its NaN and hexadecimal forms.
_FLOAT = re.compile(r"([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)[fFdD]?")


class FilterSyntaxError(MqError):
    """A filter expression is invalid.

    `about` is the invalid operator or kind of operand. For a syntax error, it is the position, such
    as "character 5".
    """

    def __init__(self, message: str, about: str) -> None:
        super().__init__(Code.SUBSCRIPTION_PARSE_FAILED, message, about=about)


class NotReadable(ValueError):
    """A property cannot be read as the type of the other operand. The condition fails."""


class Kind(Enum):
    TEXT = auto()  # a property or a string literal
    INT = auto()
    LONG = auto()
    DOUBLE = auto()
    BOOLEAN = auto()
    UNKNOWN = auto()  # NULL, and operands that are always null


NUMBERS = frozenset({Kind.INT, Kind.LONG, Kind.DOUBLE})


@dataclass(frozen=True, slots=True)
class Operand:
    kind: Kind
    evaluate: Evaluate
    depth: int = 1
    literal: bool = False
    value: Value = None  # value of a literal
    property: str | None = None


def literal(kind: Kind, value: Value) -> Operand:
    return Operand(kind, lambda _: value, literal=True, value=value)


def named(name: str) -> Operand:
    """Return an operand whose value is the property of this name."""
    return Operand(Kind.TEXT, operator.methodcaller("get", name), property=name)


def integer(digits: str) -> Operand:
    value = int(digits) if len(digits) <= MAX_DIGITS else LONG_RANGE.stop
    if value not in LONG_RANGE:
        problem = f"{digits[:24]} is more than {LONG_RANGE[-1]}: use a float literal"
        raise FilterSyntaxError(problem, "integer")
    return literal(Kind.INT if value in INT_RANGE else Kind.LONG, value)


def floating(text: str) -> Operand:
    value = float(text)
    if not MIN_DOUBLE <= value < float("inf"):
        raise FilterSyntaxError(
            f"cannot compare the float literal {text[:24]}: write 0 for zero", "float"
        )
    return literal(Kind.DOUBLE, value)


def negative(operand: Operand) -> Operand:
    """Negate a number. The negative of a property is null."""
    if operand.kind in NUMBERS and not isinstance(operand.value, str | None):
        return literal(operand.kind, -operand.value)
    if operand.literal or operand.kind is Kind.BOOLEAN:
        raise FilterSyntaxError("a minus stands before a number only", "-")
    return Operand(Kind.UNKNOWN, lambda _: None, _deeper(operand))


def conjunction(*operands: Operand) -> Operand:
    """Combine operands with AND: false if one is false, otherwise null if one is null.

    Operands after the first false one are not evaluated.
    """
    return _chain(operands, decides=False)


def disjunction(*operands: Operand) -> Operand:
    """Combine operands with OR: true if one is true, otherwise null if one is null.

    Operands after the first true one are not evaluated.
    """
    return _chain(operands, decides=True)


def _chain(operands: Sequence[Operand], *, decides: bool) -> Operand:
    parts = tuple(condition(operand).evaluate for operand in operands)

    def evaluate(properties: Properties) -> Value:
        result: Value = not decides
        for part in parts:
            value = part(properties)
            if value is decides:
                return decides
            if value is None:
                result = None
        return result

    return Operand(Kind.BOOLEAN, evaluate, _deeper(*operands))


def negation(operand: Operand) -> Operand:
    """Negate an operand with NOT. The negation of null is null."""
    inner = condition(operand).evaluate

    def evaluate(properties: Properties) -> Value:
        value = inner(properties)
        return None if value is None else not value

    return Operand(Kind.BOOLEAN, evaluate, _deeper(operand))


def condition(operand: Operand) -> Operand:
    """Convert an operand to a condition.

    A property alone is null if it is missing, and false otherwise.
    """
    if operand.kind is Kind.BOOLEAN or (operand.literal and operand.kind is Kind.UNKNOWN):
        return operand
    if operand.property is None:
        problem = "a value alone is not a condition: compare it with another value"
        raise FilterSyntaxError(problem, "condition")
    read = operand.evaluate
    return Operand(Kind.BOOLEAN, lambda properties: None if read(properties) is None else False)


def equal(left: Operand, right: Operand) -> Operand:
    if any(operand.literal and operand.kind is Kind.UNKNOWN for operand in (left, right)):
        raise FilterSyntaxError("nothing equals NULL: write IS NULL or IS NOT NULL", "NULL")
    if left.literal and right.literal and left.kind is Kind.BOOLEAN is not right.kind:
        problem = "TRUE and FALSE cannot be compared with another kind of literal"
        raise FilterSyntaxError(problem, "boolean")
    get_left, get_right = left.evaluate, right.evaluate
    readers = _readers(left.kind, right.kind)
    read_left, read_right = readers or (_same, _same)

    def evaluate(properties: Properties) -> Value:
        left_value, right_value = get_left(properties), get_right(properties)
        if left_value is None:
            return True if right_value is None else None
        if right_value is None or readers is None:
            return False
        return bool(read_left(left_value) == read_right(right_value))

    return Operand(Kind.BOOLEAN, evaluate, _deeper(left, right))


def is_null(operand: Operand) -> Operand:
    get = operand.evaluate
    return Operand(Kind.BOOLEAN, lambda properties: get(properties) is None, _deeper(operand))


def ordered(compare: Callable[[Any, Any], bool], left: Operand, right: Operand) -> Operand:
    """Compare operands with one of > >= < <=. The result is null if an operand is null."""
    for operand in (left, right):
        if operand.kind is Kind.BOOLEAN or (operand.literal and operand.kind not in NUMBERS):
            problem = "> >= < <= and BETWEEN compare numbers and properties only"
            raise FilterSyntaxError(problem, "order")
    get_left, get_right = left.evaluate, right.evaluate
    both_text = left.kind is right.kind is Kind.TEXT
    floats: tuple[Read, Read] = (_read_double, _read_double)
    read_left, read_right = (
        floats if both_text else _readers(left.kind, right.kind) or (_same, _same)
    )

    def evaluate(properties: Properties) -> Value:
        left_value = get_left(properties)
        if left_value is None:
            return None
        right_value = get_right(properties)
        if right_value is None:
            return None
        return compare(read_left(left_value), read_right(right_value))

    return Operand(Kind.BOOLEAN, evaluate, _deeper(left, right))


def between(operand: Operand, low: Operand, high: Operand) -> Operand:
    if low.kind in NUMBERS and high.kind in NUMBERS and _number(low) > _number(high):
        problem = f"BETWEEN {low.value} AND {high.value} holds nothing: swap them"
        raise FilterSyntaxError(problem, "BETWEEN")
    return conjunction(ordered(operator.ge, operand, low), ordered(operator.le, operand, high))


def not_between(operand: Operand, low: Operand, high: Operand) -> Operand:
    return disjunction(ordered(operator.lt, operand, low), ordered(operator.gt, operand, high))


def among(operand: Operand, texts: frozenset[str]) -> Operand:
    """Test a property with IN. The result is null if the property is missing."""
    if operand.property is None:
        problem = "a property stands before IN, and strings in its parentheses"
        raise FilterSyntaxError(problem, "IN")
    get = operand.evaluate

    def evaluate(properties: Properties) -> Value:
        value = get(properties)
        return None if value is None else value in texts

    return Operand(Kind.BOOLEAN, evaluate, _deeper(operand))


def text_test(test: Callable[[str, str], bool], operand: Operand, text: str) -> Operand:
    """Test an operand with CONTAINS, STARTSWITH or ENDSWITH.

    The result is false if the value is missing or not a text, or if the literal `text` is empty.
    """
    get = operand.evaluate

    def evaluate(properties: Properties) -> Value:
        value = get(properties)
        return isinstance(value, str) and text != "" and test(value, text)

    return Operand(Kind.BOOLEAN, evaluate, _deeper(operand))


def _deeper(*operands: Operand) -> int:
    depth = 1 + max(operand.depth for operand in operands)
    if depth > MAX_DEPTH:
        problem = f"the filter nests deeper than {MAX_DEPTH} levels: flatten it"
        raise FilterSyntaxError(problem, "depth")
    return depth


def _readers(left: Kind, right: Kind) -> tuple[Read, Read] | None:
    """Return one function for each side that makes the values comparable.

    Return None if the kinds are not comparable.
    """
    if left is right or (left in NUMBERS and right in NUMBERS) or Kind.UNKNOWN in (left, right):
        return _same, _same
    if left is Kind.TEXT:
        return _READ_AS[right], _same
    if right is Kind.TEXT:
        return _same, _READ_AS[left]
    return None


def _number(operand: Operand) -> float:
    assert not isinstance(operand.value, str | None)
    return operand.value


def _same(value: Value) -> Value:
    return value


def _read_integer(text: str, bounds: range) -> int:
    if len(text) <= MAX_DIGITS and _INTEGER.fullmatch(text) and (value := int(text)) in bounds:
        return value
    raise NotReadable(text[:MAX_DIGITS])


def _read_double(text: str) -> float:
    match = _FLOAT.fullmatch(text.strip())
    if match is None:
        raise NotReadable(text[:MAX_DIGITS])
    return float(match.group(1))


def _read_boolean(text: str) -> bool:
    return text.lower() == "true"


_READ_AS: Mapping[Kind, Read] = {
    Kind.INT: lambda text: _read_integer(text, INT_RANGE),
    Kind.LONG: lambda text: _read_integer(text, LONG_RANGE),
    Kind.DOUBLE: _read_double,
    Kind.BOOLEAN: _read_boolean,
}
