"""What a consumer may subscribe with, besides tags."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sql:
    """A condition in SQL92 over the properties of a message, which the broker decides:
    `Sql("region = 'eu' AND size > 5")`. A missing property is null, and only a true condition is a
    match. The broker must have enablePropertyFilter (it has, unless told otherwise).
    """

    expression: str
