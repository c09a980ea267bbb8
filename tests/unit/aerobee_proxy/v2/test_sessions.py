"""Sessions: client id and user, settings, streams, expiry, members of a group."""

from __future__ import annotations

import pytest
from aerobee_foreign.apache.rocketmq.v2.definition_pb2 import (
    ClientType,
    Code,
    FilterExpression,
    FilterType,
    Publishing,
    Resource,
    Settings,
    Subscription,
    SubscriptionEntry,
)
from aerobee_foreign.apache.rocketmq.v2.service_pb2 import TelemetryCommand
from aerobee_foreign.google.protobuf.duration_pb2 import Duration

from aerobee_proxy.v2 import sessions as module
from aerobee_proxy.v2.sessions import EXPIRY_MS, Session, Sessions, conflicts
from support.proxy.harness import refused


class Stream:
    def __init__(self) -> None:
        self.offered: list[TelemetryCommand] = []

    def offer(self, command: TelemetryCommand) -> None:
        self.offered.append(command)


def member(client_id: str, group: str = "billing", **topics: str) -> Session:
    entries = [
        SubscriptionEntry(
            topic=Resource(name=topic),
            expression=FilterExpression(
                type=FilterType.SQL if ">" in text else FilterType.TAG, expression=text
            ),
        )
        for topic, text in topics.items()
    ]
    subscription = Subscription(group=Resource(name=group), subscriptions=entries)
    settings = Settings(client_type=ClientType.PUSH_CONSUMER, subscription=subscription)
    return Session(client_id, 0, settings)


def settings_of(session: Session) -> Settings:
    assert session.settings is not None
    return session.settings


def test_unknown_client_gets_a_session() -> None:
    sessions = Sessions()
    assert sessions.get("c1") is None
    session = sessions.touch("c1", 5)
    assert session is sessions.touch("c1", 9) is sessions.get("c1")
    assert session.last_seen_ms == 9 and len(sessions) == 1


def test_session_without_settings() -> None:
    session = Sessions().touch("c1", 0)
    assert session.consumer_group == ""
    assert session.published() == {}
    assert session.subscriptions == {}
    assert session.request_timeout_ms == 3_000


def test_names_have_their_namespace() -> None:
    resource = Resource(resource_namespace="eu", name="orders")
    session = Session("c1", 0, Settings(publishing=Publishing(topics=[resource])))
    assert session.published() == {"eu%orders": resource}
    assert session.namespace_of("eu%orders") == "eu"
    session.settings = Settings(
        subscription=Subscription(group=Resource(resource_namespace="eu", name="billing"))
    )
    assert session.consumer_group == "eu%billing"


def test_published_topics_of_settings_and_half_messages() -> None:
    session = Session("c1", 0)
    session.sent_half("a", Resource(name="a"))
    assert session.published().keys() == {"a"}
    for name in ("b", "c"):
        session.settings = Settings(publishing=Publishing(topics=[Resource(name=name)]))
        assert session.published().keys() == {"a", name}
    session.sent_half("d", Resource(name="d"))
    assert session.published().keys() == {"a", "c", "d"}


def test_request_timeout_of_the_settings() -> None:
    settings = Settings(request_timeout=Duration(seconds=7), publishing=Publishing())
    assert Session("c1", 0, settings).request_timeout_ms == 7_000


def test_silent_client_without_a_stream_expires() -> None:
    sessions = Sessions()
    silent, holding = sessions.touch("silent", 0), sessions.touch("holding", 0)
    holding.streams.add(Stream())
    assert sessions.expire(EXPIRY_MS) == []
    assert sessions.expire(EXPIRY_MS + 1) == [silent]
    assert list(sessions) == [holding]


def test_terminated_client_has_no_session() -> None:
    sessions = Sessions()
    session = sessions.touch("c1", 0)
    assert sessions.remove("c1") is session
    assert sessions.remove("c1") is None


def test_producers_of_a_topic_have_a_stream() -> None:
    sessions = Sessions()
    settings = Settings(publishing=Publishing(topics=[Resource(name="orders")]))
    for client_id in ("deaf", "listening", "other"):
        sessions.touch(client_id, 0).settings = settings
    sessions.touch("other", 0).settings = Settings(publishing=Publishing())
    for client_id in ("listening", "other"):
        sessions.touch(client_id, 0).streams.add(Stream())
    assert [s.client_id for s in sessions.producers_of("orders")] == ["listening"]


def test_members_of_a_group() -> None:
    sessions = Sessions()
    a, b = sessions.touch("a", 0), sessions.touch("b", 0)
    for session, group in ((a, "billing"), (b, "other"), (b, "another"), (a, "billing")):
        sessions.set_settings(session, settings_of(member("x", group)))
    assert [s.client_id for s in sessions.members("billing")] == ["a"]
    assert sessions.members("other") == []
    sessions.set_settings(a, Settings(publishing=Publishing()))
    assert sessions.members("billing") == []


def test_removed_session_is_no_member() -> None:
    sessions = Sessions()
    settings = settings_of(member("x"))
    gone, silent = sessions.touch("gone", 0), sessions.touch("silent", 0)
    for session in (gone, silent):
        sessions.set_settings(session, settings)
    sessions.remove("gone")
    assert sessions.members("billing") == [silent]
    sessions.expire(EXPIRY_MS + 1)
    sessions.set_settings(gone, settings)
    sessions.touch("gone", 0)
    sessions.set_settings(gone, settings)
    assert sessions.members("billing") == [] and not sessions._by_group


@pytest.mark.parametrize(
    ("first", "second", "found"),
    [
        ({"orders": "x || y", "all": "*"}, {"orders": "y||x", "all": ""}, {}),
        ({"orders": "x"}, {"orders": "*"}, {"orders": ["*", "x"]}),
        ({"orders": "*", "returns": "*"}, {"orders": "*"}, {"returns": ["", "*"]}),
        ({"orders": "p > 1"}, {"orders": " p > 1 "}, {}),  # SQL conditions are compared as text
    ],
)
def test_members_with_different_subscriptions_conflict(
    first: dict[str, str], second: dict[str, str], found: dict[str, list[str]]
) -> None:
    assert conflicts([member("a", **first), member("b", **second)]) == found
    assert conflicts([]) == {}


def test_clients_are_counted_by_user() -> None:
    sessions = Sessions()
    for user in ("billing", "billing", "", "audit"):
        sessions.touch(f"c{len(sessions)}", 0, user)
    assert (sessions.count_of("billing"), sessions.count_of("audit")) == (2, 1)
    sessions.remove("c0", "billing")
    assert len(sessions.expire(EXPIRY_MS + 1)) == 3
    assert sessions.count_of("billing") == 0


def test_the_settings_of_all_clients_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each may be as large as those of 5,000 topics, and there may be 50,000 clients."""
    sessions, settings = Sessions(), settings_of(member("x", orders="*"))
    larger = settings_of(member("x", orders="*", payments="*"))
    monkeypatch.setattr(module, "MAX_ALL_SETTINGS_BYTES", 3 * settings.ByteSize())
    clients = [sessions.touch(f"c{number}", 0) for number in range(4)]
    for client in clients[:3]:
        sessions.set_settings(client, settings)
        sessions.set_settings(client, settings)
    refused(Code.TOO_MANY_REQUESTS, sessions.set_settings, clients[3], settings)
    refused(Code.TOO_MANY_REQUESTS, sessions.set_settings, clients[0], larger)
    assert clients[3].settings is None and sessions.members("billing") == clients[:3]
    sessions.remove("c1")
    sessions.set_settings(clients[3], settings)
    sessions.set_settings(clients[3], Settings(publishing=Publishing()))
