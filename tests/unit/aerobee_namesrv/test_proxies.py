"""The proxies that a name server knows: processes with a stream, and missing proxies."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import pytest
from aerobee.namesrv.v1 import namesrv_pb2 as pb

from aerobee_namesrv.routing.proxies import (
    FORGET_AFTER_MS,
    IGNORE_MS,
    MOST_AWAY,
    MOST_STOPPED,
    ProxyProcess,
    ProxyTable,
)
from aerobee_namesrv.rpc.checks import MAX_NAME_CHARACTERS
from aerobee_namesrv.rpc.proxies import ProxyRpcs
from aerobee_wire.status import Code
from support.clock.manual_clock import ManualClock
from support.codes import raises_code


def process(number: int, name: str = "host:8081") -> ProxyProcess:
    return ProxyProcess(name, "", f"process-{number}")


def test_proxy_is_away_when_its_last_worker_has_disappeared() -> None:
    clock = ManualClock()
    table = ProxyTable(clock)
    with table.register(process(1)):
        with table.register(process(2)):
            assert table.open() == [process(1), process(2)]
        assert (table.open(), table.away()) == ([process(1)], [])
    assert (table.open(), table.away()) == ([], [("host:8081", clock.now_ms())])
    with table.register(process(3)):
        assert table.away() == []


def test_second_stream_of_a_process_replaces_its_first() -> None:
    table = ProxyTable(ManualClock())
    first, second = ExitStack(), ExitStack()
    first.enter_context(table.register(process(1)))
    second.enter_context(table.register(process(1)))
    assert table.open() == [process(1)]
    first.close()
    assert (table.open(), table.away()) == ([process(1)], [])


def test_proxy_that_stops_in_order_is_not_away() -> None:
    table = ProxyTable(ManualClock())
    with table.register(process(1)):
        table.unregister("host:8081", "process-1")
    assert table.away() == []
    with table.register(process(2)):
        pass
    table.unregister("host:8081", "process-2")  # after the end of its stream
    assert table.away() == []


def test_stream_that_arrives_after_its_process_has_stopped_is_ignored() -> None:
    """The name server was down when the stream of the proxy was to open again."""
    clock = ManualClock()
    table = ProxyTable(clock)
    with table.register(process(1)):
        table.unregister("host:8081", "process-1")
    table.unregister("host:8082", "process-2")
    for late in (process(1), process(2, "host:8082")):
        with table.register(late):
            assert table.open() == []
    assert table.away() == []
    with table.register(process(3)):
        assert table.open() == [process(3)], "the next process of the proxy"
    clock.advance(IGNORE_MS)
    with table.register(process(1)):
        assert table.open() == [process(1)]


def test_stopped_processes_are_forgotten() -> None:
    clock = ManualClock()
    table = ProxyTable(clock)
    for number in range(MOST_STOPPED + 9):
        table.unregister("host:8081", f"process-{number}")
    assert len(table._stopped) == MOST_STOPPED
    with table.register(process(2_000)):
        table.unregister("host:8081", "process-2000")
        clock.advance(2 * IGNORE_MS)
        table.unregister("host:8081", "process-2001")
        assert list(table._stopped) == ["process-2000", "process-2001"]
    assert table.away() == []


def test_proxies_that_are_away_are_forgotten() -> None:
    clock = ManualClock()
    table = ProxyTable(clock)
    for number in range(MOST_AWAY + 1):
        with table.register(process(number, f"pod-{number:02}:8081")):
            pass
    assert [name for name, _ in table.away()] == [f"pod-{n:02}:8081" for n in range(1, 65)]
    clock.advance(FORGET_AFTER_MS + 1)
    assert table.away() == []


@pytest.mark.parametrize("process_id", ["", "x" * (MAX_NAME_CHARACTERS + 1)])
async def test_process_id_without_a_valid_length_is_refused(process_id: str) -> None:
    """The table keeps it in memory."""
    call: Any = None
    request = pb.UnregisterProxyRequest(name="host:8081", process_id=process_id)
    with raises_code(Code.INVALID_PARAMETER):
        await ProxyRpcs(ProxyTable(ManualClock())).unregister_proxy(request, call)
