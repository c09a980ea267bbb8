"""The same messages with a map of properties, with encoded ones, and asked about briefly: whatever
they are, the same is stored or refused."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from aerobee.broker.v1 import message_pb2
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aerobee_wire import properties as props
from aerobee_wire.record import Record
from aerobee_wire.status import MqError
from support.broker.harness import Parts
from support.clock.virtual_loop import LoopClock, VirtualLoop
from support.proxy.harness import FakeCall

Properties = dict[str, str]
Sent = tuple[Properties, dict[str, Any]]  # properties, the other fields
# A stored message, but for the ids that the broker makes up.
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
    """Mostly one that is taken: what is refused hides its neighbours."""
    first = draw(st.sampled_from([{"UNIQ_KEY": "U"}] * 6 + [{"UNIQ_KEY": ""}, {}]))
    properties = first | draw(st.dictionaries(NAMES, VALUES, max_size=2))
    fields = {"topic": "t", "queue_id": 0, "body": b"x"}
    if draw(st.booleans()):
        odd = draw(st.sampled_from(sorted(_ODD)))
        fields[odd] = draw(st.sampled_from(_ODD[odd]))
    return properties, fields


class Form:
    """A broker that is sent everything in one form."""

    def __init__(self, parts: Parts, encoded: bool, brief: bool) -> None:
        self.parts = parts
        self._encoded, self._brief = encoded, brief
        self._send = next(
            method
            for service in parts.broker.services()
            for method in service.methods
            if method.name == "Send"
        )

    async def send(self, messages: list[Sent]) -> list[Kept] | str:
        """What is new in the log, or why nothing is."""
        begin = self.parts.store.end_offset
        try:
            response = await self._send.handler(self._request(messages), FakeCall())
        except MqError as error:
            assert self.parts.store.end_offset == begin
            return f"{error.code.name} {error.message}"
        assert isinstance(response, message_pb2.SendResponse)
        assert len(response.queue_offsets or response.results) == len(messages)
        await self.parts.broker.commit.drain()  # also of what does not wait
        stored = list(self._from(begin))
        if response.queue_offsets:
            assert [one.queue_offset for one in stored] == list(response.queue_offsets)
        else:
            assert [one.physical_offset for one in stored] == [
                one.physical_offset for one in response.results
            ]
        return [_kept(one) for one in stored]

    def _from(self, offset: int) -> Iterator[Record]:
        while offset < self.parts.store.end_offset:
            record = self.parts.store.get(offset)
            yield record
            offset += record.store_size

    def _request(self, messages: list[Sent]) -> message_pb2.SendRequest:
        request = message_pb2.SendRequest(brief=self._brief, producer_group="p")
        for named, fields in messages:
            one = request.messages.add(**fields)
            if self._encoded:
                one.encoded_properties = props.encode(named)
            else:
                # Encoded, what is empty is not there.
                one.properties.update({name: value for name, value in named.items() if value})
        return request


def _kept(record: Record) -> Kept:
    named = record.properties
    for name in MADE_UP:
        if len(named.get(name, "")) == 32:
            named[name] = "made up"
    return (
        (record.topic, record.queue_id, record.body, named),
        (record.flag, record.sys_flag, record.born_timestamp_ms, record.born_host),
        (record.reconsume_times, record.prepared_transaction_offset, record.store_host),
    )


@pytest.fixture(scope="module")
def forms(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[asyncio.Runner, list[Form]]]:
    path = tmp_path_factory.mktemp("forms")

    async def begin() -> list[Form]:
        clock, made = LoopClock(), []
        for name, encoded, brief in (
            ("map", False, False),
            ("full", True, False),
            ("brief", True, True),
        ):
            parts = await Parts.begin(path / name, clock=clock, maxMessageSize=1_024)
            made.append(Form(parts, encoded, brief))
        return made

    async def end() -> None:
        for form in made:
            await form.parts.end()

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        made = runner.run(begin())
        yield runner, made
        runner.run(end())


@given(messages=st.lists(sent(), min_size=1, max_size=3))
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_the_form_makes_no_difference(
    forms: tuple[asyncio.Runner, list[Form]], messages: list[Sent]
) -> None:
    runner, each = forms

    async def send() -> list[list[Kept] | str]:
        return [await form.send(messages) for form in each]

    by_map, in_full, in_brief = runner.run(send())
    assert in_full == by_map
    assert in_brief == by_map
