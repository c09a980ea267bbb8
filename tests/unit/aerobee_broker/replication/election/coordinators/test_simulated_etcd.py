"""The simulated etcd keeps what brokers rely on in the real one."""

from __future__ import annotations

import random

import pytest

from aerobee_broker.replication.election.coordinators.etcd import Etcd, EtcdNoAnswer, Put
from support.etcd.etcd_contract import EtcdContract, EtcdThatForgets, prefix
from support.etcd.simulated_etcd import Faults, SimulatedEtcd

__all__ = ["prefix"]


@pytest.fixture
def cluster() -> SimulatedEtcd:
    return SimulatedEtcd(random.Random(1))


@pytest.fixture
def etcd(cluster: SimulatedEtcd) -> Etcd:
    return cluster.client()


class TestSimulatedEtcd(EtcdContract, EtcdThatForgets):
    @pytest.fixture(autouse=True)
    def _forgetful(self, cluster: SimulatedEtcd) -> None:
        self.cluster = cluster

    async def compact(self) -> None:
        self.cluster.compact()


@pytest.mark.parametrize("fault", ["lost_request", "lost_answer", "late_write"])
async def test_a_write_without_an_answer_is_carried_out_or_not(
    cluster: SimulatedEtcd, etcd: Etcd, fault: str
) -> None:
    cluster.faults = Faults(**{fault: 1.0})
    with pytest.raises(EtcdNoAnswer):
        await etcd.write([], [Put("/a", b"")])
    cluster.faults = Faults()
    at_once = bool((await etcd.read("/a")).items)
    assert at_once == (fault == "lost_answer")
