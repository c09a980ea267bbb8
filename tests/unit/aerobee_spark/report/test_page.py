"""Test the geometry of charts, and the page: well-formed, self-contained, escaped."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aerobee_spark.reading.offsets import Bounds, OffsetRange, Queue
from aerobee_spark.report.data.buckets import DAY, HOUR, MINUTE, choose, parse_width
from aerobee_spark.report.data.coverage import Coverage, QueueCoverage
from aerobee_spark.report.data.figures import Figures
from aerobee_spark.report.data.forecast import Forecast
from aerobee_spark.report.data.summary import build
from aerobee_spark.report.formats import iso, moment
from aerobee_spark.report.request import DLQ, ReportRequest
from aerobee_spark.report.view import charts, page
from aerobee_wire import topics

EVIL = "\"><script>alert(1)</script>'&amp;"
VOID = {"meta", "br", "rect", "line", "path", "circle"}


class Outline(HTMLParser):
    """Parses a page, and records the open elements and all elements."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.met: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.met.add(tag)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.met.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open.pop() == tag, f"</{tag}> closes nothing"


def outline(html: str) -> Outline:
    parser = Outline()
    parser.feed(html)
    parser.close()
    assert parser.open == []
    return parser


def dead_letter(text: str) -> dict[str, Any]:
    return {
        "chosen": "newest",
        "message_id": text,
        "origin_message_id": text,
        "origin_topic": text,
        "tag": text,
        "keys": text,
        "reason": text,
        "description": text,
        "reconsume_times": 2,
        "born_at": 1_760_000_000_000,
        "stored_at": 1_760_000_000_500,
        "producer": text,
        "topic": text,
        "broker_name": text,
        "queue_id": 0,
        "queue_offset": 4,
        "properties": {text: text},
        "body_size": len(text),
        "body": text.encode(),
        "sys_flag": 0,
    }


def measured(kind: str, **columns: Any) -> dict[str, Any]:
    return {
        "kind": kind,
        "messages": 3,
        "body_bytes": 9,
        "first_ms": 1_760_000_000_000,
        "last_ms": 1_760_000_009_000,
        "quantiles": [10, 20],
        "longest_ms": 30,
    } | columns


def figures(text: str) -> Figures:
    key = {"key": text, "messages": 2, "dead_letters": 2, "tags": [text], "reasons": [text]}
    key |= {"number_of_tags": 1, "number_of_reasons": 38, "poison_keys": 18}
    return Figures(
        groups={
            "total": [measured(DLQ)],
            "tag": [measured(DLQ, tags=text), measured(DLQ, tags="UA")],
            "reason": [measured(DLQ, reason=text), measured(DLQ, reason=None)],
            "reason_and_tag": [
                measured(DLQ, reason=text, tags=text),
                measured(DLQ, reason=None, tags=None),
            ],
            "origin_topic": [measured(DLQ, originTopic=text)],
            "bucket": [
                measured(DLQ, bucket=1_760_000_000_000),
                measured(DLQ, bucket=1_760_000_009_000),
            ],
        },
        messages={"dead": 3, "dead_again": 1, "retried": 0, "retried_and_dead": 0},
        poison_keys=[key | {"first_ms": 0, "last_ms": 1}],
        samples=[dead_letter(text), dead_letter(text) | {"chosen": "oldest"}],
    )


def rendered(found: Figures, *, rows: int = 3, problem: str = "", **request: Any) -> str:
    queue = Queue(topics.dead_letter_topic("g"), "broker-a", 0)
    covered = QueueCoverage(queue, Bounds(0, 3), OffsetRange(queue, 0, 3), rows, problem)
    asked = ReportRequest("h:1", "g", Path("out"), **request)
    summary = build(
        asked,
        Coverage((covered,)),
        found,
        engine="local",
        forecast=Forecast(),
        now_ms=1_760_000_100_000,
        bucket_ms=1000,
        earlier=None,
    )
    return page.render(summary, asked.extra)


def test_a_page_is_well_formed_and_self_contained() -> None:
    html = rendered(figures("UA"))
    seen = outline(html)
    assert {"svg", "table", "details", "figure", "main", "h1"} <= seen.met
    assert not {"script", "link", "img", "iframe"} & seen.met
    assert "http:" not in html and "https:" not in html and "url(" not in html
    assert "All 3 messages in 1 queue were read." in html


def test_each_cell_has_its_heading_for_a_phone() -> None:
    """On a narrow screen each row becomes a block, and the headings stand before the values."""
    html = rendered(figures("UA"), extra={"list": [{"a": "x", "b": 1}]})
    tables = re.findall(r"<table>.*?</table>", html, re.DOTALL)
    assert len(tables) >= 3
    for table in tables:
        headings = re.findall(r"<th[^>]*>([^<]*)</th>", table)
        cells = re.findall(r'<td data-label="([^"]*)"', table)
        assert table.count("<td") == len(cells) > 0
        assert cells == headings * (len(cells) // len(headings))


def test_times_are_those_of_the_machine() -> None:
    at = "2026-01-31T08:00:00.000Z"
    assert moment(at) == "2026-01-31 08:00:00 UTC"
    assert moment(at, ZoneInfo("Europe/Berlin")) == "2026-01-31 09:00:00 CET"


def test_user_text_is_escaped_everywhere() -> None:
    extra = {EVIL: EVIL, "by_tag": {EVIL: 1.5}, "list": [{EVIL: EVIL}], "other": [EVIL]}
    html = rendered(figures(EVIL), extra=extra, problem=EVIL)
    assert "script" not in outline(html).met
    assert "<script" not in html
    assert html.count("&lt;script&gt;") > 20


def test_an_incomplete_page_says_so_first_with_the_problem() -> None:
    html = rendered(figures("UA"), rows=2, problem="broker-a is down")
    assert (
        html.index("Not complete")
        < html.index("broker-a is down")
        < html.index("Dead letters</dt>")
    )
    assert "2 of 3 messages in 1 queue were read." in html


def test_a_page_without_messages_says_that_there_are_none() -> None:
    html = rendered(Figures(), rows=3)
    outline(html)
    assert "No dead letters" in html


def test_extra_figures_are_tiles_bars_and_tables() -> None:
    extra = {
        "messages_sent": 20_000,
        "mean_delay_by_tag": {"UA": 3.5, "AS": -7.25},
        "mixed": {"a": "x", "b": {"c": 1}},
        "flights": [{"one": 1}, {"two": 2.0}],
        "nothing": None,
        "empty": {},
    }
    html = rendered(figures("UA"), extra=extra)
    outline(html)
    titles = ("Messages sent", "Mean delay by tag", "Mixed", "Flights", "Two")
    for text in (*titles, "20,000", "-7.25"):
        assert text in html
    assert "Nothing" not in html and "Empty" not in html


# ---- geometry ----


def test_bars_share_one_scale_and_say_their_part() -> None:
    drawn = charts.bars({"a": 30, "b": 10})
    assert [(bar.x, bar.width, bar.share) for bar in drawn.bars] == [(0, 100, 75), (0, 100 / 3, 25)]
    assert charts.bars({}).bars == []
    assert charts.bars({"a": 0}).bars[0].width == 0


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0, "0 %"), (0.01, "< 0.1 %"), (0.05, "0.1 %"), (9.96, "10 %"), (99.99, "> 99 %")],
)
def test_a_small_share_is_not_0_and_a_large_one_not_all(value: float, shown: str) -> None:
    assert page.percent(value) == shown


def test_negative_bars_go_to_the_left_of_zero() -> None:
    drawn = charts.bars({"a": 30, "b": -10}, parts=False)
    assert drawn.zero == 25
    assert [(bar.x, bar.width, bar.share) for bar in drawn.bars] == [(25, 75, None), (0, 25, None)]


def test_bars_over_the_limit_are_summed() -> None:
    drawn = charts.bars({str(i): 1 for i in range(charts.MOST_BARS + 5)})
    assert (len(drawn.bars), drawn.hidden, drawn.hidden_sum) == (charts.MOST_BARS, 5, 5)


def bucket(start_ms: int, dead: int, retries: int = 0) -> dict[str, Any]:
    return {"start": iso(start_ms), "start_ms": start_ms, "dead_letters": dead, "retries": retries}


def test_a_timeline_stacks_retries_on_dead_letters_inside_its_box() -> None:
    drawn = charts.timeline([bucket(0, 4, 4), bucket(5000, 2)], 1000)
    assert drawn is not None
    first, last = drawn.columns
    assert first.retry_y + first.retry_height == pytest.approx(first.dead_y)
    assert first.dead_y + first.dead_height == pytest.approx(drawn.bottom)
    assert drawn.left <= first.x and last.x + last.width <= drawn.right
    assert drawn.peak is first
    assert charts.timeline([], 1000) is None


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.dictionaries(
        st.integers(0, 1000),
        st.tuples(st.integers(0, 10**7), st.integers(0, 10**7)),
        min_size=1,
        max_size=30,
    ),
    st.sampled_from([1000, MINUTE, HOUR, DAY]),
)
def test_every_column_and_tick_of_a_timeline_lies_in_its_box(
    counts: dict[int, tuple[int, int]], bucket_ms: int
) -> None:
    rows = [
        bucket(i * bucket_ms, dead + 1, retries) for i, (dead, retries) in sorted(counts.items())
    ]
    drawn = charts.timeline(rows, bucket_ms)
    assert drawn is not None
    for column in drawn.columns:
        assert drawn.left - 0.01 <= column.x and column.x + column.width <= drawn.right + 0.01
        assert -0.01 <= column.retry_y <= column.dead_y <= drawn.bottom
    assert all(0 <= tick.position <= drawn.bottom for tick in drawn.y_ticks)
    assert 2 <= len(drawn.y_ticks) <= charts.MOST_Y_STEPS + 1
    assert 1 <= len(drawn.x_ticks) <= charts.MOST_X_LABELS


@pytest.mark.parametrize(
    ("most", "step"), [(1, 1), (5, 1), (6, 2), (57, 20), (500, 100), (501, 200)]
)
def test_steps_are_round_numbers(most: int, step: int) -> None:
    assert charts.nice_step(most) == step


@pytest.mark.parametrize(
    ("bucket_ms", "span_ms", "label"),
    [
        (200, 9_000, "08:53:20.4"),
        (1000, 30_000, "08:53:20"),
        (MINUTE, HOUR, "08:53"),
        (HOUR, 2 * DAY, "10-09 08:53"),
        (DAY, 90 * DAY, "2025-10-09"),
    ],
)
def test_times_on_the_axis_are_as_short_as_they_can_be(
    bucket_ms: int, span_ms: int, label: str
) -> None:
    assert charts.time_label(1_760_000_000_400, bucket_ms, span_ms) == label


# ---- bucket widths ----


def test_widths_are_parsed() -> None:
    widths = [parse_width(text) for text in ("30s", "5m", "1h", "2d")]
    assert widths == [30_000, 5 * MINUTE, HOUR, 2 * DAY]
    for text in ("", "5", "0m", "5 m", "1w", "-1h"):
        with pytest.raises(ValueError):
            parse_width(text)


def test_the_width_follows_the_span() -> None:
    assert choose(None) == choose((5, 5)) == 100
    assert choose((0, 4_000)) == 100
    assert choose((0, 50_000)) == 1000
    assert choose((0, 7 * DAY)) == 3 * HOUR
    assert choose((0, HOUR), MINUTE) == MINUTE
    assert choose((0, 365 * DAY), MINUTE) == 7 * DAY  # instead of half a million buckets


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, 2**42), st.integers(0, 2**42))
def test_a_chosen_width_makes_no_more_columns_than_fit(first: int, length: int) -> None:
    width = choose((first, first + length))
    assert (first + length) // width - first // width + 1 <= 61
