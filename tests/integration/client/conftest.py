"""A real name server with a real broker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.processes.service import namesrv_and_broker


@pytest.fixture(scope="module")
def namesrv(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A name server with one broker; each test uses its own topics and groups."""
    with namesrv_and_broker(tmp_path_factory.mktemp("suite")) as (namesrv, _):
        yield namesrv.address
