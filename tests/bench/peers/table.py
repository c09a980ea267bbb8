"""Format the figures of all rounds: medians with ranges, or why there is no figure."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from bench.peers.rows import ALL, OF_PRODUCTS, V2

Figures = Mapping[str, Any]
NOTHING = "–"


def cell(row: str, rounds: Sequence[Figures]) -> str:
    """Return one cell of a table. A row that was refused in one round has no figure at all."""
    for found in rounds:
        if "refused" in found:
            return f"refused: {found['refused'].splitlines()[0]}"
    if not rounds or any("absent" in found for found in rounds):
        return NOTHING
    return _SHOWN.get(row, _rate_and_cost)(rounds)


def _seconds(rounds: Sequence[Figures]) -> str:
    return _range(_each(rounds, "seconds"), _short)


def _idle(rounds: Sequence[Figures]) -> str:
    wakeups = _range(_each(rounds, "wakeups"), _short)
    return f"{_range(_each(rounds, 'cpu_percent'), _short)} · {wakeups}"


def _memory(rounds: Sequence[Figures]) -> str:
    fresh, loaded = _each(rounds, "fresh_mb"), _each(rounds, "loaded_mb")
    return f"{statistics.median(fresh):,.0f} · {_range(loaded, _whole)}"


def _syncs(rounds: Sequence[Figures]) -> str:
    return _range([found["syncs"] / found["sent"] for found in rounds], _short)


def _percentiles(rounds: Sequence[Figures]) -> str:
    parts = (_range(_each(rounds, f"p{percent}_ms"), _short) for percent in (50, 99))
    return f"{' · '.join(parts)}; {cost(rounds)}"


def _seconds_and_cost(rounds: Sequence[Figures]) -> str:
    return f"{_seconds(rounds)}; {cost(rounds)}"


def _rate_and_cost(rounds: Sequence[Figures]) -> str:
    return f"{_range([rate(found) for found in rounds], _whole)}/s; {cost(rounds)}"


# The rows that do not show a rate and its cost.
_SHOWN: Mapping[str, Callable[[Sequence[Figures]], str]] = {
    "ready": _seconds,
    "idle": _idle,
    "memory": _memory,
    "syncs": _syncs,
    "paced": _percentiles,
    "letters": _seconds_and_cost,
}


def check_synced(found: dict[str, Any]) -> None:
    """Refuse the figures of sends that were acknowledged without a sync of the disk."""
    if found["syncs"] < found["sent"]:
        found["refused"] = f"{found['syncs']} syncs for {found['sent']} sends, one after the other"


def rate(found: Figures) -> float:
    return float(found["messages"] / found["seconds"])


def cost(rounds: Sequence[Figures]) -> str:
    """Return the processor time for a message in µs, of the servers and of the client."""
    parts = []
    for side in ("servers", "client"):
        each = [
            (found[f"{side}_user_s"] + found[f"{side}_system_s"]) / found["messages"] * 1e6
            for found in rounds
        ]
        parts.append(_short(statistics.median(each)))
    return " + ".join(parts)


def markdown(columns: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    head = f"| {' | '.join(columns)} |\n|---|{'---:|' * (len(columns) - 1)}\n"
    return head + "".join(f"| {' | '.join(line)} |\n" for line in lines)


def sections(report: Mapping[str, Any]) -> list[tuple[list[str], list[list[str]]]]:
    """Return columns and lines of each table: own clients, the lean client, products."""
    clients = report["clients"]
    own = [name for name in clients if not name.endswith("/lean_v2")]
    lean = [name for name in clients if name.endswith("/lean_v2")]
    titles = report["rows"]
    of_own = [row for row in titles if row not in OF_PRODUCTS and row not in V2]
    return [
        each
        for each in (
            _table(report, of_own, own, lambda name: clients[name]["title"], "clients"),
            _table(report, V2, lean, lambda name: clients[name]["title"], "clients"),
            _table(
                report, OF_PRODUCTS, list(report["products"]),
                lambda name: report["products"][name]["title"], "products",
            ),
        )
        if each[1]
    ]  # fmt: skip


def _table(
    report: Mapping[str, Any],
    rows: Iterable[str],
    names: Sequence[str],
    title: Callable[[str], str],
    kind: str,
) -> tuple[list[str], list[list[str]]]:
    lines = []
    for row in rows:
        cells = [cell(row, report[kind][name]["figures"].get(row, ())) for name in names]
        if any(each != NOTHING for each in cells):
            lines.append([report["rows"][row], *cells])
    return ["", *map(title, names)], lines


def block(report: Mapping[str, Any]) -> str:
    """Return the tables for docs/compare.md, with the machine and each product's settings."""
    parts = [markdown(*section) for section in sections(report)]
    settings = markdown(
        ["product", "a message is on the disk before its send is acknowledged by"],
        [[each["title"], each["durability"]] for each in report["products"].values()],
    ).replace("---:", "---")
    ways = markdown(
        ["client", "row", "how"],
        [
            [each["title"], way, how]
            for each in report["clients"].values()
            for way, how in each["how"].items()
            if any(row.removeprefix("v2_").startswith(way) for row in measured(each))
        ],
    ).replace("---:", "---")
    return "\n".join([*parts, settings, ways, machine(report), *_left_out(report), ""])


def measured(each: Mapping[str, Any]) -> set[str]:
    """Return the rows of a client or a product that the tables show."""
    return {row for row, rounds in each["figures"].items() if cell(row, rounds) != NOTHING}


def _left_out(report: Mapping[str, Any]) -> list[str]:
    """Return a paragraph that names the rows without a figure, if there are any."""
    shown: set[str] = set()
    for each in (*report["clients"].values(), *report["products"].values()):
        shown |= measured(each)
    missing = [f"`{row}`" for row in ALL if row not in shown]
    return [f"\nThese rows of `ROWS` were not measured: {', '.join(missing)}."] if missing else []


def machine(report: Mapping[str, Any]) -> str:
    of, count = report["machine"], report["rounds"]
    rounds = "One round" if count == 1 else f"Medians of {count} rounds (minimum–maximum)"
    return (
        f"{of['processor']}, {of['cpus']} cores, Linux {of['kernel']}, CPython {of['python']}, "
        f"{of['file_system']}: a write of 4 KiB and fdatasync takes {of['fdatasync_us']:,.0f} µs, "
        f"a loop that sleeps 25 times a second {of['sleep_loop_percent']:.1f} % of a core. "
        f"{rounds}, {of['date']}."
    )


def _each(rounds: Sequence[Figures], name: str) -> list[float]:
    return [float(found[name]) for found in rounds]


def _range(values: Sequence[float], show: Callable[[float], str]) -> str:
    middle = show(statistics.median(values))
    if len(values) == 1:
        return middle
    return f"{middle} ({show(min(values))}–{show(max(values))})"


def _whole(value: float) -> str:
    return f"{value:,.0f}"


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
