"""Runs every test here on the loop of a service."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from aerobee_chassis.rpc.http2.loop import ServiceLoop


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"service": ServiceLoop}
