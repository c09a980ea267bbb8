"""A broker's handlers without a server, for the tests of each service."""

from __future__ import annotations

import pytest

from support.broker.handlers import Handlers
from support.broker.harness import BrokerHarness


@pytest.fixture
def handlers(harness: BrokerHarness) -> Handlers:
    return Handlers(harness)
