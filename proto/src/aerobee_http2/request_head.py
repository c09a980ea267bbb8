"""Read the headers of a call as a server, and write those of its response. Pure: no connection."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from urllib.parse import quote_from_bytes

from aerobee_http2.calls import STATUSES
from aerobee_http2.hpack import Fields, encoded

# Compressions of messages that a server can read, as gRPC's own servers.
ENCODINGS = ("identity", "deflate", "gzip")

_CODES = {name: code for code, name in enumerate(STATUSES)}
_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9a-z]+")  # of a field (RFC 9110, 5.1), in lower case
_FORBIDDEN = re.compile(r"[\0\r\n]")  # in a value (RFC 9113, 8.2.1)
_TIMEOUT = re.compile(r"([0-9]{1,8})([HMSmun])")
_SECONDS: Mapping[str, float] = {
    "H": 3_600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9,
}  # fmt: skip
# Fields that belong to the protocol, and not to the metadata of the caller.
_PROTOCOL = frozenset(
    {"te", "content-type", "grpc-timeout", "grpc-encoding", "grpc-accept-encoding", "connection"}
)
# Characters of a message that need no percent-encoding: printable ASCII but %.
_PLAIN = bytes(byte for byte in range(0x20, 0x7F) if byte != 0x25).decode()

OPENING = encoded(((":status", "200"), ("content-type", "application/grpc")))
OK = encoded((("grpc-status", "0"),))


class MalformedHead(Exception):
    """The headers of a call violate HTTP/2. Its stream is reset."""


class RequestHead:
    """The headers of a call.

    Attributes:
        path: "/package.Service/Method".
        metadata: The text values of the caller's metadata; the last value of a repeated name.
        encoding: The compression of messages whose flag is set.
        timeout_s: The seconds until the deadline of the caller; None without one.
        http_status: The status of the answer if the call is not gRPC, or "".
    """

    __slots__ = ("encoding", "http_status", "metadata", "path", "timeout_s")

    def __init__(self, fields: Fields) -> None:
        """Read the fields. Raises MalformedHead."""
        protocol: dict[str, str] = {}
        metadata: dict[str, str] = {}
        for name, value in fields:
            # Nearly every value is printable, which takes less time to find out.
            if not value.isprintable() and _FORBIDDEN.search(value) is not None:
                raise MalformedHead(f"the field {name!r} is invalid")
            is_short = len(name) <= _CACHED_CHARACTERS
            if _is_known_metadata(name) if is_short else _is_metadata(name):
                metadata[name] = value
            else:
                protocol[name] = value
        path = protocol.get(":path", "")
        if not path or not protocol.get(":method") or "connection" in protocol:
            raise MalformedHead("a field that a request needs is missing, or one is not allowed")
        self.path = path
        self.encoding = protocol.get("grpc-encoding", "identity")
        self.timeout_s = _timeout(protocol.get("grpc-timeout", ""))
        kind = protocol.get("content-type", "application/grpc")
        self.http_status = ""
        if protocol[":method"] != "POST":
            self.http_status = "405"
        elif not kind.startswith("application/grpc") or kind[16:17] not in ("", "+", ";"):
            self.http_status = "415"
        self.metadata: Mapping[str, str] = metadata


def _is_metadata(name: str) -> bool:
    """Return whether a field is text metadata of the caller. Raises MalformedHead."""
    if not (name[:1] == ":" or _NAME.fullmatch(name)):
        raise MalformedHead(f"the field {name!r} is invalid")
    return name not in _PROTOCOL and name[0] != ":" and not name.endswith("-bin")


_CACHED_CHARACTERS = 64  # of a name
_is_known_metadata = lru_cache(maxsize=512)(_is_metadata)  # clients use few names


def trailers(status: str, message: str = "", more: Iterable[tuple[str, str]] = ()) -> bytes:
    """Return the block that ends a response. `status` is the name of a gRPC status."""
    fields = [("grpc-status", str(_CODES[status]))]
    if message:
        fields.append(("grpc-message", _percent_encoded(message)))
    return encoded((*fields, *more))


@lru_cache(maxsize=8)
def http_error(status: str) -> bytes:
    """Return the block of a response to a request that is not gRPC."""
    return encoded(((":status", status),))


def _timeout(value: str) -> float | None:
    """Return the seconds of a timeout; None for an invalid one, as gRPC."""
    found = _TIMEOUT.fullmatch(value)
    return None if found is None else int(found[1]) * _SECONDS[found[2]]


def _percent_encoded(message: str) -> str:
    if message.isascii() and message.isprintable() and "%" not in message:
        return message
    return quote_from_bytes(message.encode("utf-8", "replace"), safe=_PLAIN)
