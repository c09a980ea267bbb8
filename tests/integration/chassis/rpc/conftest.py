"""Runs every test here once on each transport: the loop of a test decides which one it is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from aerobee_chassis.rpc.completion_queue.loop import new_completion_queue_loop


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"http2": asyncio.new_event_loop, "queue": new_completion_queue_loop}
