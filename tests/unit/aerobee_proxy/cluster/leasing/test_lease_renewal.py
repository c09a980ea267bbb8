"""Renewal of leases: when, for how long, until when."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import structlog
from aerobee.broker.v1.client_pb2 import ClientInfo, ListClientsResponse
from aerobee.broker.v1.pop_pb2 import ChangeInvisibleDurationResponse, InvisibleChangeResult
from aerobee.namesrv.v1.namesrv_pb2 import BrokerData, GetClusterInfoResponse
from aerobee_foreign.apache.rocketmq.v2 import service_pb2 as s

from aerobee_cluster.leases import MAX_RENEWED_MS
from aerobee_proxy.cluster.leasing.lease_renewal import AHEAD_MS
from aerobee_proxy.v2.sessions import SILENCE_MS
from aerobee_wire.handles.leases import key_of
from aerobee_wire.handles.receipt_handle import ReceiptHandle
from aerobee_wire.rpcs import CHANGE_INVISIBLE_DURATION, LIST_CLIENTS
from aerobee_wire.status import Code, MqError
from support.clock.virtual_loop import LoopClock
from support.proxy.harness import BROKER, CLIENT_ID, Cluster, FakeCall

MINUTE = 60_000


class Broker(Cluster):
    """Grants every change from now on; with the `renewal` of a proxy, which knows one client."""

    def __init__(self) -> None:
        super().__init__()
        self.refusal = 0
        self.transport.answers["ChangeInvisibleDuration"] = self._change
        self.transport.answers["ListClients"] = ListClientsResponse()
        proxy = self.proxy()
        self.renewal, self._sessions = proxy.lease_renewal, proxy.sessions
        self.advance(0)

    def advance(self, milliseconds: int) -> None:
        """The client is heard at the end of this time."""
        self.clock.advance(milliseconds)
        self._sessions.touch(CLIENT_ID, self.clock.monotonic_ms())

    @property
    def changes(self) -> list[Any]:
        requests = self.transport.requests(CHANGE_INVISIBLE_DURATION)
        return [change for request in requests for change in request.changes]

    def _change(self, address: str, request: Any) -> ChangeInvisibleDurationResponse:
        return ChangeInvisibleDurationResponse(
            results=[
                InvisibleChangeResult(
                    code=self.refusal,
                    pop_time_ms=self.clock.now_ms(),
                    invisible_duration_ms=change.invisible_duration_ms,
                )
                for change in request.changes
            ]
        )


@pytest.fixture
def broker() -> Broker:
    return Broker()


def handle(broker: Cluster, **fields: Any) -> ReceiptHandle:
    given: dict[str, Any] = {
        "broker_name": "broker-a",
        "topic": "orders",
        "consumer_group": "g",
        "queue_id": 1,
        "queue_offset": 5,
        "lease_id": 9,
        "pop_time_ms": broker.clock.now_ms(),
        "invisible_duration_ms": MINUTE,
        "delivery_attempt": 1,
    }
    return ReceiptHandle(**{**given, **fields})


async def test_lease_is_renewed_before_its_end_for_longer(broker: Broker) -> None:
    broker.renewal.track(handle(broker), CLIENT_ID, "01AB")
    await broker.renewal.scan()
    assert not broker.changes
    broker.advance(MINUTE - AHEAD_MS)
    await broker.renewal.scan()
    broker.advance(MINUTE - AHEAD_MS)
    await broker.renewal.scan()
    durations = [change.invisible_duration_ms for change in broker.changes]
    assert durations == [1 * MINUTE, 3 * MINUTE]
    assert broker.changes[0].lease.lease_id == 9


async def test_untracked_lease_is_not_renewed(broker: Broker) -> None:
    broker.renewal.track(handle(broker), CLIENT_ID, "01AB")
    # The receipt handle of another renewal names the same lease.
    untracked = broker.renewal.untrack(
        key_of(handle(broker, pop_time_ms=1, invisible_duration_ms=2))
    )
    broker.advance(MINUTE)
    await broker.renewal.scan()
    assert not broker.changes
    assert untracked is not None
    broker.renewal.retrack(untracked)
    await broker.renewal.scan()
    assert len(broker.changes) == 1


async def test_messages_of_a_gone_client_are_redelivered(broker: Broker) -> None:
    broker.renewal.track(handle(broker), CLIENT_ID, "01AB")
    broker.clock.advance(SILENCE_MS + 1)
    await broker.renewal.scan()
    (change,) = broker.changes
    assert change.invisible_duration_ms == 1_000 and not change.uncounted
    assert not len(broker.renewal)


async def test_client_that_another_proxy_hears_is_not_gone(broker: Broker) -> None:
    broker.transport.answers["ListClients"] = ListClientsResponse(
        clients=[
            ClientInfo(client_id=CLIENT_ID, silent_ms=SILENCE_MS),
            ClientInfo(client_id="silent", silent_ms=SILENCE_MS + 1),
        ]
    )
    broker.renewal.track(handle(broker), CLIENT_ID, "01AB")
    broker.renewal.track(handle(broker, queue_offset=6), "silent", "01CD")
    broker.clock.advance(SILENCE_MS + 1)
    await broker.renewal.scan()
    (change,) = broker.changes
    assert change.lease.queue_offset == 6 and len(broker.renewal) == 1
    broker.clock.advance(AHEAD_MS)
    await broker.renewal.scan()
    assert broker.changes[-1].invisible_duration_ms == MINUTE, "and its lease is renewed"


async def test_client_is_not_gone_while_the_broker_is_silent(broker: Broker) -> None:
    broker.transport.answers["ListClients"] = MqError(Code.BROKER_UNREACHABLE, "no answer")
    broker.renewal.track(handle(broker), CLIENT_ID, "01AB")
    broker.clock.advance(SILENCE_MS + 1)
    await broker.renewal.scan()
    assert not broker.changes and len(broker.renewal) == 1


async def test_lease_untracked_during_a_scan(broker: Broker) -> None:
    broker.renewal.track(handle(broker), CLIENT_ID, "01AB")
    broker.clock.advance(SILENCE_MS + 1)
    broker.transport.gate.clear()
    scan = asyncio.create_task(broker.renewal.scan())
    await asyncio.sleep(0)
    broker.renewal.untrack(key_of(handle(broker)))
    broker.transport.gate.set()
    await scan
    assert not broker.changes


async def test_retry_policy_decides_after_three_hours(broker: Broker) -> None:
    broker.renewal.track(handle(broker), CLIENT_ID, "01AB")
    broker.advance(MAX_RENEWED_MS)
    await broker.renewal.scan()
    assert broker.changes[-1].by_retry_policy
    assert not len(broker.renewal)


async def test_ended_lease_is_dropped(broker: Broker) -> None:
    broker.refusal = int(Code.INVALID_RECEIPT_HANDLE)
    broker.renewal.track(handle(broker), CLIENT_ID, "01AB")
    broker.advance(MINUTE - 1)
    await broker.renewal.scan()
    assert not len(broker.renewal)


async def test_renewal_is_retried_until_the_lease_ends(broker: Broker) -> None:
    broker.transport.answers["ChangeInvisibleDuration"] = MqError(
        Code.BROKER_UNREACHABLE, "no answer"
    )
    broker.renewal.track(handle(broker), CLIENT_ID, "01AB")
    broker.advance(MINUTE - 1)
    await broker.renewal.scan()
    assert len(broker.renewal) == 1
    broker.advance(1)
    await broker.renewal.scan()
    assert not len(broker.renewal)


async def test_renewal_names_the_end_of_the_lease(broker: Broker) -> None:
    tracked = handle(broker)
    broker.renewal.track(tracked, CLIENT_ID, "01AB")
    broker.advance(MINUTE - AHEAD_MS)
    await broker.renewal.scan()
    renewed_ms = broker.clock.now_ms()
    broker.advance(MINUTE - AHEAD_MS)
    await broker.renewal.scan()
    ends = [change.lease.expires_timestamp_ms for change in broker.changes]
    assert ends == [tracked.expires_ms, renewed_ms + MINUTE]
    assert all(change.unless_changed for change in broker.changes)


async def test_renewal_after_an_unanswered_one(broker: Broker) -> None:
    granted = broker.transport.answers["ChangeInvisibleDuration"]
    broker.transport.answers["ChangeInvisibleDuration"] = MqError(Code.REQUEST_TIMEOUT, "no answer")
    broker.renewal.track(handle(broker), CLIENT_ID, "01AB")
    broker.advance(MINUTE - AHEAD_MS)
    await broker.renewal.scan()  # the broker may have renewed it
    broker.transport.answers["ChangeInvisibleDuration"] = granted
    for _ in range(2):
        await broker.renewal.scan()
        broker.advance(MINUTE)
    assert [change.unless_changed for change in broker.changes] == [True, False, True]


async def test_change_of_the_time_of_day_makes_no_client_silent() -> None:
    cluster = Cluster()
    proxy = cluster.proxy()
    await proxy.rpcs.query_route(s.QueryRouteRequest(), FakeCall())
    proxy.lease_renewal.track(handle(cluster), CLIENT_ID, "01AB")
    cluster.clock.jump(10 * SILENCE_MS)
    await proxy.lease_renewal.scan()
    assert not cluster.transport.requests(CHANGE_INVISIBLE_DURATION)
    assert not cluster.transport.requests(LIST_CLIENTS), "no broker is asked about the client"


@pytest.mark.parametrize("minutes", [-10, 10])
async def test_broker_with_another_time_of_day(broker: Broker, minutes: int) -> None:
    tracked = handle(broker)
    broker.clock.jump(minutes * MINUTE)
    broker.renewal.track(tracked, CLIENT_ID, "01AB")
    for expected in (MINUTE, 3 * MINUTE):
        broker.advance(MINUTE - AHEAD_MS)
        await broker.renewal.scan()
        assert broker.changes[-1].invisible_duration_ms == expected
    broker.advance(MINUTE)
    await broker.renewal.scan()
    assert len(broker.changes) == 2, "the last renewal was for three minutes"


async def test_a_clock_ahead_of_the_brokers_ends_no_lease(broker: Broker) -> None:
    granted = broker.transport.answers["ChangeInvisibleDuration"]
    tracked = handle(broker)
    broker.clock.jump(10 * MINUTE)
    broker.renewal.track(tracked, CLIENT_ID, "01AB")
    broker.transport.answers["ChangeInvisibleDuration"] = MqError(
        Code.BROKER_UNREACHABLE, "no answer"
    )
    await broker.renewal.scan()
    assert len(broker.renewal) == 1
    broker.transport.answers["ChangeInvisibleDuration"] = granted
    await broker.renewal.scan()
    assert broker.changes[-1].invisible_duration_ms == MINUTE


async def test_failed_give_back_is_retried(broker: Broker) -> None:
    """Else the message would stay invisible as long as its last renewal said: up to an hour."""
    granted = broker.transport.answers["ChangeInvisibleDuration"]
    broker.transport.answers["ChangeInvisibleDuration"] = MqError(Code.REQUEST_TIMEOUT, "no answer")
    broker.renewal.track(handle(broker), CLIENT_ID, "01AB")
    broker.clock.advance(SILENCE_MS + 1)
    await broker.renewal.scan()
    broker.transport.answers["ChangeInvisibleDuration"] = granted
    await broker.renewal.scan()
    assert [change.invisible_duration_ms for change in broker.changes] == [1_000] * 2
    assert not broker.changes[1].unless_changed, "the broker may have done the first"
    assert not len(broker.renewal)


async def test_hanging_broker_does_not_delay_other_renewals() -> None:
    broker = Broker()
    broker.clock = LoopClock()  # type: ignore[assignment]
    other = BrokerData(broker_name="broker-b", addresses={0: "10.0.0.2:10911"})
    broker.transport.answers["GetClusterInfo"] = GetClusterInfoResponse(brokers=[BROKER, other])
    proxy = broker.proxy()
    answers = broker.transport.call

    async def call(address: str, rpc: Any, request: Any, *, timeout_s: float) -> Any:
        if address == "10.0.0.2:10911":
            await asyncio.sleep(timeout_s)
            raise MqError(Code.REQUEST_TIMEOUT, "no answer")
        return await answers(address, rpc, request, timeout_s=timeout_s)

    broker.transport.call = call  # type: ignore[method-assign]
    for offset in range(2_000):
        hung = handle(broker, broker_name="broker-b", queue_offset=offset)
        proxy.lease_renewal.track(hung, CLIENT_ID, "01AB")
    running = asyncio.create_task(proxy.lease_renewal.run())
    await asyncio.sleep(45)
    proxy.lease_renewal.track(handle(broker), CLIENT_ID, "01CD")
    with structlog.testing.capture_logs() as logs:
        for _ in range(12):
            proxy.sessions.touch(CLIENT_ID, broker.clock.monotonic_ms())
            await asyncio.sleep(5)
    assert len(logs) < 10, "not one line for each of its leases"
    assert [change.invisible_duration_ms for change in broker.changes] == [MINUTE]
    running.cancel()
    await asyncio.wait([running])


async def test_nothing_is_kept_of_a_client_whose_leases_have_ended(broker: Broker) -> None:
    """Acknowledged, refused by the broker, or given back: clients come and go without an end."""
    renewal = broker.renewal
    for number in range(30):
        kept = handle(broker, queue_offset=number)
        renewal.track(kept, f"client-{number}", "m")
        renewal.track(kept, f"client-{number}", "m")
        assert renewal.held_by(f"client-{number}") == 1
        lease = renewal.untrack(key_of(kept))
        assert lease is not None and not renewal.held_by(f"client-{number}")
        if number % 3:
            renewal.retrack(lease)
        if number % 3 == 1:
            broker.refusal = Code.INVALID_RECEIPT_HANDLE
            broker.clock.advance(MINUTE - AHEAD_MS)
        await renewal.scan()  # the client is silent: what is left is given back
        broker.refusal = 0
    assert len(renewal) == len(renewal._held) == 0
