"""Failures of gRPC as typed errors."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import pytest
from aerobee.broker.v1 import admin_pb2

from aerobee_client.cluster.transport import Channels, GrpcTransport, cause_of, translated
from aerobee_client.errors import BrokerUnreachable, RequestTimeout
from aerobee_wire import rpcs
from aerobee_wire.status import Code, MqError, trailers_of

ADDRESS = "10.0.0.11:10911"


def failure(
    status: grpc.StatusCode, details: str, trailers: tuple[tuple[str, str], ...] = ()
) -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(
        status,
        grpc.aio.Metadata(),
        grpc.aio.Metadata(*trailers),
        details=details,
        debug_error_string=None,
    )


def test_error_of_the_peer_arrives_as_it_was_raised() -> None:
    raised = MqError(Code.FLOW_CONTROL, "slow down", retry_after_ms=20)
    caught = translated(
        failure(grpc.StatusCode.RESOURCE_EXHAUSTED, "slow down", trailers_of(raised)), ADDRESS, 3
    )
    assert (caught.code, caught.message) == (Code.FLOW_CONTROL, "slow down")
    assert caught.retryable and caught.retry_after_ms == 20


@pytest.mark.parametrize(
    ("status", "kind", "code"),
    [
        (grpc.StatusCode.UNAVAILABLE, BrokerUnreachable, Code.BROKER_UNREACHABLE),
        (grpc.StatusCode.CANCELLED, BrokerUnreachable, Code.BROKER_UNREACHABLE),
        (grpc.StatusCode.DEADLINE_EXCEEDED, RequestTimeout, Code.REQUEST_TIMEOUT),
        (grpc.StatusCode.UNIMPLEMENTED, MqError, Code.REQUEST_CODE_NOT_SUPPORTED),
        (grpc.StatusCode.INTERNAL, MqError, Code.SYSTEM_ERROR),
    ],
)
def test_failure_without_a_code_gets_that_of_its_status(
    status: grpc.StatusCode, kind: type[MqError], code: Code
) -> None:
    caught = translated(failure(status, "connection refused"), ADDRESS, 3)
    assert type(caught) is kind and caught.code is code
    assert ADDRESS in caught.message


def test_lost_connection_may_be_tried_again() -> None:
    assert translated(failure(grpc.StatusCode.UNAVAILABLE, "gone"), ADDRESS, 3).retryable


@pytest.mark.parametrize(
    ("details", "cause"),
    [
        (
            "failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:1: Failed to "
            "connect to remote host: Connection refused",
            "connection refused",
        ),
        (
            "failed to connect to all addresses; last error: UNKNOWN: ipv6:%5B::1%5D:1: Failed to "
            "connect to remote host: Connection refused",
            "connection refused",
        ),
        (
            "errors resolving no-such-host:9876: [field:hostname lookup error:address lookup "
            "failed for no-such-host:9876: Domain name not found]",
            "domain name not found",
        ),
        (
            "failed to connect to all addresses; last error: UNKNOWN: ipv4:10.0.0.1:1: Timeout "
            "occurred: FD Shutdown",
            "the connection timed out",
        ),
        (
            "failed to connect to all addresses; last error: UNAVAILABLE: ipv4:127.0.0.1:46257: "
            "Failed parsing HTTP/2 (Expected SETTINGS frame as the first frame)",
            "failed parsing HTTP/2 (Expected SETTINGS frame as the first frame)",
        ),
        (
            "failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:1: connect: "
            "Connection refused (111)",
            "connection refused",
        ),
        ("Socket closed", "socket closed"),
        ("recvmsg:Connection reset by peer", "recvmsg:Connection reset by peer"),
        ("", ""),
    ],
)
def test_the_cause_is_one_line(details: str, cause: str) -> None:
    assert cause_of(details) == cause


class OldBroker:
    """A channel to a broker that has the RPC GetBrokerStatus alone."""

    def unary_unary(
        self, path: str, *, response_deserializer: Callable[[bytes], Any], **_: Any
    ) -> Callable[..., Awaitable[Any]]:
        async def call(_: Any, timeout: float) -> Any:
            if path != rpcs.GET_BROKER_STATUS.path:
                raise failure(grpc.StatusCode.UNIMPLEMENTED, "unknown method")
            status = admin_pb2.GetBrokerStatusResponse(cluster="DefaultCluster")
            return response_deserializer(status.SerializeToString())

        return call

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
