"""Compute tags codes with Java's string hash, and parse tag expressions.

A consume queue entry contains the tags code of its message. A broker compares only tags codes,
which may collide; a consumer compares the tags themselves. Source: RocketMQ's ConsumeQueue and
FilterAPI, Java's String.hashCode.
"""

from __future__ import annotations

from aerobee_wire.status import Code, MqError

ALL = "*"
SEPARATOR = "||"


def java_hash(text: str) -> int:
    """Return Java's String.hashCode, a signed 32-bit number.

    It is a polynomial with the factor 31 over UTF-16 code units.
    """
    result = 0
    units = text.encode("utf-16-be", "surrogatepass")
    for high, low in zip(units[::2], units[1::2], strict=True):
        result = (31 * result + (high << 8 | low)) & 0xFFFFFFFF
    return result - 0x1_0000_0000 if result & 0x8000_0000 else result


def tags_code(tags: str | None) -> int:
    """Return the code of a message's tags, or 0 for a message without tags."""
    return java_hash(tags) if tags else 0


def parse_expression(expression: str) -> frozenset[str]:
    """Return the tags of an expression such as "a || b".

    The result is empty for "*" or "", which match every message. Raises MqError with the code
    SUBSCRIPTION_PARSE_FAILED for an expression with only separators.
    """
    stripped = expression.strip()
    if stripped in ("", ALL):
        return frozenset()
    tags = frozenset(tag.strip() for tag in stripped.split(SEPARATOR) if tag.strip())
    if not tags:
        raise MqError(
            Code.SUBSCRIPTION_PARSE_FAILED,
            f"the tag expression {expression!r} names no tag: write * or a || b",
        )
    return tags


def codes_of(tags: frozenset[str]) -> frozenset[int] | None:
    """Return the tags codes that match, or None if every message matches."""
    return frozenset(map(tags_code, tags)) if tags else None
