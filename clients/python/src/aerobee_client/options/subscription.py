"""Define what a consumer may subscribe with, besides tags."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sql:
    """A condition in SQL92 over the properties of a message, which the broker evaluates.

    A missing property is null. A message matches only if the condition is true. The broker must
    have enablePropertyFilter set, which is the default.

    Example:
        consumer.subscribe("orders", Sql("region = 'eu' AND size > 5"))
    """

    expression: str
