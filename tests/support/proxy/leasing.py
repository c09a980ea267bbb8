"""A broker in memory that leases messages, and a client's calls over them."""

from __future__ import annotations

from typing import Any

from aerobee.broker.v1 import pop_pb2 as pop
from aerobee_foreign.apache.rocketmq.v2 import definition_pb2 as d
from aerobee_foreign.apache.rocketmq.v2 import service_pb2 as s

from aerobee_proxy.proxy import Proxy
from aerobee_wire import properties
from aerobee_wire.status import Code as BrokerCode
from support.proxy.harness import Cluster, FakeCall, streamed
from support.records import encode as encode_record

TOPIC, GROUP = d.Resource(name="orders"), d.Resource(name="g")
QUEUE = d.MessageQueue(topic=TOPIC, broker=d.Broker(name="broker-a"), id=-1)


def record(offset: int, topic: str = "orders") -> bytes:
    stored = {"UNIQ_KEY": f"id{offset}", "TAGS": "a", "RETRY_TOPIC": "orders"}
    return encode_record(
        topic=topic,
        queue_id=2,
        queue_offset=offset,
        physical_offset=offset * 1_000,
        body=b"body",
        properties=properties.encode(stored),
        born_timestamp_ms=1,
        born_host=b"\x7f\0\0\1\0\0\0\1",
        store_timestamp_ms=2,
        store_host=b"\x7f\0\0\1\0\0\0\2",
    )


class LeasingBroker(Cluster):
    """Leases `records` at each Pop, and answers what a client does with the leases."""

    def __init__(self) -> None:
        super().__init__()
        self.records = [record(5), record(6)]
        self.code = 0
        self.ended: set[int] = set()  # queue offsets whose leases have ended
        self.transport.answers |= {
            "Pop": self._pop,
            "Ack": lambda _, r: pop.AckResponse(
                failures=self._failures(r), lease_sets=len(r.lease_sets)
            ),
            "DeadLetter": lambda _, r: pop.DeadLetterResponse(results=[self._result()]),
            "ChangeInvisibleDuration": lambda _, r: pop.ChangeInvisibleDurationResponse(
                results=[
                    pop.InvisibleChangeResult(
                        code=self.code,
                        pop_time_ms=self.clock.now_ms(),
                        invisible_duration_ms=change.invisible_duration_ms,
                    )
                    for change in r.changes
                ]
            ),
        }

    def _pop(self, address: str, request: Any) -> pop.PopResponse:
        return pop.PopResponse(
            records=b"".join(self.records),
            message_count=len(self.records),
            delivery_attempts=[1, *[2] * (len(self.records) - 1)],
            lease_id=77,
            pop_time_ms=self.clock.now_ms(),
            invisible_duration_ms=request.invisible_duration_ms,
            broker_name="broker-a",
        )

    def _result(self) -> pop.LeaseResult:
        return pop.LeaseResult(code=self.code, message="because" if self.code else "")

    def _failures(self, request: pop.AckRequest) -> list[pop.AckFailure]:
        ended = pop.LeaseResult(code=int(BrokerCode.INVALID_RECEIPT_HANDLE), message="ended")
        return [
            pop.AckFailure(lease_set=number, place=place, result=ended)
            for number, leases in enumerate(request.lease_sets)
            for place, offset in enumerate(leases.queue_offsets)
            if offset in self.ended
        ]


def request(**change: Any) -> s.ReceiveMessageRequest:
    given = s.ReceiveMessageRequest(group=GROUP, message_queue=QUEUE, batch_size=16)
    given.invisible_duration.seconds = 15
    given.long_polling_timeout.seconds = 5
    given.MergeFrom(s.ReceiveMessageRequest(**change))
    return given


async def receive(proxy: Proxy, call: FakeCall | None = None, **change: Any) -> list[Any]:
    return await streamed(proxy.rpcs.receive_message, request(**change), call or FakeCall())


def kinds(written: list[Any]) -> list[str]:
    return [response.WhichOneof("content") for response in written]


async def all_handles(proxy: Proxy, **change: Any) -> list[str]:
    written = await receive(proxy, **change)
    return [response.message.system_properties.receipt_handle for response in written[1:-1]]


async def one_handle(proxy: Proxy, **change: Any) -> str:
    return (await all_handles(proxy, **change))[0]


async def ack(proxy: Proxy, *handles: str, topic: d.Resource = TOPIC) -> s.AckMessageResponse:
    entries = [s.AckMessageEntry(message_id="m", receipt_handle=handle) for handle in handles]
    answer = await proxy.rpcs.ack_message(
        s.AckMessageRequest(group=GROUP, topic=topic, entries=entries), FakeCall()
    )
    assert isinstance(answer, s.AckMessageResponse)
    return answer


class BrokenCall(FakeCall):
    async def write(self, message: Any) -> None:
        if len(self.written) == 2:
            raise ConnectionError("the client is gone")
        await super().write(message)
