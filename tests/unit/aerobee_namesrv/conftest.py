"""The tables of a name server with the default options."""

from __future__ import annotations

import pytest

from support.namesrv.routing_tables import RoutingTables


@pytest.fixture
def tables() -> RoutingTables:
    return RoutingTables()
