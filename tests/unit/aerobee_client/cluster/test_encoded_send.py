"""Bytes written without protobuf's copies are the same request to a protobuf parser."""

from __future__ import annotations

from aerobee.broker.v1 import message_pb2
from hypothesis import example, given
from hypothesis import strategies as st

from aerobee_client.cluster.encoded_send import EncodedSend
from aerobee_client.message import Message
from aerobee_client.sending.send_request import Run, request, set_queue
from aerobee_wire import properties
from aerobee_wire.rpcs import varint

BLOBS = st.lists(st.binary(min_size=1, max_size=300), min_size=1, max_size=8)


@given(st.integers(0, 2**32))
@example(127)
@example(128)
@example(2**28)
def test_varint_is_protobufs(number: int) -> None:
    field = message_pb2.QueryMessagesRequest(end_timestamp_ms=number).SerializeToString()
    assert field in (b"\x30" + varint(number), b"")


@given(bodies=BLOBS, encoded=BLOBS, queue_id=st.integers(0, 9))
def test_parser_reads_what_protobuf_would_have_written(
    bodies: list[bytes], encoded: list[bytes], queue_id: int
) -> None:
    head = message_pb2.SendRequest(producer_group="p")
    head.batch.topic = "t"
    head.batch.body_sizes.extend(map(len, bodies))
    whole = message_pb2.SendRequest()
    whole.CopyFrom(head)
    whole.batch.queue_id = queue_id
    whole.batch.bodies = b"".join(bodies)
    whole.batch.properties = b"".join(encoded)
    sent = EncodedSend(head, bodies, encoded)
    set_queue(sent, queue_id)
    assert message_pb2.SendRequest.FromString(sent.SerializeToString()) == whole


def test_queue_may_be_set_again_for_another_try() -> None:
    messages, message_ids = (
        [Message("t", b"a", tag="UA"), Message("t", b"bc", flag=7)],
        ["I1", "I2"],
    )
    encoded = [messages[0].encoded_properties("I1"), messages[1].encoded_properties("I2")]
    run = Run(messages, message_ids, encoded)
    sent = request(run, producer_group="p", born_timestamp_ms=5, default_queue_count=4)
    for queue_id in (3, 1):
        set_queue(sent, queue_id)
        read = message_pb2.SendRequest.FromString(sent.SerializeToString())
        assert (read.batch.queue_id, read.batch.bodies, list(read.batch.body_sizes)) == (
            queue_id,
            b"abc",
            [1, 2],
        )
        assert list(read.batch.flags) == [0, 7]
        first = read.batch.properties[: read.batch.properties_sizes[0]]
        assert properties.decode(first) == {"UNIQ_KEY": "I1", "TAGS": "UA"}
