"""Encode message ids: the offset message id of the broker, and the unique id of the sender.

An offset message id is upper-case hex of the store host (IP 4 or 16 bytes, port 4 bytes) and the
physical offset (8 bytes).

A unique id is upper-case hex of these fields: IP (4 or 16 bytes), process id (2), a number of the
process (4), milliseconds since the start of the month (4), a counter (2).

Both kinds of ids have 32 or 56 digits.
"""

from __future__ import annotations

import calendar
import functools
import ipaddress
import struct
import time

from aerobee_wire.status import invalid_parameter

_OFFSET_V4 = struct.Struct(">4siq")
_OFFSET_V6 = struct.Struct(">16siq")
# The two hex digits of each byte. A look-up takes half as long as formatting a number.
_HEX = tuple(f"{byte:02X}" for byte in range(256))


def pack_host(host: str) -> bytes:
    """Return the address (4 or 16 bytes) and the port (4 bytes) of "ip:port".

    Raises ValueError for a host name or an invalid port.
    """
    ip, _, port = host.rpartition(":")
    return ipaddress.ip_address(ip.strip("[]")).packed + int(port).to_bytes(4, "big")


@functools.lru_cache(maxsize=1_024)  # a few hosts, each in thousands of records
def unpack_host(packed: bytes) -> str:
    """Return the "ip:port" in 8 or 20 bytes, with an IPv6 address in brackets."""
    port = int.from_bytes(packed[-4:], "big")
    if len(packed) == 8:
        return f"{packed[0]}.{packed[1]}.{packed[2]}.{packed[3]}:{port}"
    return f"[{ipaddress.IPv6Address(packed[:16])}]:{port}"


def offset_message_id(packed_host: bytes, physical_offset: int) -> str:
    """Return the id of the record at `physical_offset` on the broker with this store host."""
    return (packed_host + physical_offset.to_bytes(8, "big")).hex().upper()


def parse_offset_message_id(message_id: str) -> tuple[str, int]:
    """Return the store host ("ip:port") and the physical offset in an offset message id.

    Raises MqError with the code INVALID_PARAMETER.
    """
    try:
        data = bytes.fromhex(message_id)
    except ValueError:
        data = b""
    if len(data) not in (_OFFSET_V4.size, _OFFSET_V6.size):
        raise invalid_parameter(
            f"invalid message id {message_id[:64]!r}: it has 32 or 56 hex digits"
        )
    return unpack_host(data[:-8]), int.from_bytes(data[-8:], "big")


class UniqueIds:
    """Generate unique ids.

    The ids of one generator differ by the counter. Generators differ by address, process id and
    `number`, a 32-bit number that is different for each generator of the process.
    """

    def __init__(self, ip: str, process_id: int, number: int) -> None:
        packed = ipaddress.ip_address(ip).packed
        prefix = (
            packed
            + (process_id & 0xFFFF).to_bytes(2, "big")
            + (number & 0xFFFFFFFF).to_bytes(4, "big")
        )
        self._prefix = prefix.hex().upper()
        self._counter = 0
        self._month_start_ms = 0
        self._month_end_ms = 0
        self._made_ms = -1
        self._head = ""  # of the ids that are made in this millisecond

    def make(self, now_ms: int) -> str:
        """Return a new id, which is unique if fewer than 65,536 are made in one millisecond."""
        if now_ms != self._made_ms:
            self._begin_millisecond(now_ms)
        counter = self._counter = (self._counter + 1) & 0xFFFF
        return f"{self._head}{_HEX[counter >> 8]}{_HEX[counter & 0xFF]}"

    def _begin_millisecond(self, now_ms: int) -> None:
        if not self._month_start_ms <= now_ms < self._month_end_ms:
            self._month_start_ms, self._month_end_ms = month_of(now_ms)
        self._made_ms = now_ms
        self._head = f"{self._prefix}{now_ms - self._month_start_ms:08X}"

    def make_batch(self, now_ms: int, number: int) -> list[str]:
        """Return `number` new ids, in two thirds of the time that calls of `make` take."""
        if not number:
            return []
        head, first = self.make(now_ms)[:-4], self._counter
        self._counter = (first + number - 1) & 0xFFFF
        return [
            f"{head}{_HEX[counter >> 8 & 0xFF]}{_HEX[counter & 0xFF]}"
            for counter in range(first, first + number)
        ]


def month_of(now_ms: int) -> tuple[int, int]:
    """Return the first millisecond of the month (UTC) of `now_ms`, and of the next month."""
    year, month = time.gmtime(now_ms / 1000)[:2]
    start = calendar.timegm((year, month, 1, 0, 0, 0)) * 1000
    days = calendar.monthrange(year, month)[1]
    return start, start + days * 86_400_000
