"""The plain classes and the loop thread under them; what importing the package costs."""

from __future__ import annotations

import asyncio
import inspect
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncGenerator
from concurrent.futures import CancelledError
from datetime import timedelta
from typing import Any, assert_type

import pytest

import aerobee_client
from aerobee_client import (
    AdminClient,
    AsyncAdminClient,
    AsyncLiteSimpleConsumer,
    AsyncProducer,
    AsyncPullConsumer,
    AsyncPushConsumer,
    AsyncSimpleConsumer,
    LiteSimpleConsumer,
    Message,
    MessageQueue,
    Producer,
    PullConsumer,
    PushConsumer,
    SendResult,
    SimpleConsumer,
)
from aerobee_client.runtime.facade import AsyncClient, Facade
from aerobee_client.runtime.loop_thread import LoopThread
from aerobee_wire.status import Code, MqError
from support.clock.polling import until_sync
from support.codes import raises_code


def test_every_public_name_is_there() -> None:
    for name in aerobee_client.__all__:
        assert getattr(aerobee_client, name).__name__ == name
    with pytest.raises(AttributeError):
        _ = aerobee_client.Nonsense


# Methods that the plain classes write themselves, or do not have.
OWN_METHODS = {"start", "close", "send_async", "consumes_on", "renewing"}


@pytest.mark.parametrize(
    ("plain", "asynchronous"),
    [
        (Producer, AsyncProducer),
        (PushConsumer, AsyncPushConsumer),
        (PullConsumer, AsyncPullConsumer),
        (SimpleConsumer, AsyncSimpleConsumer),
        (LiteSimpleConsumer, AsyncLiteSimpleConsumer),
        (AdminClient, AsyncAdminClient),
    ],
)
def test_plain_classes_have_the_methods_of_the_asyncio_ones(
    plain: type, asynchronous: type
) -> None:
    for name, method in inspect.getmembers(asynchronous, inspect.isfunction):
        if not name.startswith("_") and name not in OWN_METHODS:
            twin = getattr(plain, name)
            assert inspect.signature(twin) == inspect.signature(method), name
            assert inspect.getdoc(twin) == inspect.getdoc(method), name
            assert not inspect.iscoroutinefunction(twin), name


def _plain_methods_have_types(producer: Producer) -> None:
    """Never called: mypy checks it."""
    assert_type(producer.send(Message("t", b"x")), SendResult)
    assert_type(producer.queues("t"), list[MessageQueue])
    producer.send("no message")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("imported", "not_needed"),
    [
        ("import aerobee_client", ("grpc", "google.protobuf", "asyncio", "aerobee_wire")),
        (
            "from aerobee_client import Message, MqError",
            ("grpc", "google.protobuf", "asyncio", "difflib"),
        ),
        ("from aerobee_client import Producer", ("uuid", "difflib", "lz4", "zstandard")),
        (
            "from aerobee_client import *",
            ("grpc", "aerobee_foreign", "aerobee_chassis", "structlog"),
        ),
    ],
)
def test_an_import_loads_nothing_that_is_not_needed(
    imported: str, not_needed: tuple[str, ...]
) -> None:
    code = f"import sys; {imported}; print([n for n in {not_needed} if n in sys.modules])"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "[]"


def test_loop_thread_runs_coroutines_and_passes_errors_on() -> None:
    async def answer() -> str:
        return threading.current_thread().name

    async def fail() -> None:
        raise ValueError("inside")

    loop = LoopThread("test loop")
    loop.start()
    assert loop.run(answer()) == "test loop"
    with pytest.raises(ValueError):
        loop.run(fail())
    loop.stop()
    loop.stop()


def test_stopping_the_loop_cancels_its_coroutines() -> None:
    begun, ended = threading.Event(), threading.Event()

    async def wait() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    loop = LoopThread("test loop")
    loop.start()
    future = loop.submit(wait())
    begun.wait()
    loop.stop()
    assert ended.is_set() and future.cancelled()


def test_blocking_call_inside_its_own_loop_is_refused() -> None:
    loop = LoopThread("test loop")
    loop.start()

    async def nothing() -> None:
        return None

    async def inside() -> None:
        loop.run(nothing())

    with raises_code(Code.ILLEGAL_OPERATION):
        loop.run(inside())
    loop.stop()


def test_use_before_start_or_after_close_is_refused() -> None:
    producer = Producer("p", namesrv="127.0.0.1:1")
    for _ in range(2):
        with raises_code(Code.ILLEGAL_OPERATION):
            producer.send(Message("t", b"x"))
        producer.start()
        producer.close()
        producer.close()


def test_a_listener_may_close_a_consumer_that_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AsyncPushConsumer, "consumes_on", lambda *_: True)
    PushConsumer("g", print, namesrv="127.0.0.1:1").close()


def test_a_callback_that_exits_ends_no_other_send() -> None:
    soon = timedelta(milliseconds=10)
    with Producer("p", namesrv="127.0.0.1:1") as producer:

        def leave(_: SendResult | None, __: BaseException | None) -> None:
            sys.exit(3)

        for _ in range(2):
            sending = producer.send_async(Message("t", b"x"), leave, timeout=soon)
            with raises_code(Code.NAMESRV_UNREACHABLE):
                sending.result(10)


def test_a_callback_cannot_close_or_start_its_client() -> None:
    """That would wait for itself, and must not end the loop meanwhile."""
    refused: list[MqError] = []
    called = threading.Event()
    with Producer("p", namesrv="127.0.0.1:1") as producer:

        def report(_: SendResult | None, __: BaseException | None) -> None:
            for method in (producer.close, producer.start):
                with raises_code(Code.ILLEGAL_OPERATION) as caught:
                    method()
                refused.append(caught.value)
            called.set()

        producer.send_async(Message("t", b"x"), report, timeout=timedelta(milliseconds=10))
        assert called.wait(10)
        assert len(refused) == 2
        until_sync(lambda: producer.statistics().waiting == 0, "its loop runs")


@pytest.mark.parametrize("namesrv", ["", "no-port"])
def test_bad_name_server_leaves_no_thread_behind(namesrv: str) -> None:
    before = set(threading.enumerate())
    for start in (
        lambda: AdminClient(namesrv),
        lambda: Producer("p", namesrv=namesrv).start(),
        lambda: PushConsumer("g", print, namesrv=namesrv).start(),
    ):
        with raises_code(Code.INVALID_PARAMETER):
            start()
    assert set(threading.enumerate()) <= before


def test_a_call_during_stop_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread stops the loop while this one submits a coroutine."""
    hand_over = asyncio.SelectorEventLoop.call_soon_threadsafe
    loop = LoopThread("test loop")
    loop.start()
    stopping = threading.Thread(target=loop.stop)

    def stop_first(
        target: asyncio.SelectorEventLoop, callback: Any, *args: Any, **named: Any
    ) -> Any:
        if not stopping.ident:
            stopping.start()
            stopping.join(0.2)
        return hand_over(target, callback, *args, **named)

    async def wait() -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(asyncio.SelectorEventLoop, "call_soon_threadsafe", stop_first)
    with raises_code(Code.ILLEGAL_OPERATION):
        loop.run(wait())
    stopping.join(10)
    assert not stopping.is_alive()


def test_an_exit_of_a_task_is_its_own() -> None:
    async def leave() -> None:
        sys.exit(3)

    async def wait() -> int:
        await asked.wait()
        return 1

    async def ask() -> None:
        asked.set()

    asked = asyncio.Event()
    loop = LoopThread("test loop")
    loop.start()
    waiting = loop.submit(wait())
    with pytest.raises(SystemExit):
        loop.run(leave())
    loop.run(ask())
    assert waiting.result(10) == 1
    loop.stop()


def test_a_loop_that_ends_by_itself_fails_its_calls() -> None:
    async def end() -> None:
        asyncio.get_running_loop().stop()

    async def wait() -> None:
        await asyncio.Event().wait()

    loop = LoopThread("test loop")
    loop.start()
    waiting = loop.submit(wait())
    loop.submit(end()).result(10)
    with pytest.raises(CancelledError):
        waiting.result(10)
    with raises_code(Code.ILLEGAL_OPERATION):
        loop.run(wait())
    loop.stop()


def test_an_interrupt_ends_an_iteration_and_its_generator() -> None:
    """The generator still runs its `finally` when the iteration is closed."""
    main, ended = threading.get_ident(), []

    class Endless(AsyncClient):
        async def close(self) -> None:
            pass

        async def numbers(self) -> AsyncGenerator[int, None]:
            try:
                yield 1
                signal.pthread_kill(main, signal.SIGINT)
                await asyncio.Event().wait()
            finally:
                for _ in range(100):
                    await asyncio.sleep(0)
                ended.append(True)

    facade = Facade(Endless(), "endless")
    facade._loop.start()
    try:
        numbers = facade._iterate(facade._client.numbers())
        assert next(numbers) == 1
        with pytest.raises(KeyboardInterrupt):
            next(numbers)
        assert ended == [True]
    finally:
        facade.close()
