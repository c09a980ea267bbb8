"""The exchange of access tables: what each process has after changes, faults and absences."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from typing import Any

import pytest
from aerobee.access.v1 import access_pb2 as pb

from aerobee_cluster.access.exchange import LONGEST_PAUSE_S, TableExchange
from aerobee_cluster.access.handlers import PART, AccessHandlers
from aerobee_cluster.access.store import AccessStore, Changes
from aerobee_wire.access.caller import ANYBODY
from aerobee_wire.access.table import HORIZON_MS, Record, Version
from aerobee_wire.access.users import User
from aerobee_wire.files import NotSynced
from aerobee_wire.rpcs import Request, Rpc
from aerobee_wire.status import Code, MqError
from support.clock.virtual_loop import LoopClock

A, B = "10.0.0.8:9876", "10.0.0.9:9876"
SECRET = "s3cret"


class LocalCall:
    """A call from this machine."""

    peer = "127.0.0.1:40000"
    caller = ANYBODY

    def __init__(self, write: Callable[[Any], None] = lambda message: None) -> None:
        self._write = write

    async def write(self, message: Any) -> None:
        self._write(message)


CALL = LocalCall()


class Process:
    """A name server, broker or proxy. `content` is its file."""

    def __init__(self, name: str, clock: LoopClock, content: bytes | None = None) -> None:
        self.content = content
        self.fails = False
        self.syncs = True
        self.logged: list[tuple[str, dict[str, object]]] = []
        self.store = AccessStore(name, clock.now_ms, self.save)
        if content is not None:
            self.store.restore(content)
        self.handlers = AccessHandlers(self.store, private=False, log=self.log)

    async def save(self, content: Callable[[], bytes]) -> None:
        if self.fails:
            raise OSError(28, "No space left on device")
        self.content = content()
        if not self.syncs:
            raise NotSynced(5, "Input/output error")

    def log(self, event: str, **fields: object) -> None:
        self.logged.append((event, fields))

    def secret_of(self, name: str) -> str | None:
        user = self.store.table.user(name)
        return None if user is None else user.secrets[0].decode()

    async def put(self, name: str, secret: str = SECRET, **more: Any) -> None:
        request = pb.PutUserRequest(username=name, secret=secret, **more)
        await self.handlers.put_user(request, CALL)

    async def delete(self, name: str) -> None:
        await self.handlers.delete_user(pb.DeleteUserRequest(username=name), CALL)


class Network:
    """Calls of processes to name servers. An address in `away` does not answer."""

    def __init__(self) -> None:
        self.clock = LoopClock()
        self.namesrvs = {A: Process("a", self.clock), B: Process("b", self.clock)}
        self.away: set[str] = set()
        self.lost: list[tuple[str, Exception | None]] = []
        self.merged: list[int] = []  # the records of each request
        self._open: dict[asyncio.Queue[Any], str] = {}
        self._tasks: list[asyncio.Task[None]] = []

    async def call(
        self, address: str, rpc: Rpc[Any, Any], request: Request, *, timeout_s: float
    ) -> Any:
        self._check(address)
        assert rpc.method == "MergeTable"
        self.merged.append(len(request.records))  # type: ignore[attr-defined]
        return await self.namesrvs[address].handlers.merge_table(request, CALL)  # type: ignore[arg-type]

    async def stream(
        self, address: str, rpc: Rpc[Any, Any], request: Request
    ) -> AsyncGenerator[Any, None]:
        self._check(address)
        parts: asyncio.Queue[Any] = asyncio.Queue()
        self._open[parts] = address
        call = LocalCall(parts.put_nowait)
        serving = asyncio.create_task(
            self.namesrvs[address].handlers.watch(pb.WatchRequest(), call)
        )
        serving.add_done_callback(lambda task: parts.put_nowait(None))
        try:
            while (part := await parts.get()) is not None:
                if isinstance(part, Exception):
                    raise part
                yield part
        finally:
            del self._open[parts]
            serving.cancel()

    def expect(self, address: str, broker_name: str) -> None:
        """No certificates here."""

    async def drop(self, address: str) -> None: ...

    async def close(self) -> None: ...

    def _check(self, address: str) -> None:
        if address in self.away:
            raise MqError(Code.NAMESRV_UNREACHABLE, f"{address} is away")

    def lose(self, address: str) -> None:
        self.away.add(address)
        for parts, at in self._open.items():
            if at == address:
                parts.put_nowait(MqError(Code.NAMESRV_UNREACHABLE, "lost"))

    def end_streams(self) -> None:
        for parts in self._open:
            parts.put_nowait(None)

    def exchange(self, process: Process, *, sends: bool = True) -> TableExchange:
        exchange = TableExchange(
            self,
            (A, B),
            process.store,
            sends=sends,
            on_lost=lambda namesrv, failure: self.lost.append((namesrv, failure)),
        )
        self._tasks.append(asyncio.create_task(exchange.run()))
        return exchange

    def broker(self, content: bytes | None = None) -> Process:
        process = Process("broker", self.clock, content)
        self.exchange(process)
        return process

    async def stop_within(self, timeout_s: float) -> bool:
        """Cancel the exchanges. Return whether they end in time."""
        for task in self._tasks:
            task.cancel()
        _, running = await asyncio.wait(self._tasks, timeout=timeout_s)
        return not running

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


@pytest.fixture
async def network() -> AsyncGenerator[Network, None]:
    network = Network()
    yield network
    await network.stop()
    unexpected = [each for _, each in network.lost if not isinstance(each, MqError | None)]
    assert not unexpected


async def settle() -> None:
    """Less than the 2 s after which a change is visible everywhere."""
    await asyncio.sleep(LONGEST_PAUSE_S + 0.5)


async def test_change_at_a_name_server_reaches_all_processes(network: Network) -> None:
    broker, proxy = network.broker(), Process("proxy", network.clock)
    exchange = network.exchange(proxy, sends=False)
    await settle()
    assert exchange.complete.is_set(), "all name servers answered, though they are empty"
    await network.namesrvs[A].put("app")
    await settle()
    everywhere = [*network.namesrvs.values(), broker, proxy]
    assert [each.secret_of("app") for each in everywhere] == [SECRET] * 4
    await network.namesrvs[B].delete("app")
    await settle()
    assert [each.secret_of("app") for each in everywhere] == [None] * 4


async def test_many_changes_are_sent_in_parts(network: Network) -> None:
    broker = network.broker()
    await network.namesrvs[A].put("app")
    await settle()
    network.merged.clear()
    users = [User(f"user-{number}", (SECRET.encode(),)) for number in range(2 * PART + 1)]
    await broker.store.merge([Record(user, Version(network.clock.now_ms(), "x")) for user in users])
    await settle()
    assert max(network.merged) == PART
    for each in network.namesrvs.values():
        assert all(each.secret_of(user.name) == SECRET for user in users)


async def test_change_at_a_broker_reaches_name_servers(network: Network) -> None:
    broker = network.broker()
    await settle()
    await broker.put("app")
    await settle()
    assert [each.secret_of("app") for each in network.namesrvs.values()] == [SECRET] * 2


async def test_proxy_does_not_send(network: Network) -> None:
    proxy = Process("proxy", network.clock)
    network.exchange(proxy, sends=False)
    await network.namesrvs[A].put("app")
    await settle()
    assert proxy.secret_of("app") == SECRET and network.namesrvs[B].secret_of("app") is None


@pytest.mark.parametrize("users", [(), ("app",)], ids=["new cluster", "users"])
async def test_proxy_waits_until_a_broker_has_filled_empty_name_servers(
    network: Network, users: tuple[str, ...]
) -> None:
    proxy = Process("proxy", network.clock)
    exchange = network.exchange(proxy, sends=False)
    await settle()
    assert not exchange.complete.is_set(), "name servers that lost their disks know no user"
    broker = Process("broker", network.clock)
    for name in users:
        await broker.put(name)
    network.exchange(broker)
    await settle()
    assert exchange.complete.is_set()
    assert all(proxy.secret_of(name) == SECRET for name in users)


async def test_process_that_runs_for_minutes_each_month_is_not_stale(network: Network) -> None:
    """It writes at each exchange that its table is current, and not only every 12 hours."""
    broker = network.broker()
    await network.namesrvs[A].put("app")
    await settle()
    content = broker.content
    for _ in range(3):
        await network.stop()
        network.clock.jump(HORIZON_MS * 2 // 3)
        broker = network.broker(content)
        assert not broker.store.is_stale
        await settle()
        content = broker.content


async def test_proxy_waits_for_a_table_while_one_name_server_is_empty_and_one_away(
    network: Network,
) -> None:
    network.away.add(B)
    proxy = Process("proxy", network.clock)
    exchange = network.exchange(proxy, sends=False)
    await settle()
    assert not exchange.complete.is_set()
    await network.namesrvs[B].put("app")
    network.away.clear()
    await settle()
    assert exchange.complete.is_set() and proxy.secret_of("app") == SECRET


async def test_name_server_that_was_away_gets_changes_of_that_time(network: Network) -> None:
    network.broker()
    await network.namesrvs[A].put("app")
    await network.namesrvs[A].put("old")
    await settle()
    network.lose(B)
    await network.namesrvs[A].put("app", "new")
    await network.namesrvs[A].delete("old")
    await network.namesrvs[B].put("late")
    network.away.clear()
    await settle()
    for each in network.namesrvs.values():
        found = [each.secret_of(name) for name in ("app", "old", "late")]
        assert found == ["new", None, SECRET]


async def test_process_with_an_empty_disk_gets_the_table(network: Network) -> None:
    network.broker()
    await network.namesrvs[A].put("app")
    await settle()
    network.lose(B)
    network.namesrvs[B] = Process("b2", network.clock)
    network.away.clear()
    await settle()
    assert network.namesrvs[B].secret_of("app") == SECRET
    assert Process("b3", network.clock, network.namesrvs[B].content).secret_of("app") == SECRET


async def test_copy_that_was_away_for_longer_than_the_horizon_restores_nothing(
    network: Network,
) -> None:
    network.away.add(B)
    broker = network.broker()
    await network.namesrvs[A].put("kept")
    await network.namesrvs[A].put("gone")
    await settle()
    old = broker.content
    await network.stop()
    await network.namesrvs[A].delete("gone")
    network.clock.jump(HORIZON_MS + 60_000)
    await network.namesrvs[A].store.keep_current()  # forgets the tombstone
    returned = network.broker(old)
    assert returned.secret_of("gone") == SECRET
    await settle()
    for each in (returned, network.namesrvs[A]):
        assert [each.secret_of(name) for name in ("kept", "gone")] == [SECRET, None]
    assert not returned.store.is_stale


async def test_failure_is_reported_once(network: Network) -> None:
    network.away.add(B)
    network.broker()
    await settle()
    await settle()
    assert [(at, type(failure)) for at, failure in network.lost] == [(B, MqError)]


async def test_end_of_a_name_server_is_not_a_failure(network: Network) -> None:
    network.broker()
    await settle()
    network.away.add(A)
    network.namesrvs[A].store.close()
    await settle()
    assert network.lost == [(A, None)]


async def test_closed_changes_end(network: Network) -> None:
    changes = Changes()
    changes.close()
    assert [each async for each in changes] == []


async def test_change_that_cannot_be_written_is_not_visible(network: Network) -> None:
    process = network.namesrvs[A]
    process.fails = True
    with pytest.raises(MqError, match="nothing was changed") as caught:
        await process.put("app")
    assert caught.value.retryable and process.secret_of("app") is None
    process.fails = False
    await process.put("app")
    assert process.secret_of("app") == SECRET


async def test_change_whose_file_is_not_synced_may_be_there_after_a_restart(
    network: Network,
) -> None:
    process = network.namesrvs[A]
    process.syncs = False
    with pytest.raises(MqError, match="may apply the change") as caught:
        await process.put("app")
    assert caught.value.retryable and process.secret_of("app") is None
    assert Process("again", network.clock, process.content).secret_of("app") == SECRET
    process.syncs = True
    await process.put("app")
    assert process.secret_of("app") == SECRET


async def test_changes_of_several_callers_are_all_kept(network: Network) -> None:
    process = network.namesrvs[A]
    await asyncio.gather(*(process.put(f"user{number}") for number in range(20)))
    again = Process("b", network.clock, process.content)
    assert [user.name for user in again.store.table.users()] == sorted(
        f"user{number}" for number in range(20)
    )


@pytest.mark.parametrize("turns", range(12))
async def test_an_exchange_ends_also_while_name_servers_end_their_streams(turns: int) -> None:
    """A cluster stops all its processes at once: the cancellation may come at any turn."""
    network = Network()
    await network.broker().put("app")
    await asyncio.sleep(1)
    network.end_streams()
    for _ in range(turns):
        await asyncio.sleep(0)
    assert await network.stop_within(1)
