"""Measure Aerobee beside other message queues, each by its own client, on this machine.

make bench-peers
make bench-peers PEERS=aerobee,nats ROWS=send_1,paced ROUNDS=1
make bench-peers ARGS=--small              # only shows that everything works

Each round starts each product fresh in turn, with the promise that an acknowledged message is on
the disk. A row whose messages did not all arrive has no figure. Prints tables and writes
build/peers.json, which `docs/figures.py` copies into docs/compare.md.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Self

from rich.console import Console
from rich.table import Table

from bench.idle import Usage, usage
from bench.peers import packages, table
from bench.peers.cost import own_cpu
from bench.peers.packages import ROOT, Missing
from bench.peers.rows import ALL, OF_CLIENTS, OF_PRODUCTS, SMALL, Row, Size, rows
from bench.peers.servers import PRODUCTS, Processes, Product

OUTPUT = ROOT / "build" / "peers.json"
OURS = {"aerobee", "lean_v2"}  # clients that run in this environment
ANSWER_TIMEOUT_S = 900.0
END_TIMEOUT_S = 10.0
SYNC = re.compile(r"\b(fsync|fdatasync|msync|sync_file_range)\(")


class ClientProcess:
    """A client in a process of its own, which answers rows line by line."""

    def __init__(self, name: str, folder: Path) -> None:
        python = sys.executable if name in OURS else str(packages.python())
        self._name = name
        self._log = folder / f"{name}.log"
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [python, "-m", f"bench.peers.clients.{name}"], cwd=folder, stderr=log,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                env=os.environ | {"PYTHONPATH": str(ROOT / "tests"), "HOME": str(folder)},
            )  # fmt: skip

    def __enter__(self) -> Self:
        self._read()
        return self

    def __exit__(self, *error: object) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def ask(self, row: str, **options: Any) -> dict[str, Any]:
        """Return the answer to a row. Raises RuntimeError if the client ends."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"row": row, **options}) + "\n")
        self._process.stdin.flush()
        return self._read()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            log = self._log.read_text(errors="replace")
            raise RuntimeError(f"the client {self._name} ended:\n{log[-2000:]}")
        answer: dict[str, Any] = json.loads(line)
        if "refused" in answer:
            print(self._log.read_text(errors="replace")[-2000:], file=sys.stderr)
        return answer


class Bench:
    """The figures of all rounds."""

    def __init__(self, size: Size, wanted: set[str]) -> None:
        self._size = size
        self._rows = rows(size)
        self._wanted = wanted
        self.products: dict[str, dict[str, Any]] = {}
        self.clients: dict[str, dict[str, Any]] = {}

    def add(self, name: str, product: Product) -> None:
        title = f"{product.title} {product.version()}"
        self.products[name] = {"title": title, "durability": product.durability, "figures": {}}

    def round(self, name: str, product: Product) -> None:
        """Start a product fresh, and measure all rows."""
        with product.running() as (processes, address, began):
            first = product.clients[0]
            with ClientProcess(first, processes.folder) as client:
                answer = client.ask("ready", address=address, servers=processes.pids())
                self._keep(name, "ready", answer | {"seconds": time.perf_counter() - began})
            fresh = anonymous_mb(processes.pids())
            if "idle" in self._wanted:
                self._keep(name, "idle", self._idle(processes))
            for each in product.clients:
                self._client(name, product, each, processes, address)
            loaded = anonymous_mb(processes.pids())
            self._keep(name, "memory", {"fresh_mb": fresh, "loaded_mb": loaded})

    def _client(
        self, name: str, product: Product, client: str, processes: Processes, address: Any
    ) -> None:
        chosen = [row for row in OF_CLIENTS[client] if row in self._wanted]
        if not chosen:
            return
        key = f"{name}/{client}"
        with ClientProcess(client, processes.folder) as running:
            about = running.ask("about", address=address, servers=processes.pids())
            title = f"{self.products[name]['title']}, {about['title']}"
            kept = {"title": title, "how": about["how"], "figures": {}}
            figures = self.clients.setdefault(key, kept)["figures"]
            warm = running.ask("warm", seconds=self._size.warm_s)
            for row in chosen if "refused" not in warm else ():
                say(f"  {key} {row}")
                found = self._measured(row, running, processes, self._rows[row])
                figures.setdefault(row, []).append(found)
                say(f"    {table.cell(row, [found])}")
            if "refused" in warm:
                for row in chosen:
                    figures.setdefault(row, []).append(warm)

    def _measured(
        self, name: str, client: ClientProcess, processes: Processes, row: Row
    ) -> dict[str, Any]:
        if name != "syncs":
            return client.ask(name, **row.options)
        if shutil.which("strace") is None:
            return {"absent": "strace is not installed"}
        client.ask(name, **row.options)  # a new queue syncs files of its own
        with traced(processes.pids(), processes.folder / "strace.txt") as trace:
            found = client.ask(name, **row.options)
        if "sent" in found:
            found["syncs"] = len(SYNC.findall(trace.read_text(errors="replace")))
            table.check_synced(found)
        return found

    def _idle(self, processes: Processes) -> dict[str, float]:
        time.sleep(self._size.settle_s)
        before = usage(processes.pids())
        time.sleep(self._size.idle_s)
        after = usage(processes.pids())
        none = Usage(0, 0)
        changes = [(before.get(key, none), now) for key, now in after.items()]
        cpu_s = sum(now.cpu_s - then.cpu_s for then, now in changes)
        wakeups = sum(now.wakeups - then.wakeups for then, now in changes)
        return {
            "cpu_percent": 100 * cpu_s / self._size.idle_s,
            "wakeups": wakeups / self._size.idle_s,
            "processes": len(processes.pids()),
        }

    def _keep(self, product: str, row: str, found: dict[str, Any]) -> None:
        if row in self._wanted:
            self.products[product]["figures"].setdefault(row, []).append(found)

    def report(self, rounds: int) -> dict[str, Any]:
        titles = {name: row.title for name, row in self._rows.items()} | OF_PRODUCTS
        report = {
            "machine": machine(),
            "rounds": rounds,
            "size": vars(self._size),
            "rows": {name: titles[name] for name in ALL if name in self._wanted},
            "products": self.products,
            "clients": self.clients,
        }
        return report | {
            "tables": table.block(report),
        }


@contextlib.contextmanager
def traced(pids: Sequence[int], output: Path) -> Iterator[Path]:
    """Write the calls of the processes that sync files into `output`."""
    attach = (word for pid in pids for word in ("-p", str(pid)))
    with subprocess.Popen(
        ["strace", "-f", "-qq", "-e", "trace=fsync,fdatasync,msync,sync_file_range",
         "-o", output, *attach],
        stdin=subprocess.DEVNULL,
    ) as strace:  # fmt: skip
        try:
            while not all(_is_traced(pid) for pid in pids) and strace.poll() is None:
                time.sleep(0.01)
            yield output
        finally:
            strace.send_signal(signal.SIGINT)
            strace.wait()


def _is_traced(pid: int) -> bool:
    statuses = (task / "status" for task in Path(f"/proc/{pid}/task").iterdir())
    with contextlib.suppress(FileNotFoundError):
        return all("TracerPid:\t0\n" not in status.read_text() for status in statuses)
    return False


def anonymous_mb(pids: Sequence[int]) -> float:
    """Return the anonymous memory of processes, in MB (10^6 bytes)."""
    found = 0
    for pid in pids:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                found += int(line.split()[1]) * 1024
    return found / 1e6


def machine() -> dict[str, Any]:
    """Return the properties of this machine, two of them measured."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    models = [line.partition(": ")[2] for line in lines if line.startswith("model name")]
    kind = subprocess.run(
        ["stat", "-f", "-c", "%T", packages.BUILD], capture_output=True, text=True, check=True
    )
    return {
        "processor": models[0] if models else platform.machine(),
        "cpus": os.cpu_count(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "file_system": kind.stdout.strip(),
        "fdatasync_us": fdatasync_us(),
        "sleep_loop_percent": sleep_loop_percent(),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }


def fdatasync_us(times: int = 200) -> float:
    with tempfile.TemporaryFile(dir=packages.BUILD) as file:
        began = time.perf_counter()
        for _ in range(times):
            os.pwrite(file.fileno(), bytes(4096), 0)
            os.fdatasync(file.fileno())
        return (time.perf_counter() - began) / times * 1e6


def sleep_loop_percent(seconds: float = 2.0) -> float:
    before = own_cpu()
    for _ in range(int(seconds * 25)):
        time.sleep(1 / 25)
    return 100 * (own_cpu() - before).whole_s / seconds


def say(what: str) -> None:
    print(what, file=sys.stderr, flush=True)


def show(report: dict[str, Any]) -> None:
    """Print the tables with a row for each client: there are too many for columns."""
    for columns, lines in table.sections(report):
        shown = Table("", *(line[0] for line in lines), box=None)
        for place, title in enumerate(columns[1:], start=1):
            shown.add_row(title, *(line[place] for line in lines))
        Console(width=40 + 28 * len(lines)).print(shown)
    print(table.machine(report))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--peers", default="", help=f"of {', '.join(PRODUCTS)}")
    parser.add_argument("--rows", default="", help=f"of {', '.join(ALL)}")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--output", type=Path, default=OUTPUT, help="file of all figures, in JSON")
    parser.add_argument("--small", action="store_true", help="small counts, to see that it works")
    return parser.parse_args()


def chosen(text: str, known: Sequence[str]) -> list[str]:
    """Return the names of a list, or all known ones. Raises SystemExit for an unknown one."""
    names = [name for name in text.split(",") if name]
    for name in names:
        if name not in known:
            raise SystemExit(f"unknown name '{name}': use some of {', '.join(known)}")
    return names or list(known)


def available(names: Sequence[str]) -> Iterator[tuple[str, Product]]:
    """Yield the products that can be had. Print in one line why another cannot."""
    for name in names:
        product = PRODUCTS[name]()
        try:
            product.bring()
            if not OURS.issuperset(product.clients):
                packages.python()
        except Missing as error:
            say(f"skipping {name}: {error}")
        else:
            yield name, product


def main() -> int:
    options = parse()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the servers end with it
    wanted = set(chosen(options.rows, ALL))
    bench = Bench(SMALL if options.small else Size(), wanted)
    products = dict(available(chosen(options.peers, tuple(PRODUCTS))))
    for name, product in products.items():
        bench.add(name, product)
    for number in range(1, options.rounds + 1):
        for name, product in products.items():
            say(f"round {number} of {options.rounds}: {name}")
            bench.round(name, product)
    report = bench.report(options.rounds)
    show(report)
    options.output.write_text(json.dumps(report, indent=2, ensure_ascii=False) + "\n")
    print(f"wrote {options.output}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
