"""Provide the classic client of Aerobee, which gets routes from a name server and calls brokers.

`Producer`, `PushConsumer`, `PullConsumer`, `SimpleConsumer`, `LiteSimpleConsumer` and `AdminClient`
are for programs without asyncio. The classes with the prefix `Async` are for asyncio. Importing
this package is cheap: a module is imported when one of its names is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from aerobee_client.admin.client import AdminClient, AsyncAdminClient
    from aerobee_client.admin.descriptions import AlreadyExists
    from aerobee_client.consume_result import ConsumeResult, DeadLetter, ReconsumeLater
    from aerobee_client.credentials import Credentials
    from aerobee_client.errors import (
        BrokerUnreachable,
        ClientClosed,
        Code,
        LeaseFailures,
        MqError,
        NamesrvUnreachable,
        PartialSend,
        RequestTimeout,
    )
    from aerobee_client.leasing.leased_message import LeasedMessage
    from aerobee_client.leasing.renewal import Renewal
    from aerobee_client.lite_simple_consumer import AsyncLiteSimpleConsumer, LiteSimpleConsumer
    from aerobee_client.message import AddedProperty, Message, ReceivedMessage
    from aerobee_client.message_queue import MessageQueue
    from aerobee_client.observing.consume_failure import ConsumeFailure
    from aerobee_client.observing.interceptors import Failure, Interceptor
    from aerobee_client.observing.statistics import ConsumerStatistics, ProducerStatistics
    from aerobee_client.options.consumer import ConsumeFromWhere, MessageModel, Sql
    from aerobee_client.options.lease_consumer import OffsetOption
    from aerobee_client.producer import AsyncProducer, Producer
    from aerobee_client.pull_consumer import AsyncPullConsumer, PullConsumer
    from aerobee_client.push_consumer import AsyncPushConsumer, PushConsumer
    from aerobee_client.send_result import (
        DroppedReplies,
        Reply,
        SendResult,
        TransactionResolution,
        TransactionSendResult,
    )
    from aerobee_client.sending.order.queue_choice import (
        SelectByHash,
        SelectMachineRoom,
        Selector,
        SelectRandom,
    )
    from aerobee_client.simple_consumer import AsyncSimpleConsumer, SimpleConsumer
    from aerobee_client.tls import Tls
    from aerobee_client.transaction_producer import AsyncTransactionProducer, TransactionProducer
    from aerobee_wire.consume_order import ConsumeOrder
    from aerobee_wire.retry_policy import ExponentialRetryPolicy

    __version__: str

__all__ = [
    "AddedProperty",
    "AdminClient",
    "AlreadyExists",
    "AsyncAdminClient",
    "AsyncLiteSimpleConsumer",
    "AsyncProducer",
    "AsyncPullConsumer",
    "AsyncPushConsumer",
    "AsyncSimpleConsumer",
    "AsyncTransactionProducer",
    "BrokerUnreachable",
    "ClientClosed",
    "Code",
    "ConsumeFailure",
    "ConsumeFromWhere",
    "ConsumeOrder",
    "ConsumeResult",
    "ConsumerStatistics",
    "Credentials",
    "DeadLetter",
    "DroppedReplies",
    "ExponentialRetryPolicy",
    "Failure",
    "Interceptor",
    "LeaseFailures",
    "LeasedMessage",
    "LiteSimpleConsumer",
    "Message",
    "MessageModel",
    "MessageQueue",
    "MqError",
    "NamesrvUnreachable",
    "OffsetOption",
    "PartialSend",
    "Producer",
    "ProducerStatistics",
    "PullConsumer",
    "PushConsumer",
    "ReceivedMessage",
    "ReconsumeLater",
    "Renewal",
    "Reply",
    "RequestTimeout",
    "SelectByHash",
    "SelectMachineRoom",
    "SelectRandom",
    "Selector",
    "SendResult",
    "SimpleConsumer",
    "Sql",
    "Tls",
    "TransactionProducer",
    "TransactionResolution",
    "TransactionSendResult",
]

_MODULES = {
    "admin.client": ("AdminClient", "AsyncAdminClient"),
    "admin.descriptions": ("AlreadyExists",),
    "admin.groups": ("ConsumeOrder", "ExponentialRetryPolicy"),
    "consume_result": ("ConsumeResult", "DeadLetter", "ReconsumeLater"),
    "credentials": ("Credentials",),
    "options.consumer": ("ConsumeFromWhere", "MessageModel", "Sql"),
    "options.lease_consumer": ("OffsetOption",),
    "observing.consume_failure": ("ConsumeFailure",),
    "observing.interceptors": ("Failure", "Interceptor"),
    "observing.statistics": ("ConsumerStatistics", "ProducerStatistics"),
    "errors": (
        "BrokerUnreachable",
        "ClientClosed",
        "Code",
        "LeaseFailures",
        "MqError",
        "NamesrvUnreachable",
        "PartialSend",
        "RequestTimeout",
    ),
    "leasing.leased_message": ("LeasedMessage",),
    "leasing.renewal": ("Renewal",),
    "lite_simple_consumer": ("AsyncLiteSimpleConsumer", "LiteSimpleConsumer"),
    "message": ("AddedProperty", "Message", "ReceivedMessage"),
    "message_queue": ("MessageQueue",),
    "producer": ("AsyncProducer", "Producer"),
    "pull_consumer": ("AsyncPullConsumer", "PullConsumer"),
    "push_consumer": ("AsyncPushConsumer", "PushConsumer"),
    "send_result": (
        "DroppedReplies",
        "Reply",
        "SendResult",
        "TransactionResolution",
        "TransactionSendResult",
    ),
    "sending.order.queue_choice": ("SelectByHash", "SelectMachineRoom", "SelectRandom", "Selector"),
    "simple_consumer": ("AsyncSimpleConsumer", "SimpleConsumer"),
    "tls": ("Tls",),
    "transaction_producer": ("AsyncTransactionProducer", "TransactionProducer"),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name == "otel":  # a module that needs the extra [otel]
        return import_module(f"{__name__}.observing.otel")
    if name == "__version__":
        from aerobee_wire.version import VERSION

        return VERSION
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{module}"), name)
    globals()[name] = value
    return value
