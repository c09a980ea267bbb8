"""Write the dashboards in deploy/grafana from the panels below.

    .venv/bin/python deploy/dashboards.py

The data source, and the cluster, topic or group, are variables of each dashboard. A unit test fails
if the files differ, or if a panel names a metric or label that no service has.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

FOLDER = Path(__file__).with_name("grafana")
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
CLUSTER = 'cluster=~"$cluster"'
TOPIC = f'{CLUSTER},topic=~"$topic"'
GROUP = f'{CLUSTER},consumer_group=~"$group"'
RATE = "[$__rate_interval]"


class Panel(NamedTuple):
    """A time series: its title, query, the legend of each series, and its unit in Grafana."""

    title: str
    query: str
    legend: str
    unit: str = "short"


def _quantile(part: float, metric: str, by: str, labels: str = CLUSTER) -> str:
    rate = f"rate({metric}_bucket{{{labels}}}{RATE})"
    return f"histogram_quantile({part}, sum by (le, {by}) ({rate}))"


def _rate(metric: str, by: str, labels: str = CLUSTER) -> str:
    return f"sum by ({by}) (rate({metric}{{{labels}}}{RATE}))"


DASHBOARDS: dict[str, list[Panel]] = {
    "overview": [
        Panel("Processes that answer", 'sum by (job) (up{job=~"aerobee-.*"})', "{{job}}"),
        Panel("Messages in", _rate("rocketmq_messages_in_total", "node_id"), "{{node_id}}", "ops"),
        Panel(
            "Messages out", _rate("rocketmq_messages_out_total", "node_id"), "{{node_id}}", "ops"
        ),
        Panel("Bytes in", _rate("rocketmq_throughput_in_total", "node_id"), "{{node_id}}", "Bps"),
        Panel(
            "Groups that are furthest behind",
            f"topk(10, sum by (consumer_group) (rocketmq_consumer_lag_messages{{{CLUSTER}}}))",
            "{{consumer_group}}",
        ),
        Panel(
            "Oldest message that is not consumed",
            "topk(10, max by (consumer_group)"
            f" (rocketmq_consumer_lag_latency_milliseconds{{{CLUSTER}}}))",
            "{{consumer_group}}",
            "ms",
        ),
        Panel(
            "Dead letters",
            _rate("rocketmq_send_to_dlq_messages_total", "consumer_group"),
            "{{consumer_group}}",
            "ops",
        ),
        Panel(
            "Stores that do not accept messages",
            f"max by (node_id) (aerobee_store_read_only{{{CLUSTER}}}"
            f" or aerobee_disk_full{{{CLUSTER}}})",
            "{{node_id}}",
        ),
        Panel("Topics", f"sum by (node_id) (rocketmq_topic_number{{{CLUSTER}}})", "{{node_id}}"),
        Panel("Open ports", "max by (instance) (aerobee_insecure)", "{{instance}}"),
    ],
    "broker": [
        Panel(
            "Time of a send, p99",
            _quantile(
                0.99,
                "rocketmq_rpc_latency_milliseconds",
                "node_id",
                f'{CLUSTER},request_code="send"',
            ),
            "{{node_id}}",
            "ms",
        ),
        Panel(
            "Calls",
            _rate("rocketmq_rpc_latency_milliseconds_count", "request_code"),
            "{{request_code}}",
            "ops",
        ),
        Panel(
            "Calls that failed",
            _rate(
                "rocketmq_rpc_latency_milliseconds_count",
                "response_code",
                f'{CLUSTER},response_code!="success"',
            ),
            "{{response_code}}",
            "ops",
        ),
        Panel(
            "Bytes in flight",
            f"sum by (node_id, kind) (aerobee_in_flight_bytes{{{CLUSTER}}})",
            "{{node_id}} {{kind}}",
            "bytes",
        ),
        Panel(
            "Calls refused", _rate("aerobee_calls_refused_total", "node_id"), "{{node_id}}", "ops"
        ),
        Panel("Commit log", f"aerobee_commit_log_bytes{{{CLUSTER}}}", "{{node_id}}", "bytes"),
        Panel(
            "Free part of the disk",
            f"aerobee_disk_free_bytes{{{CLUSTER}}} / aerobee_disk_size_bytes{{{CLUSTER}}}",
            "{{node_id}}",
            "percentunit",
        ),
        Panel(
            "Not flushed",
            f"rocketmq_storage_flush_behind_bytes{{{CLUSTER}}}",
            "{{node_id}}",
            "bytes",
        ),
        Panel(
            "Age of the oldest message",
            f"rocketmq_storage_message_reserve_time_milliseconds{{{CLUSTER}}}",
            "{{node_id}}",
            "ms",
        ),
        Panel(
            "Calls that wait for messages",
            f"aerobee_parked_pulls{{{CLUSTER}}} + aerobee_parked_pops{{{CLUSTER}}}",
            "{{node_id}}",
        ),
        Panel("Messages on lease", f"aerobee_pop_leased_messages{{{CLUSTER}}}", "{{node_id}}"),
        Panel(
            "Messages that wait for their time",
            f"rocketmq_timing_messages{{{CLUSTER}}}",
            "{{node_id}}",
        ),
        Panel(
            "Lateness of delayed messages, p99",
            _quantile(0.99, "aerobee_delayed_delivery_lateness_seconds", "node_id"),
            "{{node_id}}",
            "s",
        ),
        Panel(
            "Open half messages",
            f"sum by (topic) (rocketmq_half_messages{{{CLUSTER}}})",
            "{{topic}}",
        ),
        Panel(
            "Damaged parts of the log", f"aerobee_damaged_log_ranges{{{CLUSTER}}}", "{{node_id}}"
        ),
    ],
    "topic": [
        Panel(
            "Messages in",
            _rate("rocketmq_messages_in_total", "topic, message_type", TOPIC),
            "{{topic}} {{message_type}}",
            "ops",
        ),
        Panel(
            "Bytes in", _rate("rocketmq_throughput_in_total", "topic", TOPIC), "{{topic}}", "Bps"
        ),
        Panel(
            "Size of a message, p99",
            _quantile(0.99, "rocketmq_message_size", "topic", TOPIC),
            "{{topic}}",
            "bytes",
        ),
        Panel(
            "Messages out, by group",
            _rate("rocketmq_messages_out_total", "topic, consumer_group", TOPIC),
            "{{topic}} {{consumer_group}}",
            "ops",
        ),
        Panel(
            "Lag, by group",
            f"sum by (topic, consumer_group) (rocketmq_consumer_lag_messages{{{TOPIC}}})",
            "{{topic}} {{consumer_group}}",
        ),
        Panel(
            "Commits",
            _rate("rocketmq_commit_messages_total", "topic", TOPIC),
            "{{topic}}",
            "ops",
        ),
    ],
    "group": [
        Panel(
            "Lag",
            f"sum by (consumer_group, topic) (rocketmq_consumer_lag_messages{{{GROUP}}})",
            "{{consumer_group}} {{topic}}",
        ),
        Panel(
            "Lag of each queue",
            f"sum by (node_id, topic, queue_id) (aerobee_consumer_queue_lag_messages{{{GROUP}}})",
            "{{topic}} {{node_id}} {{queue_id}}",
        ),
        Panel(
            "Oldest message that is not consumed",
            "max by (consumer_group, topic)"
            f" (rocketmq_consumer_lag_latency_milliseconds{{{GROUP}}})",
            "{{consumer_group}} {{topic}}",
            "ms",
        ),
        Panel(
            "In flight",
            f"sum by (consumer_group) (rocketmq_consumer_inflight_messages{{{GROUP}}})",
            "{{consumer_group}}",
        ),
        Panel(
            "Ready",
            f"sum by (consumer_group) (rocketmq_consumer_ready_messages{{{GROUP}}})",
            "{{consumer_group}}",
        ),
        Panel(
            "Messages out",
            _rate("rocketmq_messages_out_total", "consumer_group, is_retry", GROUP),
            "{{consumer_group}} retry: {{is_retry}}",
            "ops",
        ),
        Panel(
            "Members",
            f"max by (consumer_group) (aerobee_consumer_group_members{{{GROUP}}})",
            "{{consumer_group}}",
        ),
        Panel(
            "Messages removed before they were consumed",
            f"sum by (consumer_group, topic) (aerobee_consumer_expired_messages{{{GROUP}}})",
            "{{consumer_group}} {{topic}}",
        ),
    ],
    "dead_letters": [
        Panel(
            "Dead letters",
            _rate("rocketmq_send_to_dlq_messages_total", "consumer_group", GROUP),
            "{{consumer_group}}",
            "ops",
        ),
        Panel(
            "Dead letters since the start of the broker",
            f"sum by (consumer_group) (rocketmq_send_to_dlq_messages_total{{{GROUP}}})",
            "{{consumer_group}}",
        ),
        Panel(
            "Retries delivered",
            _rate("rocketmq_messages_out_total", "consumer_group", f'{GROUP},is_retry="true"'),
            "{{consumer_group}}",
            "ops",
        ),
        Panel(
            "Leases that expired",
            _rate("rocketmq_pop_revive_retry_messages_total", "consumer_group, topic", GROUP),
            "{{consumer_group}} {{topic}}",
            "ops",
        ),
        Panel(
            "Longest blocked message group",
            f"max by (node_id) (aerobee_pop_blocked_message_group_seconds{{{CLUSTER}}})",
            "{{node_id}}",
            "s",
        ),
    ],
    "proxy": [
        Panel("Clients", "sum by (instance) (aerobee_proxy_clients)", "{{instance}}"),
        Panel(
            "Messages sent",
            _rate("aerobee_proxy_sent_total", "instance", ""),
            "{{instance}}",
            "ops",
        ),
        Panel(
            "Messages received",
            _rate("aerobee_proxy_received_total", "instance", ""),
            "{{instance}}",
            "ops",
        ),
        Panel(
            "Acknowledgements",
            _rate("aerobee_proxy_acknowledged_total", "instance", ""),
            "{{instance}}",
            "ops",
        ),
        Panel(
            "Calls without rights",
            _rate("aerobee_proxy_unauthorized_total", "instance", ""),
            "{{instance}}",
            "ops",
        ),
        Panel(
            "Bytes in flight",
            "sum by (instance, kind) (aerobee_proxy_in_flight_bytes)",
            "{{instance}} {{kind}}",
            "bytes",
        ),
        Panel(
            "Connections, by security",
            _rate("aerobee_proxy_connections_total", "security", ""),
            "{{security}}",
            "ops",
        ),
        Panel(
            "Route queries of name servers",
            _rate("aerobee_namesrv_route_queries_total", "outcome", ""),
            "{{outcome}}",
            "ops",
        ),
    ],
    "replication": [
        Panel(
            "Role",
            f"aerobee_replica_role{{{CLUSTER}}} == 1",
            "{{node_id}} {{replica_id}} {{role}}",
        ),
        Panel("Replicas in sync", f"aerobee_replica_in_sync{{{CLUSTER}}}", "{{node_id}}"),
        Panel(
            "Bytes that a slave lacks",
            f"aerobee_replica_lag_bytes{{{CLUSTER}}}",
            "{{node_id}} {{slave}}",
            "bytes",
        ),
        Panel(
            "Time since a slave was caught up",
            f"aerobee_replica_behind_seconds{{{CLUSTER}}}",
            "{{node_id}} {{slave}}",
            "s",
        ),
        Panel(
            "Wait for replicas, p99",
            _quantile(0.99, "aerobee_replica_wait_seconds", "node_id"),
            "{{node_id}}",
            "s",
        ),
        Panel(
            "Elections",
            "sum by (node_id, reason)"
            f" (increase(aerobee_replica_elections_total{{{CLUSTER}}}[1h]))",
            "{{node_id}} {{reason}}",
        ),
        Panel("Epoch", f"aerobee_replica_epoch{{{CLUSTER}}}", "{{node_id}} {{replica_id}}"),
        Panel(
            "Bytes cut off",
            f"aerobee_replica_diverged_bytes_total{{{CLUSTER}}}",
            "{{node_id}} {{replica_id}}",
            "bytes",
        ),
    ],
}
# Variable → the query of its values.
_VARIABLES = {
    "cluster": "label_values(rocketmq_broker_permission, cluster)",
    "topic": "label_values(rocketmq_messages_in_total, topic)",
    "group": "label_values(aerobee_consumer_group_members, consumer_group)",
}


def _variables(panels: list[Panel]) -> Iterator[dict[str, Any]]:
    yield {
        "name": "datasource",
        "label": "Data source",
        "type": "datasource",
        "query": "prometheus",
    }
    for name, query in _VARIABLES.items():
        if any(f"${name}" in panel.query for panel in panels):
            yield {
                "name": name,
                "label": name.capitalize(),
                "type": "query",
                "datasource": SOURCE,
                "query": query,
                "refresh": 2,  # when the time range changes
                "includeAll": True,
                "multi": True,
                "allValue": ".*",
                "current": {"text": "All", "value": "$__all"},
            }


def dashboard(name: str) -> dict[str, Any]:
    """Return a dashboard as Grafana imports it."""
    panels = DASHBOARDS[name]
    return {
        "uid": f"aerobee-{name.replace('_', '-')}",
        "title": f"Aerobee: {name.replace('_', ' ')}",
        "tags": ["aerobee"],
        "schemaVersion": 38,
        "time": {"from": "now-1h", "to": "now"},
        "refresh": "30s",
        "templating": {"list": list(_variables(panels))},
        "links": [
            {"type": "dashboards", "tags": ["aerobee"], "asDropdown": True, "title": "Aerobee"}
        ],
        "panels": [
            {
                "id": number + 1,
                "type": "timeseries",
                "title": panel.title,
                "datasource": SOURCE,
                "gridPos": {"x": number % 2 * 12, "y": number // 2 * 8, "w": 12, "h": 8},
                "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
                "targets": [
                    {
                        "refId": "A",
                        "datasource": SOURCE,
                        "expr": panel.query,
                        "legendFormat": panel.legend,
                    }
                ],
            }
            for number, panel in enumerate(panels)
        ],
    }


def text(name: str) -> str:
    """Return the content of a dashboard's file."""
    return json.dumps(dashboard(name), indent=2) + "\n"


if __name__ == "__main__":
    for each in DASHBOARDS:
        (FOLDER / f"{each}.json").write_text(text(each), encoding="utf-8")
