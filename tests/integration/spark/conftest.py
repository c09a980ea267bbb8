"""Two brokers whose queues are lists."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.client.fake_broker import FakeCluster


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with FakeCluster("broker-a", "broker-b") as running:
        yield running
