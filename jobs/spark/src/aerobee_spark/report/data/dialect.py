"""What the SQL of Spark and that of DuckDB differ in, as far as the figures need it. Pure.

The queries of `figures.py` are written once; a method takes SQL expressions and returns one.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Dialect:
    """Templates of expressions; `{0}`, `{1}` are what they are applied to."""

    millis_of: str
    quotient_of: str
    quantiles_of: str
    distinct_words_of: str
    first_distinct_of: str
    start_of: str
    value_of: str

    def millis(self, timestamp: str) -> str:
        """Milliseconds since the epoch."""
        return self.millis_of.format(timestamp)

    def quotient(self, dividend: str, divisor: int) -> str:
        """Of whole numbers, without the remainder."""
        return self.quotient_of.format(dividend, divisor)

    def quantiles(self, value: str) -> str:
        """An aggregate: the list of the median and of the value that 95 of 100 do not exceed; null
        without values."""
        return self.quantiles_of.format(value)

    def distinct_words(self, text: str) -> str:
        """A row for each different word; words are separated by single spaces."""
        return self.distinct_words_of.format(text)

    def first_distinct(self, text: str, most: int) -> str:
        """An aggregate: the first `most` different texts, sorted."""
        return self.first_distinct_of.format(text, most)

    def value(self, properties: str, name: str) -> str:
        """Of a map, the value under this name; null when it has none."""
        return self.value_of.format(properties, name)

    def start(self, binary: str, length: str) -> str:
        """The first `length` bytes."""
        return self.start_of.format(binary, length)


SPARK = Dialect(
    millis_of="unix_millis({0})",
    quotient_of="{0} DIV {1}",
    # The relative error of the rank is 1/10,000: exact for some thousand values.
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
