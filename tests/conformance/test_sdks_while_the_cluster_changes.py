"""The official SDKs, unmodified, at work while brokers and proxies die, come and go: rows C2 to C5
of the acceptance catalogue.

Without `--every-sdk` only the first changes, with two SDKs that start soon.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from conformance import changes
from conformance.changes import CHANGES, Change, Stage, Way
from support.processes import certificates
from support.proxy.official_sdk import newest_sdks, official_sdks
from support.proxy.sdk_cluster import INVISIBLE_S, Cluster, sdk_broker, sdk_cluster
from support.proxy.sdk_traffic import Traffic, all_work
from support.running import secure

pytestmark = pytest.mark.slow

QUICK = ("node", "python")


class Stages:
    """The cluster that the clients of one turn work in, until another turn is asked for."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._stack = ExitStack()
        self._turn: list[Way] = []
        self._stage: Stage | None = None
        self._failures: dict[Change, dict[Way, BaseException]] = {}

    def failures(self, change: Change, turn: list[Way]) -> dict[Way, BaseException]:
        """Who did not go on after the change, which is made unless it was."""
        if self._stage is None or self._turn != turn:
            self.close()
            self._stage, self._turn = self._opened(turn), turn
        if change not in self._failures:
            self._stage.failures = self._failures[change] = {}
            try:
                change(self._stage)
            except Exception as error:
                for way in turn:
                    self._failures[change].setdefault(way, error)
        return self._failures[change]

    def close(self) -> None:
        self._stack.close()
        self._stage = None
        self._failures.clear()

    def _opened(self, turn: list[Way]) -> Stage:
        home = self._home / "-".join(map(str, turn))
        home.mkdir()
        certificate = roots = certificates.write(home)[0]
        if (closed := secure.enabled()) is not None:
            certificate, roots = closed.certificate("proxy"), closed.roots
        key = certificate.with_suffix(".key")
        cluster = self._stack.enter_context(
            sdk_cluster(
                home,
                *("--set", f"defaultInvisibleTimeMills={INVISIBLE_S * 1_000}"),
                *("--set", f"tlsCertPath={certificate}", "--set", f"tlsKeyPath={key}"),
                brokers=2,
            )
        )
        added = sdk_broker(home, "broker-c", cluster.namesrv.address)
        self._stack.callback(added.stop)
        clients = {
            way: self._stack.enter_context(
                Traffic(way.sdk, cluster, proxies(way, cluster), roots if way.tls else None)
            )
            for way in turn
        }
        all_work(clients.values(), 0)
        return Stage(cluster, added, clients)


def proxies(way: Way, cluster: Cluster) -> str:
    if way.has_both_proxies:
        return way.sdk.list_of(proxy.address for proxy in cluster.proxies)
    return cluster.proxies[1].address.replace("127.0.0.1", "localhost")


@pytest.fixture(scope="module")
def stages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stages]:
    stages = Stages(tmp_path_factory.mktemp("stages"))
    yield stages
    stages.close()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "change" not in metafunc.fixturenames:
        return
    every = metafunc.config.getoption("--every-sdk")
    ways = [
        Way(sdk, tls)
        for sdk in (official_sdks() if every else newest_sdks())
        if every or sdk.language in QUICK
        for tls in ((True,) if secure.enabled() is not None else (False, True))
        if not tls or (sdk.speaks_tls and (every or secure.enabled() is not None))
    ]
    chosen = [
        pytest.param(change, turn, way, id=f"{way}-{change.__name__}")
        for turn in changes.in_turns(ways)
        for change in (CHANGES if every else CHANGES[:2])
        for way in turn
        if way.has_both_proxies or change is not changes.c3_one_of_two_proxies_is_killed
    ]
    metafunc.parametrize(("change", "turn", "way"), chosen)


def test_the_sdk_goes_on(stages: Stages, change: Change, turn: list[Way], way: Way) -> None:
    """Everything that it sends is delivered, and no send fails."""
    for each in turn:
        assert each.sdk.built  # or the test is skipped
    failed = stages.failures(change, turn).get(way)
    if failed is not None:
        raise AssertionError(f"{way} did not go on") from failed
