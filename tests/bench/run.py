"""All benchmarks: prints a table and writes build/bench.json.

make bench
make bench ARGS='--only ingest_batch_1k,pull_batch_1k'
make bench ARGS=--json                     # the file's content on stdout too
make bench ARGS='--against ../before'      # in turns with another checkout
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import json
import os
import platform
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.against import compare
from bench.measure import Result

HERE = Path(__file__).parent
OUTPUT = HERE.parents[1] / "build" / "bench.json"

# module → the names that it measures
SUITES = {
    "throughput": ("ingest_batch_1k", "pull_batch_1k"),
    "client": (
        "client_single_send_1k",
        "client_single_send_64",
        "client_accumulation_gain",
        "client_lone_send_p50",
        "client_send_async_1k",
    ),
    "proxy": ("proxy_unary_send_1k", "proxy_receive_ack_1k", "proxy_receive_ack_ceiling"),
    "parked": ("parked_receive_memory", "parked_receive_wake"),
    "shared_port": ("proxy_shared_port_send", "proxy_tls_send"),
    "store": (
        "store_recovery",
        "store_recovery_keyed",
        "store_open_clean",
        "store_append_1000_queues",
        "store_append_10000_queues",
        "store_append_20_files",
    ),
    "startup": ("up_ready", "up_memory", "suite_memory"),
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


def selected(wanted: set[str]) -> dict[str, tuple[str, ...]]:
    """The suites that measure any of these names; all of them when none is wanted."""
    return {module: names for module, names in SUITES.items() if not wanted or wanted & set(names)}


def measure(wanted: set[str]) -> list[Result]:
    results: list[Result] = []
    for module, names in selected(wanted).items():
        print(f"measuring {', '.join(names)} …", file=sys.stderr, flush=True)
        results += asyncio.run(importlib.import_module(f"bench.{module}").results())
    return [result for result in results if not wanted or result.name in wanted]


def show(results: list[Result]) -> None:
    table = Table("name", "unit", "ours", "baseline", "ratio", "target", "note", box=None)
    for result in results:
        target = "" if result.target is None else f"{result.target:g}"
        figures = (f"{result.ours:,.2f}", f"{result.baseline:,.2f}", f"{result.ratio:.2f}")
        table.add_row(result.name, result.unit, *figures, target, result.note)
    Console(width=160).print(table)


def main() -> int:
    options = parse()
    wanted = {name for name in options.only.split(",") if name}
    if options.against is not None:
        compare(options.against.resolve(), selected(wanted), options.rounds)
        return 0
    results = measure(wanted)
    show(results)
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
