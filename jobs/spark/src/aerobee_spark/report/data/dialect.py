"""Translate expressions that differ between the SQL of Spark and of DuckDB.

The queries of `figures.py` are written once. Each method takes SQL expressions and returns one.
This module does no I/O.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Dialect:
    """Templates of SQL expressions; `{0}` and `{1}` stand for the arguments."""

    millis_of: str
    quotient_of: str
    quantiles_of: str
    distinct_words_of: str
    first_distinct_of: str
    start_of: str
    value_of: str

    def millis(self, timestamp: str) -> str:
        """Return the milliseconds since the epoch."""
        return self.millis_of.format(timestamp)

    def quotient(self, dividend: str, divisor: int) -> str:
        """Return the integer quotient."""
        return self.quotient_of.format(dividend, divisor)

    def quantiles(self, value: str) -> str:
        """Return an aggregate: a list of the median and the 95th percentile.

        The aggregate is null without values.
        """
        return self.quantiles_of.format(value)

    def distinct_words(self, text: str) -> str:
        """Return one row for each distinct word. Words are separated by single spaces."""
        return self.distinct_words_of.format(text)

    def first_distinct(self, text: str, most: int) -> str:
        """Return an aggregate: the first `most` distinct texts, sorted."""
        return self.first_distinct_of.format(text, most)

    def value(self, properties: str, name: str) -> str:
        """Return the value of a map under this name; null if it is missing."""
        return self.value_of.format(properties, name)

    def start(self, binary: str, length: str) -> str:
        """Return the first `length` bytes."""
        return self.start_of.format(binary, length)


SPARK = Dialect(
    millis_of="unix_millis({0})",
    quotient_of="{0} DIV {1}",
    # The relative error of the rank is 1/10,000: exact for up to some thousand values.
    quantiles_of="percentile_approx({0}, array(0.5D, 0.95D), 10000)",
    distinct_words_of="explode(array_distinct(split({0}, ' ')))",
    first_distinct_of="slice(array_sort(collect_set({0})), 1, {1})",
    start_of="substring({0}, 1, {1})",
    value_of="{0}['{1}']",
)
DUCKDB = Dialect(
    millis_of="epoch_ms({0})",
    quotient_of="{0} // {1}",
    quantiles_of="quantile_disc({0}, [0.5, 0.95])",
    distinct_words_of="unnest(list_distinct(string_split({0}, ' ')))",
    first_distinct_of="list_sort(list_distinct(list({0})))[1:{1}]",
    start_of="array_slice({0}, 1, {1})",
    value_of="map_extract({0}, '{1}')[1]",
)
