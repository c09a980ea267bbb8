"""The figures of campaigns: one row for each fault and mode, as Markdown.

    PYTHONPATH=tests python -m fault.replication.namespaces.figures

prints the table of what the campaigns here have left in build/namespaces.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from fault.replication.namespaces.faults import FAULTS
from fault.replication.namespaces.verdict import Counts

FOLDER = Path(__file__).resolve().parents[4] / "build" / "namespaces"
HEAD = (
    "| fault | runs | acknowledged | lost | shown and gone | settled, came again | stored twice"
    " | cut, reported as missing | elections | without an acknowledged send: client, s | SDK, s |"
)


def keep(seed: int, counts: Iterable[Counts]) -> None:
    """In place of an earlier history of this seed."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    lines = (json.dumps(asdict(count)) for count in counts)
    (FOLDER / f"{seed}.jsonl").write_text("".join(f"{line}\n" for line in lines))


def kept() -> list[Counts]:
    return [
        Counts(**json.loads(line))
        for path in sorted(FOLDER.glob("*.jsonl"))
        for line in path.read_text().splitlines()
    ]


def table(mode: str, counts: Sequence[Counts]) -> Iterator[str]:
    """Faults in their order, and all of them together."""
    of_mode = [count for count in counts if count.mode == mode]
    yield HEAD
    yield "|" + "---|" * (HEAD.count("|") - 1)
    for fault in FAULTS:
        found = [count for count in of_mode if count.fault == fault.name]
        if found:
            yield row(fault.name.replace("|", "\\|"), found)
    yield row("**all**", of_mode)


def row(fault: str, found: Sequence[Counts]) -> str:
    acknowledged = sum(each.acknowledged for each in found)
    duplicates = sum(each.duplicates for each in found)
    cells = [
        fault,
        str(len(found)),
        f"{acknowledged:,}",
        lost_of(found),
        str(sum(each.gone for each in found)),
        str(sum(each.came_again for each in found)),
        f"{duplicates / acknowledged:.2%}",
        str(sum(each.cut for each in found)),
        str(sum(each.elections for each in found)),
        *(gaps(found, client) for client in ("python", "sdk")),
    ]
    return f"| {' | '.join(cells)} |"


def lost_of(found: Sequence[Counts]) -> str:
    lost = sum(each.lost for each in found)
    if not lost:
        return "0"
    kept = sum(each.named for each in found)
    worst = max(found, key=lambda each: each.lost_s)
    return f"{lost}, {kept} kept; of {worst.lost_s:.1f} s, {worst.behind_s:.1f} s reported"


def gaps(found: Sequence[Counts], client: str) -> str:
    """Median, 99th percentile and most, in seconds."""
    seconds = sorted(each.gaps_s[client] for each in found if client in each.gaps_s)
    if not seconds:
        return "–"
    late = seconds[min(len(seconds) - 1, int(0.99 * len(seconds)))]
    return f"{statistics.median(seconds):.1f}, {late:.1f}, {seconds[-1]:.1f}"


def main() -> None:
    counts = kept()
    for mode in sorted({count.mode for count in counts}):
        print(f"\n{mode}\n")
        print("\n".join(table(mode, counts)))


if __name__ == "__main__":
    main()
