"""Define the options of the name server, and which options may change at run time.

Options that RocketMQ has too have RocketMQ's keys. This module does not read files or the command
line.

The defaults differ from RocketMQ's for bindAddress (loopback) and kvConfigPath (below ~/aerobee).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from pydantic import Field, field_validator

from aerobee_chassis.config import KnownKeys, Milliseconds, Port
from aerobee_chassis.errors import ConfigError
from aerobee_chassis.rpc.peer_tls import ServerTlsOptions
from aerobee_wire.status import Code, MqError

_KNOWN_KEYS = Path(__file__).with_name("rocketmq_keys.toml")


class NamesrvOptions(ServerTlsOptions):
    listen_port: Port = 9_876
    kv_config_path: Path = Path("~/aerobee/namesrv/kvConfig.json")

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

    # The options that may change at run time. They are switches: none is a path or a command, and
    # none can stop the service. RocketMQ allowed any key, which led to a shell (CVE-2023-37582).
    runtime_keys: ClassVar[frozenset[str]] = frozenset(
        [
            "deleteTopicWithBrokerRegistration",
            "enableAllTopicList",
            "enableTopicList",
            "notifyMinBrokerIdChanged",
            "orderMessageEnable",
            "returnOrderTopicConfigToBroker",
            "supportActingMaster",
        ]
    )

    @field_validator("kv_config_path")
    @classmethod
    def _at_home(cls, value: Path) -> Path:
        return value.expanduser()


class RuntimeOptions:
    """The current options. A change at run time is lost when the process ends."""

    def __init__(self, options: NamesrvOptions) -> None:
        self.now = options

    def entries(self) -> dict[str, str]:
        """Return a map from key to value, with each value as text."""
        return {
            key: value if isinstance(value, str) else json.dumps(value)
            for key, value in self.now.to_json().items()
        }

    def update(self, entries: Mapping[str, str]) -> None:
        """Change all options in `entries`, or none if an error is raised.

        Raises MqError with the code NO_PERMISSION for a key that can only be set at the start.
        Raises MqError with the code INVALID_PARAMETER for an unknown key or an invalid value.
        """
        try:
            # Check for unknown keys and bad values first: a misspelt key is unknown, not forbidden.
            changed = type(self.now).from_values({**self.now.to_json(), **entries})
        except ConfigError as error:
            raise MqError(Code.INVALID_PARAMETER, str(error), about=error.about) from None
        names = self.now.keys()
        allowed = {names[key] for key in self.now.runtime_keys}
        fixed = sorted(
            key for key in entries if names.get(self.now.known_key(key) or key) not in allowed
        )
        if fixed:
            raise MqError(
                Code.NO_PERMISSION,
                f"{', '.join(fixed)} can be set at start only; "
                f"at run time: {', '.join(sorted(self.now.runtime_keys))}",
                about=fixed[0],
            )
        self.now = changed
