"""Subscription filters: by tag, or by an SQL92 condition over the properties.

A filter is compiled once per expression and is pure. Tags are compared twice. First by code, on the
20-byte units of the consume queue, without reading a message. Then as text, because two tags may
have the same code.
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
    # Codes of the matching tags; None: a consume-queue unit alone does not exclude a message.
    tags_codes: frozenset[int] | None = None
    tags: frozenset[str] = frozenset()
    condition: Condition | None = None

    @property
    def everything(self) -> bool:
        """Return whether every message matches."""
        return not self.tags and self.condition is None

    def matches(self, message_properties: Mapping[str, str]) -> bool:
        if self.condition is not None:
            return self.condition.matches(message_properties)
        return not self.tags or message_properties.get(properties.TAGS) in self.tags


def matching_records(wanted: Filter, records: bytes) -> list[bytes]:
    """Return the stored records that match, byte for byte. The store has checked their CRCs."""
    matching = []
    position = 0
    for record in iter_records(records, check_crc=False):
        if wanted.matches(record.properties):
            matching.append(records[position : position + record.store_size])
        position += record.store_size
    return matching


@functools.lru_cache(maxsize=CACHED_FILTERS)
def compile_filter(expression_type: ExpressionType, expression: str) -> Filter:
    """Compile a filter. Raises MqError SUBSCRIPTION_PARSE_FAILED that describes the problem."""
    if expression_type == "TAG":
        wanted = tags.parse_expression(expression)
        return Filter("TAG", expression, tags.codes_of(wanted), wanted)
    # The parser's library takes 40 ms to import, so only a broker with SQL filters imports it.
    from aerobee_broker.filter.sql92 import compile_condition

    return Filter("SQL92", expression, condition=compile_condition(expression))
