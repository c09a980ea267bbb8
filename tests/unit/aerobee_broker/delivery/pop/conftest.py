"""A broker with one topic of one queue and one group, and a consumer of it that pops."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from support.broker.harness import Parts
from support.broker.pop_consumer import PopConsumer
from support.broker.pop_restarts import begin


@pytest.fixture
async def parts(tmp_path: Path) -> AsyncIterator[Parts]:
    parts = await begin(tmp_path)
    yield parts
    await parts.end()


@pytest.fixture
def consumer(parts: Parts) -> PopConsumer:
    return PopConsumer(parts)
