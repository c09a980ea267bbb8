"""Filters of subscriptions, which select messages by tag or by an SQL92 condition.

Each expression is compiled once, and a filter has no state. A filter compares tags twice. First it
compares their codes in the consume queue, without reading messages. Then it compares the text,
because two tags may have the same code.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from aerobee_wire import properties, tags
from aerobee_wire.record import iter_records

if TYPE_CHECKING:
    from aerobee_broker.filter.sql92 import Condition

ExpressionType = Literal["TAG", "SQL92"]

CACHED_FILTERS = 100  # RocketMQ's limit


@dataclass(frozen=True, slots=True)
class Filter:
    expression_type: ExpressionType
    expression: str
    # Codes of the matching tags, or None if tags codes cannot exclude a message.
    tags_codes: frozenset[int] | None = None
    tags: frozenset[str] = frozenset()
    condition: Condition | None = None

    @property
    def text(self) -> str:
        """Return the filter as text, such as "TAG a || b". `filter_of_text` converts it back."""
        return f"{self.expression_type} {self.expression}"

    @property
    def everything(self) -> bool:
        """Return whether every message matches."""
        return not self.tags and self.condition is None

    def matches(self, message_properties: Mapping[str, str]) -> bool:
        if self.condition is not None:
            return self.condition.matches(message_properties)
        return not self.tags or message_properties.get(properties.TAGS) in self.tags


def matching_records(wanted: Filter, records: bytes) -> list[bytes]:
    """Return the bytes of each stored record that matches. The CRCs must be checked already."""
    matching = []
    position = 0
    for record in iter_records(records, check_crc=False):
        if wanted.matches(record.properties):
            matching.append(records[position : position + record.store_size])
        position += record.store_size
    return matching


@functools.lru_cache(maxsize=CACHED_FILTERS)
def compile_filter(expression_type: ExpressionType, expression: str) -> Filter:
    """Compile a filter.

    Raises MqError with the code SUBSCRIPTION_PARSE_FAILED if the expression is invalid.
    """
    if expression_type == "TAG":
        wanted = tags.parse_expression(expression)
        return Filter("TAG", expression, tags.codes_of(wanted), wanted)
    # The parser takes 40 ms to import, so only a broker with SQL filters imports it.
    from aerobee_broker.filter.sql92 import compile_condition

    return Filter("SQL92", expression, condition=compile_condition(expression))


def filter_of_text(text: str) -> Filter:
    """Convert `Filter.text` back.

    Raises MqError with the code SUBSCRIPTION_PARSE_FAILED if the text is invalid.
    """
    kind, _, expression = text.partition(" ")
    return compile_filter("SQL92" if kind == "SQL92" else "TAG", expression)
