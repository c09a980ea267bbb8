"""Convert between protobuf messages and the broker's values.

The functions reject malformed messages with the codes INVALID_PARAMETER and
SUBSCRIPTION_PARSE_FAILED. They decide nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, fields
from functools import lru_cache
from typing import Any

from aerobee.broker.v1 import admin_pb2, client_pb2, message_pb2, transaction_pb2
from aerobee.namesrv.v1 import namesrv_pb2

from aerobee_broker.delivery.pull.reading import PullRequest
from aerobee_broker.delivery.retry.policy import Failure
from aerobee_broker.delivery.retry.send_back import Entry
from aerobee_broker.delivery.send.batch import SendBatch
from aerobee_broker.delivery.send.send import SendMessage
from aerobee_broker.delivery.statistics.history import HOURS, MINUTES, SECONDS, Ring
from aerobee_broker.delivery.statistics.listing import GroupStatistics, TopicStatistics
from aerobee_broker.delivery.statistics.sampler import FIGURES, Kind, Sampler
from aerobee_broker.delivery.transaction.check_back import Check
from aerobee_broker.delivery.transaction.half_messages import is_transactional
from aerobee_broker.delivery.transaction.transactions import End, Resolution
from aerobee_broker.errors import InvalidParameter
from aerobee_broker.filter.filter import Filter, compile_filter
from aerobee_broker.metadata.subscription_groups import SubscriptionGroup
from aerobee_broker.metadata.topics import TopicConfig
from aerobee_broker.registry.clients import Client, Clients
from aerobee_broker.registry.consumers import (
    ConsumeFrom,
    Consumer,
    ConsumeType,
    MessageModel,
    Statistics,
    Subscription,
)
from aerobee_broker.registry.queue_locks import QueueLocks
from aerobee_broker.registry.reply_streams import Reply
from aerobee_broker.store.messages import NewMessage, ReadResult, ReadStatus
from aerobee_chassis.rpc.call import Call
from aerobee_wire import properties as props
from aerobee_wire.access.policies import PUB, topic_need
from aerobee_wire.consume_order import ConsumeOrder
from aerobee_wire.identity import PROXY
from aerobee_wire.message_id import pack_host
from aerobee_wire.record import Record
from aerobee_wire.retry_policy import ExponentialRetryPolicy
from aerobee_wire.status import Code, MqError
from aerobee_wire.topics import is_retry

_UNKNOWN_HOST = pack_host("127.0.0.1:0")  # host of a caller over a Unix socket
_STATUS = {
    ReadStatus.FOUND: message_pb2.FOUND,
    ReadStatus.NO_NEW: message_pb2.NO_NEW_MESSAGE,
    ReadStatus.NO_MATCHED: message_pb2.NO_MATCHED_MESSAGE,
    ReadStatus.OFFSET_TOO_SMALL: message_pb2.OFFSET_MOVED,
    ReadStatus.OFFSET_TOO_LARGE: message_pb2.OFFSET_MOVED,
}


def code_and_message(error: MqError | None) -> dict[str, Any]:
    """Return the fields `code` and `message` of an entry's result.

    Without an error, the code is SUCCESS and there is no message.
    """
    if error is None:
        return {"code": int(Code.SUCCESS)}
    return {"code": int(error.code), "message": error.message}


# ---- messages in ----


def user_of(call: Call) -> str:
    """Return the name of the user that signed a call, or "" if no user did."""
    return "" if call.caller.user is None else call.caller.user.name


def creator(call: Call) -> str:
    """Return the creator of topics and groups that a call creates (`Creations.check`).

    It is empty for a proxy with a certificate, which acts for many clients.
    """
    user, identity = call.caller.user, call.caller.identity
    if user is not None:
        return user.name
    return "" if identity is not None and identity.role == PROXY else call.peer


@lru_cache(maxsize=1_024)  # hosts; packing one takes 5 µs
def born_host(given: str, peer: str) -> bytes:
    """Return the packed host of a message's sender.

    The host is `given` if the sender set it; otherwise it is the peer of the call.
    """
    if not given:
        return _UNKNOWN_HOST if peer == "unix" else pack_host(peer)
    try:
        return pack_host(given)
    except (ValueError, OverflowError):
        raise InvalidParameter(f"invalid born_host {given[:64]!r}: write ip:port") from None


def send_messages(
    messages: Sequence[message_pb2.Message], producer_group: str, peer: str
) -> list[SendMessage]:
    # All hosts are checked before any properties, as on the fast path. So a request with several
    # invalid messages gets the same error on both paths.
    checked = [
        (message, encoded_properties(message), born_host(message.born_host, peer))
        for message in messages
    ]
    return [_send_message(*each, producer_group) for each in checked]


def _send_message(
    message: message_pb2.Message, encoded: bytes, host: bytes, producer_group: str
) -> SendMessage:
    properties = props.decode(encoded) if encoded else dict(message.properties)
    if is_retry(message.topic):  # it was stored before
        props.check_encoding(encoded)
    elif encoded:
        props.check_sent(encoded)
    else:
        props.check_sent_properties(properties)
    if producer_group and is_transactional(properties):
        properties.setdefault(props.PRODUCER_GROUP, producer_group)
    return SendMessage(
        topic=message.topic,
        body=message.body,
        properties=properties,
        queue_id=message.queue_id if message.HasField("queue_id") else None,
        flag=message.flag,
        sys_flag=message.sys_flag,
        born_timestamp_ms=message.born_timestamp_ms,
        born_host=host,
        reconsume_times=message.reconsume_times,
    )


def encoded_properties(message: message_pb2.Message) -> bytes:
    encoded = message.encoded_properties
    if encoded and message.properties:
        raise InvalidParameter("give either properties or encoded_properties of a message")
    return encoded


def new_message(message: message_pb2.Message, peer: str) -> NewMessage:
    """Return a message for the fast path, whose properties are encoded already.

    Its `queue_id` is -1 if the broker must choose a queue.
    """
    return NewMessage(
        message.topic,
        message.queue_id if message.HasField("queue_id") else -1,
        message.body,
        encoded_properties(message),
        message.flag,
        message.sys_flag,
        message.born_timestamp_ms,
        born_host(message.born_host, peer),
    )


def send_batch(batch: message_pb2.MessageBatch, peer: str) -> SendBatch:
    return SendBatch(
        topic=batch.topic,
        # `[:]` makes a list, which is faster to iterate than a protobuf field.
        body_sizes=batch.body_sizes[:],
        bodies=batch.bodies,
        properties_sizes=batch.properties_sizes[:],
        properties=batch.properties,
        flags=batch.flags[:],
        sys_flag=batch.sys_flag,
        queue_id=batch.queue_id if batch.HasField("queue_id") else None,
        born_timestamp_ms=batch.born_timestamp_ms,
        born_host=born_host(batch.born_host, peer),
    )


def reply(request: message_pb2.SendReplyRequest) -> Reply:
    for name in ("client_id", "correlation_id"):
        if not getattr(request, name):
            raise InvalidParameter(f"{name} is empty: give that of the request", name)
    return Reply(request.correlation_id, request.body, request.properties)


def reply_notice(reply: Reply) -> client_pb2.ClientNotice:
    return client_pb2.ClientNotice(
        reply=client_pb2.Reply(
            correlation_id=reply.correlation_id, body=reply.body, properties=reply.properties
        )
    )


def send_back_entry(entry: message_pb2.SendBackEntry) -> Entry:
    return Entry(
        physical_offset=entry.physical_offset,
        origin_topic=entry.origin_topic,
        delay_level=entry.delay_level,
        max_reconsume_times=(
            entry.max_reconsume_times if entry.HasField("max_reconsume_times") else None
        ),
        failure=failure(entry.failure),
        delay_ms=entry.delay_ms if entry.HasField("delay_ms") else None,
        counted=not entry.uncounted,
        reconsume_times=entry.reconsume_times,
    )


def failure(given: message_pb2.Failure) -> Failure:
    return Failure(given.reason, given.description, given.cause, given.stack_trace, given.consumer)


# ---- messages out ----


def pull(request: message_pb2.PullRequest) -> PullRequest:
    return PullRequest(
        consumer_group=request.consumer_group,
        topic=request.topic,
        queue_id=request.queue_id,
        queue_offset=request.queue_offset,
        max_messages=request.max_messages,
        max_bytes=request.max_bytes,
        commit_offset=request.commit_offset if request.HasField("commit_offset") else None,
        suspend_timeout_ms=request.suspend_timeout_ms,
        filter=(filter_of(request.subscription) if request.HasField("subscription") else None),
        browse=request.browse,
        client_id=request.client_id,
        locked=request.locked,
    )


def pull_response(result: ReadResult, suggested_broker_id: int) -> message_pb2.PullResponse:
    return message_pb2.PullResponse(
        status=_STATUS[result.status],
        next_begin_offset=result.next_begin_offset,
        min_offset=result.min_offset,
        max_offset=result.max_offset,
        records=result.records,
        message_count=result.message_count,
        suggested_broker_id=suggested_broker_id,
        corrupted_count=result.corrupted_count,
    )


def stored_message(record: Record) -> message_pb2.StoredMessage:
    return message_pb2.StoredMessage(
        topic=record.topic,
        queue_id=record.queue_id,
        queue_offset=record.queue_offset,
        physical_offset=record.physical_offset,
        store_size=record.store_size,
        body=record.body,
        properties=record.properties,
        flag=record.flag,
        sys_flag=record.sys_flag,
        born_timestamp_ms=record.born_timestamp_ms,
        born_host=record.born_host,
        store_timestamp_ms=record.store_timestamp_ms,
        store_host=record.store_host,
        reconsume_times=record.reconsume_times,
        prepared_transaction_offset=record.prepared_transaction_offset,
        body_crc=record.body_crc,
        offset_message_id=record.offset_message_id,
        unique_message_id=record.unique_message_id,
    )


# ---- transactions ----


def transaction_end(end: transaction_pb2.TransactionEnd) -> End:
    try:
        resolution = Resolution(end.resolution)
    except ValueError:
        raise InvalidParameter(
            f"resolution {end.resolution} is unknown: use COMMIT or ROLLBACK"
        ) from None
    return End(
        transaction_id=end.transaction_id,
        queue_offset=end.queue_offset,
        resolution=resolution,
        producer_group=end.producer_group,
    )


def transaction_check(check: Check) -> client_pb2.TransactionCheck:
    message, committed = stored_message(check.record), check.committed
    message.topic, message.queue_id = committed.topic, committed.queue_id
    message.sys_flag = committed.sys_flag
    message.properties.clear()
    message.properties.update(check.properties)
    return client_pb2.TransactionCheck(
        producer_group=check.half.producer_group,
        transaction_id=check.half.transaction_id,
        queue_offset=check.half.name,
        message=message,
        check_number=check.number,
    )


# ---- clients ----


def subscription(given: message_pb2.Subscription) -> Subscription:
    """Convert a subscription. Raises MqError with the code SUBSCRIPTION_PARSE_FAILED."""
    return Subscription(given.topic, filter_of(given), given.version)


def filter_of(given: message_pb2.Subscription) -> Filter:
    """Convert a subscription's filter. Raises MqError with the code SUBSCRIPTION_PARSE_FAILED."""
    match given.expression_type:
        case message_pb2.Subscription.TAG:
            return compile_filter("TAG", given.expression)
        case message_pb2.Subscription.SQL92:
            return compile_filter("SQL92", given.expression)
    raise InvalidParameter(f"expression_type {given.expression_type} is unknown: use TAG or SQL92")


def consumer(data: client_pb2.ConsumerData) -> Consumer:
    return Consumer(
        consume_type=ConsumeType(data.consume_type or client_pb2.PUSH),
        message_model=MessageModel(data.message_model or client_pb2.CLUSTERING),
        consume_from=ConsumeFrom(data.consume_from_where),
        subscriptions={given.topic: subscription(given) for given in data.subscriptions},
        strategy=data.strategy,
        statistics=numbers(data.statistics),
    )


def numbers(
    statistics: client_pb2.ConsumerStatistics | client_pb2.ProducerStatistics,
) -> Statistics:
    """Return the statistics that are not 0, by name."""
    return {field.name: value for field, value in statistics.ListFields()}


def client(request: client_pb2.HeartbeatRequest, call: Call) -> Client:
    if not request.client_id:
        raise InvalidParameter('client_id is empty: give a unique one, e.g. "10.0.0.7@4711#1"')
    try:
        consumers = {data.consumer_group: consumer(data) for data in request.consumers}
    except ValueError as error:
        raise InvalidParameter(f"the heartbeat has an unknown enum value: {error}") from None
    return Client(
        client_id=request.client_id,
        address=request.address or call.peer,
        language=request.language,
        version=request.version,
        proxy=request.proxy,
        user=user_of(call) or (request.user if request.proxy else ""),
        # A producer that lost the right to one topic stays a client for the others.
        published_topics=frozenset(
            topic for topic in request.published_topics if call.caller.may(topic_need(topic, PUB))
        ),
        producer_statistics=numbers(request.producer_statistics),
        producer_groups=frozenset(request.producer_groups),
        consumers=consumers,
        watches=request.watches,
    )


def client_info(client: Client, clients: Clients, locks: QueueLocks) -> client_pb2.ClientInfo:
    """Describe a live client, with the queues that it pulls and those that it has locked."""
    return client_pb2.ClientInfo(
        client_id=client.client_id,
        address=client.address,
        language=client.language,
        version=client.version,
        last_update_timestamp_ms=client.last_update_timestamp_ms,
        silent_ms=clients.silent_ms(client),
        proxy=client.proxy,
        user=client.user,
        published_topics=sorted(client.published_topics),
        since_timestamp_ms=client.since_timestamp_ms,
        producer_groups=sorted(client.producer_groups),
        consumers=[_consumer_data(*each) for each in sorted(client.consumers.items())],
        producer_statistics=client_pb2.ProducerStatistics(**_fields(client.producer_statistics)),
        queues=[
            client_pb2.PulledQueue(
                consumer_group=group,
                topic=topic,
                queue_id=queue_id,
                locked=locks.holders(group).get((topic, queue_id)) == client.client_id,
            )
            for group, topic, queue_id in clients.queues_of(client)
        ],
    )


def _consumer_data(group: str, consumer: Consumer) -> client_pb2.ConsumerData:
    return client_pb2.ConsumerData(
        consumer_group=group,
        consume_type=consumer.consume_type.name,
        message_model=consumer.message_model.name,
        consume_from_where=client_pb2.ConsumeFromWhere.Name(consumer.consume_from.value),
        subscriptions=[
            message_pb2.Subscription(
                topic=subscription.topic,
                expression=subscription.filter.expression,
                expression_type=subscription.filter.expression_type,
                version=subscription.version,
            )
            for subscription in consumer.subscriptions.values()
        ],
        strategy=consumer.strategy,
        statistics=client_pb2.ConsumerStatistics(**_fields(consumer.statistics)),
    )


def _fields(statistics: Statistics) -> dict[str, Any]:
    return dict(statistics)


# ---- topics and groups ----


def topic(config: namesrv_pb2.TopicConfig) -> TopicConfig:
    return TopicConfig(
        topic=config.topic,
        read_queue_count=config.read_queue_count,
        write_queue_count=config.write_queue_count,
        permission=config.permission,
        topic_sys_flag=config.topic_sys_flag,
        order=config.order,
        attributes=dict(config.attributes),
    )


def group(config: admin_pb2.GroupConfig) -> SubscriptionGroup:
    try:
        order = ConsumeOrder.of(config.order, orderly=config.consume_message_orderly)
    except ValueError as error:
        raise InvalidParameter(f"order of group {config.consumer_group}: {error}") from None
    retry = config.exponential_retry
    return SubscriptionGroup(
        consumer_group=config.consumer_group,
        consume_enable=config.consume_enable,
        consume_from_min_enable=config.consume_from_min_enable,
        consume_broadcast_enable=config.consume_broadcast_enable,
        consume_order=order,
        retry_queue_count=config.retry_queue_count,
        retry_max_times=config.retry_max_times,
        retry_delays_ms=tuple(config.retry_delays_ms),
        exponential_retry=(
            ExponentialRetryPolicy(retry.initial_ms, retry.max_ms, retry.multiplier)
            if config.HasField("exponential_retry")
            else None
        ),
        broker_id=config.broker_id,
        which_broker_when_consume_slowly=config.which_broker_when_consume_slowly,
        notify_consumer_ids_changed_enable=config.notify_consumer_ids_changed_enable,
        consume_timeout_minutes=config.consume_timeout_minutes,
        attributes=dict(config.attributes),
    )


# Fields of GroupConfig that define the order.
_ORDER = ("order", "consume_message_orderly")


def group_settings(fields: Iterable[str]) -> set[str]:
    """Return the names of SubscriptionGroup's fields for names of GroupConfig's fields."""
    return {"consume_order" if name in _ORDER else name for name in fields}


_GROUP_SETTINGS = [
    each.name
    for each in fields(SubscriptionGroup)
    if each.name not in ("group_sys_flag", "consume_order")  # GroupConfig has no such fields
]


def to_group(group: SubscriptionGroup) -> admin_pb2.GroupConfig:
    # `asdict` copies each value, which takes as long as all else for a list of 2,000 groups.
    values = {name: getattr(group, name) for name in _GROUP_SETTINGS}
    order, retry = group.consume_order, group.exponential_retry
    values |= {"order": order.value, "consume_message_orderly": order is ConsumeOrder.ON}
    values["exponential_retry"] = None if retry is None else asdict(retry)
    return admin_pb2.GroupConfig(**values)


# ---- statistics ----

# The fields of the statistics to sort by; empty for the name.
_TOPIC_ORDERS = {
    admin_pb2.TOPIC_ORDER_NAME: "",
    admin_pb2.TOPIC_ORDER_STORED_MESSAGES: "stored_messages",
    admin_pb2.TOPIC_ORDER_MESSAGES_IN_RATE: "messages_in_rate",
    admin_pb2.TOPIC_ORDER_MESSAGES_OUT_RATE: "messages_out_rate",
    admin_pb2.TOPIC_ORDER_LAG: "lag",
}
_GROUP_ORDERS = {
    admin_pb2.GROUP_ORDER_NAME: "",
    admin_pb2.GROUP_ORDER_LAG: "lag",
    admin_pb2.GROUP_ORDER_MESSAGES_OUT_RATE: "messages_out_rate",
    admin_pb2.GROUP_ORDER_MEMBERS: "members",
    admin_pb2.GROUP_ORDER_RETRIES: "retries",
    admin_pb2.GROUP_ORDER_DEAD_LETTERS: "dead_letters",
    admin_pb2.GROUP_ORDER_IN_FLIGHT: "in_flight",
}


def topic_order(order: admin_pb2.TopicOrder) -> str:
    """Return the field of TopicStatistics to sort by. Raises InvalidParameter."""
    if order not in _TOPIC_ORDERS:
        raise InvalidParameter(f"unknown order {order}: use one of TopicOrder", about="order")
    return _TOPIC_ORDERS[order]


def group_order(order: admin_pb2.GroupOrder) -> str:
    """Return the field of GroupStatistics to sort by. Raises InvalidParameter."""
    if order not in _GROUP_ORDERS:
        raise InvalidParameter(f"unknown order {order}: use one of GroupOrder", about="order")
    return _GROUP_ORDERS[order]


def consume_types(given: Iterable[client_pb2.ConsumeType]) -> list[ConsumeType]:
    """Convert ways to consume. Raises InvalidParameter."""
    try:
        return [ConsumeType(each) for each in given]
    except ValueError as error:
        raise InvalidParameter(f"{error}: use PULL, PUSH or POP", about="consume_types") from None


_TOPIC_FIGURES = [each.name for each in fields(TopicStatistics)]
_GROUP_FIGURES = [each.name for each in fields(GroupStatistics)]


def topic_statistics(statistics: TopicStatistics) -> admin_pb2.TopicStatistics:
    # `asdict` copies each value, which takes as long as all else for a list of 10,000 topics.
    values = {name: getattr(statistics, name) for name in _TOPIC_FIGURES}
    return admin_pb2.TopicStatistics(**values)


def group_statistics(statistics: GroupStatistics) -> admin_pb2.GroupStatistics:
    values = {name: getattr(statistics, name) for name in _GROUP_FIGURES}
    values["consume_types"] = [each.name for each in statistics.consume_types]
    return admin_pb2.GroupStatistics(**values)


_RINGS = {
    admin_pb2.STATS_PERIOD_SECOND: SECONDS,
    admin_pb2.STATS_PERIOD_MINUTE: MINUTES,
    admin_pb2.STATS_PERIOD_HOUR: HOURS,
}


def ring(period: admin_pb2.StatsPeriod) -> Ring:
    """Return the ring of a period. Raises InvalidParameter."""
    if period not in _RINGS:
        raise InvalidParameter(f"unknown period {period}: use one of StatsPeriod", about="period")
    return _RINGS[period]


def history(sampler: Sampler, kind: Kind, name: str, ring: Ring) -> admin_pb2.StatsSubject:
    series = [
        admin_pb2.StatsSeries(figure=figure, values=sampler.values(kind, name, figure, ring))
        for figure in FIGURES[kind]
    ]
    return admin_pb2.StatsSubject(name=name, series=series)


def latest(sampler: Sampler, kind: Kind, name: str) -> admin_pb2.WatchStatsResponse.Row:
    return admin_pb2.WatchStatsResponse.Row(name=name, values=sampler.latest(kind, name))
