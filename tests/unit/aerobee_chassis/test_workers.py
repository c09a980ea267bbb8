"""The parent of workers, without any process."""

from __future__ import annotations

import errno
import gc
import json
import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest
import structlog

from aerobee_chassis import workers
from aerobee_chassis.rpc.peer_tls import PortOptions
from aerobee_chassis.workers import (
    LONGEST_RESTART_MS,
    RESTART_MS,
    OnReady,
    Parent,
    Worker,
    WorkerKind,
    metrics_fields,
    options_of_worker,
)

DESCRIPTORS = Path("/proc/self/fd")
HANDLED = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGCHLD)


class Options(PortOptions):
    @property
    def is_closed(self) -> bool:
        return True


class Kind(WorkerKind):
    name = "shard"
    count = 2
    stop_ms = 1_000

    def label(self, number: int) -> object:
        return f"broker-{number}"

    def serve(self, number: int, former: Mapping[str, object], on_ready: OnReady) -> int:
        raise AssertionError("no process is started")

    def ready_fields(self, ready: Sequence[Mapping[str, object]]) -> Mapping[str, object]:
        return {"address": ",".join(str(each["address"]) for each in ready)}


@pytest.fixture
def parent() -> Iterator[Parent]:
    before = signal.set_wakeup_fd(-1)
    parent = Parent(Kind())
    yield parent
    signal.set_wakeup_fd(before)
    for descriptor in (parent._tether, parent._tether_end, parent._wakeup, parent._wake):
        os.close(descriptor)


def fork_refused() -> int:
    raise OSError(errno.EAGAIN, "Resource temporarily unavailable")


def worker(parent: Parent, number: int, fields: Mapping[str, object] | None) -> Worker:
    """Adds a worker that has written its ready fields, or that ended before it was ready."""
    pipe, end = os.pipe()
    if fields is not None:
        os.write(end, json.dumps(fields).encode() + b"\n")
    os.close(end)
    pid = 100 + number
    parent._workers[pid] = Worker(number, pid, parent._clock.monotonic_ms(), pipe)
    return parent._workers[pid]


def ended(parent: Parent, number: int, *, lived_ms: int = 0) -> int:
    """Let a worker end; return how long the parent waits before it starts the worker again."""
    one = worker(parent, number, None)
    one.started_ms -= lived_ms
    parent._forget(one)
    parent._plan_restart(one)
    return parent._restart_ms[number] - parent._clock.monotonic_ms()


@pytest.mark.parametrize(("stopped", "code"), [(True, 0), (False, 1)])
def test_end_of_a_worker_at_the_start_is_a_failure_unless_all_are_stopped(
    parent: Parent, monkeypatch: pytest.MonkeyPatch, stopped: bool, code: int
) -> None:
    """A service manager sends SIGTERM to the parent and its workers at the same time."""
    before = {number: signal.getsignal(number) for number in HANDLED}
    monkeypatch.setattr(parent, "_start", lambda _number: None)
    monkeypatch.setattr(parent, "_wait", parent._on_stop_signal if stopped else lambda: None)
    monkeypatch.setattr(parent, "_reap", lambda: True)
    try:
        assert parent.run() == code
    finally:
        gc.unfreeze()
        for number, handler in before.items():
            signal.signal(number, handler)


def test_worker_that_cannot_restart_is_retried(
    parent: Parent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fork", fork_refused)
    descriptors = len(list(DESCRIPTORS.iterdir()))
    now = parent._clock.monotonic_ms()
    parent._restart_ms = {1: now}
    with structlog.testing.capture_logs() as logs:
        parent._restart()
    assert parent._restart_ms[1] >= now + workers.RESTART_MS
    assert [(line["event"], line["shard"], line["reason"]) for line in logs] == [
        ("shard_not_started", "broker-1", "Resource temporarily unavailable")
    ]
    assert len(list(DESCRIPTORS.iterdir())) == descriptors


def test_worker_that_ended_at_its_start_is_not_ready(parent: Parent) -> None:
    for one in (worker(parent, 0, None), worker(parent, 1, {"address": "127.0.0.1:1"})):
        parent._read_ready(one)
    assert not parent._all_ready, "the start failed"
    parent._restart_ms = {0: 0}
    parent._wait()  # does not wait for the closed pipe
    for one in list(parent._workers.values()):
        parent._forget(one)


def test_ready_line_has_all_workers_in_their_order(parent: Parent) -> None:
    late, early = worker(parent, 1, {"address": "a:2"}), worker(parent, 0, {"address": "a:1"})
    with structlog.testing.capture_logs() as logs:
        parent._read_ready(late)
        parent._read_ready(early)
    assert logs == [
        {"event": "ready", "address": "a:1,a:2", "shards": [100, 101], "log_level": "info"}
    ]
    for one in (late, early):
        parent._forget(one)


def test_new_process_gets_the_ready_fields_of_the_one_before(parent: Parent) -> None:
    one = worker(parent, 1, {"address": "a:2"})
    parent._read_ready(one)
    parent._forget(one)
    assert parent._former[1] == {"address": "a:2"}


def test_worker_that_ends_again_and_again_is_started_less_often(parent: Parent) -> None:
    waits = [ended(parent, 1) for _ in range(8)]
    expected = [min(RESTART_MS << number, LONGEST_RESTART_MS) for number in range(8)]
    assert all(
        wait <= most and wait > most - RESTART_MS
        for wait, most in zip(waits, expected, strict=True)
    )
    assert ended(parent, 0) <= RESTART_MS, "each worker for itself"


def test_worker_that_served_for_long_is_started_again_soon(parent: Parent) -> None:
    for _ in range(5):
        ended(parent, 1)
    assert ended(parent, 1, lived_ms=LONGEST_RESTART_MS + 1_000) <= RESTART_MS
    assert ended(parent, 1) > RESTART_MS


def test_each_worker_has_metrics_and_an_audit_log_of_its_own() -> None:
    options = Options(metrics_prom_exporter_port=5_557, audit_log_path="/var/audit.log")
    found = [options_of_worker(options, "shard", number) for number in range(3)]
    assert [each.metrics_prom_exporter_port for each in found] == [5_557, 5_558, 5_559]
    assert [each.audit_log_path for each in found] == [
        *("/var/audit.log", "/var/audit.log-shard-1", "/var/audit.log-shard-2")
    ]


def test_free_ports_and_no_audit_log_stay_so() -> None:
    found = options_of_worker(Options(), "shard", 1)
    assert (found.metrics_prom_exporter_port, found.audit_log_path) == (0, "")


def test_metrics_of_workers_are_listed() -> None:
    assert metrics_fields([{"metrics": "a:1"}, {"metrics": "a:2"}]) == {"metrics": ["a:1", "a:2"]}
    assert metrics_fields([{"address": "a:1"}]) == {}
