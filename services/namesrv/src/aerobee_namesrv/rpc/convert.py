"""Convert between protobuf messages and table rows.

The functions raise MqError with the code INVALID_PARAMETER for malformed messages.
"""

from __future__ import annotations

from dataclasses import asdict

from aerobee.namesrv.v1 import namesrv_pb2 as pb

from aerobee_namesrv.routing.log_records import LogRecord
from aerobee_namesrv.routing.rows import (
    DEFAULT_HEARTBEAT_TIMEOUT_MS,
    BrokerConflict,
    BrokerData,
    BrokerKey,
    BrokerLive,
    BrokerMembers,
    BrokerProcess,
    DataVersion,
    QueueData,
    Registration,
    TopicRoute,
    Unregistration,
)
from aerobee_namesrv.routing.watch import MinBrokerIdChanged
from aerobee_namesrv.rpc import checks

# ---- in ----


def broker_key(
    request: pb.BrokerHeartbeatRequest | pb.QueryDataVersionRequest | pb.WatchRegistrationRequest,
) -> BrokerKey:
    checks.name("broker_name", request.broker_name)
    return BrokerKey(
        checks.name("cluster", request.cluster),
        checks.address("broker_address", request.broker_address),
    )


def log_record(message: pb.LogRecord) -> tuple[str, LogRecord]:
    """Convert a record to its store id and its content."""
    record = LogRecord(
        checks.not_negative("records.generation", message.generation),
        checks.not_negative("records.end_offset", message.end_offset),
        checks.not_negative("records.epoch", message.epoch),
    )
    return checks.name("records.store_id", message.store_id), record


def to_log_record(item: tuple[str, LogRecord]) -> pb.LogRecord:
    store_id, record = item
    return pb.LogRecord(
        store_id=store_id,
        generation=record.generation,
        end_offset=record.end_offset,
        epoch=record.epoch,
    )


def data_version(message: pb.DataVersion) -> DataVersion:
    return DataVersion(message.state_version, message.counter, message.timestamp_ms)


def registration(request: pb.RegisterBrokerRequest) -> Registration:
    timeout_ms = checks.not_negative("heartbeat_timeout_ms", request.heartbeat_timeout_ms)
    if request.ha_server_address:
        checks.address("ha_server_address", request.ha_server_address)
    return Registration(
        cluster=checks.name("cluster", request.cluster),
        broker_name=checks.name("broker_name", request.broker_name),
        broker_id=checks.not_negative("broker_id", request.broker_id),
        address=checks.address("broker_address", request.broker_address),
        data_version=data_version(request.data_version),
        # The broker has checked the other fields of a topic. One invalid topic must not prevent the
        # registration of the broker.
        topics={
            checks.name("topics.topic", config.topic): _queue_data(
                "topics", request.broker_name, config
            )
            for config in request.topics
        },
        incremental=request.incremental,
        ha_server_address=request.ha_server_address,
        heartbeat_timeout_ms=timeout_ms or DEFAULT_HEARTBEAT_TIMEOUT_MS,
        enable_acting_master=(
            request.enable_acting_master if request.HasField("enable_acting_master") else None
        ),
        zone_name=request.zone_name,
        filter_servers=(
            tuple(request.filter_servers.addresses) if request.HasField("filter_servers") else None
        ),
        watch_follows=request.watch_follows,
        removed_topics=tuple(request.removed_topics),
        process=_process(request),
    )


def _process(request: pb.RegisterBrokerRequest) -> BrokerProcess | None:
    if not request.process_id:
        return None
    return BrokerProcess(
        request.process_id,
        checks.not_negative("number", request.number),
        request.store_id,
        request.start_timestamp_ms,
    )


def unregistration(request: pb.UnregisterBrokerRequest) -> Unregistration:
    return Unregistration(
        checks.name("cluster", request.cluster),
        checks.name("broker_name", request.broker_name),
        checks.not_negative("broker_id", request.broker_id),
        checks.address("broker_address", request.broker_address),
        will_return=request.will_return,
    )


def queue_data(message: pb.QueueData) -> QueueData:
    broker_name = checks.name("queues.broker_name", message.broker_name)
    return _queue_data("queues", broker_name, message)


def _queue_data(field: str, broker_name: str, message: pb.QueueData | pb.TopicConfig) -> QueueData:
    def count(name: str) -> int:
        return checks.not_negative(f"{field}.{name}", getattr(message, name))

    return QueueData(
        broker_name=broker_name,
        read_queue_count=count("read_queue_count"),
        write_queue_count=count("write_queue_count"),
        permission=checks.permission(f"{field}.permission", message.permission),
        topic_sys_flag=message.topic_sys_flag,
        attributes=dict(message.attributes),
    )


# ---- out ----


def to_data_version(version: DataVersion) -> pb.DataVersion:
    return pb.DataVersion(**asdict(version))


def to_notice(notice: MinBrokerIdChanged) -> pb.BrokerNotice:
    return pb.BrokerNotice(min_broker_id_changed=pb.MinBrokerIdChanged(**asdict(notice)))


def to_topic_route(route: TopicRoute, order_topic_config: str) -> pb.TopicRoute:
    return pb.TopicRoute(
        queues=[_to_queue_data(queue) for queue in route.queues],
        brokers=[to_broker_data(broker) for broker in route.brokers],
        filter_servers={
            address: pb.FilterServers(addresses=servers)
            for address, servers in route.filter_servers.items()
        },
        order_topic_config=order_topic_config,
    )


def to_broker_data(broker: BrokerData) -> pb.BrokerData:
    return pb.BrokerData(
        cluster=broker.cluster,
        broker_name=broker.broker_name,
        addresses=broker.addresses,
        zone_name=broker.zone_name,
        enable_acting_master=broker.enable_acting_master,
        epoch=broker.epoch,
    )


def to_broker_members(members: BrokerMembers) -> pb.BrokerMembers:
    return pb.BrokerMembers(
        cluster=members.cluster,
        broker_name=members.broker_name,
        addresses=members.addresses,
        epoch=members.epoch,
    )


def to_live_broker(key: BrokerKey, live: BrokerLive) -> pb.LiveBroker:
    return pb.LiveBroker(
        cluster=key.cluster,
        broker_address=key.address,
        last_update_timestamp_ms=live.last_update_timestamp_ms,
        heartbeat_timeout_ms=live.heartbeat_timeout_ms,
        data_version=to_data_version(live.data_version),
        ha_server_address=live.ha_server_address,
    )


def to_conflict(conflict: BrokerConflict) -> pb.BrokerConflict:
    return pb.BrokerConflict(
        cluster=conflict.cluster,
        broker_name=conflict.broker_name,
        number=conflict.holder.number,
        holder=to_process(conflict.holder_address, conflict.holder),
        newcomer=to_process(conflict.newcomer_address, conflict.newcomer),
    )


def to_process(address: str, process: BrokerProcess) -> pb.BrokerProcess:
    return pb.BrokerProcess(
        broker_address=address,
        store_id=process.store_id,
        start_timestamp_ms=process.start_timestamp_ms,
    )


def _to_queue_data(queue: QueueData) -> pb.QueueData:
    return pb.QueueData(
        broker_name=queue.broker_name,
        read_queue_count=queue.read_queue_count,
        write_queue_count=queue.write_queue_count,
        permission=queue.permission,
        topic_sys_flag=queue.topic_sys_flag,
        attributes=queue.attributes,
    )
