"""Brokers and clients of a name server, as bare gRPC calls. Knows none of our clients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import grpc
from aerobee.namesrv.v1 import namesrv_pb2 as pb

from aerobee_wire.status import Code, MqError, error_from
from support.stubs import Stub

CLUSTER = "DefaultCluster"
TIMEOUT_S = 10.0


class Caller:
    """One connection to a name server. Closing it is what the death of a process looks like.

    A failed call raises MqError, read from its trailers.
    """

    def __init__(self, address: str) -> None:
        # A pool of its own: the channels of one process share a connection otherwise.
        self._channel = grpc.insecure_channel(
            address, options=[("grpc.use_local_subchannel_pool", 1)]
        )
        self.stub: Any = Stub(pb, self._channel)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._channel.close()

    def call(self, request: Any) -> Any:
        """The answer to a request, whose type tells the RPC."""
        method = type(request).__name__.removesuffix("Request")
        try:
            return getattr(self.stub, method)(request, timeout=TIMEOUT_S, wait_for_ready=True)
        except grpc.RpcError as error:
            raise mq_error(error) from error

    # ---- as a broker ----

    def register(
        self,
        broker_name: str = "broker-a",
        broker_id: int = 0,
        *,
        topics: Sequence[str] = ("orders", "payments"),
        **fields: Any,
    ) -> Any:
        configs = [
            pb.TopicConfig(topic=name, read_queue_count=4, write_queue_count=4, permission=6)
            for name in topics
        ]
        identity = identity_of(broker_name, broker_id)
        return self.call(pb.RegisterBrokerRequest(topics=configs, **{**identity, **fields}))

    def unregister(self, broker_name: str = "broker-a", broker_id: int = 0) -> None:
        self.call(pb.UnregisterBrokerRequest(**identity_of(broker_name, broker_id)))

    def watch(self, broker_name: str = "broker-a", broker_id: int = 0) -> Any:
        """The stream. Whether the name server has taken it only its log tells."""
        request = pb.WatchRegistrationRequest(**identity_of(broker_name, broker_id))
        return self.stub.WatchRegistration(request, wait_for_ready=True)

    # ---- as a client ----

    def route(self, topic: str = "orders", **fields: Any) -> Any:
        return self.call(pb.GetTopicRouteRequest(topic=topic, **fields)).route

    def brokers(self, topic: str = "orders") -> list[str]:
        """Broker names of the route; empty when there is none."""
        try:
            return [broker.broker_name for broker in self.route(topic).brokers]
        except MqError as error:
            if error.code is not Code.TOPIC_NOT_EXIST:
                raise
            return []


def identity_of(broker_name: str = "broker-a", broker_id: int = 0) -> dict[str, Any]:
    return {
        "cluster": CLUSTER,
        "broker_name": broker_name,
        "broker_id": broker_id,
        "broker_address": address_of(broker_name, broker_id),
    }


def address_of(broker_name: str = "broker-a", broker_id: int = 0) -> str:
    return f"{broker_name}-{broker_id}:10911"


def mq_error(error: grpc.RpcError) -> MqError:
    """The error that a failed call carries in its trailers. Raises the failure if it has none."""
    call: Any = error
    typed = error_from(call.details() or "", call.trailing_metadata() or ())
    if typed is None:
        raise error
    return typed
