"""The parent of workers, without any process."""

from __future__ import annotations

import errno
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from aerobee_proxy import workers
from aerobee_proxy.config import ProxyOptions
from aerobee_proxy.workers import Worker, _Parent

DESCRIPTORS = Path("/proc/self/fd")


@pytest.fixture
def parent() -> Iterator[_Parent]:
    before = signal.set_wakeup_fd(-1)
    parent = _Parent(ProxyOptions(workers=2), [])
    yield parent
    signal.set_wakeup_fd(before)
    for descriptor in (parent._tether, parent._tether_end, parent._wakeup, parent._wake):
        os.close(descriptor)


def fork_refused() -> int:
    raise OSError(errno.EAGAIN, "Resource temporarily unavailable")


def test_worker_that_cannot_restart_is_retried(
    parent: _Parent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fork", fork_refused)
    descriptors = len(list(DESCRIPTORS.iterdir()))
    now = parent._clock.monotonic_ms()
    parent._restart_ms = {1: now}
    with structlog.testing.capture_logs() as logs:
        parent._restart()
    assert parent._restart_ms[1] >= now + workers.RESTART_MS
    assert [line["reason"] for line in logs] == ["Resource temporarily unavailable"]
    assert len(list(DESCRIPTORS.iterdir())) == descriptors


def test_worker_that_ended_at_its_start_is_not_ready(parent: _Parent) -> None:
    dead, dead_end = os.pipe()
    ready, ready_end = os.pipe()
    parent._workers = {101: Worker(0, 101, dead), 102: Worker(1, 102, ready)}
    os.close(dead_end)
    os.write(ready_end, json.dumps({"address": "127.0.0.1:1"}).encode() + b"\n")
    for worker in list(parent._workers.values()):
        parent._read_ready(worker)
    assert not parent._all_ready, "the start failed"
    parent._restart_ms = {0: 0}
    parent._wait()  # does not wait for the closed pipe
    for descriptor in (dead, ready, ready_end):
        os.close(descriptor)
