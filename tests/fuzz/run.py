"""Bad requests, bytes and files to each service: prints a table and writes build/fuzz.json.

make fuzz                                          # 100,000 cases for each service
make fuzz FUZZ_CASES=5000 ARGS='--only broker'
make fuzz ARGS='--fuzz-seed 7'                     # the same cases again

Each case must be answered with a code that the contract of its RPC lists. The services must log no
traceback, serve a good client meanwhile, and keep what belongs to it. Cases that no service can
read must change no table. The verb fails if a case does not hold, or if a service needs more than
8 MiB more for each 100,000 cases.
"""

from __future__ import annotations

import argparse
import json
import random
import secrets
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from fuzz import connections
from fuzz.calls import Caller, Finding, GoodClient, Tally
from fuzz.requests import Requests
from fuzz.targets import Target, running
from support.observing.scrape import scrape

OUTPUT = Path(__file__).resolve().parents[2] / "build" / "fuzz.json"
CASES = 100_000
# Shares of all cases; the rest are spoilt requests.
RAW, CONNECTIONS, ALONE = 0.15, 0.05, 0.01
CONNECTIONS_AT_ONCE = 8
PART = 500  # cases, after which what they have deleted is created again
MOST_GROWTH_BYTES = 8 << 20  # for each 100,000 cases
SETTLE_S = 60.0
MOST_SOCKETS = 8  # more than before: of the good client and of the services themselves


@dataclass
class Report:
    """What became of the cases of one service."""

    service: str
    cases: int = 0
    seconds: float = 0.0
    served: int = 0  # calls of the good client
    memory_bytes: int = 0  # growth while the cases ran, without files
    measured_cases: int = 0  # in that time
    sockets: int = 0  # open, more than before
    threads: int = 0  # more than before
    in_flight_bytes: int = 0
    codes: dict[str, dict[str, int]] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)

    @property
    def growth(self) -> float:
        """Return the growth in bytes for each 100,000 cases."""
        return self.memory_bytes * CASES / max(1, self.measured_cases)


def fuzz(target: Target, cases: int, seed: str) -> Report:
    """Send `cases` to a service."""
    tally, begin_s = Tally(), time.monotonic()
    logged = len(target.process.log)
    before = state_of(target)
    requests = Requests(seed, tokens=_tokens(target))
    read, metadata = target.read, target.metadata
    caller = Caller(
        target.name, target.process.address, seed, requests, tally, read=read, metadata=metadata
    )
    raw, hostile, alone = (round(share * cases) for share in (RAW, CONNECTIONS, ALONE))
    alone = alone if target.alone else 0
    spoilt = cases - raw - hostile - alone
    again = spoilt // 2
    with GoodClient(target.name, target.use, tally) as good:
        _in_parts(caller, target, range(spoilt - again))
        # The same requests again store nothing new: what grows now is not freed.
        first_bytes = state_of(target)["memory"]
        _in_parts(caller, target, range(again))
    for number in range(spoilt, spoilt + alone):
        caller.run(target.alone, range(number, number + 1))
        target.restore()
    with GoodClient(target.name, target.use, tally) as better:
        target.restore()
        tables = target.tables()
        _connect(target, range(spoilt + alone, spoilt + alone + hostile), seed, tally)
        if target.tables() != tables:
            tally.find(Finding("bytes that are no request changed a table", target.name))
        caller.run(target.rpcs, range(cases - raw, cases), raw=True)
        target.restore()
    after = _settled(target, before)
    _read_log(target, logged, tally)
    return Report(
        target.name,
        cases=tally.cases,
        seconds=time.monotonic() - begin_s,
        served=good.served + better.served,
        memory_bytes=after["memory"] - first_bytes,
        measured_cases=cases - spoilt + again,
        sockets=after["sockets"] - before["sockets"],
        threads=after["threads"] - before["threads"],
        in_flight_bytes=after["in flight"],
        codes={rpc: dict(counts.most_common()) for rpc, counts in sorted(tally.codes.items())},
        findings=tally.findings,
    )


def _in_parts(caller: Caller, target: Target, cases: range) -> None:
    for begin in range(cases.start, cases.stop, PART):
        target.prepare()
        caller.run(target.rpcs, range(begin, min(begin + PART, cases.stop)))


def _tokens(target: Target) -> list[str]:
    return [target.name, "AAAA"]


def _connect(target: Target, cases: range, seed: str, tally: Tally) -> None:
    kinds = list(connections.KINDS)
    path = target.rpcs[0].path

    def one(number: int) -> None:
        chance = random.Random(f"{seed}:{target.name}:{number}")
        kind = kinds[number % len(kinds)]
        try:
            outcome = connections.attack(
                target.process.address, connections.KINDS[kind](chance, path)
            )
        except OSError as error:
            outcome = "refused"
            what = f"a connection was not accepted: {error}"
            tally.find(Finding(what, target.name, kind, number))
        outcomes.append((kind, outcome))

    outcomes: list[tuple[str, str]] = []
    with ThreadPoolExecutor(CONNECTIONS_AT_ONCE) as pool:
        list(pool.map(one, cases))
    for kind, outcome in outcomes:
        tally.count(kind, outcome)


def state_of(target: Target) -> dict[str, int]:
    """Return the memory of a process without its files, its sockets and threads."""
    root = Path("/proc") / str(target.process.pid)
    status = dict(
        line.split(":", 1) for line in (root / "status").read_text().splitlines() if ":" in line
    )
    descriptors = list((root / "fd").iterdir())
    metrics = scrape(target.process)
    in_flight = sum(value for name, value in metrics.items() if "in_flight_bytes{" in name)
    return {
        "memory": int(status["RssAnon"].split()[0]) * 1024,
        "threads": int(status["Threads"]),
        "sockets": sum(_is_socket(each) for each in descriptors),
        "in flight": int(in_flight),
    }


def _is_socket(descriptor: Path) -> bool:
    try:
        return str(descriptor.readlink()).startswith("socket")
    except FileNotFoundError:  # closed meanwhile
        return False


def _settled(target: Target, before: dict[str, int]) -> dict[str, int]:
    """Return the state of a process once it has closed the connections of all cases."""
    end_s = time.monotonic() + SETTLE_S
    while True:
        after = state_of(target)
        settled = not after["in flight"] and after["sockets"] <= before["sockets"] + MOST_SOCKETS
        if settled or time.monotonic() > end_s:
            return after
        time.sleep(0.2)


def _read_log(target: Target, begin: int, tally: Tally) -> None:
    """Find tracebacks and errors in the log of a service."""
    for line in target.process.log[begin:]:
        if "exception" in line or line.get("level") in ("error", "critical"):
            what = f"logged {line.get('event')}: {str(line.get('exception', line))[-1_500:]}"
            tally.find(Finding(what, target.name, str(line.get("rpc", ""))))
    if "Traceback" in target.process.stderr:
        what = f"wrote on stderr: {target.process.stderr[-1_500:]}"
        tally.find(Finding(what, target.name))


def problems(report: Report) -> list[str]:
    """Return why a report fails."""
    found = [
        f"{each.what}" + (f" (case {each.case})" if each.case >= 0 else "")
        for each in report.findings
    ]
    if report.growth > MOST_GROWTH_BYTES and report.measured_cases >= CASES // 2:
        found.append(f"memory grows by {report.growth / 2**20:.1f} MiB for each 100,000 cases")
    if report.in_flight_bytes:
        found.append(f"{report.in_flight_bytes} bytes are still in flight")
    if report.sockets > MOST_SOCKETS:
        found.append(f"{report.sockets} sockets are still open")
    return found


def _print(report: Report) -> None:
    print(f"\n{report.service}: {report.cases} cases, {report.cases / report.seconds:.0f} a second")
    for rpc, codes in report.codes.items():
        counts = ", ".join(f"{code} {count}" for code, count in codes.items())
        print(f"  {rpc:<32} {sum(codes.values()):>7}  {counts}")
    print(
        f"  good client: {report.served} times · memory {report.growth / 2**20:+.1f} MiB for each "
        f"100,000 cases · sockets {report.sockets:+} · threads {report.threads:+}"
    )
    for problem in problems(report):
        print(f"  FINDING {problem}")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--cases", type=int, default=CASES, help="for each service")
    parser.add_argument("--fuzz-seed", default="", help="that an earlier run has printed")
    parser.add_argument("--only", default="namesrv,broker,proxy", help="services, with commas")
    given = parser.parse_args(arguments)
    seed = given.fuzz_seed or secrets.token_hex(4)
    print(f"seed {seed}: repeat with ARGS='--fuzz-seed {seed}'", flush=True)
    reports: list[Report] = []
    with tempfile.TemporaryDirectory() as folder, running(Path(folder)) as targets:
        for name in given.only.split(","):
            reports.append(fuzz(targets[name], given.cases, seed))
            _print(reports[-1])
    written: dict[str, Any] = {
        "seed": seed,
        "services": [{**asdict(each), "growth": each.growth} for each in reports],
    }
    OUTPUT.parent.mkdir(exist_ok=True)
    OUTPUT.write_text(json.dumps(written, indent=1) + "\n", encoding="utf-8")
    return 1 if any(problems(each) for each in reports) else 0


if __name__ == "__main__":
    sys.exit(main())
