"""The streams of name servers: how they are kept, and what a change of a broker leads to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

from aerobee.namesrv.v1.namesrv_pb2 import BrokerMembers, WatchBrokersRequest, WatchBrokersResponse

from aerobee_cluster.broker_watch import LONGEST_PAUSE_S, BrokerWatch
from aerobee_wire.status import Code, MqError
from support.proxy.fake_transport import FakeTransport

NAMESRVS = "10.0.0.8:9876", "10.0.0.9:9876"
OLD, NEW = "10.0.0.1:10911", "10.0.0.2:10911"
AWAY = MqError(Code.BROKER_UNREACHABLE, "away")


class Watched:
    """A watch of two name servers. `told`: what each reports; an exception or None ends a stream.

    `former`: what `learn` returns.
    """

    def __init__(self) -> None:
        self.told: dict[str, asyncio.Queue[BrokerMembers | Exception | None]]
        self.told = {namesrv: asyncio.Queue() for namesrv in NAMESRVS}
        self.transport = FakeTransport(WatchBrokers=self.stream)
        self.former: str | None = None
        self.learnt: list[int] = []  # epochs
        self.moved: list[tuple[str, str, list[str]]] = []  # … and the addresses dropped by then
        self.lost: list[tuple[str, Exception | None]] = []
        self.watch = BrokerWatch(
            self.transport,
            NAMESRVS,
            self.learn,
            on_moved=lambda members, former: self.moved.append(
                (members.broker_name, former, [*self.transport.dropped])
            ),
            on_lost=lambda namesrv, failure: self.lost.append((namesrv, failure)),
        )

    async def stream(
        self, address: str, request: WatchBrokersRequest
    ) -> AsyncIterator[WatchBrokersResponse]:
        while (told := await self.told[address].get()) is not None:
            if isinstance(told, Exception):
                raise told
            yield WatchBrokersResponse(brokers=[told])

    def learn(self, members: BrokerMembers) -> str | None:
        if members.epoch < 0:
            raise ValueError("a defect")
        self.learnt.append(members.epoch)
        return self.former

    @property
    def opened(self) -> list[str]:
        """The name server of each stream that was opened."""
        return [address for address, _, _ in self.transport.calls]

    async def tell(self, *told: BrokerMembers | Exception | None, pause_s: float = 0.1) -> None:
        """Let the first name server report these, with a pause after each."""
        for each in told:
            self.told[NAMESRVS[0]].put_nowait(each)
            await asyncio.sleep(pause_s)

    @contextmanager
    def running(self) -> Iterator[None]:
        task = asyncio.create_task(self.watch.run())
        try:
            yield
        finally:
            task.cancel()


def members(epoch: int) -> BrokerMembers:
    return BrokerMembers(broker_name="broker-a", addresses={0: NEW}, epoch=epoch)


async def test_every_name_server_is_followed() -> None:
    watched = Watched()
    with watched.running():
        for epoch, namesrv in enumerate(NAMESRVS):
            watched.told[namesrv].put_nowait(members(epoch))
        await asyncio.sleep(0.1)
    assert (watched.opened, watched.learnt) == ([*NAMESRVS], [0, 1])


async def test_calls_at_a_former_master_are_failed_before_the_move_is_reported() -> None:
    watched = Watched()
    watched.former = OLD
    with watched.running():
        await watched.tell(members(2))
    assert watched.moved == [("broker-a", OLD, [OLD])]


async def test_a_change_that_moves_no_master_is_not_reported() -> None:
    watched = Watched()
    with watched.running():
        await watched.tell(members(2))
    assert (watched.learnt, watched.moved, watched.transport.dropped) == ([2], [], [])


async def test_a_first_master_has_no_former_address_to_leave() -> None:
    watched = Watched()
    watched.former = ""
    with watched.running():
        await watched.tell(members(2))
    assert watched.moved == [("broker-a", "", [])]


async def test_a_stream_that_ends_or_fails_is_opened_again() -> None:
    watched = Watched()
    with watched.running():
        await watched.tell(None, AWAY, members(7), pause_s=LONGEST_PAUSE_S)
    assert watched.opened == [*NAMESRVS, NAMESRVS[0], NAMESRVS[0]]
    assert watched.learnt == [7]


async def test_pauses_grow_while_a_name_server_is_away() -> None:
    watched = Watched()
    for _ in range(100):
        watched.told[NAMESRVS[0]].put_nowait(AWAY)
    with watched.running():
        await asyncio.sleep(60)
    assert 5 <= watched.opened.count(NAMESRVS[0]) <= 12
    assert watched.opened.count(NAMESRVS[1]) == 1


async def test_a_loss_is_reported_once_until_the_name_server_reports_again() -> None:
    watched = Watched()
    with watched.running():
        await watched.tell(AWAY, AWAY, None, pause_s=LONGEST_PAUSE_S)
        assert watched.lost == [(NAMESRVS[0], AWAY)]
        await watched.tell(members(1), None, AWAY, pause_s=LONGEST_PAUSE_S)
    assert watched.lost == [(NAMESRVS[0], AWAY), (NAMESRVS[0], None)]


async def test_a_defect_is_reported_each_time_and_does_not_end_the_watch() -> None:
    watched = Watched()
    with watched.running():
        await watched.tell(members(-1), members(-1), members(4), pause_s=LONGEST_PAUSE_S)
    assert [type(failure) for _, failure in watched.lost] == [ValueError, ValueError]
    assert watched.learnt == [4]
