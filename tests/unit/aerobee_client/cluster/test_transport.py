"""Failures of gRPC as typed errors."""

from __future__ import annotations

import pytest
from aerobee.broker.v1 import admin_pb2

from aerobee_client.cluster.transport import Channels, GrpcTransport, translated
from aerobee_client.errors import BrokerUnreachable, RequestTimeout
from aerobee_http2.calls import CallFailed
from aerobee_wire import rpcs
from aerobee_wire.status import Code, MqError, trailers_of

ADDRESS = "10.0.0.11:10911"


def test_error_of_the_peer_arrives_as_it_was_raised() -> None:
    raised = MqError(Code.FLOW_CONTROL, "slow down", retry_after_ms=20)
    caught = translated(
        CallFailed("RESOURCE_EXHAUSTED", "slow down", trailers_of(raised)), ADDRESS, 3
    )
    assert (caught.code, caught.message) == (Code.FLOW_CONTROL, "slow down")
    assert caught.retryable and caught.retry_after_ms == 20


@pytest.mark.parametrize(
    ("status", "kind", "code"),
    [
        ("UNAVAILABLE", BrokerUnreachable, Code.BROKER_UNREACHABLE),
        ("CANCELLED", BrokerUnreachable, Code.BROKER_UNREACHABLE),
        ("DEADLINE_EXCEEDED", RequestTimeout, Code.REQUEST_TIMEOUT),
        ("UNIMPLEMENTED", MqError, Code.REQUEST_CODE_NOT_SUPPORTED),
        ("INTERNAL", MqError, Code.SYSTEM_ERROR),
    ],
)
def test_failure_without_a_code_gets_that_of_its_status(
    status: str, kind: type[MqError], code: Code
) -> None:
    caught = translated(CallFailed(status, "connection refused"), ADDRESS, 3)
    assert type(caught) is kind and caught.code is code
    assert ADDRESS in caught.message


def test_lost_connection_may_be_tried_again() -> None:
    assert translated(CallFailed("UNAVAILABLE", "gone"), ADDRESS, 3).retryable


@pytest.mark.parametrize(
    ("details", "cause"),
    [
        ("connection refused", "(connection refused)"),
        ("Socket closed", "(socket closed)"),
        ("failed to connect: it does not use HTTP/2", "(it does not use HTTP/2)"),
        ("failed to connect: Socket closed", "it may require TLS"),
        ("certificate verify failed: Hostname mismatch, certificate is", "another name"),
        ("certificate verify failed: IP address mismatch, certificate is", "another name"),
        ("", "(UNAVAILABLE)"),
    ],
)
def test_the_cause_is_named(details: str, cause: str) -> None:
    assert cause in translated(CallFailed("UNAVAILABLE", details), ADDRESS, 3).message


class OldBroker:
    """A channel to a broker that has the RPC GetBrokerStatus alone."""

    async def unary(self, path: str, request: bytes, timeout_s: float, metadata: object) -> bytes:
        if path != rpcs.GET_BROKER_STATUS.path:
            raise CallFailed("UNIMPLEMENTED", "unknown method")
        return admin_pb2.GetBrokerStatusResponse(cluster="DefaultCluster").SerializeToString()

    async def close(self, grace: float | None) -> None:
        """Close nothing."""


async def test_a_status_is_read_after_a_broker_lacked_an_rpc() -> None:
    transport = GrpcTransport(Channels(lambda *_: OldBroker()))  # type: ignore[arg-type]
    with pytest.raises(MqError) as caught:
        await transport.call(ADDRESS, rpcs.GET_BACKLOG, rpcs.GET_BACKLOG.request(), timeout_s=1)
    assert caught.value.code is Code.REQUEST_CODE_NOT_SUPPORTED
    request = admin_pb2.GetBrokerStatusRequest()
    status = await transport.call(ADDRESS, rpcs.GET_BROKER_STATUS, request, timeout_s=1)
    assert status.cluster == "DefaultCluster"
    await transport.close()
