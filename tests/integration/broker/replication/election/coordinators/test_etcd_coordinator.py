"""The coordinator on a real etcd keeps its contract."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from aerobee_broker.replication.election.coordinators.etcd import EtcdClient
from aerobee_chassis.clock import SystemClock
from support.etcd.coordinator_contract import CoordinatorContract, Group
from support.etcd.etcd_process import EtcdMember


@pytest.fixture
async def group(member: EtcdMember) -> AsyncIterator[Group]:
    group = Group(lambda: EtcdClient([member.endpoint], timeout_s=10), SystemClock())
    yield group
    await group.close()


class TestOnEtcd(CoordinatorContract):
    """What brokers rely on."""
