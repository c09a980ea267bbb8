"""What every RPC of a proxy works with: made once by the app, handed to each handler."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from aerobee_chassis.clock import Clock
from aerobee_proxy.access.users import Users
from aerobee_proxy.background import Background
from aerobee_proxy.cluster.broker_calls import Brokers
from aerobee_proxy.cluster.group_configs import GroupPolicies
from aerobee_proxy.cluster.lease_renewal import Renewals
from aerobee_proxy.cluster.queue_selector import Turns
from aerobee_proxy.cluster.route_cache import Topology
from aerobee_proxy.cluster.topic_creation import TopicCreation
from aerobee_proxy.cluster.transport import Transport
from aerobee_proxy.config import ProxyOptions
from aerobee_proxy.counts import Counts
from aerobee_proxy.v2 import authorization
from aerobee_proxy.v2.authentication import Authentication
from aerobee_proxy.v2.heartbeats import Presence
from aerobee_proxy.v2.routes import SendRoutes
from aerobee_proxy.v2.sessions import Sessions
from aerobee_proxy.v2.transaction_checks import CheckBack


@dataclass(slots=True)
class Parts:
    options: ProxyOptions
    clock: Clock
    topology: Topology
    brokers: Brokers
    groups: GroupPolicies
    creation: TopicCreation
    presence: Presence
    check_back: CheckBack
    renewals: Renewals
    counts: Counts
    sessions: Sessions
    listen_port: Callable[[], int]  # that clients reach this proxy on; known once it is bound
    authentication: Authentication | None = None  # None: everybody may call
    turns: Turns = field(default_factory=Turns)
    send_routes: SendRoutes = field(default_factory=SendRoutes)
    background: Background = field(default_factory=Background)


def assemble(
    options: ProxyOptions, transport: Transport, clock: Clock, *, listen_port: Callable[[], int]
) -> Parts:
    """The parts over one transport. Raises ConfigError for a file of users that is not usable."""
    topology = Topology(transport, options.namesrvs, clock)
    brokers = Brokers(transport, topology)
    counts, sessions = Counts(), Sessions()
    authentication = _authentication(options, counts, clock)
    presence = Presence(brokers, topology, clock)
    return Parts(
        options=options,
        clock=clock,
        topology=topology,
        brokers=brokers,
        groups=GroupPolicies(brokers, topology, clock),
        creation=TopicCreation(brokers, topology),
        presence=presence,
        check_back=CheckBack(
            transport,
            topology,
            brokers,
            sessions=sessions,
            counts=counts,
            clock=clock,
            max_body_size=options.max_message_size,
            may_publish=_may_publish(options, authentication),
        ),
        renewals=Renewals(
            brokers,
            clock,
            counts,
            lives=lambda client_id, user: sessions.lives(client_id, clock.monotonic_ms(), user),
            seen=presence.seen,
        ),
        counts=counts,
        sessions=sessions,
        listen_port=listen_port,
        authentication=authentication,
    )


def _authentication(options: ProxyOptions, counts: Counts, clock: Clock) -> Authentication | None:
    if not options.authentication_enabled:
        return None
    return Authentication(Users(Path(options.authentication_users_file)), counts, clock)


def _may_publish(
    options: ProxyOptions, authentication: Authentication | None
) -> Callable[[str, str], bool]:
    """As the file of users says now: a stream may be older than that."""

    def ask(name: str, topic: str) -> bool:
        if authentication is None:
            return True
        user = authentication.users.get(name)
        if user is None or not user.enabled:
            return False
        return not options.authorization_enabled or authorization.may_publish(user, topic)

    return ask
