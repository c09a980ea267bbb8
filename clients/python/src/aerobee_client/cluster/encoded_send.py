"""A Send request whose message bodies go to the wire without being copied by protobuf.

A parser of protobuf merges a submessage that occurs twice on the wire. So the request is what
protobuf encodes (all but the bodies and properties of the batch), followed by one more occurrence
of `batch` that holds only these two. For 128 messages of 1 KiB this costs 0.14 µs a message;
letting protobuf copy them costs 2.
"""

from __future__ import annotations

from collections.abc import Sequence

from aerobee.broker.v1 import message_pb2

from aerobee_wire import rpcs

_LENGTH_DELIMITED = 2


def _tag(descriptor_name: str, field_name: str) -> bytes:
    """Field number and wire type of a length-delimited field; both below 16, so one byte."""
    message = message_pb2.DESCRIPTOR.message_types_by_name[descriptor_name]
    number = message.fields_by_name[field_name].number
    assert 0 < number < 16
    return bytes([number << 3 | _LENGTH_DELIMITED])


_BATCH = _tag("SendRequest", "batch")
_BODIES = _tag("MessageBatch", "bodies")
_PROPERTIES = _tag("MessageBatch", "properties")


def varint(number: int) -> bytes:
    """Protobuf's encoding of a number from 0 on: 7 bits a byte, the lowest first."""
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


class EncodedSend:
    """`head`: the request without bodies and properties, but with the size of each. A memory view
    is one of bytes."""

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

    def SerializeToString(self) -> bytes:  # as a protobuf message
        return b"".join((self.head.SerializeToString(), *self._blobs))


SEND = rpcs.Rpc(rpcs.SEND.path, EncodedSend, rpcs.SEND.response)
