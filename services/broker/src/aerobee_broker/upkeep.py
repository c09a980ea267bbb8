"""Run the periodic work of a broker: save tables, maintain the store, check, measure."""

from __future__ import annotations

import structlog

from aerobee_broker.broker import TRANSACTION_ROUND_MS, Broker
from aerobee_broker.delivery.statistics.sampler import SECOND_MS
from aerobee_broker.wiring.environment import Environment
from aerobee_broker.wiring.tables import Tables
from aerobee_chassis.background import PeriodicTask
from aerobee_chassis.rpc.server import Server

STORE_UPKEEP_MS = 1_000
HEALTH_MS = 1_000
LITE_UPKEEP_MS = 10_000
LITE_TTL_MS = 30_000
LETTERS_MS = 60_000
CLIENT_SCAN_MS = 10_000
LEASE_SNAPSHOT_MS = 30_000  # a start reads the log of this time, which takes a second or two
MEASURE_MS = 5_000
LITE_MEASURE_MS = 10_000


def periodic_work(
    broker: Broker, tables: Tables, environment: Environment, server: Server
) -> list[PeriodicTask]:
    """Return the periodic tasks of a broker.

    Delivery of delayed messages and expiry of leases are separate tasks.
    """
    options, store = environment.options, broker.store

    async def scan_clients() -> None:
        silent = broker.clients.scan()
        if silent:
            structlog.get_logger().info("clients_expired", clients=silent)

    async def keep_store() -> None:
        now_ms = environment.clock.now_ms()
        await broker.topic_retention.inherit(now_ms)
        broker.topic_retention.refresh(now_ms)
        store.maintain(now_ms)
        while store.has_file_work and await environment.flusher(store.maintain_files):
            pass

    async def keep_lite_topics() -> None:
        broker.lite.state.maintain()

    async def report_health() -> None:
        server.set_serving(not store.flush.read_only_reason)

    async def check_transactions() -> None:
        if not store.flush.read_only_reason:
            await broker.transaction_checks.round()
            await broker.transaction_upkeep.round()

    async def measure() -> None:
        broker.gauges.measure(broker.permission.bits())

    measures = (
        ("measures", MEASURE_MS, measure),
        ("consumer measures", MEASURE_MS, broker.consumer_gauges.measure),
        ("lite measures", LITE_MEASURE_MS, broker.lite_gauges.measure),
    )
    return [
        PeriodicTask(name, interval_ms / 1_000, work)
        for name, interval_ms, work in (
            ("offsets", options.flush_consumer_offset_interval, broker.save_tables),
            ("delays", options.flush_delay_offset_interval, tables.saved_delay_offsets.try_save),
            ("leases", LEASE_SNAPSHOT_MS, broker.consuming.leases.journal.save_snapshot),
            ("lite leases", LEASE_SNAPSHOT_MS, broker.lite.state.save),
            ("lite topics", LITE_UPKEEP_MS, keep_lite_topics),
            ("lite ttl", LITE_TTL_MS, broker.lite.ttl.round),
            ("dead letters", LETTERS_MS, broker.letters.maintain),
            ("store", STORE_UPKEEP_MS, keep_store),
            ("health", HEALTH_MS, report_health),
            ("clients", CLIENT_SCAN_MS, scan_clients),
            ("transactions", TRANSACTION_ROUND_MS, check_transactions),
            ("samples", SECOND_MS, broker.sampler.sample),
            ("lags", SECOND_MS, broker.sampler.measure_lags),
            *(measures if options.exports_metrics else ()),
        )
    ]
