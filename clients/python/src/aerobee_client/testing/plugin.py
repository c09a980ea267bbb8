"""Provide the pytest plugin with the fixtures `rocketmq`, `async_rocketmq` and `rocketmq_suite`.

Pytest loads the plugin in every environment with this distribution. It therefore imports other
modules only when a test uses a fixture.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import pytest

if TYPE_CHECKING:
    from aerobee_client.testing.rocketmq import AsyncRocketMq, RocketMq

NAMESRV_OPTION = "--rocketmq-namesrv"
NAMESRV_VARIABLE = "NAMESRV_ADDR"
SETS_INI = "rocketmq_set"


class Addresses(NamedTuple):
    """The addresses of the services for the tests of a session, "host:port".

    `proxy` and `broker` are "" if unknown. `log` is the path of the log of the test cluster; "" for
    an existing cluster.
    """

    namesrv: str
    broker: str = ""
    proxy: str = ""
    log: str = ""


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("rocketmq")
    group.addoption(
        NAMESRV_OPTION,
        metavar="H:P",
        default="",
        help="the name server of a cluster that runs, in place of one started for the tests",
    )
    parser.addini(
        SETS_INI, "options of the suite that is started: KEY=VALUE, proxy.KEY=VALUE", "linelist"
    )


@pytest.fixture(scope="session")
def rocketmq_suite(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Addresses]:
    """Run name server, broker and proxy in one process.

    There is one process per session, or per worker of pytest-xdist. With --rocketmq-namesrv, the
    existing cluster is used.
    """
    namesrv = str(request.config.getoption(NAMESRV_OPTION))
    if namesrv:
        from aerobee_client.testing.rocketmq import proxy_of

        yield Addresses(namesrv, proxy=proxy_of(namesrv))
        return
    from aerobee_client.testing.suite_process import SuiteProcess

    data = tmp_path_factory.mktemp("rocketmq")
    with SuiteProcess(data, request.config.getini(SETS_INI)) as suite:
        yield Addresses(suite.namesrv, suite.broker, suite.proxy, str(suite.log))
    shutil.rmtree(data / "broker", ignore_errors=True)  # its log stays


@pytest.fixture
def rocketmq(rocketmq_suite: Addresses, monkeypatch: pytest.MonkeyPatch) -> Iterator[RocketMq]:
    """Provide a cluster to a test. Topics and groups that it creates are deleted afterwards.

    NAMESRV_ADDR is set during the test, so that clients find the cluster.
    """
    from aerobee_client.testing.rocketmq import RocketMq

    monkeypatch.setenv(NAMESRV_VARIABLE, rocketmq_suite.namesrv)
    with RocketMq(rocketmq_suite.namesrv, rocketmq_suite.proxy) as found:
        yield found


@pytest.fixture
def async_rocketmq(rocketmq: RocketMq) -> AsyncRocketMq:
    """Provide the cluster to an asyncio test: `await async_rocketmq.advance(hours=5)`."""
    return rocketmq.asynchronous
