"""A real name server with a real broker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.processes.service import ServiceProcess


@pytest.fixture(scope="module")
def namesrv(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A name server with one broker; each test uses its own topics and groups."""
    data = tmp_path_factory.mktemp("suite")
    with (
        ServiceProcess("aerobee_namesrv", "--port", "0", "--data", str(data / "n")) as namesrv,
        ServiceProcess(
            "aerobee_broker",
            *("--port", "0", "--data", str(data / "b"), "--namesrv", namesrv.address),
        ),
    ):
        yield namesrv.address
