"""What every RPC of a proxy works with: made once by the app, handed to each handler."""

from __future__ import annotations

from dataclasses import dataclass, field

from aerobee_chassis.clock import Clock
from aerobee_proxy.brokers import Brokers
from aerobee_proxy.config import ProxyOptions
from aerobee_proxy.creation import TopicCreation
from aerobee_proxy.groups import GroupPolicies
from aerobee_proxy.metrics import Counts
from aerobee_proxy.presence import Presence
from aerobee_proxy.queue_selector import Turns
from aerobee_proxy.sessions import Sessions
from aerobee_proxy.topology import Topology


@dataclass(slots=True)
class Parts:
    options: ProxyOptions
    clock: Clock
    topology: Topology
    brokers: Brokers
    groups: GroupPolicies
    creation: TopicCreation
    presence: Presence
    sessions: Sessions = field(default_factory=Sessions)
    turns: Turns = field(default_factory=Turns)
    counts: Counts = field(default_factory=Counts)
    # The port that clients reach this proxy on; known once it is bound.
    listen_port: int = 0
