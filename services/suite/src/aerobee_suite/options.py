"""Read the options of the three services from one command line.

`--set KEY=VALUE` sets an option of the broker. `namesrv.KEY=VALUE` and `proxy.KEY=VALUE` set
options of the other services. Ports, host and data directory are flags of the command line. All
other options may also come from the environment, as for a separate service.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from aerobee_broker.config import BrokerOptions
from aerobee_chassis.config import Options, load
from aerobee_namesrv.config import NamesrvOptions
from aerobee_proxy.config import ProxyOptions

NAMESRV, BROKER, PROXY = "namesrv", "broker", "proxy"

O = TypeVar("O", bound=Options)  # noqa: E741


@dataclass(frozen=True, slots=True)
class SuiteOptions:
    """The options of all services.

    Broker and proxy get the name server's address after it has started.
    """

    namesrv: NamesrvOptions
    broker: BrokerOptions
    proxy: ProxyOptions

    def each(self) -> Iterable[tuple[str, Options]]:
        """Return pairs of the name and the options of each service."""
        return ((NAMESRV, self.namesrv), (BROKER, self.broker), (PROXY, self.proxy))


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """The listen addresses and the data directory of the services.

    For port 0, a free port is used. For None, the environment, `--set` or the default is used. With
    `insecure`, ports on other addresses than loopback may serve each caller.
    """

    data: Path | None = None
    host: str | None = None
    namesrv_port: int | None = None
    broker_port: int | None = None
    proxy_port: int | None = None
    insecure: bool | None = None


def read(places: Places, sets: Iterable[str], environ: Mapping[str, str]) -> SuiteOptions:
    """Read the options of all services. Raises ConfigError."""
    by_service: dict[str, list[str]] = {NAMESRV: [], BROKER: [], PROXY: []}
    for item in sets:
        service, dot, rest = item.partition(".")
        named = bool(dot) and service in by_service
        by_service[service if named else BROKER].append(rest if named else item)

    def options(model: type[O], service: str, given: Mapping[str, Any]) -> O:
        return load(
            model,
            environ=environ,
            sets=by_service[service],
            cli={"bindAddress": places.host, "insecure": places.insecure, **given},
        )

    data = places.data
    kv_config = data and data / "namesrv" / "kvConfig.json"
    store = data and data / "broker" / "store"
    return SuiteOptions(
        options(
            NamesrvOptions,
            NAMESRV,
            {"listenPort": places.namesrv_port, "kvConfigPath": kv_config},
        ),
        options(
            BrokerOptions, BROKER, {"listenPort": places.broker_port, "storePathRootDir": store}
        ),
        options(ProxyOptions, PROXY, {"grpcServerPort": places.proxy_port}),
    )
