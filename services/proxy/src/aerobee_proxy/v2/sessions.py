"""The clients of this proxy: what each said of itself, and the streams it holds open.

A client is known by its id, not by a connection: one SDK opens a channel for every route, others
hold two telemetry streams. Where calls are signed it is known by its user too: whoever borrows the
id of another user's client hears nothing that is meant for that, and cannot end it. Nothing here
must survive a restart: a client that this proxy never heard of is served all the same, and its
settings come with its next telemetry stream.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from apache.rocketmq.v2.definition_pb2 import FilterExpression, FilterType, Resource, Settings
from apache.rocketmq.v2.service_pb2 import TelemetryCommand

from aerobee_proxy.v2.resources import stored_name
from aerobee_wire.tags import ALL, SEPARATOR

EXPIRY_MS = 120_000  # of silence, for a client without a stream
MAX_SESSIONS = 50_000  # whoever calls under ever new names must not use up the memory
# Heartbeats come every 10 s, those of one SDK every 30 s: a client that holds no stream and missed
# one is taken for dead where leases are renewed for it.
SILENCE_MS = 45_000


class CommandStream(Protocol):
    """The way back to a client: one of its telemetry streams."""

    def offer(self, command: TelemetryCommand) -> None:
        """Puts a command in line; never waits."""


class _Membership:
    """What follows from a client's settings about its group. Worked out once: with each settings of
    one member all members are looked at."""

    def __init__(self, settings: Settings | None) -> None:
        self.settings = settings
        self.group = ""
        self.subscriptions: Mapping[str, FilterExpression] = {}
        if settings is not None and settings.WhichOneof("pub_sub") == "subscription":
            said = settings.subscription
            self.group = stored_name(said.group)
            self.subscriptions = {
                stored_name(one.topic): one.expression for one in said.subscriptions
            }
        # The same for all that want the same.
        self.wanted = frozenset(
            (topic, _normal(expression)) for topic, expression in self.subscriptions.items()
        )


@dataclass(slots=True, eq=False)
class Session:
    client_id: str
    last_seen_ms: int
    settings: Settings | None = None  # as they were answered
    streams: set[CommandStream] = field(default_factory=set)
    _half_topics: dict[str, Resource] = field(default_factory=dict)  # by stored name
    _said: Settings | None = None
    _published: dict[str, Resource] = field(default_factory=dict)
    user: str = ""  # who signs its calls; empty where nobody is asked
    _membership: _Membership = field(default_factory=lambda: _Membership(None))

    @property
    def consumer_group(self) -> str:
        """The stored name of its group; empty for producers and before settings came."""
        return self.membership.group

    @property
    def membership(self) -> _Membership:
        if self._membership.settings is not self.settings:
            self._membership = _Membership(self.settings)
        return self._membership

    def published(self) -> Mapping[str, Resource]:
        """Stored name → the topic as the client names it. Looked at every second for every client,
        so it is worked out only when the client has said something new."""
        if self._said is not self.settings:
            topics = self.settings.publishing.topics if self.settings is not None else ()
            said = {stored_name(topic): topic for topic in topics}
            self._said, self._published = self.settings, {**self._half_topics, **said}
        return self._published

    def sent_half(self, topic: str, resource: Resource) -> None:
        """It sent a half message to a stored topic, which it may not have said that it would."""
        self._half_topics[topic] = resource
        self.published()
        self._published.setdefault(topic, resource)

    def namespace_of(self, topic: str) -> str:
        """The namespace under which it publishes to a stored topic."""
        resource = self.published().get(topic)
        return resource.resource_namespace if resource is not None else ""

    @property
    def subscriptions(self) -> Mapping[str, FilterExpression]:
        """Stored name of a topic → what it wants of it."""
        return self.membership.subscriptions

    @property
    def request_timeout_ms(self) -> int:
        """What the client said; 3 s, which all SDKs use, when it did not."""
        said = self.settings is not None and self.settings.HasField("request_timeout")
        return self.settings.request_timeout.ToMilliseconds() if said and self.settings else 3_000


class Sessions:
    """All sessions, by client id and user. Times are monotonic: who sets the time of day makes no
    client silent."""

    def __init__(self) -> None:
        self._by_id: dict[tuple[str, str], Session] = {}
        self._by_group: dict[str, dict[Session, None]] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[Session]:
        return iter(self._by_id.values())

    @property
    def full(self) -> bool:
        return len(self._by_id) >= MAX_SESSIONS

    def get(self, client_id: str, user: str = "") -> Session | None:
        return self._by_id.get((client_id, user))

    def touch(self, client_id: str, now_ms: int, user: str = "") -> Session:
        """The session of a client that gave a sign of life; a new one when it was unknown."""
        session = self._by_id.get((client_id, user))
        if session is None:
            session = Session(client_id, now_ms, user=user)
            self._by_id[client_id, user] = session
        session.last_seen_ms = now_ms
        return session

    def declare(self, session: Session, settings: Settings) -> None:
        """It says of itself what it is."""
        known = self._by_id.get((session.client_id, session.user)) is session
        if known:
            self._leave(session)
        session.settings = settings
        if known and session.consumer_group:
            self._by_group.setdefault(session.consumer_group, {})[session] = None

    def _leave(self, session: Session) -> None:
        members = self._by_group.get(session.consumer_group, {})
        members.pop(session, None)
        if not members:
            self._by_group.pop(session.consumer_group, None)

    def lives(self, client_id: str, now_ms: int, user: str = "") -> bool:
        """Whether it holds a stream or gave a sign of life lately."""
        session = self._by_id.get((client_id, user))
        return session is not None and (
            bool(session.streams) or now_ms - session.last_seen_ms <= SILENCE_MS
        )

    def remove(self, client_id: str, user: str = "") -> Session | None:
        """Forgets a client that says goodbye."""
        session = self._by_id.pop((client_id, user), None)
        if session is not None:
            self._leave(session)
        return session

    def expire(self, now_ms: int) -> list[Session]:
        """Forgets the clients that hold no stream and were silent too long, and returns them."""
        gone = [
            session
            for session in self
            if not session.streams and now_ms - session.last_seen_ms > EXPIRY_MS
        ]
        for session in gone:
            self.remove(session.client_id, session.user)
        return gone

    def members(self, consumer_group: str) -> list[Session]:
        return list(self._by_group.get(consumer_group, ()))

    def producers_of(self, topic: str) -> list[Session]:
        """Clients with a stream that said they publish to this topic."""
        return [s for s in self if s.streams and topic in s.published()]


def conflicts(members: list[Session]) -> dict[str, list[str]]:
    """Topics to which the members of one group subscribe differently → what they want, sorted.

    Such a group loses messages in silence: what one member's filter drops, no other will see. A
    topic that only some members subscribe to counts too; those that do not want "".
    """
    different = {member.membership.wanted for member in members}
    if len(different) < 2:
        return {}
    subscribed = [dict(wanted) for wanted in different]
    wanted = {
        topic: {topics.get(topic, "") for topics in subscribed}
        for topic in {topic for topics in subscribed for topic in topics}
    }
    return {topic: sorted(texts) for topic, texts in sorted(wanted.items()) if len(texts) > 1}


def _normal(expression: FilterExpression) -> str:
    """Equal for expressions that mean the same as far as spelling goes; never ""."""
    text = expression.expression.strip()
    if expression.type == FilterType.SQL:
        return text or ALL
    return SEPARATOR.join(sorted({tag.strip() for tag in text.split(SEPARATOR)} - {""})) or ALL
