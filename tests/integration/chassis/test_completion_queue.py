"""The loop at gRPC's completion queue as an event loop: timers, threads, sockets, signals."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any, cast

import pytest
import structlog

from aerobee_chassis.rpc.completion_queue import cygrpc
from aerobee_chassis.rpc.completion_queue.channel import CompletionQueueChannel
from aerobee_chassis.rpc.completion_queue.loop import CompletionQueueLoop, new_completion_queue_loop
from aerobee_chassis.rpc.loops import make_loop
from aerobee_chassis.rpc.transport import CallFailed
from aerobee_chassis.turns import at_end_of_turn, deliver


@pytest.fixture
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner(loop_factory=new_completion_queue_loop) as runner:
        yield runner


def test_timers_come_in_their_order(runner: asyncio.Runner) -> None:
    async def several() -> list[int]:
        seen: list[int] = []
        loop = asyncio.get_running_loop()
        for name, delay_s in ((2, 0.02), (1, 0.01), (0, 0)):
            loop.call_later(delay_s, seen.append, name)
        await asyncio.sleep(0.03)
        return seen

    assert runner.run(several()) == [0, 1, 2]


def test_threads_wake_the_loop(runner: asyncio.Runner) -> None:
    async def many() -> list[int]:
        return [await asyncio.to_thread(abs, -n) for n in range(200)]

    assert runner.run(many()) == list(range(200))


def test_no_call_of_many_threads_is_lost(runner: asyncio.Runner) -> None:
    async def counted() -> int:
        loop, count, all_counted = asyncio.get_running_loop(), 0, asyncio.Event()

        def count_up() -> None:
            nonlocal count
            count += 1
            if count == 4_000:
                all_counted.set()

        def call() -> None:
            for _ in range(1_000):
                loop.call_soon_threadsafe(count_up)

        threads = [threading.Thread(target=call) for _ in range(4)]
        for thread in threads:
            thread.start()
        await asyncio.wait_for(all_counted.wait(), 30)
        for thread in threads:
            thread.join()
        return count

    assert runner.run(counted()) == 4_000


def test_sockets_are_watched(runner: asyncio.Runner) -> None:
    async def talk() -> list[bytes]:
        async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while line := await reader.readline():
                writer.write(line.upper())
                await writer.drain()
            writer.close()

        server = await asyncio.start_server(echo, "127.0.0.1", 0)
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        lines = []
        for number in range(50):
            writer.write(b"line %d\n" % number)
            lines.append(await asyncio.wait_for(reader.readline(), 10))
        writer.close()
        server.close()
        return lines

    assert runner.run(talk()) == [b"LINE %d\n" % number for number in range(50)]


def test_a_socket_that_stays_ready_is_reported_again(runner: asyncio.Runner) -> None:
    async def read() -> bytes:
        near, far = socket.socketpair()
        seen, done = b"", asyncio.Event()

        def one_byte() -> None:
            nonlocal seen
            seen += near.recv(1)
            if len(seen) == 5:
                done.set()

        asyncio.get_running_loop().add_reader(near, one_byte)
        far.send(b"abcde")
        await asyncio.wait_for(done.wait(), 10)
        asyncio.get_running_loop().remove_reader(near)
        near.close()
        far.close()
        return seen

    assert runner.run(read()) == b"abcde"


def test_signals_reach_their_handlers(runner: asyncio.Runner) -> None:
    async def wait() -> None:
        caught = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, caught.set)
        os.kill(os.getpid(), signal.SIGUSR1)
        await asyncio.wait_for(caught.wait(), 10)

    runner.run(wait())


def test_grpcio_that_was_not_tested_falls_back_to_grpc_aio(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cygrpc, "TESTED_VERSIONS", ("0.",))
    with structlog.testing.capture_logs() as logs:
        loop = make_loop("COMPLETION_QUEUE")
    loop.close()
    assert not isinstance(loop, CompletionQueueLoop)
    assert [line["event"] for line in logs] == ["completion_queue_unavailable"]


def test_grpc_aio_can_be_chosen() -> None:
    loop = make_loop("AIO")
    loop.close()
    assert not isinstance(loop, CompletionQueueLoop)


def test_a_channel_closes_though_a_call_has_no_answer(runner: asyncio.Runner) -> None:
    async def close_with_a_call_under_way(target: str) -> None:
        channel = CompletionQueueChannel(
            cast(CompletionQueueLoop, asyncio.get_running_loop()), target
        )
        call = asyncio.create_task(channel.unary("/test.Words/Say", b"", 60))
        await asyncio.sleep(0)
        await channel.close()
        with pytest.raises(CallFailed) as caught:
            await call
        assert caught.value.status == "CANCELLED"

    with socket.create_server(("127.0.0.1", 0)) as silent:
        runner.run(close_with_a_call_under_way(f"127.0.0.1:{silent.getsockname()[1]}"))


class Counted:
    """The probe of a channel, and how often it was used."""

    def __init__(self, probe: Any) -> None:
        self._probe = probe
        self.times = 0

    def operate(self, *given: Any) -> bool:
        self.times += 1
        return bool(self._probe.operate(*given))

    def cancel(self, *given: Any) -> None:
        self._probe.cancel(*given)


def test_a_silent_stream_costs_a_busy_loop_nothing(runner: asyncio.Runner) -> None:
    async def looks(target: str) -> tuple[int, int]:
        channel = CompletionQueueChannel(
            cast(CompletionQueueLoop, asyncio.get_running_loop()), target
        )
        probe = channel._probe = Counted(channel._probe)
        stream = asyncio.ensure_future(anext(channel.stream("/test.Words/Spell", b"")))
        for _ in range(1_000):
            await asyncio.sleep(0)
        silent = probe.times
        call = asyncio.create_task(channel.unary("/test.Words/Say", b"", 60))
        for _ in range(1_000):
            await asyncio.sleep(0)
        await channel.close()
        await asyncio.gather(stream, call, return_exceptions=True)
        return silent, probe.times - silent

    with socket.create_server(("127.0.0.1", 0)) as server:
        silent, due = runner.run(looks(f"127.0.0.1:{server.getsockname()[1]}"))
    assert silent < 500  # of 1,000 turns
    assert due >= 900


def test_waking_a_closed_loop_does_nothing() -> None:
    loop = new_completion_queue_loop()
    loop.close()
    loop.wake()
    loop.deliver(lambda: None)


_ANSWERED_LATE = """
import asyncio, sys
from aerobee_chassis.rpc.completion_queue.channel import CompletionQueueChannel
from aerobee_chassis.rpc.completion_queue.loop import new_completion_queue_loop

async def call():
    channel = CompletionQueueChannel(asyncio.get_running_loop(), sys.argv[1])
    try:
        await channel.unary("/test.Words/Say", b"", 1.4)
    except Exception as error:
        print(error.status)
    await channel.close()

with asyncio.Runner(loop_factory=new_completion_queue_loop) as runner:
    runner.run(call())
"""


def test_slow_answers_come_with_fork_support() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        target = f"127.0.0.1:{silent.getsockname()[1]}"
        done = subprocess.run(
            [sys.executable, "-c", _ANSWERED_LATE, target],
            env={**os.environ, "GRPC_ENABLE_FORK_SUPPORT": "1"},
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
    assert (done.returncode, done.stdout.split()) == (0, ["DEADLINE_EXCEEDED"]), done.stderr


class Silent:
    """A source without events."""

    def __init__(self, urgent: bool) -> None:
        self.urgent = urgent
        self.armed = False
        self.asked: list[str] = []

    def poll(self) -> bool:
        self.asked.append("poll")
        return False

    def arm(self) -> None:
        self.asked.append("arm")
        self.armed = True


@pytest.mark.parametrize("urgent", [True, False])
def test_only_an_idle_loop_arms_its_sources(runner: asyncio.Runner, urgent: bool) -> None:
    async def turns() -> tuple[list[str], list[str]]:
        loop = cast(CompletionQueueLoop, asyncio.get_running_loop())
        source = Silent(urgent)
        loop.sources.add(source)
        for _ in range(3):  # each turn has the next one in line
            await asyncio.sleep(0)
        busy = list(source.asked)
        await asyncio.sleep(0.2)
        loop.sources.discard(source)
        return busy, source.asked[len(busy) :]

    busy, idle = runner.run(turns())
    assert set(busy) == {"poll"}
    # A source that is not urgent is armed after the loop has been idle for IDLE_POLL_S.
    assert idle == ["poll", "arm", "poll"] if urgent else ["poll", "poll", "arm", "poll"]


def test_the_end_of_a_turn_comes_before_the_next_look_at_the_queue(runner: asyncio.Runner) -> None:
    async def turn() -> list[str]:
        loop, seen = asyncio.get_running_loop(), list[str]()
        at_end_of_turn(loop, lambda: seen.append("end"))
        loop.call_soon(seen.append, "next turn")
        ready = loop.create_future()
        ready.add_done_callback(lambda _: seen.append("next turn too"))
        ready.set_result(None)
        seen.append("this turn")
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return seen

    assert runner.run(turn()) == ["this turn", "end", "next turn", "next turn too"]


def test_a_failure_at_the_end_of_a_turn_is_reported_and_stops_nothing(
    runner: asyncio.Runner,
) -> None:
    async def turn() -> tuple[list[object], list[str]]:
        loop, reported, seen = asyncio.get_running_loop(), list[object](), list[str]()
        loop.set_exception_handler(lambda _, context: reported.append(context["exception"]))
        at_end_of_turn(loop, list[None]().pop)
        at_end_of_turn(loop, lambda: seen.append("second"))
        await asyncio.sleep(0)
        return reported, seen

    reported, seen = runner.run(turn())
    assert [type(error) for error in reported] == [IndexError]
    assert seen == ["second"]


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
