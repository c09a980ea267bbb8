"""Encodes a batch of one topic and queue field by field instead of record by record.

The bytes are identical to those of `append.py`. Each step is one pass over a list, with the loop
inside the interpreter. Fields that all records share are packed once. A message of 1 KiB takes
1.5 µs in batches of 128; the loop of `append.py` takes 2.5 µs.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from itertools import chain, repeat

from isal.isal_zlib import crc32

from aerobee_broker.store.derived.consume_queue import ConsumeQueue
from aerobee_broker.store.derived.topic_encoding import TAGS, TagsCodes
from aerobee_broker.store.messages import UNIT, NewBatch
from aerobee_wire import record
from aerobee_wire.properties import VALUE_END_BYTES
from aerobee_wire.properties import get as get_property
from aerobee_wire.record import CRC_MASK, crc_tails

_TAGS_INSIDE = VALUE_END_BYTES + TAGS
_LENGTH = struct.Struct(">H")
_MAGIC = record.HEADER_LAYOUT.part("magic_code", "magic_code")
_QUEUE_AND_FLAG = record.HEADER_LAYOUT.part("queue_id", "flag")
# Both are keyed by the host bits of the sys flag. `_COMMON` packs the fields that all records of a
# batch share. `_HEADER` packs a header with these fields as one field.
_COMMON = {
    bits: layout.part("sys_flag", "prepared_transaction_offset")
    for bits, layout in record.HEADER_LAYOUTS.items()
}
_HEADER = {
    bits: layout.merged("magic_code", "magic_code")
    .merged("queue_id", "flag")
    .merged("sys_flag", "prepared_transaction_offset")
    .struct
    for bits, layout in record.HEADER_LAYOUTS.items()
}


class BatchEncoder:
    """Encodes the records of one batch. `born_host` and `store_host` are packed bytes."""

    def __init__(
        self,
        batch: NewBatch,
        queue: ConsumeQueue,
        born_host: bytes,
        *,
        store_host: bytes,
        now_ms: int,
        tail_bytes: int,
    ) -> None:
        self._batch = batch
        self._queue = queue
        self._hosts = (born_host, store_host)
        self._now_ms = now_ms
        self._tail_bytes = tail_bytes
        self.body_lengths = list(map(len, batch.bodies))
        self.properties_lengths = list(map(len, batch.properties))
        self._host_bits = record.host_bits(born_host, store_host)
        self.header = _HEADER[self._host_bits]
        fixed = self.header.size + len(queue.topic.field) + _LENGTH.size + tail_bytes
        self.sizes = [
            fixed + body + properties
            for body, properties in zip(self.body_lengths, self.properties_lengths, strict=True)
        ]

    def records(self, physical_offsets: Sequence[int]) -> list[bytes]:
        """Encode the records for these physical offsets.

        Each record consists of `parts_each` items of the list.
        """
        batch, topic = self._batch, self._queue.topic
        heads = map(
            self.header.pack,
            self.sizes,
            repeat(_MAGIC.pack(topic.magic)),
            [crc32(body) & CRC_MASK for body in batch.bodies],
            self._queues_and_flags(),
            range(self._queue.next_offset, self._queue.next_offset + len(physical_offsets)),
            physical_offsets,
            repeat(self._common()),
            self.body_lengths,
        )
        # The bytes between body and properties, by the length of the properties.
        between = {
            length: topic.field + _LENGTH.pack(length + self._tail_bytes)
            for length in set(self.properties_lengths)
        }
        fields = zip(
            heads,
            batch.bodies,
            map(between.__getitem__, self.properties_lengths),
            batch.properties,
            strict=True,
        )
        if not self._tail_bytes:
            return list(map(b"".join, fields))
        # One pass of the CRC over the joined record is faster than three over its parts.
        records = list(map(b"".join, fields))
        tails = crc_tails(map(crc32, records))
        return list(chain.from_iterable(zip(records, tails, strict=True)))

    @property
    def parts_each(self) -> int:
        return 2 if self._tail_bytes else 1

    def _queues_and_flags(self) -> Iterable[bytes]:
        queue_id = self._batch.queue_id
        if not self._batch.flags:
            return repeat(_QUEUE_AND_FLAG.pack(queue_id, 0))
        return [_QUEUE_AND_FLAG.pack(queue_id, flag) for flag in self._batch.flags]

    def _common(self) -> bytes:
        sys_flag = self._batch.sys_flag & ~record.HOST_BITS | self._host_bits
        born_ms, (born_host, store_host) = self._batch.born_timestamp_ms, self._hosts
        return _COMMON[self._host_bits].pack(
            *(sys_flag, born_ms, born_host, self._now_ms, store_host, 0, 0)
        )

    def units(self, physical_offsets: Sequence[int], tags_codes: TagsCodes) -> bytes:
        """Encode the consume queue units of the records at these physical offsets."""
        codes = self._codes(tags_codes)
        return b"".join(map(UNIT.pack, physical_offsets, self.sizes, codes))

    def _codes(self, tags_codes: TagsCodes) -> list[int]:
        strings, own = self._batch.properties, self._queue.topic.tags_code
        if own is not None:
            return [own(string, self._now_ms) for string in strings]
        if any(map(bytes.startswith, strings, repeat(TAGS))):
            return [
                tags_codes[get_property(string, TAGS) if string else None] for string in strings
            ]
        # TAGS is not the first property, so it follows the end of another value.
        found = [string.partition(_TAGS_INSIDE)[2] for string in strings]
        # A batch has few different tags: each is hashed once.
        codes = {
            tags: tags_codes[tags.partition(VALUE_END_BYTES)[0] or None] for tags in set(found)
        }
        return list(map(codes.__getitem__, found))
