"""Runs every test here once on each transport: the loop of a test decides which one it is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from aerobee_chassis.rpc.completion_queue.loop import new_completion_queue_loop
from aerobee_chassis.rpc.http2.loop import ServiceLoop


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"http2": ServiceLoop, "queue": new_completion_queue_loop}
