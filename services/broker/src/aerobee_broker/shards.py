"""Run several brokers on one machine as one service, to use more than one core (`shards=N`).

Each shard is a complete broker with a name, a port and a store of its own. Shard 0 is the broker
that runs without shards, so that a broker gets or loses shards without a change of its own. Shard 1
of the broker `broker-a` is the broker `broker-a-1` at the port after listenPort. Name servers,
proxies and clients treat shards as any other brokers.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from aerobee_broker.app import BrokerApp
from aerobee_broker.config import NAME_IN_PATH, BrokerOptions
from aerobee_broker.disk import RealDisk
from aerobee_broker.shard_stores import check_stores, store_of
from aerobee_chassis import process
from aerobee_chassis.errors import StartError
from aerobee_chassis.workers import (
    FAILED,
    OnReady,
    Parent,
    WorkerKind,
    metrics_fields,
    options_of_worker,
)


def run(options: BrokerOptions) -> int:
    """Run until SIGTERM or SIGINT. Return the exit code."""
    try:
        check_stores(RealDisk(), options.store_path_root_dir.expanduser(), options.shards)
    except StartError as error:
        print(f"error: {error}", file=sys.stderr)
        return FAILED
    return Parent(Shards(options)).run()


class Shards(WorkerKind):
    name = "shard"
    stop_ms = 60_000  # for a flush of store and tables; service managers have limits of their own

    def __init__(self, options: BrokerOptions) -> None:
        self.count = options.shards
        self._options = options

    def label(self, number: int) -> object:
        return _name(self._options, number)

    def serve(self, number: int, former: Mapping[str, object], on_ready: OnReady) -> int:
        options = options_of_shard(self._options, number, former)
        return process.run(lambda: BrokerApp(options, is_shard=True), on_ready=on_ready)

    def ready_fields(self, ready: Sequence[Mapping[str, object]]) -> Mapping[str, object]:
        return {
            "address": ",".join(str(each["address"]) for each in ready),
            "broker": self._options.broker_name,
            "advertised": ",".join(str(each["advertised"]) for each in ready),
            **metrics_fields(ready),
        }


def options_of_shard(
    options: BrokerOptions, number: int, former: Mapping[str, object]
) -> BrokerOptions:
    """Return the options of one shard.

    `former` has the ready fields of the process that it replaces, or nothing. With listenPort=0,
    the first process of a shard chooses its port, and later ones use it again.
    """
    name, port = _name(options, number), options.listen_port
    changed: dict[str, Any] = {
        "shards": 1,
        "broker_name": name,
        "store_path_root_dir": store_of(options.store_path_root_dir, number),
        "tls_cert_path": options.tls_cert_path.replace(NAME_IN_PATH, name),
        "tls_key_path": options.tls_key_path.replace(NAME_IN_PATH, name),
    }
    if port:
        changed["listen_port"] = port + number
    elif former:
        changed["listen_port"] = int(str(former["address"]).rpartition(":")[2])
    return options_of_worker(options, Shards.name, number).model_copy(update=changed)


def _name(options: BrokerOptions, number: int) -> str:
    return f"{options.broker_name}-{number}" if number else options.broker_name
