"""The official SDKs, unmodified, against a name server, a broker and a proxy.

Each scenario names its row of the acceptance catalogue (docs/compatibility.md lists them, and says
what each asks for). A delayed event is waited for by polling; that something does not happen is
shown by a later event, or by the one wait that the row itself prescribes. All scenarios run side by
side (`conformance.runner`); a test then says how its scenario ended. What an SDK cannot do stands
in its sdk.toml: such a case must fail. `--every-sdk` runs all versions, in TLS and in plaintext.
Row F26, restarts, is in tests/fault/crash/test_sdk_restarts.py.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from conformance import catalogue
from conformance.runner import LEASE_S, SECRET, Case, Doors, ScenarioRunner, cases
from support.processes import certificates
from support.processes.service import ServiceProcess
from support.proxy.official_sdk import newest_sdks, official_sdks
from support.proxy.sdk_cluster import Cluster, sdk_cluster

pytestmark = pytest.mark.slow

catalogue.load()


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return certificates.write(tmp_path_factory.mktemp("certificates"))[0]


@pytest.fixture(scope="module")
def identity(certificate: Path) -> tuple[str, ...]:
    """The options by which a proxy shows the certificate."""
    key = certificate.with_suffix(".key")
    return ("--set", f"tlsCertPath={certificate}", "--set", f"tlsKeyPath={key}")


@pytest.fixture(scope="module")
def cluster(
    tmp_path_factory: pytest.TempPathFactory, identity: tuple[str, ...]
) -> Iterator[Cluster]:
    options = ("--set", f"defaultInvisibleTimeMills={LEASE_S * 1_000}", *identity)
    with sdk_cluster(tmp_path_factory.mktemp("cluster"), *options) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def guarded(cluster: Cluster, identity: tuple[str, ...]) -> Iterator[ServiceProcess]:
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
        *("--set", "authorizationEnabled=true", *identity),
    ) as proxy:
        yield proxy
        assert SECRET not in proxy.output, "a secret was logged"


@pytest.fixture(scope="module")
def runs(
    request: pytest.FixtureRequest, cluster: Cluster, guarded: ServiceProcess, certificate: Path
) -> Iterator[ScenarioRunner]:
    """All cases that this session selected, started at once."""
    started = ScenarioRunner(cluster, Doors(cluster.proxy, guarded, certificate))
    try:
        started.start(
            cast(Case, item.callspec.params["case"])
            for item in request.session.items
            if isinstance(item, pytest.Function) and item.originalname == "test_the_sdk_does"
        )
        yield started
    finally:
        started.close()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Once all scenarios are declared."""
    if "case" in metafunc.fixturenames:
        every = metafunc.config.getoption("--every-sdk")
        chosen = cases(official_sdks() if every else newest_sdks(), both_transports=every)
        metafunc.parametrize("case", [marked(case) for case in chosen])


def marked(case: Case) -> object:
    """The case as pytest runs it. One that the SDK cannot do must fail: else it is out of date."""
    cannot = case.sdk.inability(case.scenario.name, case.scenario.needs)
    marks = pytest.mark.xfail(reason=cannot.cause, strict=True) if cannot else ()
    return pytest.param(case, id=str(case), marks=marks)


def test_the_sdk_does(runs: ScenarioRunner, case: Case) -> None:
    runs.futures[case].result()
