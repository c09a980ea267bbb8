"""Runs every test here on the loop of a service."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping

import pytest

from aerobee_chassis.rpc.http2.loop import ServiceLoop
from support.etcd.etcd_process import EtcdMember, etcd_members


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"service": ServiceLoop}


@pytest.fixture(scope="module")
def member(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdMember]:
    with etcd_members(tmp_path_factory.mktemp("etcd")) as [only]:
        yield only
