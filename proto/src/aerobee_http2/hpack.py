"""Header blocks of HTTP/2 (HPACK, RFC 7541). Pure: no connection.

Blocks are encoded without a dynamic table. A client announces a table of 0 bytes (`decode`). So the
meaning of a block does not depend on the blocks before it, and a block cannot expand beyond the
bytes that arrived. A server has a dynamic table for each connection (`Decoder`): its clients repeat
the same metadata in each call. It bounds the size of the decoded fields.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from aerobee_http2 import frames

Fields = tuple[tuple[str, str], ...]

# RFC 7541, appendix A: the index of the first entry is 1
STATIC: Fields = (
    (":authority", ""), (":method", "GET"), (":method", "POST"), (":path", "/"),
    (":path", "/index.html"), (":scheme", "http"), (":scheme", "https"), (":status", "200"),
    (":status", "204"), (":status", "206"), (":status", "304"), (":status", "400"),
    (":status", "404"), (":status", "500"), ("accept-charset", ""),
    ("accept-encoding", "gzip, deflate"), ("accept-language", ""), ("accept-ranges", ""),
    ("accept", ""), ("access-control-allow-origin", ""), ("age", ""), ("allow", ""),
    ("authorization", ""), ("cache-control", ""), ("content-disposition", ""),
    ("content-encoding", ""), ("content-language", ""), ("content-length", ""),
    ("content-location", ""), ("content-range", ""), ("content-type", ""), ("cookie", ""),
    ("date", ""), ("etag", ""), ("expect", ""), ("expires", ""), ("from", ""), ("host", ""),
    ("if-match", ""), ("if-modified-since", ""), ("if-none-match", ""), ("if-range", ""),
    ("if-unmodified-since", ""), ("last-modified", ""), ("link", ""), ("location", ""),
    ("max-forwards", ""), ("proxy-authenticate", ""), ("proxy-authorization", ""), ("range", ""),
    ("referer", ""), ("refresh", ""), ("retry-after", ""), ("server", ""), ("set-cookie", ""),
    ("strict-transport-security", ""), ("transfer-encoding", ""), ("user-agent", ""), ("vary", ""),
    ("via", ""), ("www-authenticate", ""),
)  # fmt: skip
assert len(STATIC) == 61
_WHOLE = {field: index for index, field in enumerate(STATIC, 1) if field[1]}
_NAMES = {name: index for index, (name, _) in reversed(list(enumerate(STATIC, 1)))}

# RFC 7541, appendix B. The code is canonical: codes of one length are consecutive, in the order of
# their bytes. (length in bits, bytes with a code of this length)
_CODES = (
    (5, b"012aceiost"),
    (6, b" %-./3456789=A_bdfghlmnpru"),
    (7, b":BCDEFGHIJKLMNOPQRSTUVWYjkqvwxyz"),
    (8, b"&*,;XZ"),
    (10, b'!"()?'),
    (11, b"'+|"),
    (12, b"#>"),
    (13, b"\x00$@[]~"),
    (14, b"^}"),
    (15, b"<`{"),
    (19, b"\\\xc3\xd0"),
    (20, b"\x80\x82\x83\xa2\xb8\xc2\xe0\xe2"),
    (21, b"\x99\xa1\xa7\xac\xb0\xb1\xb3\xd1\xd8\xd9\xe3\xe5\xe6"),
    (22, b"\x81\x84\x85\x86\x88\x92\x9a\x9c\xa0\xa3\xa4\xa9\xaa\xad\xb2\xb5\xb9\xba\xbb\xbd\xbe\xc4"
         b"\xc6\xe4\xe8\xe9"),
    (23, b"\x01\x87\x89\x8a\x8b\x8c\x8d\x8f\x93\x95\x96\x97\x98\x9b\x9d\x9e\xa5\xa6\xa8\xae\xaf\xb4"
         b"\xb6\xb7\xbc\xbf\xc5\xe7\xef"),
    (24, b"\t\x8e\x90\x91\x94\x9f\xab\xce\xd7\xe1\xec\xed"),
    (25, b"\xc7\xcf\xea\xeb"),
    (26, b"\xc0\xc1\xc8\xc9\xca\xcd\xd2\xd5\xda\xdb\xee\xf0\xf2\xf3\xff"),
    (27, b"\xcb\xcc\xd3\xd4\xd6\xdd\xde\xdf\xf1\xf4\xf5\xf6\xf7\xf8\xfa\xfb\xfc\xfd\xfe"),
    (28, b"\x02\x03\x04\x05\x06\x07\x08\x0b\x0c\x0e\x0f\x10\x11\x12\x13\x14\x15\x17\x18\x19\x1a\x1b"
         b"\x1c\x1d\x1e\x1f\x7f\xdc\xf9"),
    (30, b"\n\r\x16"),
)  # fmt: skip
_LONGEST_CODE = 30
_MAX_INTEGER_SHIFT = 21  # values up to 2^28 are enough for every length and index


ENTRY_BYTES = 32  # by which a field is larger than its name and value (RFC 7541, 4.1)


class MalformedBlock(Exception):
    """A header block cannot be decoded. The connection cannot continue."""


class HeadersTooLarge(Exception):
    """The fields of a header block are too large. The connection can continue."""


# ---- encoding ----


def encoded(fields: Iterable[tuple[str, str]]) -> bytes:
    """Encode header fields, with names and values in ASCII, into a block or a part of one."""
    block = bytearray()
    for field in fields:
        if index := _WHOLE.get(field):
            block += _integer(index, 7, 0x80)
            continue
        name, value = field
        index = _NAMES.get(name, 0)
        block += _integer(index, 4, 0)
        if not index:
            block += _string(name)
        block += _string(value)
    return bytes(block)


def _integer(value: int, prefix: int, first: int) -> bytes:
    """Encode an integer whose first `prefix` bits are in the byte `first` (RFC 7541, 5.1)."""
    limit = (1 << prefix) - 1
    if value < limit:
        return bytes((first | value,))
    digits = bytearray((first | limit,))
    value -= limit
    while value > 127:
        digits.append(value & 127 | 128)
        value >>= 7
    digits.append(value)
    return bytes(digits)


def _string(value: str) -> bytes:
    raw = value.encode("ascii")
    return _integer(len(raw), 7, 0) + raw


# ---- decoding ----

_CACHED_BYTES = 512  # of a block; the responses of a server have few different blocks


def decode(block: bytes) -> Fields:
    """Decode a header block that uses no dynamic table. Raises MalformedBlock."""
    return _cached(block) if len(block) <= _CACHED_BYTES else _decoded(block)


class Decoder:
    """Decode the header blocks of one connection in their order, with its dynamic table.

    Args:
        table_bytes: The largest dynamic table that the peer may use. HTTP/2 begins with 4 KiB.
        list_bytes: The most that the fields of a block may have, by RFC 9113, 6.5.2.

    Attributes:
        version: Changes whenever the dynamic table changes. A block that was decoded before has the
            same fields again if the version is the same.
    """

    __slots__ = ("_entries", "_limit", "_list_bytes", "_size", "_table_bytes", "version")

    def __init__(self, table_bytes: int, list_bytes: int) -> None:
        self._table_bytes = self._limit = table_bytes
        self._list_bytes = list_bytes
        self._entries: list[tuple[str, str]] = []  # the oldest first
        self._size = 0
        self.version = 0

    def decode(self, block: bytes) -> Fields:
        """Decode a block. Raises MalformedBlock, or HeadersTooLarge.

        After HeadersTooLarge, the table has the entries of the block, so that later blocks can be
        decoded.
        """
        fields: list[tuple[str, str]] = []
        at, end, size, resized = 0, len(block), 0, 0
        list_bytes = self._list_bytes
        try:
            while at < end:
                first = block[at]
                if first & 0x80:
                    # Nearly every field is one byte.
                    is_byte = first < 0xFF
                    index, at = (first & 127, at + 1) if is_byte else _read_integer(block, at, 7)
                    field = self._entry(index)
                elif first & 0xE0 == 0x20:
                    resized += 1
                    if size or resized > 2:
                        raise MalformedBlock(
                            "the size of the dynamic table changes too late, or too often"
                        )
                    limit, at = _read_integer(block, at, 5)
                    self._resize(limit)
                    continue
                else:
                    is_new = first & 0x40
                    if first & (0x3F if is_new else 0x0F):
                        index, at = _read_integer(block, at, 6 if is_new else 4)
                        name = self._entry(index)[0]
                    else:
                        name, at = _read_string(block, at + 1)
                    value, at = _read_string(block, at)
                    field = name, value
                    if is_new:
                        self._add(field)
                size += len(field[0]) + len(field[1]) + ENTRY_BYTES
                if size <= list_bytes:
                    fields.append(field)
        except IndexError:
            raise MalformedBlock("a header block is incomplete") from None
        if size > list_bytes:
            raise HeadersTooLarge(f"the headers have {size} bytes: at most {list_bytes} are read")
        return tuple(fields)

    def _entry(self, index: int) -> tuple[str, str]:
        if 0 < index <= len(STATIC):
            return STATIC[index - 1]
        place = index - len(STATIC)
        if not 0 < place <= len(self._entries):
            raise MalformedBlock(f"the index {index} is not in a table")
        return self._entries[-place]

    def _add(self, field: tuple[str, str]) -> None:
        self._size += len(field[0]) + len(field[1]) + ENTRY_BYTES
        self._entries.append(field)
        self._evict()

    def _resize(self, limit: int) -> None:
        if limit > self._table_bytes:
            raise MalformedBlock("the dynamic table is larger than allowed")
        if limit != self._limit:
            self._limit = limit
            self._evict()

    def _evict(self) -> None:
        self.version += 1
        evicted = 0
        while self._size > self._limit:
            name, value = self._entries[evicted]
            self._size -= len(name) + len(value) + ENTRY_BYTES
            evicted += 1
        if evicted:
            del self._entries[:evicted]


def _decoded(block: bytes) -> Fields:
    return Decoder(0, frames.MAX_FRAME_BYTES).decode(block)


_cached = lru_cache(maxsize=256)(_decoded)


def _read_integer(block: bytes, at: int, prefix: int) -> tuple[int, int]:
    """Return the integer at `at`, and the place after it."""
    limit = (1 << prefix) - 1
    value = block[at] & limit
    at += 1
    if value < limit:
        return value, at
    shift = 0
    while True:
        digit = block[at]
        at += 1
        value += (digit & 127) << shift
        if digit < 128:
            return value, at
        shift += 7
        if shift > _MAX_INTEGER_SHIFT:
            raise MalformedBlock("an integer of a header block is too large")


def _read_string(block: bytes, at: int) -> tuple[str, int]:
    is_huffman = block[at] & 0x80
    size = block[at]
    if size < 0x7F:
        at += 1
    else:
        size, at = _read_integer(block, at, 7)
    raw = block[at : at + size]
    if len(raw) < size:
        raise MalformedBlock("a header block is incomplete")
    return (_huffman(raw) if is_huffman else raw).decode("latin-1"), at + size


def _codes() -> dict[tuple[int, int], int]:
    """Return the byte for each (length, code) of the Huffman code."""
    found, code, last = {}, 0, 0
    for length, symbols in _CODES:
        code <<= length - last
        last = length
        for symbol in symbols:
            found[length, code] = symbol
            code += 1
    return found


_SYMBOLS = _codes()


# The state after each 4 bits, and the bytes that they complete; None for an invalid code.
_Steps = tuple[tuple[int, bytes] | None, ...]


def _states() -> tuple[list[_Steps], frozenset[int]]:
    """Return the states of a decoder that reads 4 bits at a time, and those that may be the last.

    A state is the beginning of a code. The first one is empty.
    """
    begun = [(0, 0)]
    for length in range(1, _LONGEST_CODE):
        begun += sorted(
            {
                (length, code >> size - length)
                for size, code in [*_SYMBOLS, (_LONGEST_CODE, (1 << _LONGEST_CODE) - 1)]
                if size > length
            }
        )
    numbers = {state: number for number, state in enumerate(begun)}

    def step(state: tuple[int, int], bits: int) -> tuple[int, bytes] | None:
        length, code = state
        symbols = bytearray()
        for bit in range(3, -1, -1):
            length, code = length + 1, code << 1 | bits >> bit & 1
            symbol = _SYMBOLS.get((length, code))
            if symbol is not None:
                symbols.append(symbol)
                length = code = 0
            elif length == _LONGEST_CODE:  # the code for the end of a string
                return None
        return numbers[length, code], bytes(symbols)

    steps = [tuple(step(state, bits) for bits in range(16)) for state in begun]
    ends = frozenset(numbers[length, (1 << length) - 1] for length in range(8))
    return steps, ends


_STEPS, _ENDS = _states()


def _huffman(raw: bytes) -> bytes:
    decoded: list[bytes] = []
    state = 0
    for byte in raw:
        for bits in (byte >> 4, byte & 15):
            step = _STEPS[state][bits]
            if step is None:
                raise MalformedBlock("a header block has an invalid Huffman code")
            state, symbols = step
            if symbols:
                decoded.append(symbols)
    if state not in _ENDS:
        raise MalformedBlock("a header block has an invalid Huffman padding")
    return b"".join(decoded)
