"""The record of the commit log: RocketMQ's layout, big-endian, one message a record.

Pure: bytes in, bytes out. Where a record lies and when it is written is the store's matter; this
module knows only its own bytes. Layout and limits: docs/storage_format.md.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Iterator

from aerobee_wire import message_id
from aerobee_wire import properties as props

MAGIC_V1 = 0xDAA320A7 - (1 << 32)  # topic length in one byte
MAGIC_V2 = 0xDAA320AB - (1 << 32)  # topic length in two bytes, for topics over 127 bytes
MAGIC_BLANK = 0xCBD43194 - (1 << 32)  # filler up to the end of a file
BLANK = struct.Struct(">ii")  # remaining bytes of the file, MAGIC_BLANK

# sys flag bits
COMPRESSED = 0x1
TRANSACTION_MASK = 0xC
TRANSACTION_PREPARED = 0x4
TRANSACTION_COMMIT = 0x8
TRANSACTION_ROLLBACK = 0xC
BORN_HOST_V6 = 0x10
STORE_HOST_V6 = 0x20

HEADER = struct.Struct(
    ">i"  # total size, this field included
    "i"  # magic code
    "i"  # body CRC: crc32 & 0x7FFFFFFF, 0 for an empty body
    "i"  # queue id
    "i"  # flag, the user's own
    "q"  # queue offset
    "q"  # physical offset, equal to the record's own place
    "i"  # sys flag
    "q8s"  # born timestamp (ms), born host (IPv4, port)
    "q8s"  # store timestamp (ms), store host (IPv4, port)
    "i"  # reconsume times
    "q"  # prepared transaction offset
    "i"  # body length
)
assert HEADER.size == 88
FIXED_V1 = 91  # header, topic length (1), properties length (2)
V1_TOPIC_BYTES = 127
CRC_MASK = 0x7FFFFFFF

# A last property of 20 bytes may hold the CRC of the record without these bytes: the name, 0x01,
# ten decimal digits from the lowest on, 0x02. It is no property to a reader.
CRC_NAME = b"__CRC32#\x01"
CRC_END = b"\x02"
CRC_TAIL_BYTES = 20
_CRC_TAIL_BACKWARDS = CRC_END + b"%010d" + CRC_NAME[::-1]
CRC_ALIKE = 8  # of its 10 fixed bytes: what is left of a tail after some damage

_HEADERS = {
    (born, store): struct.Struct(f">iiiiiqqiq{born}sq{store}siqi")
    for born in (8, 20)
    for store in (8, 20)
}
_SIZE_AND_QUEUE_OFFSET = struct.Struct(">i16xq")


class CorruptRecord(Exception):
    """Bytes that are no whole, unharmed record. `reason` says what is wrong with them."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Record:
    """A decoded record. Properties and ids are decoded when first asked for."""

    __slots__ = (
        "_properties",
        "body",
        "body_crc",
        "born_host_packed",
        "born_timestamp_ms",
        "flag",
        "physical_offset",
        "prepared_transaction_offset",
        "queue_id",
        "queue_offset",
        "raw_properties",
        "reconsume_times",
        "store_host_packed",
        "store_size",
        "store_timestamp_ms",
        "sys_flag",
        "topic",
    )

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
        """The property UNIQ_KEY; empty when the message has none."""
        return self.properties.get(props.UNIQUE_KEY, "")


def header_of(born_host_size: int, store_host_size: int) -> struct.Struct:
    """The header with hosts of 8 or 20 bytes each."""
    return _HEADERS[born_host_size, store_host_size]


def crc_tail(crc: int) -> bytes:
    """The last property of a record, from the CRC of what is before it."""
    return (_CRC_TAIL_BACKWARDS % (crc & CRC_MASK))[::-1]


def crc_tails(crcs: Iterable[int]) -> list[bytes]:
    """`crc_tail` of each: a call less a record."""
    text, mask = _CRC_TAIL_BACKWARDS, CRC_MASK
    return [(text % (crc & mask))[::-1] for crc in crcs]


def has_crc_tail(tail: bytes) -> bool:
    """Whether the last 20 bytes of a record hold its CRC. Raises CorruptRecord when they look as
    if they once did.
    """
    if tail[:9] == CRC_NAME and tail[19:] == CRC_END:
        return True
    same = sum(map(int.__eq__, tail[:9] + tail[19:], CRC_NAME + CRC_END))
    if same >= CRC_ALIKE and len(tail) == CRC_TAIL_BYTES:
        raise CorruptRecord("the property that holds its CRC is damaged")
    return False


def body_crc(body: bytes) -> int:
    return zlib.crc32(body) & CRC_MASK


def decode(  # noqa: PLR0912  # called once a record: calls would cost
    buffer: bytes | memoryview, position: int = 0, *, check_crc: bool = True
) -> Record:
    """The record that starts at `position`. Raises CorruptRecord."""
    available = len(buffer) - position
    if available < HEADER.size:
        raise CorruptRecord(f"{available} bytes are too few for a record")
    header, fields = HEADER, HEADER.unpack_from(buffer, position)
    size, magic, sys_flag = fields[0], fields[1], fields[7]
    if magic != MAGIC_V1 and magic != MAGIC_V2:  # noqa: PLR1714  # a tuple is slower
        raise CorruptRecord(f"magic code 0x{magic & 0xFFFFFFFF:08X} is not that of a message")
    if not FIXED_V1 <= size <= available:
        raise CorruptRecord(f"size {size} does not fit into the {available} bytes there")
    if sys_flag & (BORN_HOST_V6 | STORE_HOST_V6):
        born = 20 if sys_flag & BORN_HOST_V6 else 8
        header = _HEADERS[born, 20 if sys_flag & STORE_HOST_V6 else 8]
        if header.size > size:
            raise CorruptRecord(f"size {size} is too small for its header of {header.size} bytes")
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
    # Body, topic and properties, whose lengths must add up to the size of the record.
    at, end = position + header.size, position + size
    body_end = at + body_length
    topic_at = body_end + (1 if magic == MAGIC_V1 else 2)
    if body_length < 0 or topic_at > end:
        raise CorruptRecord(f"body length {body_length} does not fit into the record")
    topic_bytes = buffer[body_end]
    if magic != MAGIC_V1:
        topic_bytes = topic_bytes << 8 | buffer[body_end + 1]
    topic_end = topic_at + topic_bytes
    properties_at = topic_end + 2
    if properties_at > end:
        raise CorruptRecord("the topic does not fit into the record")
    if properties_at + (buffer[topic_end] << 8 | buffer[topic_end + 1]) != end:
        raise CorruptRecord("the lengths inside the record do not add up to its size")
    result.body = body = bytes(buffer[at:body_end])
    try:
        result.topic = str(buffer[topic_at:topic_end], "utf-8")
    except UnicodeDecodeError:
        raise CorruptRecord("the topic is not UTF-8") from None
    result._properties = None
    if check_crc and body_crc(body) != result.body_crc:
        raise CorruptRecord("the body does not match its CRC")
    tail_at = end - CRC_TAIL_BYTES
    tail = bytes(buffer[max(tail_at, properties_at) : end])
    if has_crc_tail(tail):
        if check_crc and crc_tail(zlib.crc32(buffer[position:tail_at])) != tail:
            raise CorruptRecord("the record does not match its CRC")
        end = tail_at
    result.raw_properties = bytes(buffer[properties_at:end])
    return result


def iter_records(buffer: bytes | memoryview, *, check_crc: bool = True) -> Iterator[Record]:
    """The records that stand one after the other in `buffer`. Raises CorruptRecord."""
    position = 0
    while position < len(buffer):
        record = decode(buffer, position, check_crc=check_crc)
        position += record.store_size
        yield record


def iter_raw(buffer: bytes) -> Iterator[tuple[int, bytes]]:
    """Queue offset and bytes of each record in `buffer`, whose records are known to be whole."""
    position, end = 0, len(buffer)
    while position < end:
        size, queue_offset = _SIZE_AND_QUEUE_OFFSET.unpack_from(buffer, position)
        yield queue_offset, buffer[position : position + size]
        position += size


def encode(
    *,
    topic: str,
    queue_id: int,
    queue_offset: int,
    physical_offset: int,
    body: bytes,
    properties: bytes,
    flag: int,
    sys_flag: int,
    born_timestamp_ms: int,
    born_host: bytes,
    store_timestamp_ms: int,
    store_host: bytes,
    reconsume_times: int = 0,
    prepared_transaction_offset: int = 0,
    whole_crc: bool = False,
) -> bytes:
    """A record. Hosts are packed (8 or 20 bytes); the host bits of `sys_flag` are set from them.

    `whole_crc`: the CRC of the record follows the properties, as one more property.
    """
    name = topic.encode()
    tail_bytes = CRC_TAIL_BYTES if whole_crc else 0
    wide = len(name) > V1_TOPIC_BYTES
    sys_flag &= ~(BORN_HOST_V6 | STORE_HOST_V6)
    if len(born_host) == 20:
        sys_flag |= BORN_HOST_V6
    if len(store_host) == 20:
        sys_flag |= STORE_HOST_V6
    header = _HEADERS[len(born_host), len(store_host)]
    properties_bytes = len(properties) + tail_bytes
    size = header.size + len(body) + (2 if wide else 1) + len(name) + 2 + properties_bytes
    encoded = b"".join(
        (
            header.pack(
                size,
                MAGIC_V2 if wide else MAGIC_V1,
                body_crc(body),
                queue_id,
                flag,
                queue_offset,
                physical_offset,
                sys_flag,
                born_timestamp_ms,
                born_host,
                store_timestamp_ms,
                store_host,
                reconsume_times,
                prepared_transaction_offset,
                len(body),
            ),
            body,
            len(name).to_bytes(2 if wide else 1, "big"),
            name,
            properties_bytes.to_bytes(2, "big"),
            properties,
        )
    )
    return encoded + crc_tail(zlib.crc32(encoded)) if whole_crc else encoded
