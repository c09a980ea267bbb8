"""A broker's handlers without a server, for the tests of each service."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from support.broker.handlers import Handlers
from support.broker.harness import BrokerHarness


@pytest.fixture
async def handlers(tmp_path: Path) -> AsyncIterator[Handlers]:
    harness = await BrokerHarness.begin(tmp_path)
    yield Handlers(harness)
    await harness.end()
