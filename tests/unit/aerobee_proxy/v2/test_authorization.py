"""Authorization: the rights that each RPC needs."""

from __future__ import annotations

import asyncio
import json
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import structlog
from aerobee_foreign.apache.rocketmq.v2 import definition_pb2 as d
from aerobee_foreign.apache.rocketmq.v2 import service_pb2 as s
from aerobee_foreign.apache.rocketmq.v2.definition_pb2 import ClientType, Code

from aerobee_proxy.access.users import Users
from aerobee_proxy.proxy import Proxy
from aerobee_proxy.v2.authorization import NEEDS, check
from aerobee_proxy.v2.rpc.pipeline import NotAdmitted
from aerobee_wire.access.users import User
from support.clock.polling import until
from support.proxy.access import BILLING, policy, signed, write_users
from support.proxy.harness import CLIENT_ID, Cluster, FakeCall, Requests, refused, streamed

TOPIC, GROUP = d.Resource(name="orders"), d.Resource(name="billing")
QUEUE = d.MessageQueue(topic=TOPIC, broker=d.Broker(name="broker-a"))
METHODS = s.DESCRIPTOR.services_by_name["MessagingService"].methods


def test_every_rpc_has_its_needs() -> None:
    unary = {method.input_type.name for method in METHODS if not method.client_streaming}
    assert {request.__name__ for request in NEEDS} == {*unary, "Settings"}


PUBLISHER = [{"resource": "Topic:orders", "actions": "Pub"}]
TOPIC_READER = [{"resource": "Topic:orders", "actions": "Sub"}]
GROUP_MEMBER = [{"resource": "Group:billing", "actions": "Sub"}]
CONSUMER = TOPIC_READER + GROUP_MEMBER
SUBSCRIPTION = d.Subscription(group=GROUP, subscriptions=[d.SubscriptionEntry(topic=TOPIC)])
CONSUMER_SETTINGS = d.Settings(client_type=ClientType.PUSH_CONSUMER, subscription=SUBSCRIPTION)
PRODUCER_SETTINGS = d.Settings(
    client_type=ClientType.PRODUCER, publishing=d.Publishing(topics=[TOPIC])
)


def proxy_for(tmp_path: Path, policies: list[Any], kind: str = "NORMAL") -> Proxy:
    user = {"username": "app", "password": "p", "userType": kind, "policies": policies}
    file = write_users(tmp_path / "users.json", user)
    return Cluster().proxy(
        authentication_enabled=True, authorization_enabled=True, authentication_users_file=str(file)
    )


def call(user: str = "app", secret: str = "p") -> FakeCall:
    return FakeCall(signed(user, secret))


def handler_of(request: Any) -> str:
    """AckMessageRequest → "ack_message"; settings come by "telemetry"."""
    name = type(request).__name__.removesuffix("Request")
    return "telemetry" if name == "Settings" else re.sub(r"\B(?=[A-Z])", "_", name).lower()


async def status_of(proxy: Proxy, request: Any) -> d.Status:
    made, rpc = call(), handler_of(request)
    handler = getattr(proxy.rpcs, rpc)
    if rpc == "telemetry":
        requests = Requests()
        requests.put(s.TelemetryCommand(settings=request))
        requests.end()
        with suppress(NotAdmitted):
            await handler(aiter(requests), made)
    elif rpc in ("receive_message", "pull_message"):
        await streamed(handler, request, made)
    else:
        status = (await handler(request, made)).status
        assert isinstance(status, d.Status)
        return status
    # A task answers accepted settings, and ends with the stream.
    return made.written[0].status if made.written else d.Status(code=Code.OK)


# A request, rights that are enough for it, and some that are not.
CASES: list[tuple[Any, list[Any], list[list[Any]]]] = [
    (s.QueryRouteRequest(topic=TOPIC), PUBLISHER, [GROUP_MEMBER]),
    (s.QueryRouteRequest(topic=TOPIC), TOPIC_READER, [GROUP_MEMBER]),
    (s.HeartbeatRequest(group=GROUP), GROUP_MEMBER, [PUBLISHER, TOPIC_READER]),
    (s.HeartbeatRequest(), [], []),
    (s.SendMessageRequest(messages=[d.Message(topic=TOPIC)]), PUBLISHER, [CONSUMER]),
    (
        s.QueryAssignmentRequest(topic=TOPIC, group=GROUP),
        CONSUMER,
        [PUBLISHER, TOPIC_READER, GROUP_MEMBER],
    ),
    (
        s.ReceiveMessageRequest(message_queue=QUEUE, group=GROUP),
        CONSUMER,
        [PUBLISHER, TOPIC_READER, GROUP_MEMBER],
    ),
    (
        s.PullMessageRequest(message_queue=QUEUE, group=GROUP),
        CONSUMER,
        [PUBLISHER, TOPIC_READER, GROUP_MEMBER],
    ),
    (s.AckMessageRequest(topic=TOPIC, group=GROUP), CONSUMER, [TOPIC_READER, GROUP_MEMBER]),
    (
        s.ForwardMessageToDeadLetterQueueRequest(topic=TOPIC, group=GROUP),
        CONSUMER,
        [TOPIC_READER, GROUP_MEMBER],
    ),
    (s.ChangeInvisibleDurationRequest(topic=TOPIC, group=GROUP), GROUP_MEMBER, [TOPIC_READER]),
    (
        s.UpdateOffsetRequest(message_queue=QUEUE, group=GROUP),
        CONSUMER,
        [TOPIC_READER, GROUP_MEMBER],
    ),
    (s.GetOffsetRequest(message_queue=QUEUE, group=GROUP), CONSUMER, [TOPIC_READER, GROUP_MEMBER]),
    (s.QueryOffsetRequest(message_queue=QUEUE), TOPIC_READER, [GROUP_MEMBER]),
    (s.EndTransactionRequest(topic=TOPIC), PUBLISHER, [CONSUMER]),
    (s.RecallMessageRequest(topic=TOPIC), PUBLISHER, [CONSUMER]),
    (s.NotifyClientTerminationRequest(group=GROUP), GROUP_MEMBER, [TOPIC_READER]),
    (
        s.SyncLiteSubscriptionRequest(topic=TOPIC, group=GROUP),
        CONSUMER,
        [TOPIC_READER, GROUP_MEMBER],
    ),
    (CONSUMER_SETTINGS, CONSUMER, [PUBLISHER, TOPIC_READER, GROUP_MEMBER]),
    (PRODUCER_SETTINGS, PUBLISHER, [CONSUMER]),
]


@pytest.mark.parametrize(
    ("request_", "enough", "too_little"), CASES, ids=lambda value: str(value)[:24]
)
async def test_rights_of_each_rpc(
    tmp_path: Path, request_: Any, enough: list[Any], too_little: list[list[Any]]
) -> None:
    found = await status_of(proxy_for(tmp_path, enough), request_)
    assert found.code != Code.UNAUTHORIZED, found
    for policies in [*too_little, [{"resource": "Topic:another", "actions": "All"}]]:
        found = await status_of(proxy_for(tmp_path, policies), request_)
        assert (found.code == Code.UNAUTHORIZED) is bool(enough), found
    found = await status_of(proxy_for(tmp_path, [], "SUPER"), request_)
    assert found.code != Code.UNAUTHORIZED, found


async def test_observed_calls_are_logged_and_not_rejected(tmp_path: Path) -> None:
    file = write_users(tmp_path / "users.json", {"username": "app", "password": "p"})
    proxy = Cluster().proxy(
        authentication_enabled=True,
        authorization_enabled=True,
        authentication_users_file=str(file),
        access_observe_only=True,
    )
    request, unsigned = s.QueryRouteRequest(topic=TOPIC), {"x-mq-client-id": CLIENT_ID}
    with structlog.testing.capture_logs() as logs:
        for metadata in (unsigned, unsigned, signed("app", "wrong"), signed("app", "p")):
            found = await proxy.rpcs.query_route(request, FakeCall(metadata))
            assert found.status.code != Code.UNAUTHORIZED
    assert [(line["event"], line["caller"]) for line in logs] == [
        ("call_would_be_rejected", ""),
        ("call_would_be_rejected", "user app"),
    ]
    assert {line["rpc"] for line in logs} == {"/apache.rocketmq.v2.MessagingService/QueryRoute"}
    assert proxy.counts.unauthorized == 4


RETRY = d.Resource(name="%RETRY%other")


@pytest.mark.parametrize(
    "request_",
    [
        s.QueryRouteRequest(topic=RETRY),
        s.SendMessageRequest(messages=[d.Message(topic=RETRY)]),
        s.ReceiveMessageRequest(group=GROUP, message_queue=d.MessageQueue(topic=RETRY)),
        s.QueryOffsetRequest(message_queue=d.MessageQueue(topic=RETRY)),
        d.Settings(publishing=d.Publishing(topics=[RETRY])),
    ],
    ids=lambda request: type(request).__name__,
)
def test_retry_topic_needs_its_group(request_: Any) -> None:
    """A right on every topic is no right on the retry topic of a group."""
    mine = tuple(policy("Topic:*") + policy("Group:billing", "Sub"))
    refused(Code.UNAUTHORIZED, check, User("app", (b"p",), policies=mine), request_)
    check(User("app", (b"p",), policies=(*mine, *policy("Group:other", "Sub"))), request_)


def test_every_rpc_is_among_the_cases() -> None:
    assert len({handler_of(request) for request, *_ in CASES}) == len(METHODS) == 17


async def test_rights_count_the_namespace(tmp_path: Path) -> None:
    proxy = proxy_for(tmp_path, PUBLISHER)
    topic = d.Resource(resource_namespace="ns", name="orders")
    request = s.SendMessageRequest(messages=[d.Message(topic=TOPIC), d.Message(topic=topic)])
    found = await status_of(proxy, request)
    assert (found.code, found.message) == (
        Code.UNAUTHORIZED,
        "UNAUTHORIZED: user 'app' lacks Pub on Topic:ns%orders: allow it with "
        "`aerobee acl create app --resource Topic:ns%orders --actions Pub`",
    )
    assert proxy.counts.unauthorized == 1


async def test_client_id_of_another_user(tmp_path: Path) -> None:
    proxy = proxy_for(tmp_path, PUBLISHER)
    users = tmp_path / "users.json"
    known = json.loads(users.read_text())["users"]
    write_users(users, *known, {"username": "other", "password": "q"})
    assert isinstance(proxy.users, Users)
    proxy.users.refresh()
    own, requests = proxy.rpcs, Requests()
    requests.put(s.TelemetryCommand(settings=PRODUCER_SETTINGS))
    theirs = asyncio.create_task(own.telemetry(aiter(requests), call()))
    borrowed = Requests()
    other = asyncio.create_task(own.telemetry(aiter(borrowed), call("other", "q")))
    await until(lambda: len(proxy.sessions) == 2, "both streams")
    await until(lambda: proxy.sessions.producers_of("orders"), "the settings")
    (session,) = proxy.sessions.producers_of("orders")
    assert session.user == "app" and len(session.streams) == 1
    await own.notify_client_termination(s.NotifyClientTerminationRequest(), call("other", "q"))
    assert proxy.transaction_checks.producers_of("orders") == [session]
    borrowed.end()
    requests.end()
    await asyncio.gather(theirs, other)


@pytest.mark.parametrize(
    "change", [{"policies": TOPIC_READER}, {"userStatus": "disable"}, {"username": "renamed"}]
)
async def test_check_skips_producers_without_the_right(
    tmp_path: Path, change: dict[str, Any]
) -> None:
    proxy, requests = proxy_for(tmp_path, PUBLISHER), Requests()
    requests.put(s.TelemetryCommand(settings=PRODUCER_SETTINGS))
    stream = asyncio.create_task(proxy.rpcs.telemetry(aiter(requests), call()))
    await until(lambda: proxy.transaction_checks.producers_of("orders"), "the settings")
    users = tmp_path / "users.json"
    (user,) = json.loads(users.read_text())["users"]
    write_users(users, {**user, **change}, BILLING)  # of another size
    assert isinstance(proxy.users, Users)
    proxy.users.refresh()
    assert not proxy.transaction_checks.producers_of("orders")
    requests.end()
    await stream
