"""The figures that the demo must find, computed from the rows of the CSV alone. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from fractions import Fraction

from aerobee_cli.demo.flights import UNKNOWN, Row
from aerobee_cli.demo.job import MAX_ATTEMPTS
from aerobee_cli.demo.progress import Figures


def expected(rows: Iterable[Row], max_attempts: int = MAX_ATTEMPTS) -> Figures:
    """The figures of a run over `rows`.

    A flight that never arrived fails at every attempt; every other is consumed at the first.
    """
    delays: dict[str, list[int]] = defaultdict(list)
    never_arrived: Counter[str] = Counter()
    for row in rows:
        if UNKNOWN in (row["arr_time"], row["arr_delay"]):
            never_arrived[row["carrier"]] += 1
        else:
            delays[row["carrier"]].append(int(row["arr_delay"]))
    consumed = sum(map(len, delays.values()))
    return Figures(
        messages_sent=consumed + never_arrived.total(),
        messages_consumed=consumed,
        retried=never_arrived.total() * (max_attempts - 1),
        dead_letters=never_arrived.total(),
        dead_letters_by_tag=dict(sorted(never_arrived.items())),
        mean_arrival_delay_by_tag={
            carrier: float(Fraction(sum(values), len(values)))
            for carrier, values in sorted(delays.items())
        },
    )
