"""Define the options of the name server, and which options may change at run time.

Options that RocketMQ has too have RocketMQ's keys. This module does not read files or the command
line.

The defaults differ from RocketMQ's for bindAddress (loopback) and kvConfigPath (below ~/aerobee).
"""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from pydantic import Field, field_validator

from aerobee_chassis.config import MIB, KnownKeys, Milliseconds, Port
from aerobee_chassis.rpc.peer_tls import ServerTlsOptions
from aerobee_chassis.runtime_config import LocalFile, RuntimeConfig
from aerobee_chassis.runtime_options import FILE_NAME

_KNOWN_KEYS = Path(__file__).with_name("rocketmq_keys.toml")


class NamesrvOptions(ServerTlsOptions):
    listen_port: Port = 9_876
    kv_config_path: Path = Path("~/aerobee/namesrv/kvConfig.json")
    # The file with the changes at run time. Default: runtime.json in the directory of kvConfigPath.
    config_store_path: str = ""

    # 100,000 topics of a registration take some 10 MiB.
    max_request_bytes: int = Field(default=32 * MIB, ge=MIB, le=64 * MIB)

    # ---- brokers ----
    scan_not_active_broker_interval: Milliseconds = 5_000
    un_register_broker_queue_capacity: int = Field(default=3_000, ge=1)
    support_acting_master: bool = False
    notify_min_broker_id_changed: bool = False
    delete_topic_with_broker_registration: bool = False

    # ---- requests of clients ----
    enable_all_topic_list: bool = True
    enable_topic_list: bool = True  # lists by cluster and by unit
    order_message_enable: bool = False
    return_order_topic_config_to_broker: bool = True
    # For a while after a start, the name server does not answer route queries. Otherwise, clients
    # would take the first brokers that register for the whole cluster.
    need_wait_for_service: bool = False
    wait_seconds_for_service: int = Field(default=45, ge=0)

    # ---- metrics ----
    metrics_prom_exporter_port: Port = 5_556  # a broker on the same host uses 5557

    known_keys: ClassVar[KnownKeys] = KnownKeys.read(_KNOWN_KEYS)

    runtime_keys: ClassVar[frozenset[str]] = frozenset(
        [
            "deleteTopicWithBrokerRegistration",
            "enableAllTopicList",
            "enableTopicList",
            "logLevel",
            "notifyMinBrokerIdChanged",
            "orderMessageEnable",
            "returnOrderTopicConfigToBroker",
            "supportActingMaster",
        ]
    )

    @property
    def runtime_path(self) -> Path:
        """Return the path of the file with the changes at run time."""
        if self.config_store_path:
            return Path(self.config_store_path).expanduser()
        return self.kv_config_path.with_name(FILE_NAME)

    @field_validator("kv_config_path")
    @classmethod
    def _at_home(cls, value: Path) -> Path:
        return value.expanduser()


def runtime_config(options: NamesrvOptions) -> RuntimeConfig[NamesrvOptions]:
    """Return the options of a running name server: those of its start, and the changes."""
    return RuntimeConfig(
        options,
        LocalFile(options.runtime_path),
        remedy="restore the file, or set configStorePath to another one",
    )
