"""Converting responses of the contract to descriptions. Pure."""

from __future__ import annotations

from dataclasses import fields

from aerobee.broker.v1 import admin_pb2, client_pb2, message_pb2, offset_pb2
from aerobee.namesrv.v1 import namesrv_pb2

from aerobee_client.admin import descriptions as d

MESSAGE_TYPE = "message.type"


def topic_on_broker(
    broker_name: str, address: str, config: namesrv_pb2.TopicConfig
) -> d.TopicOnBroker:
    return d.TopicOnBroker(
        broker_name,
        address,
        config.read_queue_count,
        config.write_queue_count,
        config.permission,
        config.order,
        dict(config.attributes),
    )


def topic(name: str, brokers: list[d.TopicOnBroker]) -> d.TopicDescription:
    message_type = brokers[0].attributes.get(MESSAGE_TYPE, "NORMAL")
    return d.TopicDescription(name, message_type, tuple(brokers))


def broker(data: namesrv_pb2.BrokerData) -> d.BrokerDescription:
    return d.BrokerDescription(data.cluster, data.broker_name, dict(sorted(data.addresses.items())))


def route(topic: str, route: namesrv_pb2.TopicRoute) -> d.RouteDescription:
    queues = (
        d.RouteQueues(
            data.broker_name, data.read_queue_count, data.write_queue_count, data.permission
        )
        for data in route.queues
    )
    return d.RouteDescription(
        topic,
        tuple(sorted(queues, key=lambda data: data.broker_name)),
        tuple(broker(data) for data in route.brokers),
    )


def queue_status(topic: str, broker_name: str, bounds: offset_pb2.QueueBounds) -> d.QueueStatus:
    return d.QueueStatus(
        topic,
        broker_name,
        bounds.queue_id,
        bounds.min_offset,
        bounds.max_offset,
        bounds.earliest_timestamp_ms,
        bounds.latest_timestamp_ms,
    )


def group(config: admin_pb2.GroupConfig, brokers: list[str]) -> d.GroupDescription:
    return d.GroupDescription(
        config.consumer_group,
        config.retry_max_times + 1,
        tuple(config.retry_delays_ms),
        config.consume_enable,
        config.consume_message_orderly,
        tuple(brokers),
        dict(config.attributes),
    )


def client(broker_name: str, info: client_pb2.ClientInfo) -> d.ClientDescription:
    return d.ClientDescription(
        info.client_id,
        info.address,
        info.language,
        info.version,
        info.last_update_timestamp_ms,
        tuple(info.producer_groups),
        tuple(consumer.consumer_group for consumer in info.consumers),
        {
            subscription.topic: subscription.expression
            for consumer in info.consumers
            for subscription in consumer.subscriptions
        },
        broker_name,
    )


def progress(broker_name: str, stats: offset_pb2.QueueConsumeStats) -> d.QueueProgress:
    offset = stats.consumer_offset if stats.HasField("consumer_offset") else None
    consumed_to = stats.min_offset if offset is None else max(offset, stats.min_offset)
    return d.QueueProgress(
        stats.topic,
        broker_name,
        stats.queue_id,
        stats.min_offset,
        stats.max_offset,
        offset,
        max(stats.max_offset - consumed_to, 0),
        stats.last_timestamp_ms,
        stats.client_id,
    )


def cluster(info: namesrv_pb2.GetClusterInfoResponse) -> d.ClusterDescription:
    live = (
        d.LiveBroker(
            row.cluster, row.broker_address, row.last_update_timestamp_ms, row.heartbeat_timeout_ms
        )
        for row in info.live_brokers
    )
    return d.ClusterDescription(tuple(broker(data) for data in info.brokers), tuple(live))


def broker_status(response: admin_pb2.GetBrokerStatusResponse) -> d.BrokerStatus:
    values = {field.name: getattr(response, field.name) for field in fields(d.BrokerStatus)}
    values["delayed_messages"] = dict(response.delayed_messages)
    return d.BrokerStatus(**values)


def browsed(broker_name: str, response: message_pb2.PullResponse) -> d.Browsed:
    return d.Browsed(
        message_pb2.PullStatus.Name(response.status),
        broker_name,
        response.records,
        response.message_count,
        response.next_begin_offset,
        response.min_offset,
        response.max_offset,
        response.corrupted_count,
    )
