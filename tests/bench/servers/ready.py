"""The ceiling of receiving: the calls of a consumer, answered with bytes that were made beforehand.

On the transport that serves the proxy. There is no broker, no store and no work: what is left is
what gRPC costs for as many messages of that size.

`python -m bench.servers.ready` prints its port and serves until its standard input closes.
"""

from __future__ import annotations

from typing import Any

from aerobee_foreign.apache.rocketmq.v2 import definition_pb2 as d
from aerobee_foreign.apache.rocketmq.v2 import service_pb2 as s

from aerobee_chassis.rpc.call import Call
from aerobee_chassis.rpc.services import Method
from bench.load import BODY, NAME, RECEIVE_BATCH, SERVICE
from bench.servers.echo_transport import serve

OK = d.Status(code=d.Code.OK)
HANDLE = "A" * 82  # as long as ours


def received(number: int) -> bytes:
    """A message with all that the proxy's have."""
    answer = s.ReceiveMessageResponse()
    message, system = answer.message, answer.message.system_properties
    message.topic.CopyFrom(NAME)
    message.body = BODY
    system.message_id, system.receipt_handle = f"01{number:032X}", HANDLE
    system.tag, system.born_host, system.store_host = "bench", "127.0.0.1:50000", "127.0.0.1:10911"
    system.body_digest.type, system.body_digest.checksum = d.DigestType.MD5, "A" * 32
    system.body_encoding, system.message_type = d.Encoding.IDENTITY, d.MessageType.NORMAL
    for time in (system.born_timestamp, system.store_timestamp):
        time.seconds, time.nanos = 1_700_000_000, 123_000_000
    system.queue_id, system.queue_offset, system.delivery_attempt = 1, 10_000 + number, 1
    return answer.SerializeToString()


def route() -> bytes:
    answer = s.QueryRouteResponse(status=OK)
    answer.message_queues.add().broker.name = "none"
    return answer.SerializeToString()


def acknowledged() -> bytes:
    answer = s.AckMessageResponse(status=OK)
    for number in range(RECEIVE_BATCH):
        answer.entries.add(message_id=f"01{number:032X}", receipt_handle=HANDLE, status=OK)
    return answer.SerializeToString()


def delivered() -> bytes:
    answer = s.ReceiveMessageResponse()
    answer.delivery_timestamp.seconds = 1_700_000_000
    return answer.SerializeToString()


STREAM = [
    s.ReceiveMessageResponse(status=OK).SerializeToString(),
    *map(received, range(RECEIVE_BATCH)),
]
LAST = delivered()
UNARY = {"QueryRoute": route(), "AckMessage": acknowledged()}


async def run(_service: str, method: Method, _request: bytes, call: Call) -> Any:
    if method.name in UNARY:
        return UNARY[method.name]
    await call.write_all(STREAM)
    return LAST


if __name__ == "__main__":
    serve(SERVICE.strip("/"), {**dict.fromkeys(UNARY, False), "ReceiveMessage": True}, run)
