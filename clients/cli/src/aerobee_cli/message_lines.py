"""Format messages for the terminal: a line of text, a line of JSON, or the bytes in hex."""

from __future__ import annotations

import sys
from enum import Enum
from typing import TYPE_CHECKING

from aerobee_cli import output
from aerobee_client.admin.export import full
from aerobee_wire.printable import printable, printable_json

if TYPE_CHECKING:
    from aerobee_client import ReceivedMessage

# On a terminal, a longer body is cut. In a pipe and with --json it is whole.
SHOWN_CHARACTERS = 1_000
SHOWN_BYTES = 32  # of a body that is not text
HEX_COLUMNS = 16


class Format(Enum):
    TEXT = "text"
    JSON = "json"
    HEX = "hex"


class MessageLines:
    """Formats messages. On a terminal, it cuts long bodies of text."""

    def __init__(self, form: Format) -> None:
        self._form = form
        self._limit = SHOWN_CHARACTERS if sys.stdout.isatty() else None

    def of(self, message: ReceivedMessage) -> str:
        item = full(message)
        if self._form is Format.JSON:
            return printable_json(item)
        if self._form is Format.TEXT:
            return text_of(item, self._limit)
        return "\n".join([head_of(item), *hex_lines(_bytes(item))])


def head_of(item: output.Item) -> str:
    """Return one line about a message, without its body."""
    return _line(_head(item))


def text_of(item: output.Item, limit: int | None = None) -> str:
    """Return one line about a message, of which no character controls the terminal.

    `limit` is the maximum number of characters of the body.
    """
    return _line([*_head(item), _body(item, limit)])


def _head(item: output.Item) -> list[str]:
    place = f"{item['broker_name']}/{item['queue_id']}@{item['queue_offset']}"
    at = output.iso_time(item["store_timestamp_ms"], milliseconds=False)
    labels = [f"tag={item['tag']}"] if item["tag"] else []
    if item["keys"]:
        labels.append(f"keys={','.join(item['keys'])}")
    return [at, item["message_id"], place, *labels]


def _line(parts: list[str]) -> str:
    return printable("  ".join(parts)).replace("\n", "\\n").replace("\t", "\\t")


def _body(item: output.Item, limit: int | None) -> str:
    if "body" in item:
        body: str = item["body"]
        if limit is None or len(body) <= limit:
            return body
        return f"{body[:limit]}… ({len(body):,} characters)"
    raw = _bytes(item)
    more = " …" if len(raw) > SHOWN_BYTES else ""
    return f"({len(raw):,} bytes, not text) {raw[:SHOWN_BYTES].hex(' ', 4)}{more}"


def _bytes(item: output.Item) -> bytes:
    if "body" in item:
        body: str = item["body"]
        return body.encode()
    import base64

    return base64.b64decode(item["body_base64"])


def hex_lines(body: bytes) -> list[str]:
    """Return a body as lines of an offset, 16 bytes in hex, and the printable ASCII characters."""
    lines = []
    for at in range(0, len(body), HEX_COLUMNS):
        part = body[at : at + HEX_COLUMNS]
        shown = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in part)
        lines.append(f"{at:08x}  {part.hex(' '):<{3 * HEX_COLUMNS}} {shown}")
    return lines
