"""Describe and decode the record of the commit log, in RocketMQ's layout, big-endian.

A record contains one message. The module is pure: it maps bytes to values and does not use files.
Layout and limits are in docs/storage_format.md.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from aerobee_wire import message_id
from aerobee_wire import properties as props
from aerobee_wire.layout import Layout

MAGIC_V1 = 0xDAA320A7 - (1 << 32)  # topic length in one byte
MAGIC_V2 = 0xDAA320AB - (1 << 32)  # topic length in two bytes, for topics over 127 bytes
MAGIC_BLANK = 0xCBD43194 - (1 << 32)  # filler up to the end of a file
BLANK = struct.Struct(">ii")  # remaining bytes of the file, MAGIC_BLANK

# Bits of the sys flag.
COMPRESSED = 0x1
TRANSACTION_MASK = 0xC
TRANSACTION_PREPARED = 0x4
TRANSACTION_COMMIT = 0x8
TRANSACTION_ROLLBACK = 0xC
BORN_HOST_V6 = 0x10
STORE_HOST_V6 = 0x20
HOST_BITS = BORN_HOST_V6 | STORE_HOST_V6

HOST_V4_BYTES = 8  # address (4), port (4)
HOST_V6_BYTES = 20  # address (16), port (4)

# Every record begins with these fields. Then follow body, topic length (1 or 2 bytes), topic,
# properties length (2), properties.
HEADER_LAYOUT = Layout(
    ("total_size", "i"),  # of the record in bytes, this field included
    ("magic_code", "i"),  # MAGIC_V1 or MAGIC_V2
    ("body_crc", "i"),  # crc32 & 0x7FFFFFFF, 0 for an empty body
    ("queue_id", "i"),
    ("flag", "i"),  # set by the user, not interpreted
    ("queue_offset", "q"),
    ("physical_offset", "q"),  # of this record; checked on every read
    ("sys_flag", "i"),
    ("born_timestamp_ms", "q"),
    ("born_host", f"{HOST_V4_BYTES}s"),  # HOST_V6_BYTES with BORN_HOST_V6
    ("store_timestamp_ms", "q"),
    ("store_host", f"{HOST_V4_BYTES}s"),  # HOST_V6_BYTES with STORE_HOST_V6
    ("reconsume_times", "i"),
    ("prepared_transaction_offset", "q"),
    ("body_length", "i"),
)
HEADER = HEADER_LAYOUT.struct
assert HEADER.size == 88
FIXED_V1 = HEADER.size + 1 + 2  # the smallest record: lengths of topic and properties
V1_TOPIC_BYTES = 127
CRC_MASK = 0x7FFFFFFF

# The last property may hold the CRC of the bytes before it, in 20 bytes: the name, 0x01, ten
# decimal digits from the lowest on, 0x02. Decoding leaves it out.
CRC_NAME = b"__CRC32#\x01"
CRC_END = b"\x02"
_CRC_END_CODE = 2  # the same, as an item of bytes
CRC_TAIL_BYTES = 20
DAMAGED_TAIL = "the property that holds its CRC is damaged"
CRC_TAIL_BACKWARDS = CRC_END + b"%010d" + CRC_NAME[::-1]  # its bytes from the last to the first
# A record with a damaged tail must not count as one without a tail, whose CRC covers only the body.
CRC_ALIKE = 8  # at least this many of its 10 fixed bytes match: a damaged tail
CRC_ALIKE_WITH_DIGITS = 7  # the same, if the other 10 bytes are decimal digits
TAIL_ALIKE = 12  # at least this many of its 20 bytes match: a damaged tail

_HOST_SIZES = (HOST_V4_BYTES, HOST_V6_BYTES)
_BORN_HOST_BITS = dict(zip(_HOST_SIZES, (0, BORN_HOST_V6), strict=True))
_STORE_HOST_BITS = dict(zip(_HOST_SIZES, (0, STORE_HOST_V6), strict=True))
# The layout for each value of the sys flag's host bits.
HEADER_LAYOUTS = {
    _BORN_HOST_BITS[born] | _STORE_HOST_BITS[store]: HEADER_LAYOUT.with_codes(
        born_host=f"{born}s", store_host=f"{store}s"
    )
    for born in _HOST_SIZES
    for store in _HOST_SIZES
}
_SIZE_AND_QUEUE_OFFSET = HEADER_LAYOUT.view("total_size", "queue_offset")


class CorruptRecord(Exception):
    """The bytes are not a whole, undamaged record.

    `reason` says why; `about` is the field with the wrong value.
    """

    def __init__(self, reason: str, about: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.about = about


@dataclass(slots=True, init=False, eq=False, repr=False)
class Record:
    """A decoded record. Its properties and ids are decoded at the first access."""

    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    store_size: int
    body: bytes
    raw_properties: bytes
    flag: int
    sys_flag: int
    born_timestamp_ms: int
    born_host_packed: bytes
    store_timestamp_ms: int
    store_host_packed: bytes
    reconsume_times: int
    prepared_transaction_offset: int
    body_crc: int
    _properties: dict[str, str] | None

    @property
    def properties(self) -> dict[str, str]:
        if self._properties is None:
            self._properties = props.decode(self.raw_properties)
        return self._properties

    @property
    def born_host(self) -> str:
        return message_id.unpack_host(self.born_host_packed)

    @property
    def store_host(self) -> str:
        return message_id.unpack_host(self.store_host_packed)

    @property
    def offset_message_id(self) -> str:
        return message_id.offset_message_id(self.store_host_packed, self.physical_offset)

    @property
    def unique_message_id(self) -> str:
        """Return the property UNIQ_KEY, or "" if the message has none."""
        return self.properties.get(props.UNIQUE_KEY, "")


def host_bits(born_host: bytes, store_host: bytes) -> int:
    """Return the bits of the sys flag for packed hosts of these sizes.

    Raises KeyError for sizes other than HOST_V4_BYTES and HOST_V6_BYTES.
    """
    return _BORN_HOST_BITS[len(born_host)] | _STORE_HOST_BITS[len(store_host)]


def crc_tail(crc: int) -> bytes:
    """Return the last property of a record, which contains the CRC of the bytes before it."""
    return (CRC_TAIL_BACKWARDS % (crc & CRC_MASK))[::-1]


def crc_tails(crcs: Iterable[int]) -> list[bytes]:
    """Return `crc_tail` of each CRC. This needs one call less per record."""
    text, mask = CRC_TAIL_BACKWARDS, CRC_MASK
    return [(text % (crc & mask))[::-1] for crc in crcs]


def has_crc_tail(tail: bytes) -> bool:
    """Return whether the last 20 bytes of a record are its CRC property.

    Raises CorruptRecord if only most of the fixed bytes match, because the property is damaged.
    """
    if tail[:9] == CRC_NAME and tail[19:] == CRC_END:
        return True
    same = sum(map(int.__eq__, tail[:9] + tail[19:], CRC_NAME + CRC_END))
    enough = CRC_ALIKE_WITH_DIGITS if tail[9:19].isdigit() else CRC_ALIKE
    if same >= enough and len(tail) == CRC_TAIL_BYTES:
        raise CorruptRecord(DAMAGED_TAIL, "__CRC32#")
    return False


def is_damaged_tail(tail: bytes, crc: int) -> bool:
    """Return whether the last 20 bytes of a record are a damaged CRC property.

    `crc` is the CRC of the bytes before them.
    """
    return sum(map(int.__eq__, tail, crc_tail(crc))) >= TAIL_ALIKE


def body_crc(body: bytes) -> int:
    return zlib.crc32(body) & CRC_MASK


def decode(  # noqa: PLR0912  # called once a record: calls would cost
    buffer: bytes | memoryview, position: int = 0, *, check_crc: bool = True
) -> Record:
    """Return the record that starts at `position`. Raises CorruptRecord."""
    available = len(buffer) - position
    if available < HEADER.size:
        raise CorruptRecord(f"{available} bytes are too few for a record", "total_size")
    header, fields = HEADER, HEADER.unpack_from(buffer, position)
    size, magic, sys_flag = fields[0], fields[1], fields[7]
    if magic != MAGIC_V1 and magic != MAGIC_V2:  # noqa: PLR1714  # a tuple is slower
        raise CorruptRecord(f"invalid magic code 0x{magic & 0xFFFFFFFF:08X}", "magic_code")
    if not FIXED_V1 <= size <= available:
        raise CorruptRecord(f"size {size} does not fit into {available} bytes", "total_size")
    if sys_flag & HOST_BITS:
        header = HEADER_LAYOUTS[sys_flag & HOST_BITS].struct
        if header.size > size:
            raise CorruptRecord(f"size {size} is below its header's {header.size}", "total_size")
        fields = header.unpack_from(buffer, position)
    result = Record()
    (
        result.store_size,
        _,
        result.body_crc,
        result.queue_id,
        result.flag,
        result.queue_offset,
        result.physical_offset,
        result.sys_flag,
        result.born_timestamp_ms,
        result.born_host_packed,
        result.store_timestamp_ms,
        result.store_host_packed,
        result.reconsume_times,
        result.prepared_transaction_offset,
        body_length,
    ) = fields
    # Read body, topic and properties, whose lengths must add up to the size of the record.
    at, end = position + header.size, position + size
    body_end = at + body_length
    topic_at = body_end + (1 if magic == MAGIC_V1 else 2)
    if body_length < 0 or topic_at > end:
        raise CorruptRecord(f"body length {body_length} does not fit", "body_length")
    topic_bytes = buffer[body_end]
    if magic != MAGIC_V1:
        topic_bytes = topic_bytes << 8 | buffer[body_end + 1]
    topic_end = topic_at + topic_bytes
    properties_at = topic_end + 2
    if properties_at > end:
        raise CorruptRecord("the topic does not fit into the record", "topic_length")
    if properties_at + (buffer[topic_end] << 8 | buffer[topic_end + 1]) != end:
        raise CorruptRecord("the lengths do not add up to the size", "properties_length")
    result.body = bytes(buffer[at:body_end])
    try:
        result.topic = str(buffer[topic_at:topic_end], "utf-8")
    except UnicodeDecodeError:
        raise CorruptRecord("the topic is not UTF-8", "topic") from None
    result._properties = None
    tail_at = end - CRC_TAIL_BYTES
    tail = bytes(buffer[max(tail_at, properties_at) : end])
    if has_crc_tail(tail):
        # This CRC covers the body too. A second CRC of the body would cost 0.5 µs per KiB.
        if check_crc and crc_tail(zlib.crc32(buffer[position:tail_at])) != tail:
            _check_body(result)
            raise CorruptRecord("the record does not match its CRC", "__CRC32#")
        end = tail_at
    elif check_crc:
        _check_body(result)
        if len(tail) == CRC_TAIL_BYTES and is_damaged_tail(
            tail, zlib.crc32(buffer[position:tail_at])
        ):
            raise CorruptRecord(DAMAGED_TAIL, "__CRC32#")
    result.raw_properties = bytes(buffer[properties_at:end])
    return result


def _check_body(record: Record) -> None:
    if body_crc(record.body) != record.body_crc:
        raise CorruptRecord("the body does not match its CRC", "body_crc")


def iter_records(buffer: bytes | memoryview, *, check_crc: bool = True) -> Iterator[Record]:
    """Yield the consecutive records in `buffer`. Raises CorruptRecord.

    Decode a record here if it has the topic of the record before it and the usual form. This takes
    half the time of `decode`, which decodes all other records and reports each damage.
    """
    data = bytes(buffer)
    unpack, crc32, startswith = HEADER.unpack_from, zlib.crc32, data.startswith
    crc_text, header_bytes, tail_bytes = CRC_TAIL_BACKWARDS, HEADER.size, CRC_TAIL_BYTES
    position, total = 0, len(data)
    topic, name, name_bytes = "", b"", 0  # `name` is the topic with its length before it
    while position < total:
        if name_bytes and position + header_bytes <= total:
            record = Record()
            (
                size,
                magic,
                record.body_crc,
                record.queue_id,
                record.flag,
                record.queue_offset,
                record.physical_offset,
                sys_flag,
                record.born_timestamp_ms,
                record.born_host_packed,
                record.store_timestamp_ms,
                record.store_host_packed,
                record.reconsume_times,
                record.prepared_transaction_offset,
                body_length,
            ) = unpack(data, position)
            body_at, end = position + header_bytes, position + size
            body_end, tail_at = body_at + body_length, end - tail_bytes
            properties_at = body_end + name_bytes + 2
            if (
                magic == MAGIC_V1
                and body_length >= 0
                and properties_at <= tail_at
                and end <= total
                and not sys_flag & HOST_BITS
                and startswith(name, body_end)
                and data[properties_at - 2] << 8 | data[properties_at - 1] == end - properties_at
                and startswith(CRC_NAME, tail_at)
                and (
                    crc_text % (crc32(data[position:tail_at]) & CRC_MASK)
                    == data[end - 1 : tail_at - 1 : -1]
                    if check_crc
                    else data[end - 1] == _CRC_END_CODE
                )
            ):
                record.store_size = size
                record.sys_flag = sys_flag
                record.topic = topic
                record.body = data[body_at:body_end]
                record.raw_properties = data[properties_at:tail_at]
                record._properties = None
                position = end
                yield record
                continue
        record = decode(data, position, check_crc=check_crc)
        position += record.store_size
        if record.topic != topic or not name_bytes:
            topic, encoded = record.topic, record.topic.encode()
            name_bytes = 1 + len(encoded) if len(encoded) <= V1_TOPIC_BYTES else 0
            name = bytes((len(encoded),)) + encoded if name_bytes else b""
        yield record


def iter_raw(buffer: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the queue offset and the bytes of each record in `buffer`.

    `buffer` must contain whole records.
    """
    position, end = 0, len(buffer)
    while position < end:
        size, queue_offset = _SIZE_AND_QUEUE_OFFSET.unpack_from(buffer, position)
        yield queue_offset, buffer[position : position + size]
        position += size
