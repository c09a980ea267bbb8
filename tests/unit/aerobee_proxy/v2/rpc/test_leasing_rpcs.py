"""ReceiveMessage and the three ways to settle what it brought, against a cluster in memory."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from aerobee.broker.v1 import pop_pb2 as pop
from aerobee.broker.v1.admin_pb2 import GetGroupResponse, GroupConfig
from apache.rocketmq.v2 import definition_pb2 as d
from apache.rocketmq.v2 import service_pb2 as s
from apache.rocketmq.v2.definition_pb2 import Code

from aerobee_proxy.proxy import Proxy
from aerobee_wire import properties
from aerobee_wire.receipt_handle import decode, encode
from aerobee_wire.record import encode as encode_record
from aerobee_wire.rpcs import ACK, CHANGE_INVISIBLE_DURATION, DEAD_LETTER, POP
from aerobee_wire.status import Code as BrokerCode
from aerobee_wire.status import MqError
from support.proxy.harness import CLIENT_ID, Cluster, FakeCall, streamed

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
        flag=0,
        sys_flag=0,
        born_timestamp_ms=1,
        born_host=b"\x7f\0\0\1\0\0\0\1",
        store_timestamp_ms=2,
        store_host=b"\x7f\0\0\1\0\0\0\2",
        reconsume_times=0,
        prepared_transaction_offset=0,
    )


class Broker(Cluster):
    def __init__(self) -> None:
        super().__init__()
        self.records = [record(5), record(6)]
        self.code = 0
        self.over: set[int] = set()  # queue offsets whose leases are over
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
        over = pop.LeaseResult(code=int(BrokerCode.INVALID_RECEIPT_HANDLE), message="over")
        return [
            pop.AckFailure(lease_set=number, place=place, result=over)
            for number, leases in enumerate(request.lease_sets)
            for place, offset in enumerate(leases.queue_offsets)
            if offset in self.over
        ]


@pytest.fixture
def broker() -> Broker:
    return Broker()


@pytest.fixture
def proxy(broker: Broker) -> Proxy:
    return broker.proxy()


def request(**change: Any) -> s.ReceiveMessageRequest:
    given = s.ReceiveMessageRequest(group=GROUP, message_queue=QUEUE, batch_size=16)
    given.invisible_duration.seconds = 15
    given.long_polling_timeout.seconds = 5
    given.MergeFrom(s.ReceiveMessageRequest(**change))
    return given


async def receive(proxy: Proxy, call: FakeCall | None = None, **change: Any) -> list[Any]:
    return await streamed(proxy.rpcs.receive_message, request(**change), call or FakeCall())


def kinds(written: list[Any]) -> list[str]:
    return [one.WhichOneof("content") for one in written]


async def all_handles(proxy: Proxy, **change: Any) -> list[str]:
    written = await receive(proxy, **change)
    return [one.message.system_properties.receipt_handle for one in written[1:-1]]


async def one_handle(proxy: Proxy, **change: Any) -> str:
    return (await all_handles(proxy, **change))[0]


# ---- receiving ----


async def test_the_stream_is_status_messages_and_the_time(proxy: Proxy) -> None:
    written = await receive(proxy)
    assert kinds(written) == ["status", "message", "message", "delivery_timestamp"]
    assert written[0].status.code == Code.OK
    first, second = (one.message.system_properties for one in written[1:3])
    assert (first.message_id, first.delivery_attempt) == ("id5", 1)
    assert (second.message_id, second.delivery_attempt) == ("id6", 2)


async def test_nothing_to_give_is_a_status_and_the_time(broker: Broker, proxy: Proxy) -> None:
    broker.records = []
    written = await receive(proxy)
    assert kinds(written) == ["status", "delivery_timestamp"]
    assert written[0].status.code == Code.MESSAGE_NOT_FOUND


@pytest.mark.parametrize(
    ("failure", "code"),
    [
        (BrokerCode.POLLING_FULL, Code.TOO_MANY_REQUESTS),
        (BrokerCode.NO_PERMISSION, Code.FORBIDDEN),
        (BrokerCode.TOPIC_NOT_EXIST, Code.TOPIC_NOT_FOUND),
        (BrokerCode.SUBSCRIPTION_GROUP_NOT_EXIST, Code.CONSUMER_GROUP_NOT_FOUND),
        (BrokerCode.SUBSCRIPTION_PARSE_FAILED, Code.ILLEGAL_FILTER_EXPRESSION),
        (BrokerCode.REQUEST_TIMEOUT, Code.PROXY_TIMEOUT),
    ],
)
async def test_what_a_broker_says_is_told_in_the_public_code(
    broker: Broker, proxy: Proxy, failure: BrokerCode, code: Code
) -> None:
    broker.transport.answers["Pop"] = MqError(failure, "because")
    written = await receive(proxy)
    assert kinds(written) == ["status", "delivery_timestamp"]
    assert written[0].status.code == code


def duration(seconds: int) -> Any:
    return s.ReceiveMessageRequest(invisible_duration={"seconds": seconds}).invisible_duration


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"group": d.Resource(name="a b")}, Code.ILLEGAL_CONSUMER_GROUP),
        ({"message_queue": d.MessageQueue(topic=d.Resource(name="*"))}, Code.ILLEGAL_TOPIC),
        ({"invisible_duration": duration(9)}, Code.ILLEGAL_INVISIBLE_TIME),
        ({"invisible_duration": duration(43_201)}, Code.ILLEGAL_INVISIBLE_TIME),
        (
            {"filter_expression": d.FilterExpression(type=d.FilterType.SQL, expression=" ")},
            Code.ILLEGAL_FILTER_EXPRESSION,
        ),
        ({"message_queue": d.MessageQueue(broker=d.Broker(name="x"))}, Code.BAD_REQUEST),
    ],
)
async def test_a_request_is_refused(
    broker: Broker, proxy: Proxy, change: dict[str, Any], code: Code
) -> None:
    written = await receive(proxy, **change)
    assert kinds(written) == ["status", "delivery_timestamp"]
    assert written[0].status.code == code
    assert not broker.transport.requests(POP)


async def test_what_the_broker_is_asked_for(broker: Broker, proxy: Proxy) -> None:
    wanted = d.FilterExpression(type=d.FilterType.SQL, expression="a > 1")
    await receive(proxy, batch_size=100, filter_expression=wanted)
    (asked,) = broker.transport.requests(POP)
    assert (asked.consumer_group, asked.topic, asked.max_messages) == ("g", "orders", 32)
    assert (asked.invisible_duration_ms, asked.poll_duration_ms) == (15_000, 5_000)
    assert asked.subscription.expression == "a > 1"
    assert not asked.HasField("queue_id") and not asked.fifo


async def test_an_attempt_has_a_name_in_ordered_groups_only(broker: Broker, proxy: Proxy) -> None:
    await receive(proxy, attempt_id="x")
    group = GroupConfig(consumer_group="o", consume_message_orderly=True)
    broker.transport.answers["GetGroup"] = GetGroupResponse(group=group)
    await receive(proxy, attempt_id="x", group=d.Resource(name="o"))
    plain, ordered = broker.transport.requests(POP)
    assert (plain.fifo, plain.attempt_id) == (False, "")
    assert (ordered.fifo, ordered.attempt_id) == (True, "x")


async def test_a_lease_of_a_push_consumer_is_renewed_and_no_other(proxy: Proxy) -> None:
    await receive(proxy)
    assert len(proxy.lease_renewal) == 0
    await receive(proxy, auto_renew=True)
    assert len(proxy.lease_renewal) == 2


class BrokenCall(FakeCall):
    async def write(self, message: Any) -> None:
        if len(self.written) == 2:
            raise ConnectionError("the client is gone")
        await super().write(message)


async def test_what_is_settled_while_the_rest_is_written_is_not_renewed(proxy: Proxy) -> None:
    class Hasty(FakeCall):
        async def write(self, message: Any) -> None:
            await super().write(message)
            handle = self.written[-1].message.system_properties.receipt_handle
            if handle:
                assert (await ack(proxy, handle)).status.code == Code.OK

    assert len(await receive(proxy, Hasty(), auto_renew=True)) == 4
    assert len(proxy.lease_renewal) == 0


async def test_what_was_not_written_whole_is_given_back_uncounted(
    broker: Broker, proxy: Proxy
) -> None:
    with pytest.raises(ConnectionError):
        await receive(proxy, BrokenCall(), auto_renew=True)
    for _ in range(5):  # round_robin of the loop: it goes on in the background
        await asyncio.sleep(0)
    (asked,) = broker.transport.requests(CHANGE_INVISIBLE_DURATION)
    assert [change.lease.queue_offset for change in asked.changes] == [5, 6]
    assert all(change.uncounted and not change.invisible_duration_ms for change in asked.changes)
    assert len(proxy.lease_renewal) == 0


async def test_a_proxy_that_ends_gives_back_first(broker: Broker, proxy: Proxy) -> None:
    with pytest.raises(ConnectionError):
        await receive(proxy, BrokenCall())
    await proxy.background.close()
    assert broker.transport.requests(CHANGE_INVISIBLE_DURATION)


async def test_a_proxy_ends_although_a_broker_hangs(broker: Broker, proxy: Proxy) -> None:
    with pytest.raises(ConnectionError):
        await receive(proxy, BrokenCall())
    broker.transport.gate.clear()
    await proxy.background.close()


# ---- settling ----


async def ack(proxy: Proxy, *handles: str, topic: d.Resource = TOPIC) -> s.AckMessageResponse:
    entries = [s.AckMessageEntry(message_id="m", receipt_handle=handle) for handle in handles]
    answer = await proxy.rpcs.ack_message(
        s.AckMessageRequest(group=GROUP, topic=topic, entries=entries), FakeCall()
    )
    assert isinstance(answer, s.AckMessageResponse)
    return answer


async def test_an_acknowledgement_settles_the_lease_that_the_handle_names(
    broker: Broker, proxy: Proxy
) -> None:
    handle = await one_handle(proxy, auto_renew=True)
    answer = await ack(proxy, handle)
    assert (answer.status.code, answer.entries[0].status.code) == (Code.OK, Code.OK)
    assert (answer.entries[0].message_id, answer.entries[0].receipt_handle) == ("m", handle)
    (asked,) = broker.transport.requests(ACK)
    (leases,) = asked.lease_sets
    assert (leases.topic, leases.queue_id, leases.queue_offsets, leases.lease_id) == (
        "orders", 2, [5], 77,
    )  # fmt: skip
    assert len(proxy.lease_renewal) == 1


async def test_a_message_of_the_retry_topic_is_settled_there(broker: Broker, proxy: Proxy) -> None:
    broker.records = [record(5, "%RETRY%g")]
    handle = await one_handle(proxy)
    assert (await ack(proxy, handle)).status.code == Code.OK
    assert broker.transport.requests(ACK)[0].lease_sets[0].topic == "%RETRY%g"


async def test_only_the_bad_handle_of_several_is_refused(proxy: Proxy) -> None:
    answer = await ack(proxy, await one_handle(proxy), "made up")
    assert answer.status.code == Code.MULTIPLE_RESULTS
    codes = [entry.status.code for entry in answer.entries]
    assert codes == [Code.OK, Code.INVALID_RECEIPT_HANDLE]


async def test_a_handle_of_another_topic_is_refused(proxy: Proxy) -> None:
    handle = await one_handle(proxy)
    answer = await ack(proxy, handle, topic=d.Resource(name="other"))
    assert answer.status.code == Code.INVALID_RECEIPT_HANDLE


async def test_a_lease_that_is_over_is_told(broker: Broker, proxy: Proxy) -> None:
    handle = await one_handle(proxy)
    broker.over = {5}
    answer = await ack(proxy, handle)
    assert (answer.status.code, answer.status.message) == (Code.INVALID_RECEIPT_HANDLE, "over")


async def test_ack_by_a_broker_without_lease_sets_fails(broker: Broker, proxy: Proxy) -> None:
    handle = await one_handle(proxy, auto_renew=True)
    broker.transport.answers["Ack"] = lambda _, request: pop.AckResponse()
    answer = await ack(proxy, handle)
    assert answer.entries[0].status.code == Code.VERSION_UNSUPPORTED
    assert len(proxy.lease_renewal) == 2, "the message is still the client's"
    assert proxy.counts.acknowledged == 0


async def test_failures_are_told_to_their_own_entries_of_requests_that_went_together(
    broker: Broker, proxy: Proxy
) -> None:
    broker.records = [record(offset) for offset in range(5, 12)]
    handles = await all_handles(proxy, auto_renew=True)
    broker.over = {5, 8, 11}
    first, second = await asyncio.gather(
        ack(proxy, handles[1], "made up", handles[0], handles[3], handles[2]),
        ack(proxy, *handles[4:]),
    )
    (asked,) = broker.transport.requests(ACK)
    offsets = [list(leases.queue_offsets) for leases in asked.lease_sets]
    assert offsets == [[6, 8, 7], [5], [9, 10, 11]], "handles that differ in more than the offset"
    good, bad = Code.OK, Code.INVALID_RECEIPT_HANDLE
    assert [entry.status.code for entry in first.entries] == [good, bad, bad, bad, good]
    assert [entry.receipt_handle for entry in second.entries] == handles[4:]
    assert [entry.status.code for entry in second.entries] == [good, good, bad]
    assert first.status.code == second.status.code == Code.MULTIPLE_RESULTS
    assert len(proxy.lease_renewal) == 0, "what is over is not renewed"
    assert proxy.counts.acknowledged == 4


async def test_who_leaves_while_its_messages_are_settled_still_has_them_renewed(
    broker: Broker, proxy: Proxy
) -> None:
    handles = await all_handles(proxy, auto_renew=True)
    asked = asyncio.create_task(ack(proxy, *handles))
    await asyncio.sleep(0)
    assert len(proxy.lease_renewal) == 0
    asked.cancel()
    await asyncio.wait([asked])
    assert asked.cancelled()
    assert len(proxy.lease_renewal) == 2


async def test_a_request_without_an_entry_is_an_error(proxy: Proxy) -> None:
    assert (await ack(proxy)).status.code == Code.INTERNAL_SERVER_ERROR


async def test_a_settlement_that_failed_goes_on_being_renewed(broker: Broker, proxy: Proxy) -> None:
    handle = await one_handle(proxy, auto_renew=True)
    broker.transport.answers["Ack"] = None
    assert (await ack(proxy, handle)).status.code == Code.PROXY_TIMEOUT
    assert len(proxy.lease_renewal) == 2


async def change(proxy: Proxy, handle: str, seconds: int, **more: Any) -> Any:
    asked = s.ChangeInvisibleDurationRequest(
        group=GROUP, topic=TOPIC, receipt_handle=handle, message_id="m", **more
    )
    asked.invisible_duration.seconds = seconds
    return await proxy.rpcs.change_invisible_duration(asked, FakeCall())


async def test_a_change_gives_a_handle_with_the_new_time_of_the_same_lease(
    broker: Broker, proxy: Proxy
) -> None:
    handle = await one_handle(proxy, auto_renew=True)
    broker.clock.advance(3_000)
    answer = await change(proxy, handle, 20)
    assert answer.status.code == Code.OK
    old, new = decode(handle), decode(answer.receipt_handle)
    assert (new.lease_id, new.queue_offset) == (old.lease_id, old.queue_offset)
    assert (new.pop_time_ms, new.invisible_duration_ms) == (broker.clock.now_ms(), 20_000)
    assert len(proxy.lease_renewal) == 1


def says_it_is(proxy: Proxy, kind: d.ClientType) -> None:
    proxy.sessions.touch(CLIENT_ID, 0).settings = d.Settings(
        client_type=kind, subscription=d.Subscription(group=GROUP)
    )


@pytest.mark.parametrize(
    ("kind", "suspend", "seconds", "waits_s"),
    [
        (d.ClientType.PUSH_CONSUMER, False, 0, 1),  # as one SDK asks, whatever it was told
        (d.ClientType.PUSH_CONSUMER, False, 20, 20),
        (d.ClientType.PUSH_CONSUMER, True, 0, 0),  # not a failure
        (d.ClientType.SIMPLE_CONSUMER, False, 0, 0),
    ],
)
async def test_what_a_push_consumer_gives_back_comes_no_sooner_than_its_group_says(
    proxy: Proxy, kind: d.ClientType, suspend: bool, seconds: int, waits_s: int
) -> None:
    handle = await one_handle(proxy, auto_renew=True)
    says_it_is(proxy, kind)
    answer = await change(proxy, handle, seconds, suspend=suspend)
    assert decode(answer.receipt_handle).invisible_duration_ms == waits_s * 1_000


@pytest.mark.parametrize("seconds", [-1, 43_201])
async def test_a_change_beyond_the_limits_is_refused(proxy: Proxy, seconds: int) -> None:
    answer = await change(proxy, await one_handle(proxy), seconds)
    assert answer.status.code == Code.ILLEGAL_INVISIBLE_TIME


async def test_a_change_of_a_damaged_handle_is_refused(proxy: Proxy) -> None:
    handle = await one_handle(proxy)
    answer = await change(
        proxy, ("A" if handle[5] != "A" else "B").join((handle[:5], handle[6:])), 1
    )
    assert answer.status.code == Code.INVALID_RECEIPT_HANDLE


@pytest.mark.parametrize("suspend", [False, True])
async def test_a_suspended_message_is_not_counted(
    broker: Broker, proxy: Proxy, suspend: bool
) -> None:
    await change(proxy, await one_handle(proxy), 0, suspend=suspend)
    (asked,) = broker.transport.requests(CHANGE_INVISIBLE_DURATION)
    assert asked.changes[0].uncounted is suspend


async def forward(proxy: Proxy, handle: str, message_id: str = "m") -> Any:
    asked = s.ForwardMessageToDeadLetterQueueRequest(
        group=GROUP, topic=TOPIC, receipt_handle=handle, message_id=message_id, delivery_attempt=3
    )
    return await proxy.rpcs.forward_message_to_dead_letter_queue(asked, FakeCall())


async def test_a_message_is_moved_to_the_dead_letters(broker: Broker, proxy: Proxy) -> None:
    assert (await forward(proxy, await one_handle(proxy))).status.code == Code.OK
    (asked,) = broker.transport.requests(DEAD_LETTER)
    assert asked.entries[0].lease.queue_offset == 5
    assert "attempt 3" in asked.entries[0].failure.description


@pytest.mark.parametrize(
    ("failure", "code"),
    [
        (BrokerCode.INVALID_RECEIPT_HANDLE, Code.INVALID_RECEIPT_HANDLE),
        (BrokerCode.QUERY_NOT_FOUND, Code.MESSAGE_NOT_FOUND),
    ],
)
async def test_a_message_that_cannot_be_moved_is_told(
    broker: Broker, proxy: Proxy, failure: BrokerCode, code: Code
) -> None:
    handle = await one_handle(proxy)
    broker.code = int(failure)
    assert (await forward(proxy, handle)).status.code == code


async def test_without_a_handle_a_message_is_found_among_those_the_client_holds(
    broker: Broker, proxy: Proxy
) -> None:
    """The C++ SDK sends none."""
    await receive(proxy, auto_renew=True)
    assert (await forward(proxy, "", "id6")).status.code == Code.OK
    (asked,) = broker.transport.requests(DEAD_LETTER)
    assert asked.entries[0].lease.queue_offset == 6
    assert len(proxy.lease_renewal) == 1
    for message_id in ("id6", "id7"):
        answer = await forward(proxy, "", message_id)
        assert answer.status.code == Code.INVALID_RECEIPT_HANDLE


async def test_a_request_without_a_handle_is_refused(proxy: Proxy) -> None:
    assert (await forward(proxy, "")).status.code == Code.INVALID_RECEIPT_HANDLE


async def test_another_proxy_can_settle(broker: Broker, proxy: Proxy) -> None:
    handle = await one_handle(proxy)
    assert encode(decode(handle)) == handle
    assert (await ack(broker.proxy(), handle)).status.code == Code.OK
