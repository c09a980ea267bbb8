"""Write the SQL expressions in which Spark and DuckDB differ."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

# A function that inserts its arguments into a template of an SQL expression.
Expression = Callable[..., str]


@dataclass(frozen=True, slots=True)
class Dialect:
    """Functions that write the SQL expressions in which Spark and DuckDB differ.

    Each function takes SQL expressions and returns an SQL expression. Thus one text of a query
    serves both engines.

    Attributes:
        millis: converts a timestamp to milliseconds since the epoch.
        quotient: divides two integers and drops the remainder.
        quantiles: aggregates numbers to a list of the median and the 95th percentile, or to null
            without values.
        distinct_words: splits a text at spaces into one row for each distinct word.
        ordered: aggregates values to a list in the order of their places, under a condition.
        start: returns the first bytes of a binary, up to a length.
        value: returns the value of a name in a map, or null if the name is missing.
    """

    millis: Expression
    quotient: Expression
    quantiles: Expression
    distinct_words: Expression
    ordered: Expression
    start: Expression
    value: Expression


SPARK = Dialect(
    millis="unix_millis({})".format,
    quotient="{} DIV {}".format,
    # An accuracy of 10,000 gives exact results for up to some thousand values.
    quantiles="percentile_approx({}, array(0.5D, 0.95D), 10000)".format,
    distinct_words="explode(array_distinct(split({}, ' ')))".format,
    ordered=(
        "transform(array_sort(collect_list(named_struct('place', {1}, 'value', {0})) "
        "FILTER (WHERE {2})), each -> each.value)"
    ).format,
    start="substring({}, 1, {})".format,
    value="{}['{}']".format,
)
DUCKDB = Dialect(
    millis="epoch_ms({})".format,
    quotient="{} // {}".format,
    quantiles="quantile_disc({}, [0.5, 0.95])".format,
    distinct_words="unnest(list_distinct(string_split({}, ' ')))".format,
    ordered="list({0} ORDER BY {1}) FILTER (WHERE {2})".format,
    start="array_slice({}, 1, {})".format,
    value="map_extract({}, '{}')[1]".format,
)
