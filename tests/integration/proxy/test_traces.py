"""One trace at an OTLP receiver: producer, proxy, broker, consumer, retry and dead letter."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from aerobee_foreign.apache.rocketmq.v2 import definition_pb2 as d
from aerobee_foreign.apache.rocketmq.v2 import service_pb2 as s
from aerobee_foreign.apache.rocketmq.v2.definition_pb2 import Code

from aerobee_broker.traces import BrokerTraces
from aerobee_chassis.config import TraceOptions
from aerobee_chassis.traces.exporter import exporter_of
from aerobee_proxy.traces import ProxyTraces
from support.clock.virtual_loop import VirtualLoop
from support.observing.otlp import otlp_receiver
from support.proxy.public_requests import VALID, message, receive
from support.proxy.whole_cluster import WholeCluster

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SAMPLED, UNSAMPLED = f"00-{TRACE}-{SPAN}-01", f"00-{TRACE}-{SPAN}-00"


async def received(cluster: WholeCluster) -> list[d.Message]:
    answers = await cluster.ask("ReceiveMessage", receive())
    return [each.message for each in answers if each.HasField("message")]


async def traffic(path: Path, broker_traces: BrokerTraces, proxy_traces: ProxyTraces) -> None:
    cluster = await WholeCluster.begin(path, broker_options={"traces": broker_traces})
    cluster.proxy.sender.traces = proxy_traces
    cluster.topic("orders")
    await cluster.broker.group("billing", retry_max_times=1)

    other = message(message_id="02", trace_context=UNSAMPLED)
    acked = message(message_id="03", trace_context=SAMPLED)
    failing = message(message_id="01")
    failing.user_properties["traceparent"] = SAMPLED
    (answer,) = await cluster.ask(
        "SendMessage", s.SendMessageRequest(messages=[failing, other, acked, message()])
    )
    assert answer.status.code == Code.OK

    first = await received(cluster)
    assert len(first) == 4
    for each in first[1:]:
        handle = each.system_properties.receipt_handle
        (answer,) = await cluster.ask("AckMessage", VALID["AckMessage"](handle))
        assert answer.status.code == Code.OK
    await asyncio.sleep(20)  # the lease ends
    [again] = await received(cluster)
    assert again.user_properties["traceparent"] == SAMPLED  # no server changes it
    await asyncio.sleep(20)
    [dead] = await cluster.broker.read("%DLQ%billing")
    assert dead.properties["traceparent"] == SAMPLED
    await cluster.end()
    assert cluster.transport.defects == []


def test_one_trace_from_the_producer_to_the_dead_letter(tmp_path: Path) -> None:
    with otlp_receiver() as (receiver, port):
        options = TraceOptions.from_values({"otlpEndpoint": f"http://127.0.0.1:{port}"})
        broker, proxy = exporter_of(options, "broker"), exporter_of(options, "proxy")
        with asyncio.Runner(loop_factory=VirtualLoop) as runner:
            runner.run(traffic(tmp_path, BrokerTraces(broker), ProxyTraces(proxy)))
        proxy.export()
        broker.export()
    spans: list[Any] = receiver.spans
    assert {span.trace_id.hex() for span in spans} == {TRACE}
    assert sorted(span.name for span in spans) == sorted(
        ["proxy_send orders"] * 2
        + ["send orders"] * 2
        + ["store orders"] * 2
        + ["deliver orders"] * 3
        + ["settle orders", "retry orders", "dead_letter %DLQ%billing"]
    )
    sends = {span.span_id for span in spans if span.name == "send orders"}
    for span in spans:
        if span.name == "store orders":
            assert span.parent_span_id in sends
        else:  # a proxy does not become the parent of a broker
            assert span.parent_span_id.hex() == SPAN
    attempts = [
        each.value.int_value
        for span in spans
        if span.name == "deliver orders"
        for each in span.attributes
        if each.key == "messaging.rocketmq.message.attempt"
    ]
    assert attempts == [1, 1, 2]
