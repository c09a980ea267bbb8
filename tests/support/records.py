"""Records of the commit log, encoded one by one: what the store encodes by whole batches."""

from __future__ import annotations

import zlib

from aerobee_wire.record import (
    CRC_TAIL_BYTES,
    HEADER_LAYOUTS,
    HOST_BITS,
    HOST_V4_BYTES,
    MAGIC_V1,
    MAGIC_V2,
    V1_TOPIC_BYTES,
    body_crc,
    crc_tail,
    host_bits,
)


def encode(
    *,
    topic: str,
    queue_id: int = 0,
    queue_offset: int = 0,
    physical_offset: int = 0,
    body: bytes,
    properties: bytes = b"",
    flag: int = 0,
    sys_flag: int = 0,
    born_timestamp_ms: int = 0,
    born_host: bytes = bytes(HOST_V4_BYTES),
    store_timestamp_ms: int = 0,
    store_host: bytes = bytes(HOST_V4_BYTES),
    reconsume_times: int = 0,
    prepared_transaction_offset: int = 0,
    whole_crc: bool = False,
) -> bytes:
    """Hosts are packed (8 or 20 bytes); they determine the host bits of `sys_flag`. If `whole_crc`
    is True, the CRC of the record is appended as its last property."""
    name = topic.encode()
    tail_bytes = CRC_TAIL_BYTES if whole_crc else 0
    wide = len(name) > V1_TOPIC_BYTES
    hosts = host_bits(born_host, store_host)
    header = HEADER_LAYOUTS[hosts].struct
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
                sys_flag & ~HOST_BITS | hosts,
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
