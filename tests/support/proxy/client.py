"""A client of a proxy process that speaks the public protocol by hand, over gRPC."""

from __future__ import annotations

import hmac
from typing import Any, Self

import grpc
from aerobee_foreign.apache.rocketmq.v2 import definition_pb2 as d
from aerobee_foreign.apache.rocketmq.v2 import service_pb2 as s

from support.stubs import Stub

METADATA = (("x-mq-client-id", "host@1@0@abc"),)
GROUP = d.Resource(name="g")


def signed(name: str, secret: str) -> tuple[tuple[str, str], ...]:
    """Metadata of a call that this user signs."""
    digest = hmac.digest(secret.encode(), b"now", "sha1").hex()
    header = f"MQv2-HMAC-SHA1 Credential={name}, SignedHeaders=x-mq-date-time, Signature={digest}"
    return (*METADATA, ("x-mq-date-time", "now"), ("authorization", header))


class Client:
    """Has a connection of its own, open while in `with`."""

    def __init__(self, address: str, ca: bytes = b"") -> None:
        """`ca`: of a proxy with a certificate of `aerobee certs`, over TLS."""
        host, _, port = address.rpartition(":")
        self.endpoints = d.Endpoints(
            scheme=d.AddressScheme.IPv4, addresses=[d.Address(host=host, port=int(port))]
        )
        options: tuple[tuple[str, Any], ...] = (("grpc.use_local_subchannel_pool", 1),)
        if ca:
            options += (("grpc.ssl_target_name_override", "proxy.DefaultCluster.aerobee"),)
            credentials = grpc.ssl_channel_credentials(ca)
            self.channel = grpc.secure_channel(address, credentials, options)
        else:
            self.channel = grpc.insecure_channel(address, options)
        self.stub = Stub(s, self.channel)
        self._sent = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.channel.close()

    def ask(self, rpc: str, request: Any) -> Any:
        method = getattr(self.stub, rpc)
        return method(request, metadata=METADATA, timeout=30, wait_for_ready=True)

    def queue(self, topic: str) -> d.MessageQueue:
        """Queue 0 of a topic, which is created."""
        request = s.QueryRouteRequest(topic=d.Resource(name=topic), endpoints=self.endpoints)
        answer = self.ask("QueryRoute", request)
        assert answer.status.code == d.Code.OK, answer.status
        found = answer.message_queues[0]
        assert isinstance(found, d.MessageQueue)
        return found

    def send(self, topic: str, *bodies: bytes, **system_fields: Any) -> s.SendMessageResponse:
        messages = []
        for body in bodies:
            self._sent += 1
            message_id = f"{id(self):X}{self._sent:08X}"
            system = d.SystemProperties(message_id=message_id, **system_fields)
            messages.append(
                d.Message(topic=d.Resource(name=topic), body=body, system_properties=system)
            )
        answer = self.ask("SendMessage", s.SendMessageRequest(messages=messages))
        assert isinstance(answer, s.SendMessageResponse)
        return answer

    def receive(self, queue: d.MessageQueue, poll_s: int = 1) -> list[d.Message]:
        request = s.ReceiveMessageRequest(group=GROUP, message_queue=queue, batch_size=32)
        request.invisible_duration.seconds = 60
        request.long_polling_timeout.seconds = poll_s
        answers = list(self.ask("ReceiveMessage", request))
        kinds = [answer.WhichOneof("content") for answer in answers]
        assert kinds == ["status", *["message"] * (len(kinds) - 2), "delivery_timestamp"]
        return [answer.message for answer in answers[1:-1]]

    def ack(self, message: d.Message) -> int:
        system = message.system_properties
        entry = s.AckMessageEntry(
            message_id=system.message_id, receipt_handle=system.receipt_handle
        )
        request = s.AckMessageRequest(group=GROUP, topic=message.topic, entries=[entry])
        return int(self.ask("AckMessage", request).status.code)
