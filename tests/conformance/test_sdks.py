"""The official SDKs, unmodified, against a name server, a broker and a proxy.

Each scenario names its row of the acceptance catalogue (docs/compatibility.md lists them, and says
what each asks for). A delayed event is waited for by polling; that something does not happen is
shown by a later event, or by the one wait that the row itself prescribes. All scenarios run side by
side (`conformance.runner`); a test then says how its scenario ended. Row F26, restarts, is in
tests/fault/crash/test_sdk_restarts.py.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator

import pytest

from conformance.runner import CASES, LEASE_S, SECRET, ScenarioRunner
from support.processes.service import ServiceProcess
from support.proxy.sdk_cluster import Cluster, sdk_cluster

pytestmark = pytest.mark.slow

# A module declares its scenarios when it is imported; they start in this order, the longest first.
for module in ("lasting", "sending", "receiving", "transacting", "listening", "access"):
    importlib.import_module(f"conformance.scenarios.{module}")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    options = ("--set", f"defaultInvisibleTimeMills={LEASE_S * 1_000}")
    with sdk_cluster(tmp_path_factory.mktemp("cluster"), *options) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def guarded(cluster: Cluster) -> Iterator[ServiceProcess]:
    """A proxy beside the other that wants to know who calls."""
    users = cluster.home / "users.json"
    everything = [{"resource": ["Topic:*", "Group:*"], "actions": ["Pub", "Sub"]}]
    app = {"username": "app", "password": SECRET, "policies": everything}
    reader = {
        "username": "reader",
        "password": SECRET,
        "policies": [{"resource": "*", "actions": "Sub"}],
    }
    users.write_text(json.dumps({"users": [app, reader]}))
    users.chmod(0o600)
    with ServiceProcess(
        *("aerobee_proxy", "--port", "0", "--namesrv", cluster.namesrv.address),
        *("--set", "authenticationEnabled=true", "--set", f"authenticationUsersFile={users}"),
        *("--set", "authorizationEnabled=true"),
    ) as proxy:
        yield proxy
        assert SECRET not in proxy.output, "a secret was logged"


@pytest.fixture(scope="module")
def runs(
    request: pytest.FixtureRequest, cluster: Cluster, guarded: ServiceProcess
) -> Iterator[ScenarioRunner]:
    """All cases that this session selected, started at once."""
    started = ScenarioRunner(cluster, guarded)
    try:
        for item in request.session.items:
            if isinstance(item, pytest.Function) and item.originalname == "test_the_sdk_does":
                started.start(str(item.callspec.params["case"]))
        yield started
    finally:
        started.close()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Once all scenarios are declared."""
    if "case" in metafunc.fixturenames:
        metafunc.parametrize("case", list(CASES))


def test_the_sdk_does(runs: ScenarioRunner, case: str) -> None:
    runs.futures[case].result()
