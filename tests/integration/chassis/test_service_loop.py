"""The event loop of services, and its listening sockets: turns, threads, first steps, addresses."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import threading
from collections.abc import Iterator

import pytest

from aerobee_chassis.errors import PortInUse
from aerobee_chassis.rpc.http2 import sockets
from aerobee_chassis.rpc.http2.loop import ServiceLoop
from aerobee_chassis.rpc.http2.sockets import ListeningSockets
from aerobee_chassis.turns import at_end_of_turn, deliver, start_task
from support.clock.polling import until


@pytest.fixture
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner(loop_factory=ServiceLoop) as runner:
        yield runner


# ---- turns ----


def test_no_action_of_many_threads_is_lost(runner: asyncio.Runner) -> None:
    async def counted() -> int:
        loop, count, all_counted = asyncio.get_running_loop(), 0, asyncio.Event()

        def count_up() -> None:
            nonlocal count
            count += 1
            if count == 4_000:
                all_counted.set()

        def call() -> None:
            for number in range(1_000):
                if number % 2:
                    deliver(loop, count_up)
                else:
                    loop.call_soon_threadsafe(count_up)

        threads = [threading.Thread(target=call) for _ in range(4)]
        for thread in threads:
            thread.start()
        await asyncio.wait_for(all_counted.wait(), 30)
        for thread in threads:
            thread.join()
        return count

    assert runner.run(counted()) == 4_000


def test_an_action_is_not_lost_while_the_loop_reads_what_woke_it(runner: asyncio.Runner) -> None:
    async def second() -> float:
        loop, done = asyncio.get_running_loop(), asyncio.Event()
        began_s = loop.time()
        deliver(loop, lambda: None)
        # It comes after the first action, and before the loop reads the byte that woke it.
        loop.call_soon(deliver, loop, done.set)
        await asyncio.wait_for(done.wait(), 20)
        return loop.time() - began_s

    assert runner.run(second()) < 10


def test_the_end_of_a_turn_comes_before_the_next_turn(runner: asyncio.Runner) -> None:
    async def turn() -> list[str]:
        loop, seen = asyncio.get_running_loop(), list[str]()

        def end() -> None:
            seen.append("end")
            at_end_of_turn(loop, lambda: seen.append("also"))

        def ready() -> None:
            seen.append("ready")
            loop.call_soon(seen.append, "next turn")

        def begin() -> None:
            seen.append("this turn")
            at_end_of_turn(loop, end)
            loop.call_soon(ready)

        loop.call_later(0, begin)  # timers are the first in a turn
        await until(lambda: "next turn" in seen)
        return seen

    assert runner.run(turn()) == ["this turn", "ready", "end", "also", "next turn"]


def test_sockets_are_read_while_callbacks_are_always_ready(runner: asyncio.Runner) -> None:
    async def read() -> bytes:
        loop, (near, far) = asyncio.get_running_loop(), socket.socketpair()
        with near, far:
            near.setblocking(False)
            reading = loop.create_task(loop.sock_recv(near, 5))

            def again() -> None:
                if not reading.done():
                    loop.call_soon(again)

            again()
            far.send(b"bytes")
            return await asyncio.wait_for(reading, 20)

    assert runner.run(read()) == b"bytes"


def test_failures_are_reported_and_stop_nothing(runner: asyncio.Runner) -> None:
    async def turn() -> tuple[list[object], list[str]]:
        loop, reported, seen = asyncio.get_running_loop(), list[object](), list[str]()
        loop.set_exception_handler(lambda _, context: reported.append(context["exception"]))
        for put in (at_end_of_turn, deliver):
            put(loop, list[None]().pop)
            put(loop, lambda: seen.append("second"))
        await asyncio.sleep(0.01)
        return reported, seen

    reported, seen = runner.run(turn())
    assert [type(error) for error in reported] == [IndexError, IndexError]
    assert seen == ["second", "second"]


def test_what_is_delivered_runs_in_the_turn_that_it_wakes(runner: asyncio.Runner) -> None:
    async def turn() -> list[str]:
        loop, seen = asyncio.get_running_loop(), list[str]()
        done = loop.create_future()
        done.add_done_callback(lambda _: seen.append("ready"))
        done.add_done_callback(lambda _: loop.call_soon(seen.append, "next turn"))

        def delivered() -> None:
            seen.append("delivered")
            done.set_result(None)

        threading.Thread(target=deliver, args=(loop, delivered)).start()
        await done
        await asyncio.sleep(0)
        return seen

    assert runner.run(turn()) == ["delivered", "ready", "next turn"]


def test_waking_a_closed_loop_does_nothing() -> None:
    loop = ServiceLoop()
    loop.close()
    loop.deliver(lambda: None)
    assert loop.is_closed()


# ---- first steps ----


def test_the_first_step_of_a_task_runs_at_once_outside_of_a_task(runner: asyncio.Runner) -> None:
    async def start() -> tuple[list[str], list[bool]]:
        loop, seen, done = asyncio.get_running_loop(), list[str](), list[bool]()

        async def work(name: str, waits: bool) -> None:
            assert asyncio.current_task() is not None
            seen.append(name)
            if waits:
                await asyncio.sleep(0)
                seen.append(f"{name} again")

        def outside() -> None:
            for name, waits in (("short", False), ("long", True)):
                done.append(start_task(loop, work(name, waits)).done())
            seen.append("outside")

        loop.call_soon(outside)
        for _ in range(4):
            await asyncio.sleep(0)
        inside = start_task(loop, work("inside", False))
        done.append(inside.done())
        seen.append("started")
        await inside
        return seen, done

    seen, done = runner.run(start())
    assert seen == ["short", "long", "outside", "long again", "started", "inside"]
    assert done == [True, False, False]


def test_first_steps_and_other_threads_lose_nothing(runner: asyncio.Runner) -> None:
    async def mixed() -> int:
        loop, count, stop = asyncio.get_running_loop(), 0, threading.Event()

        async def count_up() -> None:
            nonlocal count
            count += 1

        def disturb() -> None:
            while not stop.is_set():
                loop.call_soon_threadsafe(int)

        threads = [threading.Thread(target=disturb) for _ in range(2)]
        for thread in threads:
            thread.start()
        for _ in range(20):
            loop.call_soon(lambda: [start_task(loop, count_up()) for _ in range(100)])
            await asyncio.sleep(0)
        stop.set()
        for thread in threads:
            thread.join()
        await asyncio.sleep(0.01)
        return count

    assert runner.run(mixed()) == 2_000


# ---- listening sockets ----


class Listening:
    def __init__(self) -> None:
        self.accepted: list[tuple[socket.socket, str, int]] = []
        loop = asyncio.get_running_loop()
        self.sockets = ListeningSockets(loop, lambda *each: self.accepted.append(each))

    def close(self) -> None:
        self.sockets.close()
        for accepted, _, _ in self.accepted:
            accepted.close()


@pytest.mark.parametrize(
    ("host", "dialled", "peer"),
    [
        ("127.0.0.1", ["127.0.0.1"], ["127.0.0.1"]),
        ("0.0.0.0", ["127.0.0.1", "::1"], ["127.0.0.1", "::1"]),
        ("[::]", ["127.0.0.1", "::1"], ["127.0.0.1", "::1"]),
        ("[::1]", ["::1"], ["::1"]),
    ],
)
def test_a_host_is_reached_over_its_families(
    runner: asyncio.Runner, host: str, dialled: list[str], peer: list[str]
) -> None:
    if not socket.has_dualstack_ipv6():
        pytest.skip("this system has no IPv6")

    async def connect() -> list[str]:
        listening = Listening()
        port = listening.sockets.bind(f"{host}:0")
        listening.sockets.start()
        for each in dialled:
            with socket.create_connection((each, port), 10):
                pass
        await until(lambda: len(listening.accepted) == len(dialled))
        listening.close()
        return sorted(host for _, host, _ in listening.accepted)

    assert runner.run(connect()) == peer


def test_a_port_that_is_in_use_is_refused(runner: asyncio.Runner) -> None:
    async def bind() -> None:
        first, second = Listening(), Listening()
        port = first.sockets.bind("127.0.0.1:0")
        for host in ("127.0.0.1", "0.0.0.0"):
            with pytest.raises(PortInUse):
                second.sockets.bind(f"{host}:{port}")
        first.close()
        assert second.sockets.bind(f"127.0.0.1:{port}") == port
        second.close()

    runner.run(bind())


def test_connections_wait_while_no_descriptor_is_free(
    runner: asyncio.Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sockets, "NO_DESCRIPTOR_PAUSE_S", 0.01)
    failures = [OSError(errno.EMFILE, os.strerror(errno.EMFILE))]
    accept = socket.socket.accept

    def accept_later(listening: socket.socket) -> object:
        if failures:
            raise failures.pop()
        return accept(listening)

    monkeypatch.setattr(socket.socket, "accept", accept_later)

    async def connect() -> int:
        listening = Listening()
        port = listening.sockets.bind("127.0.0.1:0")
        listening.sockets.start()
        with socket.create_connection(("127.0.0.1", port), 10):
            await until(lambda: len(listening.accepted) == 1)
        listening.close()
        return len(failures)

    assert runner.run(connect()) == 0
