"""Collect the names of OpenTelemetry's semantic conventions that this client uses.

They are not stable: only this module imports them.
"""

from __future__ import annotations

try:
    from opentelemetry.semconv._incubating.attributes import messaging_attributes as messaging
    from opentelemetry.semconv._incubating.metrics import messaging_metrics as metrics
    from opentelemetry.semconv.attributes import error_attributes
except ImportError as error:
    raise ImportError(
        f"OpenTelemetry is not installed ({error}): pip install 'aerobee-client[otel]'"
    ) from None

# Attributes.
SYSTEM = messaging.MESSAGING_SYSTEM
ROCKETMQ = messaging.MessagingSystemValues.ROCKETMQ.value
OPERATION_NAME = messaging.MESSAGING_OPERATION_NAME
OPERATION_TYPE = messaging.MESSAGING_OPERATION_TYPE
TOPIC = messaging.MESSAGING_DESTINATION_NAME
QUEUE_ID = messaging.MESSAGING_DESTINATION_PARTITION_ID
CONSUMER_GROUP = messaging.MESSAGING_CONSUMER_GROUP_NAME
BATCH_MESSAGE_COUNT = messaging.MESSAGING_BATCH_MESSAGE_COUNT
MESSAGE_ID = messaging.MESSAGING_MESSAGE_ID
BODY_SIZE = messaging.MESSAGING_MESSAGE_BODY_SIZE
TAG = messaging.MESSAGING_ROCKETMQ_MESSAGE_TAG
KEYS = messaging.MESSAGING_ROCKETMQ_MESSAGE_KEYS
DELAY_LEVEL = messaging.MESSAGING_ROCKETMQ_MESSAGE_DELAY_TIME_LEVEL
DELIVERY_TIMESTAMP = messaging.MESSAGING_ROCKETMQ_MESSAGE_DELIVERY_TIMESTAMP
ERROR_TYPE = error_attributes.ERROR_TYPE

# Values of OPERATION_TYPE.
SEND = messaging.MessagingOperationTypeValues.SEND.value
RECEIVE = messaging.MessagingOperationTypeValues.RECEIVE.value
PROCESS = messaging.MessagingOperationTypeValues.PROCESS.value
SETTLE = messaging.MessagingOperationTypeValues.SETTLE.value

# An operation without a name in the conventions. An Interceptor gets this one.
SEND_BACK = "send_back"

# Metrics.
SENT_MESSAGES = metrics.MESSAGING_CLIENT_SENT_MESSAGES
CONSUMED_MESSAGES = metrics.MESSAGING_CLIENT_CONSUMED_MESSAGES
OPERATION_DURATION = metrics.MESSAGING_CLIENT_OPERATION_DURATION
PROCESS_DURATION = metrics.MESSAGING_PROCESS_DURATION
