"""The console over two brokers in one loop."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from support.console.visitor import Visitor


@pytest.fixture
async def visitor(tmp_path: Path) -> AsyncIterator[Visitor]:
    """Brokers "a" and "b" with the topic "orders", two queues each, and the group "billing"."""
    visitor = await Visitor.begin(tmp_path)
    visitor.topic("orders", queues=2)
    visitor.topic("sessions", message_type="LITE")
    await visitor.group("billing")
    yield visitor
    await visitor.end()
