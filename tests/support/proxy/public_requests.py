"""A request of every RPC of the public protocol that is answered with OK: what tests then spoil."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from aerobee_foreign.apache.rocketmq.v2 import definition_pb2 as d
from aerobee_foreign.apache.rocketmq.v2 import service_pb2 as s
from google.protobuf.message import Message

TOPIC, GROUP = d.Resource(name="orders"), d.Resource(name="billing")
ENDPOINTS = d.Endpoints(
    scheme=d.AddressScheme.DOMAIN_NAME, addresses=[d.Address(host="mq.test", port=8081)]
)
QUEUE = d.MessageQueue(topic=TOPIC, broker=d.Broker(name="broker-a", endpoints=ENDPOINTS))


def message(**system: Any) -> d.Message:
    return d.Message(
        topic=TOPIC,
        body=b"body",
        user_properties={"color": "red"},
        system_properties=d.SystemProperties(
            **{
                "message_id": "01AB",
                "tag": "a",
                "keys": ["k"],
                "body_encoding": d.Encoding.IDENTITY,
                **system,
            }
        ),
    )


def receive(**change: Any) -> s.ReceiveMessageRequest:
    request = s.ReceiveMessageRequest(
        group=GROUP,
        message_queue=QUEUE,
        batch_size=16,
        filter_expression=d.FilterExpression(type=d.FilterType.TAG, expression="*"),
    )
    request.invisible_duration.seconds = 15
    request.long_polling_timeout.seconds = 1
    request.MergeFrom(s.ReceiveMessageRequest(**change))
    return request


def change(handle: str) -> s.ChangeInvisibleDurationRequest:
    request = s.ChangeInvisibleDurationRequest(
        topic=TOPIC, group=GROUP, receipt_handle=handle, message_id="01AB"
    )
    request.invisible_duration.seconds = 20
    return request


def settings() -> d.Settings:
    entry = d.SubscriptionEntry(
        topic=TOPIC, expression=d.FilterExpression(type=d.FilterType.TAG, expression="*")
    )
    return d.Settings(
        client_type=d.ClientType.PUSH_CONSUMER,
        access_point=ENDPOINTS,
        subscription=d.Subscription(group=GROUP, subscriptions=[entry]),
    )


# RPC → its request, given a receipt handle that is good.
VALID: Mapping[str, Callable[[str], Message]] = {
    "QueryRoute": lambda _: s.QueryRouteRequest(topic=TOPIC, endpoints=ENDPOINTS),
    "Heartbeat": lambda _: s.HeartbeatRequest(
        group=GROUP, client_type=d.ClientType.SIMPLE_CONSUMER
    ),
    "SendMessage": lambda _: s.SendMessageRequest(messages=[message()]),
    "QueryAssignment": lambda _: s.QueryAssignmentRequest(
        topic=TOPIC, group=GROUP, endpoints=ENDPOINTS
    ),
    "ReceiveMessage": lambda _: receive(),
    "AckMessage": lambda handle: s.AckMessageRequest(
        topic=TOPIC,
        group=GROUP,
        entries=[s.AckMessageEntry(message_id="01AB", receipt_handle=handle)],
    ),
    "ForwardMessageToDeadLetterQueue": lambda handle: s.ForwardMessageToDeadLetterQueueRequest(
        topic=TOPIC, group=GROUP, message_id="01AB", receipt_handle=handle, delivery_attempt=1
    ),
    "ChangeInvisibleDuration": change,
    "PullMessage": lambda _: s.PullMessageRequest(
        group=GROUP, message_queue=QUEUE, offset=0, batch_size=16
    ),
    "UpdateOffset": lambda _: s.UpdateOffsetRequest(group=GROUP, message_queue=QUEUE, offset=0),
    "GetOffset": lambda _: s.GetOffsetRequest(group=GROUP, message_queue=QUEUE),
    "QueryOffset": lambda _: s.QueryOffsetRequest(
        message_queue=QUEUE, query_offset_policy=d.QueryOffsetPolicy.END
    ),
    "EndTransaction": lambda _: s.EndTransactionRequest(
        topic=TOPIC,
        message_id="01AB",
        transaction_id="t",
        resolution=d.TransactionResolution.COMMIT,
    ),
    "Telemetry": lambda _: s.TelemetryCommand(settings=settings()),
    "NotifyClientTermination": lambda _: s.NotifyClientTerminationRequest(group=GROUP),
    "RecallMessage": lambda _: s.RecallMessageRequest(topic=TOPIC, recall_handle="x"),
    "SyncLiteSubscription": lambda _: s.SyncLiteSubscriptionRequest(topic=TOPIC, group=GROUP),
}
