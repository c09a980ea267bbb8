"""Every listing at 80, 120 and 200 columns, and in a pipe, as the files of `listings/` show it.

`WRITE_LISTINGS=1 pytest tests/unit/aerobee_cli/test_listings.py` writes the files.
"""

from __future__ import annotations

import os
import pkgutil
from collections.abc import Sequence
from dataclasses import fields
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import aerobee_cli
from aerobee_cli import connected, redriving, tracking
from aerobee_cli.commands import (
    acl,
    audit,
    bench,
    broker,
    certs,
    cluster,
    config,
    context,
    dlq,
    group,
    held,
    lite,
    message,
    proxy,
    quota,
    top,
    topic,
    user,
)
from aerobee_cli.table import Column, Table, width_of
from aerobee_client.admin.descriptions import GroupState, MessagePlace

RATES: dict[str, float | None] = {
    "messages_in": 12_500.0,
    "bytes_in": 3_200_000.0,
    "messages_out": 0.5,
    "bytes_out": 1_024.0,
    "redelivered": 2.0,
    "dead_lettered": 0.0,
    "lag": 1_204_881.0,
    "send_latency_p50_ms": 1.4,
    "send_latency_p99_ms": None,
}
FILES = Path(__file__).parent / "listings"
WIDTHS = {"80 columns": 80, "120 columns": 120, "200 columns": 200, "in a pipe": None}
BORN_MS, STORED_MS = 1_764_345_075_892, 1_764_345_289_155
IDS = tuple(f"C0000202667E26BE0FE98E729CAA000{n}" for n in range(3))
OFFSET_IDS = tuple(f"7F000001000051AF000000000000{n:04X}" for n in range(3))
CLIENTS = ("10.0.3.17@2914@5f1c0a9e", "warehouse-7.example.org@88@17@2hzb8kq3n7")


def group_state(group: str, state: str, reason: str, **known: Any) -> GroupState:
    unknown = dict.fromkeys((each.name for each in fields(GroupState)), 0)
    texts = {"client_id": "", "place": None, "failure_reason": "", "failure_description": ""}
    given: Any = {**unknown, **texts, **known}
    return GroupState(**{**given, "consumer_group": group, "state": state, "reason": reason})


_STORED = {"since_timestamp_ms": STORED_MS, "at_timestamp_ms": STORED_MS}
GROUP_STATES = [
    group_state(
        "audit",
        "CONSUMED",
        "the group committed an offset above it",
        client_id=CLIENTS[1],
        since_timestamp_ms=STORED_MS,
        at_timestamp_ms=STORED_MS + 4_000,
    ),
    group_state(
        "billing",
        "ON_LEASE",
        "a client has it on lease",
        client_id=CLIENTS[0],
        until_timestamp_ms=STORED_MS + 30_000,
        attempt=2,
        **_STORED,
    ),
    group_state(
        "shipping",
        "DEAD_LETTERED",
        "its dead letter is stored",
        attempt=16,
        place=MessagePlace("%DLQ%shipping", 0, 17),
        failure_reason="ValueError",
        failure_description="no such address",
        **_STORED,
    ),
    group_state("search", "NOT_YET", "no pop has reached it", ahead=1_204),
    group_state("report", "SKIPPED", "the offset of the group was set to a later message"),
    group_state("stock", "UNKNOWN", "the history of offsets does not have the move"),
]

MESSAGES = [
    {
        "message_id": IDS[n],
        "offset_message_id": OFFSET_IDS[n],
        "topic": "%DLQ%shipping",
        "origin_topic": "orders",
        "origin_message_id": OFFSET_IDS[n],
        "lite_topic": "",
        "tag": "paid",
        "keys": [f"order-{n}", "customer-4711"],
        "reconsume_times": 16,
        "born_timestamp_ms": BORN_MS + n,
        "store_timestamp_ms": STORED_MS + n,
        "why": why,
        "broker_name": "broker-a",
        "queue_id": n,
        "queue_offset": 1_234_567 + n,
        "body_size": 5_120,
        "state": ("open", "redriven", "dead again")[n],
        "state_timestamp_ms": STORED_MS if n else None,
        "job_id": "1f0c9a2b7d3e" if n else "",
        "requested_by": "alice@ops-1" if n else "",
        "target": "origin" if n else "",
        "job_error": "",
    }
    for n, why in enumerate(
        (
            "KeyError: 'postcode'",
            "ValueError: no such address for order 1: the street is missing, and the postal code "
            "is not one of the country of the customer",
            "requests.exceptions.ConnectionError: HTTPConnectionPool(host='stock.example.org', "
            "port=443): Max retries exceeded with url: /reservations/1/items (Caused by "
            "NewConnectionError('<urllib3.connection.HTTPSConnection object at 0x7f3a>: Failed to "
            "establish a new connection: [Errno 111] Connection refused'))",
        )
    )
]
QUEUES = [
    {
        "topic": name,
        "broker_name": "broker-a",
        "queue_id": n,
        "consumer_offset": 1_234_500 + n,
        "max_offset": 1_234_567 + n,
        "min_offset": 12,
        "message_count": 1_234_555 + n,
        "earliest_timestamp_ms": BORN_MS,
        "latest_timestamp_ms": STORED_MS,
        "queue_offset": 1_234_567,
        "lag": 67,
        "last_timestamp_ms": STORED_MS,
        "client_id": CLIENTS[n],
    }
    for n, name in enumerate(("orders", "%RETRY%shipping"))
]
MEMBERS = [
    {
        "client_id": client,
        "consumer_groups": ("shipping", "billing"),
        "subscriptions": {"orders": "paid || sent", "%RETRY%shipping": "*"},
        "publishes": ("invoices",) * n,
        "software": "python 0.1.0",
        "address": f"10.0.3.17:4{n}311",
        "proxy": "",
        "user": "billing" * n,
        "since_timestamp_ms": BORN_MS,
        "last_update_timestamp_ms": STORED_MS,
        "way": "push",
        "strategy": "average",
        "queues": ("orders/broker-a/0-3", "%RETRY%shipping/broker-a/0"),
        "locks": (),
        "consumed_per_second": 12.5,
        "failed": 3,
        "waiting": 1_024,
        "lag": 67,
    }
    for n, client in enumerate(CLIENTS)
]
REPLICAS = [
    {
        "cluster": "DefaultCluster",
        "broker_name": "broker-a",
        "replica_id": n,
        "role": role,
        "in_sync": role == "master",
        "epoch": 4,
        "end_offset": 1_073_741_824,
        "confirmed_offset": 1_073_741_000,
        "lag_bytes": n * 1_048_576,
        "behind_ms": n * 1_500,
        "clock_offset_ms": 3,
        "address": f"10.0.4.1{n}:10911",
        "remark": remark,
        "last_update_timestamp_ms": STORED_MS,
    }
    for n, (role, remark) in enumerate(
        (("master", ""), ("slave", "copies its master's log (12 %); does not reach etcd"))
    )
]

# name → columns, items
LISTINGS: dict[str, tuple[Sequence[Column], Sequence[dict[str, Any]]]] = {
    "dlq-list": (dlq.DEAD_LETTER_COLUMNS, MESSAGES),
    "dlq-redrive": (
        redriving.FAILURE_COLUMNS,
        [{**each, "error": each["why"]} for each in MESSAGES[:2]],
    ),
    "dlq-redrive-missing": (
        redriving.MISSING_COLUMNS,
        [{"message_id": each, "problem": "it is no longer stored"} for each in IDS[:2]],
    ),
    "dlq-redrive-preview": (
        redriving.PREVIEW_COLUMNS,
        [
            {"kind": "reason", "name": "java.net.SocketTimeoutException", "letters": 1_204},
            {"kind": "topic", "name": "orders", "letters": 1_204},
        ],
    ),
    "dlq-jobs-list": (
        dlq.JOB_COLUMNS,
        [
            {
                "job_id": "1f0c9a2b7d3e",
                "broker_name": "broker-a",
                "consumer_group": "shipping",
                "action": "redrive",
                "target": "origin",
                "filters": {"reason": "KeyError"},
                "limit": 0,
                "rate": 66.66666666666667,
                "state": "running",
                "started_timestamp_ms": STORED_MS,
                "ended_timestamp_ms": 0,
                "total": 20_000,
                "examined": 10_240,
                "sent": 8_192,
                "failed": 3,
                "already": 12,
                "duplicates": 0,
                "unreadable": 0,
                "waits_for": "",
                "requested_by": "alice@ops-1",
                "note": "after the fix of the postal codes",
            }
        ],
    ),
    "broker-config-get": (
        config.COLUMNS,
        [
            {
                "key": key,
                "value": value,
                "source": source,
                "changeable": source == "run time",
                "address": "10.0.4.10:10911",
            }
            for key, value, source in (
                ("fileReservedTime", "48", "run time"),
                ("storePathRootDir", "/var/lib/aerobee/broker-a", "command line"),
            )
        ],
    ),
    "broker-config-set": (
        config.CHANGES,
        [
            {"address": f"10.0.4.1{n}:10911", "without_effect": ("fileReservedTime",) * n}
            for n in range(2)
        ],
    ),
    "message-query": (message.MESSAGE_COLUMNS, MESSAGES),
    "topic-list": (
        topic.TOPIC_COLUMNS,
        [
            {
                "topic": name,
                "message_type": "NORMAL",
                "brokers": [
                    {"broker_name": f"broker-{letter}", "write_queue_count": 8} for letter in "abcd"
                ],
            }
            for name in ("orders", "invoices-of-the-european-customers")
        ],
    ),
    "topic-route": (
        topic.ROUTE_COLUMNS,
        [
            {
                "broker_name": "broker-a",
                "cluster": "DefaultCluster",
                "read_queue_count": 8,
                "write_queue_count": 16,
                "permission": 6,
                "addresses": {0: "10.0.4.10:10911", 1: "10.0.4.11:10911", 2: "10.0.4.12:10911"},
            }
        ],
    ),
    "topic-status": (topic.STATUS_COLUMNS, QUEUES),
    "topic-rebalance": (
        topic.REBALANCED_COLUMNS,
        [
            {
                "broker_name": "broker-b",
                "address": "10.0.4.20:10911",
                "queues": 8,
                "groups": ("shipping", "billing"),
            }
        ],
    ),
    "group-list": (
        group.GROUP_COLUMNS,
        [
            {
                "consumer_group": "shipping",
                "max_attempts": 17,
                "retry": "10s, 30s, 1m, 2m, 3m, 4m, 5m, 6m, 7m, 8m, 9m, 10m, 20m, 30m, 1h, 2h",
                "order": "auto",
                "brokers": ("broker-a", "broker-b"),
            },
            {
                "consumer_group": "billing",
                "max_attempts": 5,
                "retry": "1s, 5s, 30s",
                "order": "off",
                "brokers": ("broker-a", "broker-b"),
            },
        ],
    ),
    "group-members": (connected.MEMBER_COLUMNS, MEMBERS),
    "group-progress": (group.PROGRESS_COLUMNS, QUEUES),
    "group-reset-offset": (group.OFFSET_COLUMNS, QUEUES),
    "group-blocked": (
        group.BLOCKED_COLUMNS,
        [
            {
                "message_group": "customer-4711",
                "topic": "orders",
                "broker_name": "broker-a",
                "queue_id": 3,
                "message_id": IDS[0],
                "attempt": 2,
                "waiting": 1_204,
                "since_timestamp_ms": BORN_MS,
                "next_try_timestamp_ms": STORED_MS,
                "client_id": CLIENTS[0],
            }
        ],
    ),
    "client-list": (connected.CLIENT_COLUMNS, MEMBERS),
    "proxy-list": (
        proxy.PROXY_COLUMNS,
        [
            {
                "name": "proxy-1:8081",
                "state": "up",
                "version": "0.1.0",
                "start_timestamp_ms": BORN_MS,
                "away_since_ms": None,
                "admin_address": "10.0.3.17:8083",
            },
            {
                "name": "proxy-2:8081",
                "state": "missing",
                "version": None,
                "start_timestamp_ms": None,
                "away_since_ms": STORED_MS,
                "admin_address": None,
            },
        ],
    ),
    "lite-list": (
        lite.TOPIC_COLUMNS,
        [
            {
                "lite_topic": "session-4711",
                "messages": 12,
                "lag": 3,
                "oldest_timestamp_ms": BORN_MS,
                "newest_timestamp_ms": STORED_MS,
                "subscribers": 2,
                "broker_name": "broker-a",
                "queue_id": 0,
            }
        ],
    ),
    "lite-clients": (
        lite.CLIENT_COLUMNS,
        [
            {
                "consumer_group": "agents",
                "client_id": client,
                "subscribes": "1,024",
                "ready": 3,
                "silent_s": 12,
                "brokers": ("broker-a", "broker-b"),
            }
            for client in CLIENTS
        ],
    ),
    "cluster-list": (cluster.COLUMNS, REPLICAS),
    "audit-list": (
        audit.COLUMNS,
        [
            {
                "timestamp_ms": STORED_MS,
                "event": "change",
                "user": "ops",
                "rpc": "AdminService/DeleteTopic",
                "resources": ("Topic:orders",),
                "result": "OK",
                "count": 1,
                "server": "broker broker-a at 10.0.0.2:10911",
                "address": "10.0.0.9:51442",
                "claimed_user": "",
                "certificate": "",
                "visitor": "",
                "request_id": "c4725b45f46d8dba",
                "reason": "",
            },
            {
                "timestamp_ms": BORN_MS,
                "event": "rejected",
                "user": "",
                "rpc": "NamesrvAccessService/LogIn",
                "resources": (),
                "result": "NO_PERMISSION",
                "count": 12,
                "server": "name server 10.0.0.1:9876",
                "address": "10.0.0.7:40110",
                "claimed_user": "billing",
                "certificate": "",
                "visitor": "",
                "request_id": "",
                "reason": "user 'billing' is unknown or disabled, or the secret key is wrong",
            },
        ],
    ),
    "broker-ha-status": (broker.REPLICA_COLUMNS, REPLICAS),
    "certs-show": (
        certs.COLUMNS,
        [
            {
                "file": f"{role}.crt",
                "role": role,
                "name": f"prod {role}",
                "not_after": "2026-02-26T15:54:49Z",
                "expires_in_days": 89,
                "names": ("broker-a.example.org", "10.0.4.10", "127.0.0.1", "localhost"),
            }
            for role in ("ca", "namesrv", "broker")
        ],
    ),
    "quota-list": (
        quota.COLUMNS,
        [
            {
                "subject": subject,
                "calls": 500,
                "messages_in": 1_000,
                "bytes_in": 10_485_760,
                "messages_out": 0,
                "bytes_out": 0,
            }
            for subject in ("User:billing", "Address:*")
        ],
    ),
    "user-list": (
        user.COLUMNS,
        [
            {"username": "admin", "enabled": True, "super": True, "secrets": 1},
            {"username": "billing", "enabled": False, "super": False, "secrets": 2},
        ],
    ),
    "acl-list": (
        acl.COLUMNS,
        [
            {
                "username": "billing",
                "resource": "Topic:orders*",
                "actions": ("Pub", "Sub"),
                "decision": decision,
                "policy_type": "CUSTOM",
                "source_ips": ("10.0.0.0/8", "192.168.0.0/16"),
            }
            for decision in ("ALLOW", "DENY")
        ],
    ),
    "message-track": (
        tracking.COLUMNS,
        [tracking.row_of(state) for state in GROUP_STATES],
    ),
    "top-brokers": (top.BROKER_COLUMNS, [{"name": f"broker-{n}", **RATES} for n in "ab"]),
    "top-topics": (top.TOPIC_COLUMNS, [{"name": "orders", **RATES}]),
    "top-groups": (top.GROUP_COLUMNS, [{"name": "billing", **RATES}]),
    "bench": (
        bench.GROUP_COLUMNS,
        [
            {
                "group": f"aerobee-bench-5f1c0a9e77d1-{number}",
                "arrived": 1_204_881,
                "lost": 0,
                "twice": 12 * number,
                "out_of_order": 0,
                "rate": 20_081.4,
                "latency_p50_ms": 1.412,
                "latency_p99_ms": 12.2,
                "latency_max_ms": 103.95,
            }
            for number in (1, 2)
        ],
    ),
    "bench-check": (
        bench.CHECK_COLUMNS,
        [
            *(
                {
                    "broker_name": "broker-a",
                    "queue_id": number,
                    "send_ms": 1.25,
                    "receive_ms": 0.8,
                    "problem": "",
                }
                for number in (0, 1)
            ),
            {
                "broker_name": "broker-b",
                "queue_id": None,
                "send_ms": None,
                "receive_ms": None,
                "problem": "broker broker-b (10.0.3.18:10911) is unreachable: connection refused",
            },
        ],
    ),
    "context-list": (
        context.COLUMNS,
        [
            {
                "name": name,
                "current": name == "prod",
                "namesrv": "10.0.3.17:9876;10.0.3.18:9876",
                "access_key": user,
                "proxy": "10.0.3.17:8081",
                "tls_ca": ca,
            }
            for name, user, ca in (("prod", "ops", "secure/ca.crt"), ("test", "", ""))
        ],
    ),
    "lease-list": (
        held.LEASE_COLUMNS,
        [
            {
                "message_id": each["message_id"],
                "topic": "orders",
                "attempt": 2,
                "client_id": client,
                "since_timestamp_ms": BORN_MS,
                "expires_timestamp_ms": STORED_MS,
                "message_group": group,
                "broker_name": "broker-a",
                "queue_id": 3,
                "queue_offset": 1_048_576,
            }
            for each, client, group in zip(MESSAGES, CLIENTS, ("customer-7", ""), strict=False)
        ],
    ),
    "delayed-list": (
        held.DELAYED_COLUMNS,
        [
            {
                "due_timestamp_ms": STORED_MS,
                "topic": "orders",
                "message_id": each["message_id"],
                "delay": delay,
                "body_size": 1_024,
                "stored_timestamp_ms": BORN_MS,
                "broker_name": "broker-a",
            }
            for each, delay in zip(MESSAGES, ("level 3 (10 s)", "timers"), strict=False)
        ],
    ),
    "transaction-list": (
        held.TRANSACTION_COLUMNS,
        [
            {
                "transaction_id": each["message_id"],
                "topic": "orders",
                "producer_group": "checkout",
                "stored_timestamp_ms": STORED_MS,
                "checks": 3,
                "broker_name": "broker-a",
                "queue_offset": 12,
            }
            for each in MESSAGES[:2]
        ],
    ),
    "broker-diverged-list": (
        broker.FILE_COLUMNS,
        [
            {
                "replica_id": 2,
                "name": "3-1048576.log",
                "epoch": 3,
                "begin_offset": 1_048_576,
                "size": 20_480,
            }
        ],
    ),
    "broker-diverged-show": (
        broker.MESSAGE_COLUMNS,
        [{**each, "topic": "orders", "kind": "normal", "stored": False} for each in MESSAGES],
    ),
}


def test_every_table_of_a_command_is_here() -> None:
    known = {id(columns) for columns, _ in LISTINGS.values()}
    found = {
        f"{module.name}.{name}"
        for module in pkgutil.walk_packages(aerobee_cli.__path__, "aerobee_cli.")
        if not module.name.endswith("__main__")
        for name, value in vars(import_module(module.name)).items()
        if isinstance(value, tuple) and value and all(isinstance(each, Column) for each in value)
        if id(value) not in known
    }
    assert found == set()


def shown(name: str) -> str:
    columns, items = LISTINGS[name]
    parts = []
    for title, width in WIDTHS.items():
        parts.append("\n".join([f"=== {title}", *Table(columns).lines(items, width)]))
    return "\n\n".join(parts) + "\n"


@pytest.mark.parametrize("name", LISTINGS)
def test_a_listing_is_as_its_file_shows(name: str) -> None:
    file = FILES / f"{name}.txt"
    if os.environ.get("WRITE_LISTINGS"):
        file.write_text(shown(name), encoding="utf-8")
    assert shown(name) == file.read_text(encoding="utf-8")


def test_every_file_is_of_a_listing() -> None:
    assert {file.stem for file in FILES.iterdir()} == set(LISTINGS)


@pytest.mark.parametrize("name", LISTINGS)
@pytest.mark.parametrize("width", [80, 120, 200])
def test_a_listing_fits_its_terminal(name: str, width: int) -> None:
    columns, items = LISTINGS[name]
    for every in (False, True):
        lines = Table(columns, every=every).lines(items, width)
        assert [line for line in lines if width_of(line) > width] == []
        first = columns[0].key
        ids = [item[first] for item in items if isinstance(item[first], str)]
        assert [each for each in ids if not any(each in line for line in lines)] == []


def test_a_dead_letter_takes_few_lines_at_80_columns() -> None:
    """Its id, time, origin and state are one line, and its reason with its text below."""
    lines = Table(dlq.DEAD_LETTER_COLUMNS).lines(MESSAGES[:2], 80)
    assert lines[2] == f"{IDS[0]}  2025-11-28T15:54:49Z  orders  open      paid"
    assert lines[3] == "    KeyError: 'postcode'"
    assert len(lines) == 2 + 2 + 3
