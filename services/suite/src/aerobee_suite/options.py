"""Options of the three services, from one command line.

`--set KEY=VALUE` is the broker's; `namesrv.KEY=VALUE` and `proxy.KEY=VALUE` are the others'. Ports,
the host and the data directory are those of the command line; everything else may come from the
environment too, as for a service of its own.
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
    """Broker and proxy get the address of the name server when it has started."""

    namesrv: NamesrvOptions
    broker: BrokerOptions
    proxy: ProxyOptions

    def each(self) -> Iterable[tuple[str, Options]]:
        """Name of a service, and its options."""
        return ((NAMESRV, self.namesrv), (BROKER, self.broker), (PROXY, self.proxy))


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Where the services listen and keep their files. Port 0: a free one. None: the default, or
    what environment and `--set` say."""

    data: Path | None = None
    host: str | None = None
    namesrv_port: int | None = None
    broker_port: int | None = None
    proxy_port: int | None = None


def read(places: Places, sets: Iterable[str], environ: Mapping[str, str]) -> SuiteOptions:
    """Raises ConfigError."""
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
            cli={"bindAddress": places.host, **given},
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
