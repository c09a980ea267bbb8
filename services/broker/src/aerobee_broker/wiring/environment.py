"""Define the environment of a broker: options, clock, disk, threads and metrics.

Tests use replacements for some of these.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from aerobee_broker.commit.worker_thread import Worker
from aerobee_broker.config import BrokerOptions
from aerobee_broker.disk import Disk
from aerobee_broker.metadata.runtime_config import RuntimeConfig
from aerobee_broker.metrics import BrokerMetrics
from aerobee_broker.store.format import FormatFile
from aerobee_chassis.clock import Clock
from aerobee_chassis.rpc.in_flight import InFlight

if TYPE_CHECKING:
    from aerobee_broker.traces import BrokerTraces


@dataclass(frozen=True, slots=True)
class Environment:
    """The environment of a broker.

    - `config` has the current options, and their changes.
    - `path` is the directory of the store.
    - `format` records the features that a build must know to open the store.
    - `flusher` is the thread that flushes the log and maintains the store.
    - `writer` is the thread that writes the tables.
    - `in_flight` counts the memory that the server holds for calls.
    - `namesrvs` are the name servers.
    - `traces` creates spans; None without otlpEndpoint.
    """

    config: RuntimeConfig
    clock: Clock
    disk: Disk
    path: Path
    flusher: Worker
    writer: Worker
    rng: random.Random
    metrics: BrokerMetrics
    format: FormatFile
    in_flight: InFlight = field(default_factory=InFlight)
    namesrvs: Sequence[str] = ()
    traces: BrokerTraces | None = None

    @property
    def options(self) -> BrokerOptions:
        return self.config.now
