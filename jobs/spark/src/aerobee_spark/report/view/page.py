"""Render report.html, a self-contained page without scripts, in light and dark colors.

This module prepares the summary for the template. The template escapes every text of a user. This
module does no I/O except reading its templates.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from aerobee_spark.report.data.summary import Summary
from aerobee_spark.report.formats import duration, moment, size
from aerobee_spark.report.view import charts

TEMPLATE = "page.html.j2"
STYLE = "page.css"
MOST_DELAYS = 4

# key of the summary → heading of its bar chart
RANKINGS = {
    "dead_letters_by_tag": "By tag",
    "dead_letters_by_reason": "By reason",
    "dead_letters_by_origin_topic": "By origin topic",
    "dead_letters_by_producer": "By producer",
    "reconsume_times": "By reconsume times",
}
SAMPLE_GROUPS = {"newest": "The newest of each tag and reason", "oldest": "The oldest of all"}


def render(summary: Summary, extra: Mapping[str, Any]) -> str:
    """Render the page of a report.

    `extra` has the figures of --extra-json. They are also part of the summary.
    """
    templates = environment()
    return templates.get_template(TEMPLATE).render(
        s=summary,
        verdict=verdict(summary),
        style=style(templates),
        rankings=[
            (heading, charts.bars(summary[key]))
            for key, heading in RANKINGS.items()
            if summary[key]
        ],
        timeline=charts.timeline(summary["timeline"]["buckets"], summary["timeline"]["bucket_ms"]),
        sample_groups=[
            (heading, rows)
            for chosen, heading in SAMPLE_GROUPS.items()
            if (rows := [sample for sample in summary["samples"] if sample["chosen"] == chosen])
        ],
        extra_figures=[(title(k), v) for k, v in extra.items() if _is_figure(v)],
        extra_charts=[
            (title(k), charts.bars(v, parts=False)) for k, v in extra.items() if _is_chart(v)
        ],
        extra_tables=list(_extra_tables(extra)),
    )


def environment() -> Environment:
    """Return the Jinja environment for the templates of reports, with the filters they use."""
    made = Environment(
        loader=PackageLoader("aerobee_spark", "report/view"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(
        number=number,
        duration=duration,
        size=size,
        moment=moment,
        percent=percent,
        coordinate=coordinate,
        delays=delays,
    )
    made.tests["text"] = lambda value: isinstance(value, str)
    return made


def style(templates: Environment) -> Markup:
    """Return the style sheet of the pages, without escaping.

    The style sheet is a file of the package, and does not contain text of a user.
    """
    loader = templates.loader
    assert loader is not None
    return Markup(loader.get_source(templates, STYLE)[0])


def verdict(summary: Summary) -> str:
    """Return a sentence about the number of messages that the report read."""
    queues = len(summary["queues"])
    where = f"in {number(queues)} {'queue' if queues == 1 else 'queues'}"
    if not summary["complete"]:
        expected = summary["rows_expected"]
        whole = "an unknown number of" if expected is None else number(expected)
        return f"{number(summary['rows'])} of {whole} messages {where} were read."
    if not summary["rows"]:
        return f"There are no messages {where}." if queues else "There are no queues to read."
    if summary["rows"] == 1:
        return f"The only message {where} was read."
    return f"All {number(summary['rows'])} messages {where} were read."


# ---- extra figures ----


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_figure(value: Any) -> bool:
    return isinstance(value, (str, int, float, bool))


def _is_chart(value: Any) -> bool:
    return isinstance(value, dict) and bool(value) and all(map(_is_number, value.values()))


def _extra_tables(extra: Mapping[str, Any]) -> Iterator[tuple[str, list[str], list[list[Any]]]]:
    """Yield (title, columns, rows) of each value of --extra-json that is shown as a table.

    Single figures and mappings of numbers are not shown as tables.
    """
    for key, value in extra.items():
        if _is_figure(value) or _is_chart(value) or value is None or value in ({}, []):
            continue
        if isinstance(value, dict):
            yield title(key), ["", ""], [[name, plain(each)] for name, each in value.items()]
        elif isinstance(value, list) and all(isinstance(each, dict) for each in value):
            columns = list(dict.fromkeys(name for each in value for name in each))
            rows = [[plain(each.get(name)) for name in columns] for each in value]
            yield title(key), [title(name) for name in columns], rows
        else:
            yield title(key), [""], [[plain(value)]]


def plain(value: Any) -> Any:
    return value if value is None or _is_figure(value) else json.dumps(value, ensure_ascii=False)


def title(key: str) -> str:
    """Convert a key of the summary to a title: "mean_delay_by_tag" → "Mean delay by tag"."""
    text = key.replace("_", " ").strip()
    return text[:1].upper() + text[1:]


# ---- filters ----


def number(value: Any) -> str:
    """Format a number for people: 1234 → "1,234", 2.3 → "2.30", None → "–"."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.2f}"
    return str(value)


def percent(value: float | None) -> str:
    """Format a percentage, below 10 % with one decimal.

    A part that is not 0 is not shown as 0 %, and one that is not all is not shown as 100 %.
    """
    if value is None:
        return ""
    if 0 < value < 0.05:
        return "< 0.1 %"
    if 99.5 <= value < 100:
        return "> 99 %"
    return f"{value:.0f} %" if value >= 9.95 or value == 0 else f"{value:.1f} %"


def coordinate(value: float) -> str:
    """Format a length or coordinate of a chart with at most two decimals."""
    return f"{value:.2f}".rstrip("0").rstrip(".")


def delays(settings: Mapping[str, Any]) -> str:
    """Format the retry delays of a group's settings, such as "1 s, 5 s" or "5 s, 10 s … 2 h"."""
    growing = settings["exponential_retry"]
    if growing:
        first, last = duration(growing["initial_ms"]), duration(growing["max_ms"])
        return f"{first}, multiplied by {growing['multiplier']} each time, up to {last}"
    times = [duration(ms) for ms in settings["retry_delays_ms"]]
    shown = times[:MOST_DELAYS]
    more = " …" if len(times) > len(shown) else ""
    return ", ".join(shown) + more if shown else "the broker's delay levels from level 3 on"
