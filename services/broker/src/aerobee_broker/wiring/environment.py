"""The environment of a broker: options, clock, disk, threads, metrics; stand-ins in tests."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path

from aerobee_broker.commit.worker_thread import Worker
from aerobee_broker.config import BrokerOptions
from aerobee_broker.disk import Disk
from aerobee_broker.metrics import BrokerMetrics
from aerobee_broker.store.format import FormatFile
from aerobee_chassis.clock import Clock
from aerobee_chassis.rpc.in_flight import InFlight


@dataclass(frozen=True, slots=True)
class Environment:
    """The environment of a broker.

    `path`: the directory of the store. `format`: the features that a build must know to open it.
    `flusher` flushes the log and maintains the store; `writer` writes the tables. `in_flight`: the
    memory that the server holds for calls.
    """

    options: BrokerOptions
    clock: Clock
    disk: Disk
    path: Path
    flusher: Worker
    writer: Worker
    rng: random.Random
    metrics: BrokerMetrics
    format: FormatFile
    in_flight: InFlight = field(default_factory=InFlight)
