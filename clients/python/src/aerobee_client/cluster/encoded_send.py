"""Encode a Send request without copying its message bodies with protobuf.

A protobuf parser merges a submessage that occurs twice in the encoded bytes. Protobuf therefore
encodes the request without the bodies and properties of the batch. After that follows another
occurrence of `batch` that contains only these two fields. For 128 messages of 1 KiB this costs 0.14
µs per message. A copy by protobuf costs 2 µs.
"""

from __future__ import annotations

from collections.abc import Sequence

from aerobee.broker.v1 import message_pb2

from aerobee_wire import rpcs
from aerobee_wire.rpcs import varint

_BATCH = rpcs.blob_tag(message_pb2.SendRequest, "batch")
_BODIES = rpcs.blob_tag(message_pb2.MessageBatch, "bodies")
_PROPERTIES = rpcs.blob_tag(message_pb2.MessageBatch, "properties")


class EncodedSend:
    """A Send request that is encoded without copies of its message bodies.

    `head` is the request without bodies and properties, but with their sizes. Each memory view must
    be a view of bytes.
    """

    __slots__ = ("_blobs", "head")

    def __init__(
        self,
        head: message_pb2.SendRequest,
        bodies: Sequence[bytes | memoryview] = (),
        properties: Sequence[bytes | memoryview] = (),
    ) -> None:
        self.head = head
        self._blobs: tuple[bytes | memoryview, ...] = ()
        if bodies:
            bodies_head = _BODIES + varint(sum(map(len, bodies)))
            properties_head = _PROPERTIES + varint(sum(map(len, properties)))
            parts = (bodies_head, *bodies, properties_head, *properties)
            self._blobs = (_BATCH, varint(sum(map(len, parts))), *parts)

    def SerializeToString(self) -> bytes:  # like a protobuf message
        return b"".join((self.head.SerializeToString(), *self._blobs))


SEND = rpcs.Rpc(rpcs.SEND.path, EncodedSend, rpcs.SEND.response)
