"""Settings negotiation: what every official SDK needs to find in the answer."""

from __future__ import annotations

from typing import Any

import pytest
from aerobee_foreign.apache.rocketmq.v2.definition_pb2 import (
    UA,
    Address,
    AddressScheme,
    ClientType,
    Code,
    Endpoints,
    FilterExpression,
    FilterType,
    Language,
    Publishing,
    Resource,
    Settings,
    Subscription,
    SubscriptionEntry,
)
from aerobee_foreign.google.protobuf.duration_pb2 import Duration

from aerobee_proxy.cluster.group_configs import GroupPolicy
from aerobee_proxy.config import ProxyOptions
from aerobee_proxy.v2.settings import check_settings, negotiate
from aerobee_wire.retry_policy import ExponentialRetryPolicy
from support.proxy.harness import refused

OPTIONS = ProxyOptions()
COMMON: dict[str, Any] = {
    "access_point": Endpoints(
        scheme=AddressScheme.DOMAIN_NAME, addresses=[Address(host="mq.example", port=18081)]
    ),
    "request_timeout": Duration(seconds=3),
    "user_agent": UA(language=Language.PYTHON, version="5.1.2", hostname="h"),
}


def producer(*topics: str) -> Settings:
    resources = [Resource(resource_namespace="eu", name=topic) for topic in topics]
    return Settings(
        client_type=ClientType.PRODUCER, publishing=Publishing(topics=resources), **COMMON
    )


def consumer(client_type: ClientType = ClientType.PUSH_CONSUMER) -> Settings:
    entry = SubscriptionEntry(
        topic=Resource(resource_namespace="eu", name="orders"),
        expression=FilterExpression(type=FilterType.TAG, expression="a || b"),
    )
    return Settings(
        client_type=client_type,
        subscription=Subscription(
            group=Resource(resource_namespace="eu", name="billing"), subscriptions=[entry]
        ),
        **COMMON,
    )


def test_settings_of_a_producer() -> None:
    """The Node SDK ends its process on any other backoff."""
    answer = negotiate(producer("orders"), OPTIONS, GroupPolicy(), fifo=False)
    policy = answer.backoff_policy
    assert policy.max_attempts == 3
    assert policy.WhichOneof("strategy") == "exponential_backoff"
    assert policy.exponential_backoff.initial.ToMilliseconds() == 10
    assert policy.exponential_backoff.max.ToMilliseconds() == 1_000
    assert policy.exponential_backoff.multiplier == 2
    assert answer.publishing.max_body_size == 4_194_304
    assert answer.publishing.validate_message_type


def test_unlimited_body_size_is_not_zero() -> None:
    """The Python SDK refuses every message when it reads 0."""
    options = ProxyOptions(max_message_size=0)
    answer = negotiate(producer(), options, GroupPolicy(), fifo=False)
    assert answer.publishing.max_body_size == 2**31 - 1


@pytest.mark.parametrize(
    "client_type",
    [ClientType.PUSH_CONSUMER, ClientType.SIMPLE_CONSUMER, ClientType.LITE_PUSH_CONSUMER],
)
def test_settings_of_a_consumer(client_type: ClientType) -> None:
    """Java polls with 0 and Rust never polls when they are missing."""
    answer = negotiate(consumer(client_type), OPTIONS, GroupPolicy(), fifo=False)
    assert answer.backoff_policy.max_attempts == 17
    delays = [delay.ToMilliseconds() for delay in answer.backoff_policy.customized_backoff.next]
    assert len(delays) == 18
    assert delays[:5] == [1_000, 5_000, 10_000, 30_000, 60_000]
    assert delays[-4:] == [1_200_000, 1_800_000, 3_600_000, 7_200_000]
    assert answer.subscription.receive_batch_size == 32
    assert answer.subscription.long_polling_timeout.ToMilliseconds() == 20_000
    assert not answer.subscription.fifo and answer.subscription.HasField("fifo")


def test_consumer_gets_the_policy_of_its_group() -> None:
    policy = GroupPolicy(retry_max_times=2, retry_delays_ms=(100, 2_500))
    answer = negotiate(consumer(), OPTIONS, policy, fifo=True)
    assert answer.subscription.fifo
    assert answer.backoff_policy.max_attempts == 3
    delays = [delay.ToMilliseconds() for delay in answer.backoff_policy.customized_backoff.next]
    assert delays == [100, 2_500]


EXPONENTIAL = ExponentialRetryPolicy(1_000, 6_000, 2)
EXPONENTIAL_POLICY = GroupPolicy(
    retry_delays_ms=EXPONENTIAL.delays_ms(), exponential_retry=EXPONENTIAL
)


DELAYS_POLICY = GroupPolicy(retry_max_times=2, retry_delays_ms=(1_000, 5_000, 30_000))


@pytest.mark.parametrize(
    ("language", "policy", "attempts", "max_ms"),
    [
        (Language.JAVA, EXPONENTIAL_POLICY, 17, 6_000),
        (Language.GOLANG, EXPONENTIAL_POLICY, 17, 6_000),
        (Language.NODE_JS, EXPONENTIAL_POLICY, 17, 6_000),
        # The Node SDK takes another backoff for one attempt, and dead-letters at once.
        (Language.NODE_JS, DELAYS_POLICY, 3, 30_000),
    ],
)
def test_an_exponential_backoff_reaches_the_sdks_that_know_it(
    language: Language, policy: GroupPolicy, attempts: int, max_ms: int
) -> None:
    settings = consumer()
    settings.user_agent.language = language
    backoff = negotiate(settings, OPTIONS, policy, fifo=False).backoff_policy
    assert backoff.max_attempts == attempts
    assert backoff.exponential_backoff.initial.ToMilliseconds() == 1_000
    assert backoff.exponential_backoff.max.ToMilliseconds() == max_ms
    assert backoff.exponential_backoff.multiplier == 2


def test_python_gets_the_delays_of_an_exponential_retry_policy() -> None:
    """Its SDK waits for 1 s between all attempts after an exponential one."""
    settings = consumer()
    settings.user_agent.language = Language.PYTHON
    backoff = negotiate(settings, OPTIONS, EXPONENTIAL_POLICY, fifo=False).backoff_policy
    delays = [delay.ToMilliseconds() for delay in backoff.customized_backoff.next]
    assert delays == [1_000, 2_000, 4_000, 6_000]


@pytest.mark.parametrize(("attempt", "delay_ms"), [(0, 1_000), (1, 1_000), (2, 5_000), (9, 5_000)])
def test_retry_delays_by_attempt(attempt: int, delay_ms: int) -> None:
    assert GroupPolicy(retry_delays_ms=(1_000, 5_000)).retry_delay_ms(attempt) == delay_ms


def test_default_retry_delays_are_the_delay_levels() -> None:
    assert GroupPolicy().retry_delay_ms(3) == 10_000


@pytest.mark.parametrize("settings", [producer("orders"), consumer()], ids=["producer", "consumer"])
def test_other_settings_stay(settings: Settings) -> None:
    """The C++ SDK adopts the namespace that it finds in the answer."""
    answer = negotiate(settings, OPTIONS, GroupPolicy(), fifo=False)
    for name in ("client_type", "access_point", "request_timeout", "user_agent"):
        assert getattr(answer, name) == getattr(settings, name)
    assert answer.publishing.topics == settings.publishing.topics
    assert answer.subscription.group == settings.subscription.group
    assert answer.subscription.subscriptions == settings.subscription.subscriptions


@pytest.mark.parametrize(
    "client_type", [ClientType.LITE_PUSH_CONSUMER, ClientType.LITE_SIMPLE_CONSUMER]
)
def test_lite_consumer_gets_a_quota(client_type: ClientType) -> None:
    """Without one Java and Go refuse subscriptions themselves, and name a quota of 0."""
    answer = negotiate(consumer(client_type), OPTIONS, GroupPolicy(), fifo=False).subscription
    assert (answer.lite_subscription_quota, answer.max_lite_topic_size) == (2_000, 64)


def test_metrics_are_off() -> None:
    answer = negotiate(producer(), OPTIONS, GroupPolicy(), fifo=False)
    assert answer.HasField("metric") and not answer.metric.on


def test_negotiation_copies_the_settings() -> None:
    settings = producer()
    negotiate(settings, OPTIONS, GroupPolicy(), fifo=False)
    assert not settings.HasField("backoff_policy")


@pytest.mark.parametrize("settings", [producer(), producer("orders"), consumer()])
def test_settings_of_official_sdks_are_accepted(settings: Settings) -> None:
    check_settings(settings)


def broken(**fields: Any) -> Settings:
    settings = consumer()
    for name, value in fields.items():
        if value is None:
            settings.ClearField(name)
        else:
            settings.MergeFrom(Settings(**{name: value}))
    return settings


@pytest.mark.parametrize(
    ("settings", "code"),
    [
        (Settings(), Code.BAD_REQUEST),
        (broken(subscription=None), Code.BAD_REQUEST),
        (broken(client_type=ClientType.PRODUCER), Code.BAD_REQUEST),
        (
            Settings(client_type=ClientType.SIMPLE_CONSUMER, publishing=Publishing()),
            Code.BAD_REQUEST,
        ),
        (Settings(subscription=Subscription()), Code.ILLEGAL_CONSUMER_GROUP),
        (broken(client_properties={"1": "x"}), Code.INVALID_CLIENT_PROPERTIES),
        (producer("no topic"), Code.ILLEGAL_TOPIC),
        (
            broken(
                subscription=Subscription(
                    subscriptions=[SubscriptionEntry(topic=Resource(name="no topic"))]
                )
            ),
            Code.ILLEGAL_TOPIC,
        ),
    ],
)
def test_impossible_settings_are_refused(settings: Settings, code: Code) -> None:
    refused(code, check_settings, settings)
