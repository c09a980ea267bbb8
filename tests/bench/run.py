"""All benchmarks: prints a table and writes build/bench.json.

make bench
make bench ARGS='--only ingest_batch_1k,pull_batch_1k'
make bench ARGS='--only closed'            # all rows of a suite, or of a folder of them
make bench ARGS=--json                     # the file's content on stdout too
make bench ARGS='--against ../before'      # in turns with another checkout, with a .venv of its own

In turns: what a change costs, on a machine that is never twice the same. Each suite runs in the
other checkout, then in this one, `--rounds` times; what counts is the median of the ratios to the
baselines of the same run.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import json
import math
import os
import platform
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from statistics import median
from typing import TextIO

from rich.console import Console
from rich.table import Table

from bench.measure import CannotMeasure, Result

HERE = Path(__file__).resolve().parents[2]
OUTPUT = HERE / "build" / "bench.json"

# module → the names that it measures
SUITES = {
    "throughput": ("ingest_batch_1k", "pull_batch_1k"),
    "clients.producers": (
        "client_single_send_1k",
        "client_single_send_64",
        "client_single_send_64_ceiling",
        "client_accumulation_gain",
        "client_lone_send_p50",
        "client_send_async_1k",
    ),
    "clients.redriving": ("redrive_100k",),
    "clients.transactions": ("client_transaction_1k", "client_request_reply"),
    "clients.testing": (
        "test_suite_ready_s",
        "test_suite_stop_s",
        "test_suite_memory",
        "test_suite_16_retries_s",
    ),
    "clients.consumers": (
        "client_consumer_1k",
        "client_orderly_consumer_1k",
        "client_pull_consumer_1k",
    ),
    "clients.observing": ("client_interceptors_empty", "client_otel_sampled"),
    "clients.leases": ("client_simple_consumer_1k",),
    "proxy": ("proxy_unary_send_1k", "proxy_receive_ack_1k", "proxy_receive_ack_ceiling"),
    "waiting.parked": ("parked_receive_memory", "parked_receive_wake"),
    "lite.topics": ("lite_send_1k", "lite_topic_memory", "lite_restart", "lite_list_top_s"),
    "lite.drain": ("lite_drain_10k_s",),
    "replication.throughput": (
        "replicated_ingest_batch_1k",
        "replicated_ingest_async",
        "replicated_unary_send_1k",
        "replicated_single_p50",
    ),
    "replication.failover": (
        "failover_gap_kill_s",
        "failover_gap_frozen_s",
        "failover_gap_promote_s",
    ),
    "replication.full_tables": ("failover_gap_full_tables_s",),
    "replication.catch_up": ("catch_up", "catch_up_send_p99"),
    "replication.scrub": ("scrub_sends", "scrub_send_p99", "repair_1000_records_s"),
    "closed": (
        "closed_ingest_tls",
        "closed_ingest_access",
        "closed_pull_tls",
        "closed_unary_access",
        "closed_unary_tls",
        "closed_memory_namesrv",
        "closed_memory_broker",
        "closed_memory_proxy",
        "closed_user_visible_s",
        "closed_user_turn_ms",
    ),
    "shared_port": ("proxy_shared_port_send", "proxy_tls_send"),
    "store": (
        "store_recovery",
        "store_recovery_keyed",
        "store_open_clean",
        "store_append_1000_queues",
        "store_append_10000_queues",
        "store_append_20_files",
    ),
    "lookup": (
        "message_search_key_s",
        "message_show_s",
        "message_track_id_s",
        "message_track_key_s",
    ),
    "telemetry": (
        "metrics_ingest",
        "metrics_unary",
        "scrape_10k_topics",
        "scrape_10k_topics_p99",
        "spans_unsampled",
        "spans_1_percent",
    ),
    "tables.creation": ("topics_created",),
    "startup": ("up_ready", "up_memory", "suite_memory"),
    "idle": ("idle_cpu", "idle_loop_wakeups", "idle_wakeups"),
    "lone": (
        "lone_send_cpu",
        "lone_send_p50",
        "lone_send_unary_floor",
        "lone_send_stream_floor",
        "lone_send_floor_cpu",
        "lone_call_p50",
        "lone_call_client_cpu",
    ),
    "growth.queues": ("growth_queues_1", "growth_queues_100", "growth_queues_10000"),
    "growth.clients": ("growth_clients_1", "growth_clients_100", "growth_clients_2000"),
    "growth.stored": (
        "growth_stored_append_1000000",
        "growth_stored_append_2000000",
        "growth_stored_append_5000000",
        "growth_stored_append_10000000",
        "growth_stored_read_1000000",
        "growth_stored_read_2000000",
        "growth_stored_read_5000000",
        "growth_stored_read_10000000",
        "growth_stored_start_1000000",
        "growth_stored_start_2000000",
        "growth_stored_start_5000000",
        "growth_stored_start_10000000",
    ),
    "growth.delayed": (
        "growth_delayed_send_0",
        "growth_delayed_send_100000",
        "growth_delayed_send_1000000",
        "growth_delayed_start_0",
        "growth_delayed_start_100000",
        "growth_delayed_start_1000000",
    ),
    "growth.cold": (
        "growth_cold_send_p99",
        "growth_warm_send_p99",
        "growth_cold_against_warm_p99",
    ),
    "containers": ("image_ready_s", "compose_healthy_s", "compose_idle_cpu"),
    "console": ("console_page_ms", "console_page_kb"),
    "watched": ("console_memory", "up_unvisited_memory", "sends_watched", "sends_watched_p99"),
    "report": ("report_10k", "report_10k_s"),
    "spark": (
        "spark_read",
        "spark_read_parquet",
        "spark_read_tasks",
        "spark_read_cores",
        "spark_stream",
        "spark_facts",
        "spark_write",
        "spark_write_rows",
        "spark_trigger",
        "spark_trigger_rpcs",
    ),
    "cores": ("proxy_workers_2", "broker_shards_2", "brokers_2_proxies_2"),
}


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help="names, separated by commas")
    parser.add_argument("--json", action="store_true", help="print the results as JSON too")
    parser.add_argument("--against", type=Path, help="another checkout, measured in turns")
    parser.add_argument("--rounds", type=int, default=3, help="of --against")
    return parser.parse_args()


def is_named(module: str, wanted: set[str]) -> bool:
    """Return whether a suite is named itself, or by its folder."""
    return bool(wanted & {module, module.partition(".")[0]})


def selected(wanted: set[str]) -> dict[str, tuple[str, ...]]:
    """Return the suites of these names, or that measure any of them; all if none is wanted."""
    return {
        module: names
        for module, names in SUITES.items()
        if not wanted or is_named(module, wanted) or wanted & set(names)
    }


def measure(wanted: set[str]) -> list[Result]:
    results: list[Result] = []
    for module, names in selected(wanted).items():
        print(f"measuring {', '.join(names)} …", file=sys.stderr, flush=True)
        try:
            found = asyncio.run(importlib.import_module(f"bench.{module}").results())
        except CannotMeasure as error:
            if wanted:
                sys.exit(f"error: {error}")
            print(f"left out: {error}", file=sys.stderr, flush=True)
            continue
        if wanted and not is_named(module, wanted):
            found = [result for result in found if result.name in wanted]
        show(found, sys.stderr)  # a run that is broken off has told what it knows
        results += found
    return results


def show(results: list[Result], file: TextIO) -> None:
    table = Table("name", "unit", "ours", "baseline", "ratio", "target", "note", box=None)
    for result in results:
        target = "" if result.target is None else f"{result.target:g}"
        figures = (f"{result.ours:,.2f}", f"{result.baseline:,.2f}", f"{result.ratio:.2f}")
        table.add_row(result.name, result.unit, *figures, target, result.note)
    Console(width=160, file=file).print(table)


def ratios(checkout: Path, names: Iterable[str]) -> dict[str, float]:
    """Name → ratio, of one run in a checkout. Raises CalledProcessError."""
    done = subprocess.run(
        [checkout / ".venv/bin/python", "-m", "bench.run", "--json", "--only", ",".join(names)],
        cwd=checkout,
        env={**os.environ, "PYTHONPATH": "tests"},
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    )
    report = json.loads(done.stdout.splitlines()[-1])
    return {result["name"]: result["ratio"] for result in report["results"]}


def compare(other: Path, suites: Mapping[str, tuple[str, ...]], rounds: int) -> None:
    """Prints a table after each suite: the medians of both checkouts, and how they differ. What
    one of them does not know is nan."""
    for names in suites.values():
        found: dict[str, tuple[list[float], list[float]]] = {}
        for number in range(1, rounds + 1):
            print(f"round {number} of {rounds}: {', '.join(names)}", file=sys.stderr, flush=True)
            for side, checkout in enumerate((other, HERE)):
                for name, ratio in ratios(checkout, names).items():
                    found.setdefault(name, ([], []))[side].append(ratio)
        table = Table("name", "other", "this", "this/other", "all rounds: other, this", box=None)
        for name, sides in found.items():
            every = ", ".join(" ".join(f"{ratio:.3g}" for ratio in side) for side in sides)
            before, after = (median(side) if side else math.nan for side in sides)
            change = f"{after / before:.3f}"
            table.add_row(name, f"{before:.3g}", f"{after:.3g}", change, every)
        Console(width=160).print(table)
        sys.stdout.flush()


def main() -> int:
    options = parse()
    wanted = {name for name in options.only.split(",") if name}
    if options.against is not None:
        compare(options.against.resolve(), selected(wanted), options.rounds)
        return 0
    results = measure(wanted)
    show(results, sys.stdout)
    machine = {
        "python": platform.python_version(),
        "cpus": os.cpu_count(),
        "kernel": platform.release(),
    }
    report = {"machine": machine, "results": [result.to_json() for result in results]}
    OUTPUT.parent.mkdir(exist_ok=True)
    OUTPUT.write_text(json.dumps(report, indent=2) + "\n")
    print(
        f"wrote {OUTPUT.relative_to(Path.cwd()) if OUTPUT.is_relative_to(Path.cwd()) else OUTPUT}"
    )
    if options.json:
        print(json.dumps(report))
    return 0


if __name__ == "__main__":
    sys.exit(main())
