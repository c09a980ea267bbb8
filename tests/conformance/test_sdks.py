"""The official SDKs, unmodified, against a name server, a broker and a proxy.

Each scenario names its row of the acceptance catalogue (docs/compatibility.md lists them, and says
what each asks for). A delayed event is waited for by polling; that something does not happen is
shown by a later event, or by the one wait that the row itself prescribes. All scenarios run side by
side (`conformance.runner`); a test then says how its scenario ended. What an SDK cannot do stands
in its sdk.toml: such a case must fail. `--every-sdk` runs all versions, in TLS and in plaintext,
with one broker and proxy and with two of each. Restarts, row F26, are in
tests/fault/clients/test_sdk_restarts.py.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import cast

import pytest

from conformance import catalogue
from conformance.runner import LEASE_S, SECRET, Case, ScenarioRunner, Site, cases
from support.processes import certificates
from support.processes.service import ServiceProcess, proxy_process
from support.proxy.official_sdk import newest_sdks, official_sdks
from support.proxy.sdk_cluster import Cluster, sdk_cluster
from support.running import secure

pytestmark = pytest.mark.slow

catalogue.load()


@contextmanager
def guarded_proxy(cluster: Cluster, *options: str) -> Iterator[ServiceProcess]:
    """A proxy beside the others that wants to know who calls."""
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
    with proxy_process(
        cluster.namesrv.address,
        *("--set", "authenticationEnabled=true", "--set", f"authenticationUsersFile={users}"),
        *("--set", "authorizationEnabled=true", *options),
    ) as proxy:
        yield proxy
        assert SECRET not in proxy.output, "a secret was logged"


@contextmanager
def running_site(home: Path, certificate: Path, roots: Path, brokers: int) -> Iterator[Site]:
    key = certificate.with_suffix(".key")
    identity = ("--set", f"tlsCertPath={certificate}", "--set", f"tlsKeyPath={key}")
    lease = ("--set", f"defaultInvisibleTimeMills={LEASE_S * 1_000}")
    with (
        sdk_cluster(home, *lease, *identity, brokers=brokers) as cluster,
        guarded_proxy(cluster, *identity) as guarded,
    ):
        yield Site(cluster, guarded, roots)


@pytest.fixture(scope="module")
def runs(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ScenarioRunner]:
    """All cases that this session selected, started at once."""
    selected = [
        cast(Case, item.callspec.params["case"])
        for item in request.session.items
        if isinstance(item, pytest.Function) and item.originalname == "test_the_sdk_does"
    ]
    certificate = roots = certificates.write(tmp_path_factory.mktemp("certificates"))[0]
    if (closed := secure.enabled()) is not None:
        certificate, roots = closed.certificate("proxy"), closed.roots
    with ExitStack() as stack:
        sites = {
            brokers: stack.enter_context(
                running_site(
                    tmp_path_factory.mktemp(f"cluster_{brokers}"), certificate, roots, brokers
                )
            )
            for brokers in sorted({case.brokers for case in selected})
        }
        started = ScenarioRunner(sites)
        stack.callback(started.close)
        started.start(selected)
        yield started


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Once all scenarios are declared."""
    if "case" in metafunc.fixturenames:
        every = metafunc.config.getoption("--every-sdk")
        chosen = cases(official_sdks() if every else newest_sdks(), every_way=every)
        metafunc.parametrize("case", [marked(case) for case in chosen])


def marked(case: Case) -> object:
    """The case as pytest runs it. One that the SDK cannot do must fail, else it is out of date; but
    not where that is a matter of timing."""
    cannot = case.sdk.inability(case.scenario.name, case.scenario.needs, tls=case.tls)
    marks = pytest.mark.xfail(reason=cannot.cause, strict=not cannot.by_timing) if cannot else ()
    return pytest.param(case, id=str(case), marks=marks)


def test_the_sdk_does(runs: ScenarioRunner, case: Case) -> None:
    runs.futures[case].result()
