"""Negotiate settings: complete a client's settings with the fields that the proxy decides.

The answer is a copy of the client's settings with these fields changed. It must keep the other
fields, because one SDK adopts the namespace of the answer. This module does no I/O.

Some SDKs end their process unless the answer has these values above zero:

    producer   an exponential backoff, a body size
    consumer   a backoff, a batch size, a polling timeout
"""

from __future__ import annotations

from datetime import timedelta

from aerobee_foreign.apache.rocketmq.v2.definition_pb2 import (
    ClientType,
    Code,
    CustomizedBackoff,
    ExponentialBackoff,
    Language,
    Metric,
    RetryPolicy,
    Settings,
)

from aerobee_proxy.cluster.group_configs import GroupPolicy
from aerobee_proxy.config import ProxyOptions
from aerobee_proxy.v2.resources import group_name, topic_name
from aerobee_proxy.v2.status import Refused
from aerobee_proxy.v2.validation import check_client_properties
from aerobee_wire.queues.lite import DEFAULT_QUOTA
from aerobee_wire.retry_policy import ExponentialRetryPolicy

PRODUCERS = frozenset({ClientType.PRODUCER})
PUSH_CONSUMERS = frozenset({ClientType.PUSH_CONSUMER, ClientType.LITE_PUSH_CONSUMER})
LITE_CONSUMERS = frozenset({ClientType.LITE_PUSH_CONSUMER, ClientType.LITE_SIMPLE_CONSUMER})
CONSUMERS = (
    PUSH_CONSUMERS
    | LITE_CONSUMERS
    | frozenset({ClientType.SIMPLE_CONSUMER, ClientType.PULL_CONSUMER})
)
MAX_SETTINGS_BYTES = 256 * 1024  # about 5,000 topics; kept in memory while the client is connected


def check_settings(settings: Settings) -> None:
    """Check a client's settings. Raises Refused if they are too large, incomplete or invalid."""
    if settings.ByteSize() > MAX_SETTINGS_BYTES:
        raise Refused(
            Code.BAD_REQUEST,
            f"the settings have {settings.ByteSize()} bytes: send at most {MAX_SETTINGS_BYTES}",
        )
    declared = settings.WhichOneof("pub_sub")
    if declared is None:
        raise Refused(
            Code.BAD_REQUEST,
            "the settings have neither publishing nor subscription: set one of them",
        )
    wanted = {**dict.fromkeys(PRODUCERS, "publishing"), **dict.fromkeys(CONSUMERS, "subscription")}
    if wanted.get(settings.client_type, declared) != declared:
        kind = ClientType.Name(settings.client_type)
        raise Refused(
            Code.BAD_REQUEST, f"a client of type {kind} must not send {declared}: set the other one"
        )
    check_client_properties(settings.client_properties)
    for topic in settings.publishing.topics:
        topic_name(topic)
    if declared == "subscription":
        group_name(settings.subscription.group)
        for entry in settings.subscription.subscriptions:
            topic_name(entry.topic)


def negotiate(
    settings: Settings, options: ProxyOptions, policy: GroupPolicy, *, fifo: bool
) -> Settings:
    """Return the settings with which the proxy answers a client.

    `policy` is the policy of the consumer's group; producers ignore it. `fifo` is true if the
    consumer consumes all topics of its subscription in order.
    """
    answer = Settings()
    answer.CopyFrom(settings)
    answer.metric.CopyFrom(Metric(on=False))
    if settings.WhichOneof("pub_sub") == "publishing":
        _complete_publisher(answer, options)
    else:
        _complete_subscriber(answer, options, policy)
        answer.subscription.fifo = fifo
    return answer


def _complete_publisher(answer: Settings, options: ProxyOptions) -> None:
    answer.backoff_policy.CopyFrom(
        RetryPolicy(
            max_attempts=options.grpc_client_producer_max_attempts,
            exponential_backoff=ExponentialBackoff(
                initial=_duration(options.grpc_client_producer_backoff_initial_millis),
                max=_duration(options.grpc_client_producer_backoff_max_millis),
                multiplier=options.grpc_client_producer_backoff_multiplier,
            ),
        )
    )
    answer.publishing.validate_message_type = options.enable_topic_message_type_check
    # Several SDKs refuse every message if the limit is 0, so "no limit" is the largest number.
    answer.publishing.max_body_size = (
        options.max_message_size if options.max_message_size > 0 else 2**31 - 1
    )


def _complete_subscriber(answer: Settings, options: ProxyOptions, policy: GroupPolicy) -> None:
    delays, exponential = policy.retry_delays_ms, policy.exponential_retry
    backoff = RetryPolicy(max_attempts=policy.max_attempts)
    language = answer.user_agent.language
    if exponential is None and language == Language.NODE_JS:
        # The Node.js SDK supports only exponential backoff. Without one, it dead-letters an ordered
        # message at the first failure. The proxy still applies the delays of the group, when the
        # SDK calls ChangeInvisibleDuration.
        exponential = ExponentialRetryPolicy(delays[0], delays[-1])
    # Python's SDK does not support exponential backoff, and would wait for a second each time.
    if exponential is not None and language != Language.PYTHON:
        backoff.exponential_backoff.CopyFrom(
            ExponentialBackoff(
                initial=_duration(exponential.initial_ms),
                max=_duration(exponential.max_ms),
                multiplier=exponential.multiplier,
            )
        )
    else:
        backoff.customized_backoff.CopyFrom(CustomizedBackoff(next=map(_duration, delays)))
    answer.backoff_policy.CopyFrom(backoff)
    subscription = answer.subscription
    subscription.receive_batch_size = options.grpc_client_consumer_long_polling_batch_size
    subscription.long_polling_timeout.FromMilliseconds(
        options.grpc_client_consumer_max_long_polling_timeout_millis
    )
    if answer.client_type in LITE_CONSUMERS:
        quota = policy.lite.quota if policy.lite is not None else DEFAULT_QUOTA
        # Without a quota, some SDKs do not subscribe and report that the quota is used up.
        subscription.lite_subscription_quota = quota if quota >= 0 else 2**31 - 1
        subscription.max_lite_topic_size = options.max_lite_topic_size


def _duration(milliseconds: int) -> timedelta:
    return timedelta(milliseconds=milliseconds)
