"""SQL92 conditions: syntax, three-valued logic, each quirk, limits, and SQLite as an oracle."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aerobee_broker.filter.sql92 import MAX_CHARACTERS, compile_condition
from aerobee_broker.filter.sql92_operands import MAX_DEPTH, FilterSyntaxError
from aerobee_wire.status import Code
from support.codes import raises_about

TRUE, FALSE, NULL = True, False, None


def value(text: str, **properties: str) -> object:
    """True, False or None; NotReadable is no match at all."""
    return compile_condition(text).evaluate(properties)


def matches(text: str, **properties: str) -> bool:
    return compile_condition(text).matches(properties)


# ---- syntax ----


@pytest.mark.parametrize(
    ("text", "properties"),
    [
        ("price > 20", {"price": "30"}),
        ("price >= 20 AND price <= 20", {"price": "20"}),
        ("TAGS IN ('A') AND price BETWEEN 5 AND 20", {"TAGS": "A", "price": "10"}),
        ("x IS NULL", {}),
        ("x is not null", {"x": ""}),
        ("a <> 'x'", {"a": "y"}),
        ("a not in ('x', 'y')", {"a": "z"}),
        ("a NOT BETWEEN 1 AND 3", {"a": "4"}),
        ("a CONTAINS 'bc'", {"a": "abcd"}),
        ("a NOT CONTAINS 'x'", {"a": "abcd"}),
        ("a STARTSWITH 'ab'", {"a": "abcd"}),
        ("a NOT STARTSWITH 'b'", {"a": "abcd"}),
        ("a ENDSWITH 'cd'", {"a": "abcd"}),
        ("a NOT ENDSWITH 'c'", {"a": "abcd"}),
        ("a = 'it''s'", {"a": "it's"}),
        ("a = ''''", {"a": "'"}),
        ("$a = '1' AND _b = '2'", {"$a": "1", "_b": "2"}),
        ("a = -5 AND b = +5 AND c = - -5", {"a": "-5", "b": "5", "c": "5"}),
        ("a = 5L OR a = 5l", {"a": "5"}),
        ("a > 5. AND a < .6E2 AND a < 5.5E1 AND a < 6E+1", {"a": "54"}),
        ("a = 1 -- the rest is a comment", {"a": "1"}),
        ("a /* = 2 * */ = /**/ 1", {"a": "1"}),
        ("\ta\n=\r'x'\f", {"a": "x"}),
        ("5 < a", {"a": "6"}),
        ("5 = 5.0 AND 'x' = 'x' AND 5 = '5'", {}),
        ("(a > 5) = TRUE", {"a": "6"}),
        ("a = b", {"a": "x", "b": "x"}),
        ("a < b", {"a": "9", "b": "10.5"}),
        ("TRUE", {}),
        ("NULL IS NULL", {}),
        ("Android = 'x'", {"Android": "x"}),  # begins with a keyword
        ("a='x'AND b=1AND c=2", {"a": "x", "b": "1", "c": "2"}),
        ("a = 'grüße 🙂'", {"a": "grüße 🙂"}),
    ],
)
def test_matches(text: str, properties: Mapping[str, str]) -> None:
    assert compile_condition(text).matches(properties)


def test_or_binds_loosest_then_and_then_not() -> None:
    assert matches("a = '1' OR b = '1' AND c = '1'", a="1", b="0", c="0")
    assert not matches("(a = '1' OR b = '1') AND c = '1'", a="1", b="0", c="0")
    assert matches("NOT a = '1' AND b = '1'", a="0", b="1")
    assert not matches("NOT (a = '1' OR b = '1')", a="0", b="1")
    assert matches("NOT NOT a = '1'", a="1")


def test_property_names_are_case_sensitive_and_keywords_are_not() -> None:
    assert matches("Region = 'eu' aNd NoT region = 'eu'", Region="eu", region="us")


# ---- missing properties ----


@pytest.mark.parametrize("text", ["a = 'x'", "a > 5", "a BETWEEN 1 AND 5", "a = 5", "a = TRUE"])
@pytest.mark.parametrize("negated", [False, True])
def test_comparison_of_a_missing_property_is_null(text: str, negated: bool) -> None:
    assert value(f"NOT ({text})" if negated else text) is NULL


@pytest.mark.parametrize(
    ("text", "properties", "expected"),
    [
        ("a <> 'x'", {}, NULL),
        ("a NOT BETWEEN 1 AND 5", {}, NULL),
        ("a IN ('x')", {}, NULL),
        ("a NOT IN ('x')", {}, NULL),
        # A right side that is missing is unequal, not null; two of them are equal.
        ("a = b", {"a": "x"}, FALSE),
        ("a <> b", {"a": "x"}, TRUE),
        ("'x' = b", {}, FALSE),
        ("5 <> b", {}, TRUE),
        ("a = b", {}, TRUE),
        ("a <> b", {}, FALSE),
        ("a < b", {"a": "1"}, NULL),
        ("5 < b", {}, NULL),
        ("a < b", {}, NULL),
        # A property alone is never true.
        ("a", {}, NULL),
        ("a", {"a": "true"}, FALSE),
        ("NOT a", {"a": "x"}, TRUE),
        # Minus of a property is null.
        ("-a > 5", {"a": "-6"}, NULL),
        ("-a = 5", {"a": "-5"}, NULL),
    ],
)
def test_value_of_a_condition(text: str, properties: Mapping[str, str], expected: object) -> None:
    assert value(text, **properties) is expected
    assert matches(text, **properties) is (expected is TRUE)


@pytest.mark.parametrize("verb", ["CONTAINS", "STARTSWITH", "ENDSWITH"])
@pytest.mark.parametrize("negation", ["", "NOT "])
def test_text_tests_of_nothing_are_false(verb: str, negation: str) -> None:
    """Of a missing property; with an empty text."""
    assert value(f"a {negation}{verb} 'x'") is FALSE
    assert value(f"a {negation}{verb} ''", a="x") is FALSE


# ---- three-valued logic ----

# From the least to the greatest: AND is the lesser of its operands, OR the greater.
TEXTS, VALUES = ("FALSE", "NULL", "TRUE"), (FALSE, NULL, TRUE)


@pytest.mark.parametrize("left", range(3))
@pytest.mark.parametrize("right", range(3))
def test_logic_is_kleenes(left: int, right: int) -> None:
    assert value(f"{TEXTS[left]} AND {TEXTS[right]}") is VALUES[min(left, right)]
    assert value(f"{TEXTS[left]} OR {TEXTS[right]}") is VALUES[max(left, right)]
    assert value(f"NOT {TEXTS[left]}") is VALUES[2 - left]


# ---- reading properties as numbers ----


@pytest.mark.parametrize(
    ("text", "a", "matched"),
    [
        ("a = 5", "5", True),
        ("a = 5", "+5", True),
        ("a = 5", "005", True),
        ("a = 5", "5.0", False),
        ("a = 5", " 5", False),
        ("a = 5", "", False),
        ("a = 5", "٥", False),  # an Arabic digit
        ("a < 5", "5000000000", False),
        ("a > 5", "5000000000", False),  # not a 32-bit number
        ("a > 2147483647", "2147483648", False),
        ("a > 2147483648", "2147483649", True),  # a 64-bit literal: read as 64 bits
        ("a > 2147483648", "9223372036854775808", False),
        ("a > 5.0", "5000000000", True),
        ("a > 5.5", "6e3", True),
        ("a > 5.5", " 6 ", True),
        ("a > 5.5", "6d", True),
        ("a > 5.5", "NaN", False),
        ("a > 5.5", "1_000", False),
        ("a > 5.5", "six", False),
    ],
)
def test_property_is_read_as_the_type_of_the_number(text: str, a: str, matched: bool) -> None:
    assert matches(text, a=a) is matched


@pytest.mark.parametrize(
    "text", ["NOT (a = 5)", "a <> 5", "a = 5 OR b = 'x'", "NOT (a > 5 AND b = 'y')"]
)
def test_an_unreadable_property_fails_the_whole_condition(text: str) -> None:
    assert not matches(text, a="five", b="x")


def test_an_unreadable_property_after_a_decision_is_not_read() -> None:
    assert matches("b = 'x' OR a = 5", a="five", b="x")
    assert matches("NOT (b = 'y' AND a = 5)", a="five", b="x")


def test_two_properties_are_equal_as_text_and_ordered_as_floats() -> None:
    assert not matches("a = b", a="5", b="5.0")
    assert matches("a >= b AND a <= b", a="5", b="5.0")
    assert not matches("a < b", a="x", b="y")


@pytest.mark.parametrize(
    ("text", "a", "matched"),
    [
        ("a = TRUE", "true", True),
        ("a = TRUE", "TRUE", True),
        ("a = TRUE", "1", False),
        ("a = FALSE", "no", True),
        ("a <> TRUE", "no", True),
        ("TRUE = a", "true", True),
    ],
)
def test_property_is_read_as_a_truth_value(text: str, a: str, matched: bool) -> None:
    assert matches(text, a=a) is matched


# ---- refused expressions and limits ----


@pytest.mark.parametrize(
    ("text", "about"),
    [
        ("", "end"),
        ("  ", "end"),
        ("-- only a comment", "end"),
        ("a =", "end"),
        ("(a = 'x'", "end"),
        ("a = 'x", "character 5"),
        ("a = 'x' b", "character 9"),
        ("a = 'x';", "character 8"),
        ("a == 'x'", "character 4"),
        ("a = 05", "character 6"),
        ("a = 0x5", "character 6"),
        ("a LIKE 'x%'", "character 3"),
        ("a + 1 = 2", "character 3"),
        ("IN = 'x'", "character 1"),
        ("a IN ()", "character 7"),
        ("a IN (5)", "character 7"),
        ("a IN ('x', b)", "character 12"),
        ("a CONTAINS b", "character 12"),
        ("a AND BETWEEN 2 AND 10", "character 7"),
        ("/* never closed", "character 1"),
        ("é = 'x'", "character 1"),
        ("5", "condition"),
        ("'x'", "condition"),
        ("a = 'x' AND 5", "condition"),
        ("NOT 'x'", "condition"),
        ("a > 'x'", "order"),
        ("'x' < a", "order"),
        ("a BETWEEN 'a' AND 'b'", "order"),
        ("a > TRUE", "order"),
        ("(a = 'x') > 5", "order"),
        ("a = NULL", "NULL"),
        ("a <> NULL", "NULL"),
        ("NULL = a", "NULL"),
        ("a < NULL", "order"),
        ("a BETWEEN NULL AND 5", "order"),
        ("a BETWEEN 5 AND 3", "BETWEEN"),
        ("a BETWEEN -3 AND -5.5", "BETWEEN"),
        ("5 IN ('5')", "IN"),
        ("TRUE = 'x'", "boolean"),
        ("a > 0.0", "float"),
        ("a > 1E400", "float"),
        ("a > 1E-400", "float"),
        ("a > 9223372036854775808", "integer"),
        ("a > " + "9" * 5000, "integer"),
        ("-'x' = a", "-"),
        ("-TRUE = a", "-"),
    ],
)
def test_a_refusal_says_what_is_wrong_or_where(text: str, about: str) -> None:
    with pytest.raises(FilterSyntaxError) as caught:
        compile_condition(text)
    assert (caught.value.code, caught.value.about) == (Code.SUBSCRIPTION_PARSE_FAILED, about)
    assert "\n" not in caught.value.message


def test_length_is_limited() -> None:
    fits = "a IN ('" + "x" * (MAX_CHARACTERS - 9) + "')"
    assert len(fits) == MAX_CHARACTERS
    compile_condition(fits)
    with raises_about(FilterSyntaxError, "length"):
        compile_condition(fits + " ")


@pytest.mark.parametrize(
    "bomb",
    [
        "NOT " * 2000 + "a IS NULL",
        "a IS NULL" + " = TRUE" * 1000,
        "NOT (" * 1000 + "a IS NULL" + ")" * 1000,
        "- " * 1000 + "a = 5",
    ],
)
def test_nesting_bombs_are_refused(bomb: str) -> None:
    with raises_about(FilterSyntaxError, "depth"):
        compile_condition(bomb)


def test_repeated_minus_and_parentheses_are_no_nesting() -> None:
    assert matches("- " * 1000 + "5 = a", a="5")
    assert matches("(" * 1000 + "a = 'x'" + ")" * 1000, a="x")


def test_the_deepest_allowed_nesting_can_be_evaluated() -> None:
    deepest = "NOT " * (MAX_DEPTH - 3) + "a = 'x'"
    assert matches(deepest, a="x") is ((MAX_DEPTH - 3) % 2 == 0)
    assert matches(" OR ".join(["a = 'y'"] * 700 + ["a = 'x'"]), a="x")


@given(st.text(max_size=60))
def test_any_text_compiles_or_is_refused(text: str) -> None:
    with contextlib.suppress(FilterSyntaxError):
        assert compile_condition(text).matches({"a": text}) in (True, False)


TOKENS = ["a", "b", "5", "5.5", "'x'", "=", "<>", "<", ">=", "(", ")", ",", "-", "+", "NOT", "AND"]
TOKENS += ["OR", "IN", "IS", "NULL", "BETWEEN", "CONTAINS", "TRUE", "/*", "*/", "--", "\n"]


@given(
    st.lists(st.sampled_from(TOKENS), max_size=24),
    st.dictionaries(st.sampled_from("ab"), st.text(max_size=4)),
)
def test_any_sequence_of_tokens_compiles_or_is_refused(
    tokens: list[str], properties: dict[str, str]
) -> None:
    try:
        condition = compile_condition(" ".join(tokens))
    except FilterSyntaxError:
        return
    assert condition.matches(properties) in (True, False)


# ---- SQLite as an oracle, for the part of the language that both have ----

TEXT_COLUMNS, NUMBER_COLUMNS = ("s", "t"), ("m", "n")
texts = st.text(alphabet="ab'% é", max_size=3)
numbers = st.integers(-20, 20)


def quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


text_columns, number_columns = st.sampled_from(TEXT_COLUMNS), st.sampled_from(NUMBER_COLUMNS)
not_ = st.sampled_from(["", "NOT "])
orders = st.sampled_from([">", ">=", "<", "<="])
atoms = st.one_of(
    st.builds(
        lambda c, op, v: f"{c} {op} {quoted(v)}", text_columns, st.sampled_from(["=", "<>"]), texts
    ),
    st.builds(
        lambda c, n, vs: f"{c} {n}IN ({', '.join(map(quoted, vs))})",
        text_columns,
        not_,
        st.lists(texts, min_size=1, max_size=3),
    ),
    st.builds(lambda c, n: f"{c} IS {n}NULL", st.sampled_from(TEXT_COLUMNS + NUMBER_COLUMNS), not_),
    st.builds(
        lambda c, op, v: f"{c} {op} {v}",
        number_columns,
        st.one_of(orders, st.sampled_from(["=", "<>"])),
        numbers,
    ),
    st.builds(lambda v, op, c: f"{v} {op} {c}", numbers, orders, number_columns),
    st.builds(lambda c, op, d: f"{c} {op} {d}", number_columns, orders, number_columns),
    st.builds(
        lambda c, n, low, size: f"{c} {n}BETWEEN {low} AND {low + size}",
        number_columns,
        not_,
        numbers,
        st.integers(0, 9),
    ),
)
# No parentheses but those drawn: so precedence is compared too.
conditions = st.recursive(
    atoms,
    lambda inner: st.one_of(
        st.builds("NOT {}".format, inner),
        st.builds("({})".format, inner),
        st.builds("{} AND {}".format, inner, inner),
        st.builds("{} OR {}".format, inner, inner),
    ),
    max_leaves=8,
)
rows = st.fixed_dictionaries(
    {}, optional={**dict.fromkeys(TEXT_COLUMNS, texts), **dict.fromkeys(NUMBER_COLUMNS, numbers)}
)


@given(conditions, rows)
def test_agrees_with_sqlite(text: str, row: dict[str, str | int]) -> None:
    columns = (*TEXT_COLUMNS, *NUMBER_COLUMNS)
    with contextlib.closing(sqlite3.connect(":memory:")) as database:
        database.execute("CREATE TABLE message (s TEXT, t TEXT, m INTEGER, n INTEGER)")
        database.execute(
            "INSERT INTO message VALUES (?, ?, ?, ?)", [row.get(column) for column in columns]
        )
        ((expected,),) = database.execute(f"SELECT {text} FROM message").fetchall()
    ours = compile_condition(text).evaluate({name: str(value) for name, value in row.items()})
    assert ours is (None if expected is None else bool(expected))
