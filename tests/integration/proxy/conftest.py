"""A name server and a broker for the proxies of a module."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.processes.service import ServiceProcess, namesrv_and_broker


@pytest.fixture(scope="module")
def namesrv(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    with namesrv_and_broker(tmp_path_factory.mktemp("cluster")) as (namesrv, _):
        yield namesrv
