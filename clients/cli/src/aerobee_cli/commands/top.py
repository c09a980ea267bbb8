"""Define `aerobee top`: live rates of brokers, topics and groups."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from itertools import islice
from typing import TYPE_CHECKING, Annotated

from aerobee_cli import output
from aerobee_cli.command_line import CommandGroup, Option
from aerobee_cli.options import ClusterOptions, end
from aerobee_cli.output import Item, unanswered_of
from aerobee_cli.table import Column, Table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aerobee_client.admin.stats import Sample, StatsSample

app = CommandGroup()

UNKNOWN = "?"


def figure_text(value: float | None) -> str:
    """Format a value: whole from 10 on, else with a decimal place if needed; "?" if unknown."""
    if value is None:
        return UNKNOWN
    return f"{value:,.0f}" if value >= 10 or value == int(value) else f"{value:.1f}"


def _figure(title: str, key: str, *, extra: bool = False) -> Column:
    return Column(title, key, figure_text, right=True, extra=extra)


# Parts of the tables below.
_IN = [_figure("in/s", "messages_in"), _figure("bytes in/s", "bytes_in", extra=True)]
_OUT = [_figure("out/s", "messages_out"), _figure("bytes out/s", "bytes_out", extra=True)]
_FAILED = [
    _figure("redelivered/s", "redelivered"),
    _figure("dead/s", "dead_lettered"),
    _figure("lag", "lag"),
]
BROKER_COLUMNS = (
    Column("broker", "name"),
    *_IN,
    *_OUT,
    *_FAILED,
    _figure("send p50 (ms)", "send_latency_p50_ms", extra=True),
    _figure("send p99 (ms)", "send_latency_p99_ms"),
)
TOPIC_COLUMNS = (Column("topic", "name"), *_IN, *_OUT)
GROUP_COLUMNS = (Column("group", "name"), *_OUT, *_FAILED)


@app.add(epilog="Example: aerobee top --top 20")
def top(
    *,
    rows: Annotated[
        int,
        Option("--top", metavar="N", min=1, max=100, help="How many topics and groups at most."),
    ] = 10,
    count: Annotated[
        int, Option(metavar="N", min=0, help="End after this many seconds; 0: with Ctrl-C.")
    ] = 0,
    options: ClusterOptions,
) -> None:
    """Show live rates of brokers, and of the busiest topics and groups.

    Each second, the values of the last second are shown, and for groups also the lag. A value that
    is not known is "?", such as that of a topic while a broker does not answer. If stdout is not a
    terminal, or with --json, each second is printed once. Exit code 3: a broker did not answer at
    the end.
    """
    sample = None
    with options.admin() as admin, _shown(as_json=options.json) as show:
        samples = admin.watch_stats(busiest_topics=rows, busiest_groups=rows)
        try:
            for sample in islice(samples, count or None):
                show(sample, rows)
        except KeyboardInterrupt:
            if count:
                raise
    end(unanswered_of(sample.unanswered) if sample is not None else ())


@contextmanager
def _shown(*, as_json: bool) -> Iterator[Callable[[StatsSample, int], None]]:
    """Yield a function that shows a sample, as JSON, as text, or on the screen of a terminal."""
    if as_json:
        yield _show_json
    elif not sys.stdout.isatty():
        yield lambda sample, rows: print("\n".join((*screen(sample, rows, None), "")), flush=True)
    else:
        from rich.live import Live
        from rich.text import Text

        with Live(screen=True, auto_refresh=False) as live:

            def show(sample: StatsSample, rows: int) -> None:
                size = shutil.get_terminal_size()
                lines = screen(sample, rows, size.columns)[: size.lines]
                live.update(Text("\n".join(lines), no_wrap=True), refresh=True)

            yield show


def _show_json(sample: StatsSample, _: int) -> None:
    output.show_one(asdict(sample), as_json=True)
    sys.stdout.flush()


def screen(sample: StatsSample, rows: int, width: int | None) -> list[str]:
    """Return the lines of a sample. `width` is None for programs."""
    brokers = [
        {"name": name, **sample.brokers.by_broker[name]} for name in sample.brokers.by_broker
    ]
    brokers.sort(key=lambda item: str(item["name"]))
    if len(brokers) + len(sample.unanswered) > 1:
        brokers.append({"name": "all", **sample.brokers.cluster})
    lines: list[str] = []
    for columns, items in (
        (BROKER_COLUMNS, brokers),
        (TOPIC_COLUMNS, busiest(sample.topics, rows)),
        (GROUP_COLUMNS, busiest(sample.groups, rows)),
    ):
        if items:
            lines += [*Table(columns).lines(items, width), ""]
    lines += [f"no answer: {name}: {reason}" for name, reason in sample.unanswered.items()]
    if sample.omitted:
        hidden = output.counted(sum(sample.omitted.values()), "active topic or group")
        lines.append(f"no room for the rates of {hidden}")
    return lines


def busiest(samples: Mapping[str, Sample], rows: int) -> list[Item]:
    """Return the rows with the most messages in and out, then with the largest lag.

    The values of the brokers that answered decide.
    """

    def total(name: str, *figures: str) -> float:
        parts = samples[name].by_broker.values()
        return sum(values.get(figure) or 0 for values in parts for figure in figures)

    def order(name: str) -> tuple[float, float, str]:
        return -total(name, "messages_in", "messages_out"), -total(name, "lag"), name

    names = sorted(samples, key=order)[:rows]
    return [{"name": name, **samples[name].cluster} for name in names]
