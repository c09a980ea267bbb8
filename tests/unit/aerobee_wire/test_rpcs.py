"""RPCs as values, derived from the contract."""

from __future__ import annotations

from typing import Any

import pytest
from aerobee.broker.v1 import message_pb2, replication_pb2
from aerobee.namesrv.v1 import namesrv_pb2

from aerobee_wire.rpcs import GET_TOPIC_ROUTE, SEND, blob_tag, find_blob, rpc


def test_path_is_that_of_the_contract() -> None:
    assert SEND.path == "/aerobee.broker.v1.MessageService/Send"
    assert GET_TOPIC_ROUTE.method == "GetTopicRoute"
    assert GET_TOPIC_ROUTE.request is namesrv_pb2.GetTopicRouteRequest
    assert GET_TOPIC_ROUTE.response is namesrv_pb2.GetTopicRouteResponse


def test_request_and_response_that_are_no_rpc_are_refused() -> None:
    with pytest.raises(TypeError):
        rpc(message_pb2.SendRequest, message_pb2.PullResponse)
    with pytest.raises(TypeError):
        rpc(message_pb2.Message, message_pb2.SendResponse)


@pytest.mark.parametrize("size", [0, 1, 127, 128, 70_000])
def test_a_blob_is_found_where_protobuf_put_it(size: int) -> None:
    tag = blob_tag(replication_pb2.FollowChunk, "data")
    content = bytes(range(256)) * 300
    chunk = replication_pb2.FollowChunk(epoch=1 << 40, data=content[:size], crc32=1 << 31)
    encoded = b"ahead" + chunk.SerializeToString() + b"behind"
    found = find_blob(encoded, len(b"ahead"), len(encoded) - len(b"behind"), tag)
    if not size:  # protobuf leaves it out
        assert found is None
        return
    assert found is not None
    assert encoded[found.begin : found.end] == content[:size]
    rest = encoded[len(b"ahead") : found.at] + encoded[found.end : -len(b"behind")]
    chunk.ClearField("data")
    assert replication_pb2.FollowChunk.FromString(rest) == chunk


def test_a_blob_that_is_cut_off_is_none() -> None:
    tag = blob_tag(replication_pb2.FollowChunk, "data")
    encoded = replication_pb2.FollowChunk(epoch=1 << 40, data=bytes(200)).SerializeToString()
    for end in range(len(encoded)):
        assert find_blob(encoded[:end], 0, end, tag) is None
    assert find_blob(b"\x0d1234" + encoded, 0, len(encoded) + 5, tag) is None, "behind a fixed32"


def test_number_without_an_end_is_read_up_to_the_longest_one() -> None:
    """Its time would grow with the square of its length."""
    read: list[int] = []

    class Counted(bytes):
        def __getitem__(self, at: Any) -> Any:
            read.append(at)
            return super().__getitem__(at)

    encoded = Counted(b"\x08" + b"\xff" * 1_000)
    assert find_blob(encoded, 0, len(encoded), b"\x12") is None
    assert max(read) <= 10
