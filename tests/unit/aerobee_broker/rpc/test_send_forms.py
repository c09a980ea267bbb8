"""Messages with a map of properties, with encoded properties, and by the fast path: the same
records are stored, or the same refusal is answered."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from aerobee.broker.v1 import message_pb2
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from aerobee_wire import properties as props
from aerobee_wire.record import Record
from aerobee_wire.status import MqError
from support.broker.handlers import Handlers
from support.broker.harness import BrokerHarness
from support.clock.virtual_loop import LoopClock, VirtualLoop

Properties = dict[str, str]
Sent = tuple[Properties, dict[str, Any]]  # properties, the other fields
# A stored message without the ids that the broker makes.
Kept = tuple[object, ...]
MADE_UP = ("UNIQ_KEY", "__transactionId__")

_NAMES = """TAGS KEYS WAIT DELAY TRAN_MSG PGROUP TIMER_DELAY_SEC TIMER_DELAY_MS TIMER_DELIVER_MS
TIMER_OUT_MS POP_CK 1ST_POP_TIME MSG_REGION TRACE_ON CLUSTER UNIQ_KEY XUNIQ_KEY XDELAY RETRY_TOPIC
MAX_RECONSUME_TIMES colour größe __SHARDINGKEY HALF_STORED_MS REAL_TOPIC __transactionId__"""
_VALUES = "0 1 -1 3 19 60 true false none UNIQ_KEY DELAY TIMER_ 1700000060000 größe"
NAMES = st.sampled_from(_NAMES.split())
VALUES = st.sampled_from(["", " ", "x" * 31_500, *_VALUES.split()]) | st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\1\2"), max_size=4
)


_ODD: dict[str, list[Any]] = {
    "topic": ["other", "%RETRY%g", "%DLQ%g", "SCHEDULE_TOPIC_XXXX", "TBW102", "a b", ""],
    "queue_id": [-1, 3, 99, None],
    "body": [b"", b"yy", b"z" * 1_024, b"z" * 1_025],
    "flag": [7, -(2**31)],
    "sys_flag": [1, 2, 4, 8, 0xC, 0x10, 0x20, 0x700, 0x1000, -1],
    "born_timestamp_ms": [1, 9_999, -5],
    "born_host": ["[::1]:5", "10.0.0.9:1", "nowhere"],
    "reconsume_times": [1, 17, -1],
}


@st.composite
def sent(draw: st.DrawFn) -> Sent:
    """Mostly a message that is taken: a refused one hides its neighbours in the request."""
    first = draw(st.sampled_from([{"UNIQ_KEY": "U"}] * 6 + [{"UNIQ_KEY": ""}, {}]))
    properties = first | draw(st.dictionaries(NAMES, VALUES, max_size=2))
    fields = {"topic": "t", "queue_id": 0, "body": b"x"}
    if draw(st.booleans()):
        odd = draw(st.sampled_from(sorted(_ODD)))
        fields[odd] = draw(st.sampled_from(_ODD[odd]))
    return properties, fields


class Form:
    """A broker that is sent every message in one form."""

    def __init__(self, harness: BrokerHarness, *, encoded: bool, brief: bool) -> None:
        self.harness = harness
        self._handlers = Handlers(harness)
        self._encoded, self._brief = encoded, brief

    async def send(self, messages: list[Sent]) -> list[Kept] | str:
        """What is new in the log, or why the request was refused."""
        begin = self.harness.store.end_offset
        try:
            response = await self._handlers("Send", self._request(messages))
        except MqError as error:
            assert self.harness.store.end_offset == begin
            return f"{error.code.name} {error.message}"
        assert len(response.queue_offsets or response.results) == len(messages)
        await self.harness.broker.commit.drain()  # flushes what was not waited for
        stored = list(self._records_from(begin))
        if response.queue_offsets:
            assert [record.queue_offset for record in stored] == list(response.queue_offsets)
        else:
            assert [record.physical_offset for record in stored] == [
                result.physical_offset for result in response.results
            ]
        return [_kept(record) for record in stored]

    def _records_from(self, offset: int) -> Iterator[Record]:
        while offset < self.harness.store.end_offset:
            record = self.harness.store.get(offset)
            yield record
            offset += record.store_size

    def _request(self, messages: list[Sent]) -> message_pb2.SendRequest:
        request = message_pb2.SendRequest(brief=self._brief, producer_group="p")
        for properties, fields in messages:
            message = request.messages.add(**fields)
            if self._encoded:
                message.encoded_properties = props.encode(properties)
            else:
                # The encoded form has no empty values.
                message.properties.update(
                    {name: value for name, value in properties.items() if value}
                )
        return request


def _kept(record: Record) -> Kept:
    properties = record.properties
    for name in MADE_UP:
        if len(properties.get(name, "")) == 32:
            properties[name] = "made up"
    return (
        (record.topic, record.queue_id, record.body, properties),
        (record.flag, record.sys_flag, record.born_timestamp_ms, record.born_host),
        (record.reconsume_times, record.prepared_transaction_offset, record.store_host),
    )


@pytest.fixture(scope="module")
def forms(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[asyncio.Runner, list[Form]]]:
    path = tmp_path_factory.mktemp("forms")

    async def begin() -> list[Form]:
        clock, made = LoopClock(), []
        forms = (("map", False, False), ("full", True, False), ("brief", True, True))
        for name, encoded, brief in forms:
            harness = await BrokerHarness.begin(path / name, clock=clock, maxMessageSize=1_024)
            made.append(Form(harness, encoded=encoded, brief=brief))
        return made

    async def end() -> None:
        for form in made:
            await form.harness.end()

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        made = runner.run(begin())
        yield runner, made
        runner.run(end())


TWO_FAULTS: Sent = ({"K": "\x1f"}, {"topic": "t", "queue_id": 0, "born_host": "nowhere"})
FAULT_OF_EACH: list[Sent] = [
    ({"K": "\x1f"}, {"topic": "t", "queue_id": 0, "body": b"x"}),
    ({}, {"topic": "t", "queue_id": 0, "body": b"x", "born_host": "nowhere"}),
]


@given(messages=st.lists(sent(), min_size=1, max_size=3))
@example(messages=[TWO_FAULTS])
@example(messages=FAULT_OF_EACH)
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_the_form_of_a_send_makes_no_difference(
    forms: tuple[asyncio.Runner, list[Form]], messages: list[Sent]
) -> None:
    runner, each = forms

    async def send() -> list[list[Kept] | str]:
        return [await form.send(messages) for form in each]

    by_map, in_full, in_brief = runner.run(send())
    assert in_full == by_map
    assert in_brief == by_map
