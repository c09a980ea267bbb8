"""Checks a record against the consume queue unit that names it, without using files.

The check compares the physical offset, queue, queue offset and topic in the record with the
requested ones, and the CRC with the bytes. The reader reports a record that fails, and never
returns it.
"""

from __future__ import annotations

from isal.isal_zlib import crc32

from aerobee_broker.store.derived.consume_queue import ConsumeQueue
from aerobee_broker.store.messages import Unit
from aerobee_wire import record
from aerobee_wire.properties import VALUE_END_CODE
from aerobee_wire.record import CorruptRecord

Run = list[tuple[int, Unit]]  # (queue offset, unit) of records that one call reads

# The fields to compare with a unit. They precede the hosts.
_FRONT = record.HEADER_LAYOUT.view(
    "total_size",
    "magic_code",
    "body_crc",
    "queue_id",
    "queue_offset",
    "physical_offset",
    "sys_flag",
)
# The same fields for a record with two IPv4 hosts: the body length replaces the body CRC.
_FRONT_V4 = record.HEADER_LAYOUT.view(
    "total_size",
    "magic_code",
    "queue_id",
    "queue_offset",
    "physical_offset",
    "sys_flag",
    "body_length",
)
# By the host bits of the sys flag.
_BODY_AT = {bits: layout.size for bits, layout in record.HEADER_LAYOUTS.items()}
_BODY_LENGTH = {bits: layout.view("body_length") for bits, layout in record.HEADER_LAYOUTS.items()}
_HOST_BITS = record.HOST_BITS
_BAD_BODY = "the body does not match its CRC"


def check(  # noqa: PLR0911 # one return for each kind of problem
    data: bytes, at: int, unit: Unit, queue: ConsumeQueue, queue_offset: int
) -> str:
    """Return the problem of the record at `data[at:]` that `unit` names, or "" if it is valid."""
    physical_offset, size, _ = unit
    end = at + size
    if end > len(data) or size < record.FIXED_V1:
        return "the log ends inside it"
    fields = _FRONT.unpack_from(data, at)
    total_size, magic, body_crc, queue_id, own_queue_offset, own_physical_offset, sys_flag = fields
    if own_physical_offset != physical_offset or total_size != size or magic != queue.topic.magic:
        return "there is no such record at its physical offset"
    if own_queue_offset != queue_offset or queue_id != queue.queue_id:
        return "it belongs to another queue or queue offset"
    hosts = sys_flag & _HOST_BITS
    body_at = at + _BODY_AT[hosts]
    if body_at > end:
        return "its header does not fit into its size"
    topic_at = body_at + _BODY_LENGTH[hosts].unpack_from(data, at)[0]
    topic_end = topic_at + len(queue.topic.field)
    if not body_at < topic_at <= end or data[topic_at:topic_end] != queue.topic.field:
        return "its topic is another, or its lengths do not add up"
    if topic_end + 2 + int.from_bytes(data[topic_end : topic_end + 2], "big") != end:
        return "its lengths do not add up to its size"
    if end > topic_end + 2 and data[end - 1] != VALUE_END_CODE:
        return "its properties are cut off"
    tail_at = end - record.CRC_TAIL_BYTES
    tail = data[tail_at:end]
    try:
        if record.has_crc_tail(tail):
            matches = record.crc_tail(crc32(data[at:tail_at])) == tail
            return "" if matches else "it does not match its CRC"
    except CorruptRecord as error:
        return error.reason
    if record.is_damaged_tail(tail, crc32(data[at:tail_at])):
        return record.DAMAGED_TAIL
    return "" if crc32(data[body_at:topic_at]) & record.CRC_MASK == body_crc else _BAD_BODY


def all_whole(data: bytes, physical_offset: int, run: Run, queue: ConsumeQueue) -> bool:
    """Return whether all records of one read are valid, faster than `check` of each one.

    `data` was read at `physical_offset`. A CRC at the end of a record proves its bytes, so only its
    identity is compared. Also return False if a record has no such CRC, or has an IPv6 host.
    """
    front, startswith, data_end = _FRONT_V4.unpack_from, data.startswith, len(data)
    least, header_bytes, tail_bytes = record.FIXED_V1, record.HEADER.size, record.CRC_TAIL_BYTES
    crc_text, crc_mask = record.CRC_TAIL_BACKWARDS, record.CRC_MASK
    magic, queue_id, field = queue.topic.magic, queue.queue_id, queue.topic.field
    for queue_offset, (unit_physical_offset, size, _) in run:
        at = unit_physical_offset - physical_offset
        end = at + size
        tail_at = end - tail_bytes
        if end > data_end or size < least:
            return False
        total, own_magic, own_queue, own_offset, own_physical_offset, sys_flag, body = front(
            data, at
        )
        if (
            own_physical_offset != unit_physical_offset
            or total != size
            or own_magic != magic
            or own_offset != queue_offset
            or own_queue != queue_id
            or sys_flag & _HOST_BITS
            or data[end - 1 : tail_at - 1 : -1] != crc_text % (crc32(data[at:tail_at]) & crc_mask)
            or not startswith(field, at + header_bytes + body)
        ):
            return False
    return True
