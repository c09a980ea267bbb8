"""The spans of a broker: each path of a send, a pull, a send-back, and what is not sampled."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from aerobee_broker import traces as tracing
from aerobee_broker.delivery.pull.reading import PullRequest
from aerobee_broker.delivery.retry.send_back import Entry
from aerobee_broker.delivery.send.batch import SendBatch
from aerobee_broker.filter.filter import Filter
from aerobee_broker.store.messages import NewMessage
from aerobee_broker.traces import BrokerTraces, context_of
from aerobee_chassis.traces.exporter import SpanExporter
from aerobee_chassis.traces.spans import Span
from aerobee_wire import properties as props
from aerobee_wire.record import iter_records
from support.broker.harness import BORN_HOST, BrokerHarness, message
from support.broker.letters import letter, make_topics, run, spec
from support.records import encode

SAMPLED = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
TRACED = props.encode({"UNIQ_KEY": "1", "traceparent": SAMPLED})
UNSAMPLED = props.encode({"UNIQ_KEY": "2", "traceparent": SAMPLED[:-1] + "0"})


class Kept(SpanExporter):
    """Keeps spans in place of exporting them."""

    def __init__(self) -> None:
        super().__init__(lambda request: (), {})
        self.spans: list[Span] = []

    def add(self, span: Span) -> None:
        self.spans.append(span)

    @property
    def names(self) -> list[str]:
        return [span.name for span in self.spans]


@pytest.fixture
def kept() -> Kept:
    return Kept()


@pytest.fixture
async def broker(tmp_path: Path, kept: Kept) -> AsyncIterator[BrokerHarness]:
    harness = await BrokerHarness.begin(tmp_path, traces=BrokerTraces(kept))
    yield harness
    await harness.end()


def test_traceparent_stands_above_trace_context() -> None:
    other = SAMPLED.replace("-b7", "-c7")
    found = context_of(props.encode({"TRACE_CONTEXT": other, "traceparent": SAMPLED}))
    assert found is not None and found.span_id.hex() == "b7ad6b7169203331"
    found = context_of(props.encode({"TRACE_CONTEXT": other}))
    assert found is not None and found.span_id.hex() == "c7ad6b7169203331"
    assert context_of(props.encode({"my_traceparent": SAMPLED})) is None


async def test_each_path_of_a_send_has_spans_of_sampled_messages(
    broker: BrokerHarness, kept: Kept
) -> None:
    sending = broker.broker.sending
    await sending.sender.send([message("one", b"x", properties={"traceparent": SAMPLED})])
    await sending.sender.send(
        [message("late", b"x", properties={"traceparent": SAMPLED, "DELAY": "1"})]
    )
    fast = [NewMessage("fast", 0, b"x", TRACED), NewMessage("fast", 0, b"x", UNSAMPLED)]
    assert await sending.sender.send_fast(fast) is not None
    sizes = [len(UNSAMPLED), len(TRACED)]
    batch = SendBatch(
        "batch",
        [1, 1],
        b"xy",
        sizes,
        UNSAMPLED + TRACED,
        born_host=BORN_HOST,
    )
    await sending.batch_sender.send(batch)
    topics = ["one", "late", "fast", "batch"]
    assert kept.names == [f"{name} {topic}" for topic in topics for name in ("send", "store")]
    for send, store in zip(kept.spans[::2], kept.spans[1::2], strict=True):
        assert store.parent_id == send.context.span_id
        assert send.begin_ns <= store.begin_ns <= store.end_ns == send.end_ns


def test_a_batch_has_spans_of_exactly_the_sampled_messages() -> None:
    """A batch is searched as a whole, and each message of it for its own context."""
    traceparents = [
        SAMPLED,
        SAMPLED[:-1] + "0",
        SAMPLED[:-1] + "3",
        SAMPLED[:-2] + "ff",
        "01" + SAMPLED[2:] + "-more",
        "ff" + SAMPLED[2:],
        SAMPLED.upper(),
        SAMPLED[:20],
        "",
        "x" * 55 + "1",
    ]
    names = ("traceparent", "TRACE_CONTEXT", "my_traceparent", "body")
    choose = random.Random(4)
    for _ in range(300):
        messages = [
            props.encode({"UNIQ_KEY": f"{number}", choose.choice(names): value})
            for number, value in enumerate(choose.choices(traceparents, k=8))
        ]
        kept = Kept()
        BrokerTraces(kept).batch_sent(
            "t", b"".join(messages), [*map(len, messages)], begin_ns=1, store_begin_ns=2
        )
        sampled = [found for each in messages if (found := context_of(each)) is not None]
        assert kept.names == ["send t", "store t"] * len(sampled)
        assert [span.context.trace_id for span in kept.spans[::2]] == [
            found.trace_id for found in sampled
        ]


def test_a_batch_without_properties_has_no_spans() -> None:
    kept = Kept()
    BrokerTraces(kept).batch_sent("t", b"", (), begin_ns=1, store_begin_ns=2)
    assert not kept.spans


async def test_a_pull_and_its_send_backs_have_spans(broker: BrokerHarness, kept: Kept) -> None:
    await broker.group("g", retry_max_times=1)
    sender = broker.broker.sending.sender
    await sender.send([message("t", b"x", properties={"traceparent": SAMPLED})])
    await sender.send([message("t", b"y", properties={})])
    del kept.spans[:]
    request = PullRequest("g", "t", 0, 0, filter=Filter("TAG", "*"))
    result, _ = await broker.broker.consuming.pull.pull(request)
    records = list(iter_records(result.records))
    assert len(records) == 2
    entries = [Entry(record.physical_offset, delay_level=1) for record in records]
    entries += [Entry(1 << 40), Entry(records[0].physical_offset, delay_level=-1)]
    await broker.broker.sending.send_back.send_back("g", entries)
    assert kept.names == ["deliver t", "retry %RETRY%g", "dead_letter %DLQ%g"]
    assert {span.parent_id.hex() for span in kept.spans} == {"b7ad6b7169203331"}


async def test_a_redriven_letter_has_a_span(broker: BrokerHarness, kept: Kept) -> None:
    make_topics(broker)
    await broker.broker.log.put_accepted([letter(0, traceparent=SAMPLED), letter(1)])
    await run(broker, "job", spec())
    assert kept.names == ["redrive orders"]


def test_contexts_of_leased_messages_are_bounded(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracing, "MAX_LEASED", 2)
    traces = BrokerTraces(kept)
    key = ("g", "t", 0)
    record = encode(topic="t", body=b"x", properties=TRACED)
    traces.leased([(key, offset) for offset in range(3)], [record * 2, record], [1, 1, 2], 0)
    traces.settled([(key, offset) for offset in range(3)], 0)
    traces.settled([(key, 2)], 0)  # an acknowledgement that is repeated
    assert kept.names == ["deliver t"] * 3 + ["settle t"] * 2


def test_nothing_is_loaded_without_a_receiver() -> None:
    code = "import sys, aerobee_broker.app, aerobee_proxy.app; print(*sorted(sys.modules))"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert not [name for name in loaded if "traces" in name and name.startswith("aerobee")]
