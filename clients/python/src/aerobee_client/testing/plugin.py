"""The pytest plugin: fixtures `rocketmq`, `async_rocketmq` and `rocketmq_suite`.

It is loaded wherever the distribution is installed, so it imports nothing before a test asks for a
fixture.
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
    """Of the services that a session's tests use, "host:port". `proxy`, `broker`: "" when unknown.
    `log`: the path of the suite's log; "" for a cluster that runs already."""

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
    """Name server, broker and proxy in one process: one for the session, or for each worker of
    pytest-xdist. With --rocketmq-namesrv: the cluster that runs there."""
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
    """The cluster as this test sees it; what it created is deleted afterwards. NAMESRV_ADDR names
    it meanwhile, so clients find it by themselves."""
    from aerobee_client.testing.rocketmq import RocketMq

    monkeypatch.setenv(NAMESRV_VARIABLE, rocketmq_suite.namesrv)
    with RocketMq(rocketmq_suite.namesrv, rocketmq_suite.proxy) as found:
        yield found


@pytest.fixture
def async_rocketmq(rocketmq: RocketMq) -> AsyncRocketMq:
    """The same for coroutines: `await async_rocketmq.advance(hours=5)`."""
    return rocketmq.asynchronous
