"""Keep a session for each client of this proxy, with its settings and its telemetry streams.

A client is identified by its client id, not by a connection: one SDK opens a channel for every
route, and other SDKs hold two telemetry streams. If calls are signed, the user is part of the
identity. Thus a client cannot use the session of another user's client with the same id.

Sessions do not need to survive a restart. A proxy also serves clients that it does not know, and
their settings arrive with their next telemetry streams.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from aerobee.broker.v1.client_pb2 import HeartbeatRequest
from aerobee_foreign.apache.rocketmq.v2.definition_pb2 import (
    Code,
    FilterExpression,
    FilterType,
    Resource,
    Settings,
)
from aerobee_foreign.apache.rocketmq.v2.service_pb2 import TelemetryCommand

from aerobee_proxy.cluster.leasing.lite_subscriptions import HeldLiteTopics
from aerobee_proxy.v2.resources import stored_name
from aerobee_proxy.v2.status import Refused
from aerobee_wire.tags import ALL, SEPARATOR

MAX_SESSIONS = 50_000  # limits the memory for calls that each use a new client id
# Limits the memory for settings of many clients, which may have 256 KiB each. Those of 50,000
# ordinary clients take 15 MB.
MAX_ALL_SETTINGS_BYTES = 64 * 1024 * 1024
DEFAULT_REQUEST_TIMEOUT_MS = 3_000  # what all SDKs use
# Heartbeats arrive every 10 s, or every 30 s from one SDK. If a client without a stream missed one
# heartbeat, its leases are not renewed any longer.
SILENCE_MS = 45_000
EXPIRY_MS = SILENCE_MS  # a client without a stream and without a call expires after this


class CommandStream(Protocol):
    """One telemetry stream of a client, which accepts commands for it."""

    def offer(self, command: TelemetryCommand) -> None:
        """Queue a command without waiting."""


class _Membership:
    """The group and the subscriptions in a client's settings, with stored names.

    They are computed once for each change of settings, because they are read often.
    """

    def __init__(self, settings: Settings | None) -> None:
        self.settings = settings
        self.group = ""
        self.subscriptions: Mapping[str, FilterExpression] = {}
        if settings is not None and settings.WhichOneof("pub_sub") == "subscription":
            declared = settings.subscription
            self.group = stored_name(declared.group)
            self.subscriptions = {
                stored_name(entry.topic): entry.expression for entry in declared.subscriptions
            }
        # (topic, normalised expression); equal for members with the same subscriptions.
        self.filters = frozenset(
            (topic, _normal(expression)) for topic, expression in self.subscriptions.items()
        )


@dataclass(slots=True, eq=False)
class Session:
    client_id: str
    last_seen_ms: int
    settings: Settings | None = None  # as negotiated
    settings_bytes: int = 0
    streams: set[CommandStream] = field(default_factory=set)
    user: str = ""  # the user that signs its calls; empty without authentication
    source: str = ""  # the "host:port" of its last call
    receives: int = 0  # in progress
    heartbeat: HeartbeatRequest | None = None  # the last one sent to brokers
    lite_topics: HeldLiteTopics = field(default_factory=HeldLiteTopics)
    _answered_fifo: bool | None = None
    _half_topics: dict[str, Resource] = field(default_factory=dict)  # by stored name
    _published_of: Settings | None = None  # the settings that `_published` was computed from
    _published: dict[str, Resource] = field(default_factory=dict)
    _membership: _Membership = field(default_factory=lambda: _Membership(None))

    def sent_heartbeat(self, request: HeartbeatRequest) -> None:
        self.heartbeat = request

    @property
    def keeps_order(self) -> bool | None:
        """Return whether the client consumes each message group in order.

        A client does so if the proxy has answered that its subscription is FIFO. Return None before
        the proxy has answered the client's settings.
        """
        return self._answered_fifo

    def answer_fifo(self, fifo: bool, *, first_counts: bool) -> None:
        """Register that the proxy answers the client's settings with this value of `fifo`.

        `first_counts` is true for push consumers, because they use only the first answer to their
        settings.
        """
        if self._answered_fifo is None or not first_counts:
            self._answered_fifo = fifo

    @property
    def consumer_group(self) -> str:
        """Return the stored name of the client's group; "" for producers and without settings."""
        return self.membership.group

    @property
    def membership(self) -> _Membership:
        if self._membership.settings is not self.settings:
            self._membership = _Membership(self.settings)
        return self._membership

    def published(self) -> Mapping[str, Resource]:
        """Return the topics that the client publishes to, by stored name.

        The values are the topics as the client names them. The mapping is computed only when the
        client sent new settings, because it is read every second for every client.
        """
        if self._published_of is not self.settings:
            topics = self.settings.publishing.topics if self.settings is not None else ()
            declared = {stored_name(topic): topic for topic in topics}
            self._published_of = self.settings
            self._published = {**self._half_topics, **declared}
        return self._published

    def sent_half(self, topic: str, resource: Resource) -> None:
        """Register a topic to which the client sent a half message, by its stored name.

        `published()` then includes the topic, even if the client's settings do not name it.
        """
        self._half_topics[topic] = resource
        self.published()
        self._published.setdefault(topic, resource)

    def namespace_of(self, topic: str) -> str:
        """Return the namespace with which the client names a topic that it publishes to.

        `topic` is the stored name. Return "" if the client does not publish to it.
        """
        resource = self.published().get(topic)
        return resource.resource_namespace if resource is not None else ""

    @property
    def subscriptions(self) -> Mapping[str, FilterExpression]:
        """Return the filter expression of each subscribed topic, by stored name of the topic."""
        return self.membership.subscriptions

    @property
    def request_timeout_ms(self) -> int:
        if self.settings is not None and self.settings.HasField("request_timeout"):
            return self.settings.request_timeout.ToMilliseconds()
        return DEFAULT_REQUEST_TIMEOUT_MS


class Sessions:
    """All sessions of this proxy, by client id and user.

    Pass monotonic times, so that a change of the system time does not end a session.
    """

    def __init__(self) -> None:
        self._by_id: dict[tuple[str, str], Session] = {}
        self._by_group: dict[str, dict[Session, None]] = {}
        self._by_user: Counter[str] = Counter()
        self._settings_bytes = 0  # of all sessions

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[Session]:
        return iter(self._by_id.values())

    @property
    def full(self) -> bool:
        return len(self._by_id) >= MAX_SESSIONS

    def count_of(self, user: str) -> int:
        """Return the number of clients of a user."""
        return self._by_user[user]

    def get(self, client_id: str, user: str = "") -> Session | None:
        return self._by_id.get((client_id, user))

    def touch(self, client_id: str, now_ms: int, user: str = "", source: str = "") -> Session:
        """Return the session of a client that makes a call now. Create it for an unknown client.

        `source` is the "host:port" from which the client calls.
        """
        session = self._by_id.get((client_id, user))
        if session is None:
            session = Session(client_id, now_ms, user=user)
            self._by_id[client_id, user] = session
            self._by_user[user] += 1
        session.last_seen_ms = now_ms
        session.source = source
        return session

    def set_settings(self, session: Session, settings: Settings) -> None:
        """Keep the settings of a client.

        Raises Refused with the code TOO_MANY_REQUESTS if those of all clients are too large.
        """
        known = self._by_id.get((session.client_id, session.user)) is session
        if known:
            size = settings.ByteSize()
            total = self._settings_bytes - session.settings_bytes + size
            if total > MAX_ALL_SETTINGS_BYTES and size > session.settings_bytes:
                raise Refused(
                    Code.TOO_MANY_REQUESTS,
                    f"the settings of all clients of this proxy would have {total} bytes, and may "
                    f"have {MAX_ALL_SETTINGS_BYTES}: subscribe to fewer topics, close clients that "
                    "are not used, or run another proxy",
                )
            self._settings_bytes, session.settings_bytes = total, size
            self._leave_group(session)
        session.settings = settings
        if known and session.consumer_group:
            self._by_group.setdefault(session.consumer_group, {})[session] = None

    def _leave_group(self, session: Session) -> None:
        members = self._by_group.get(session.consumer_group, {})
        members.pop(session, None)
        if not members:
            self._by_group.pop(session.consumer_group, None)

    def is_alive(self, client_id: str, now_ms: int, user: str = "") -> bool:
        """Return whether the client holds a stream, or made a call at most SILENCE_MS ago."""
        session = self._by_id.get((client_id, user))
        return session is not None and (
            bool(session.streams) or now_ms - session.last_seen_ms <= SILENCE_MS
        )

    def remove(self, client_id: str, user: str = "") -> Session | None:
        session = self._by_id.pop((client_id, user), None)
        if session is not None:
            self._settings_bytes -= session.settings_bytes
            self._leave_group(session)
            self._by_user[user] -= 1
            if not self._by_user[user]:
                del self._by_user[user]
        return session

    def expire(self, now_ms: int) -> list[Session]:
        """Remove and return the sessions without a stream and without a call for EXPIRY_MS."""
        expired = [
            session
            for session in self
            if not session.streams and now_ms - session.last_seen_ms > EXPIRY_MS
        ]
        for session in expired:
            self.remove(session.client_id, session.user)
        return expired

    def members(self, consumer_group: str) -> list[Session]:
        return list(self._by_group.get(consumer_group, ()))

    def producers_of(self, topic: str) -> list[Session]:
        """Return the sessions with a stream whose clients publish to this stored topic."""
        return [s for s in self if s.streams and topic in s.published()]


def conflicts(members: list[Session]) -> dict[str, list[str]]:
    """Return the topics to which members of one group subscribe with different filters.

    Such a group loses messages without an error, because one member's filter drops messages that
    another member wants. Each topic maps to the sorted filter expressions. If only some members
    subscribe to a topic, "" stands for the other members.
    """
    different = {member.membership.filters for member in members}
    if len(different) < 2:
        return {}
    subscribed = [dict(filters) for filters in different]
    expressions = {
        topic: {topics.get(topic, "") for topics in subscribed}
        for topic in {topic for topics in subscribed for topic in topics}
    }
    return {topic: sorted(texts) for topic, texts in sorted(expressions.items()) if len(texts) > 1}


def _normal(expression: FilterExpression) -> str:
    """Return a text that is equal for expressions with the same meaning. It is not empty."""
    text = expression.expression.strip()
    if expression.type == FilterType.SQL:
        return text or ALL
    return SEPARATOR.join(sorted({tag.strip() for tag in text.split(SEPARATOR)} - {""})) or ALL
