"""RPCs as values, derived from the contract."""

from __future__ import annotations

import pytest
from aerobee.broker.v1 import message_pb2
from aerobee.namesrv.v1 import namesrv_pb2

from aerobee_wire.rpcs import GET_TOPIC_ROUTE, SEND, rpc


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
