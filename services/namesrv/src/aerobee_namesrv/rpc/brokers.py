"""Implement the RPCs of brokers: registration, heartbeat, data version, watch and log records.

They are RegisterBroker, UnregisterBroker, BrokerHeartbeat, QueryDataVersion, WatchRegistration and
RecordLogs.

Codes: INVALID_PARAMETER; SYSTEM_ERROR (an unknown broker registers a single topic); SYSTEM_BUSY
(the removal queue is full); BROKER_NOT_EXIST (heartbeat and watch of an unknown broker).

Differences from Apache's server: a full removal queue is SYSTEM_BUSY, not SYSTEM_ERROR. A heartbeat
of an unknown broker is rejected. Each broker has a stream, the watch, which ends when the broker
dies. RecordLogs does not exist there.
"""

from __future__ import annotations

from dataclasses import dataclass

import structlog
from aerobee.namesrv.v1 import namesrv_pb2 as pb

from aerobee_chassis.rpc.call import Call
from aerobee_chassis.runtime_config import RuntimeConfig
from aerobee_namesrv.config import NamesrvOptions
from aerobee_namesrv.kv_config import KVConfigManager
from aerobee_namesrv.routing.broker_live_table import RemovalQueue
from aerobee_namesrv.routing.log_records import MAX_STORES, LogRecords
from aerobee_namesrv.routing.route_info_manager import RouteInfoManager
from aerobee_namesrv.routing.rows import BrokerKey
from aerobee_namesrv.rpc import checks, convert
from aerobee_wire.status import Code, MqError

# A batch of removals takes only milliseconds.
RETRY_AFTER_MS = 100


@dataclass(frozen=True, slots=True)
class BrokerRpcs:
    manager: RouteInfoManager
    removals: RemovalQueue
    kv_config: KVConfigManager
    options: RuntimeConfig[NamesrvOptions]
    log_records: LogRecords

    async def register_broker(
        self, request: pb.RegisterBrokerRequest, call: Call
    ) -> pb.RegisterBrokerResponse:
        registered = self.manager.register_broker(convert.registration(request))
        if conflict := registered.conflict:
            in_use = convert.to_process(conflict.holder_address, conflict.holder)
            return pb.RegisterBrokerResponse(rejected=True, in_use=in_use)
        if registered.rejected:
            return pb.RegisterBrokerResponse(rejected=True)
        with_order = self.options.now.return_order_topic_config_to_broker
        return pb.RegisterBrokerResponse(
            master_address=registered.master_address,
            ha_server_address=registered.ha_server_address,
            order_topic_config=self.kv_config.order_topic_config() if with_order else {},
        )

    async def unregister_broker(
        self, request: pb.UnregisterBrokerRequest, call: Call
    ) -> pb.UnregisterBrokerResponse:
        if not self.removals.submit(convert.unregistration(request)):
            raise MqError(
                Code.SYSTEM_BUSY,
                "too many brokers are being unregistered; retry",
                retry_after_ms=RETRY_AFTER_MS,
            )
        return pb.UnregisterBrokerResponse()

    async def broker_heartbeat(
        self, request: pb.BrokerHeartbeatRequest, call: Call
    ) -> pb.BrokerHeartbeatResponse:
        key = convert.broker_key(request)
        if not self.manager.broker_live_table.refresh(key):
            raise _unknown(request.broker_name, key)
        return pb.BrokerHeartbeatResponse()

    async def query_data_version(
        self, request: pb.QueryDataVersionRequest, call: Call
    ) -> pb.QueryDataVersionResponse:
        key = convert.broker_key(request)
        table = self.manager.broker_live_table
        stored = table.data_version(key)
        table.refresh(key)
        return pb.QueryDataVersionResponse(
            changed=stored != convert.data_version(request.data_version),
            data_version=convert.to_data_version(stored) if stored else None,
        )

    async def record_logs(self, request: pb.RecordLogsRequest, call: Call) -> pb.RecordLogsResponse:
        cluster = checks.name("cluster", request.cluster)
        broker_name = checks.name("broker_name", request.broker_name)
        if len(request.records) > MAX_STORES:
            raise MqError(
                Code.INVALID_PARAMETER,
                f"{len(request.records)} records: send {MAX_STORES} or fewer",
                about="records",
            )
        records = [convert.log_record(each) for each in request.records]
        known = self.log_records.record(cluster, broker_name, records)
        return pb.RecordLogsResponse(records=list(map(convert.to_log_record, known.items())))

    async def watch_registration(self, request: pb.WatchRegistrationRequest, call: Call) -> None:
        key = convert.broker_key(request)
        broker_id = checks.not_negative("broker_id", request.broker_id)
        table = self.manager.broker_live_table
        watch = table.open_watch(key, request.broker_name, broker_id)
        if watch is None:
            raise _unknown(request.broker_name, key)
        log = structlog.get_logger().bind(broker_name=request.broker_name, peer=call.peer)
        log.info("watch_opened", address=key.address)
        try:
            async for notice in watch.notices():
                await call.write(convert.to_notice(notice))
        finally:
            log.info("watch_ended", address=key.address)
            table.end_watch(key, watch)


def _unknown(broker_name: str, key: BrokerKey) -> MqError:
    return MqError(
        Code.BROKER_NOT_EXIST,
        f"no broker {broker_name!r} at {key.address} in cluster {key.cluster!r} is registered "
        "here; register first",
    )
