"""Test that every text of a report can be written: halves of surrogate pairs are escaped."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from aerobee_spark.reading.redaction import Redaction
from aerobee_spark.report.data.coverage import Coverage
from aerobee_spark.report.data.figures import Figures
from aerobee_spark.report.data.forecast import Forecast
from aerobee_spark.report.data.summary import build, preview
from aerobee_spark.report.every_group import failed_group, render, summarize
from aerobee_spark.report.every_group import show as show_groups
from aerobee_spark.report.formats import encodable
from aerobee_spark.report.request import ReportRequest
from aerobee_spark.report.view import page, tables
from aerobee_wire import properties as props
from unit.aerobee_spark.report.test_page import dead_letter

HALF = json.loads(r'"\ud83d"')  # valid JSON in plain ASCII
# Half of the characters are halves of surrogate pairs.
TEXTS = st.text(st.one_of(st.characters(), st.characters(categories=["Cs"])), max_size=20)
VALUES = st.recursive(
    st.one_of(TEXTS, st.integers(), st.booleans(), st.none()),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(TEXTS, inner, max_size=4)),
    max_leaves=12,
)
QUICK = settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@pytest.mark.parametrize(
    ("given_text", "expected"),
    [("plain", "plain"), ("schön 😀", "schön 😀"), (f"a{HALF}b", r"a\ud83db"), ("", "")],
)
def test_only_what_cannot_be_encoded_is_escaped(given_text: str, expected: str) -> None:
    assert encodable(given_text) == expected
    assert encodable({given_text: [given_text, 1, None]}) == {expected: [expected, 1, None]}


@QUICK
@given(VALUES)
def test_any_value_can_be_encoded(value: Any) -> None:
    shown = json.dumps(encodable(value), ensure_ascii=False)
    assert shown.encode().decode() == shown
    assert encodable(encodable(value)) == encodable(value)


@settings(QUICK, max_examples=40)  # each renders a whole report
@example(r"""{"name": "\ud83d"}""", {})
@example("[" * 4_000 + "]" * 4_000, {})
@given(st.one_of(VALUES.map(json.dumps), st.text()), st.dictionaries(TEXTS, VALUES, max_size=3))
def test_reports_of_any_body_can_be_written(
    tmp_path: Path, body: str, extra: dict[str, Any]
) -> None:
    """Write the page, CSV, JSON and the text for a terminal."""
    sample = dead_letter("id") | {
        "body": body.encode("utf-8", "replace"),
        "body_size": len(body.encode("utf-8", "replace")),
        "properties": {"key": "value", props.LITE_TOPIC: "lite"},
    }
    request = ReportRequest("h:1", "g", Path("out"), extra={f"x{k}": v for k, v in extra.items()})
    summary = build(
        request,
        Coverage(()),
        Figures(samples=[sample]),
        engine="local",
        forecast=Forecast(),
        now_ms=1_760_000_100_000,
        bucket_ms=1000,
        earlier=None,
    )
    texts = [
        page.render(summary, encodable(request.extra)),
        json.dumps(summary, ensure_ascii=False),
        tables.show(summary),
    ]
    assert all(text.encode() for text in texts)
    for table in tables.tables_of(summary):
        tables.write_csv(tmp_path / f"{table.name}.csv", table.columns, table.rows)
    assert json.loads(texts[1]) == summary


@QUICK
@given(TEXTS)
def test_pages_of_all_groups_with_any_problem_can_be_written(problem: str) -> None:
    summary = summarize(
        ReportRequest("h:1", "", Path("out")), [failed_group("g", problem)], [], now_ms=1
    )
    for text in (render(summary), show_groups(summary), json.dumps(summary, ensure_ascii=False)):
        assert text.encode()


@QUICK
@given(VALUES)
def test_redacted_bodies_with_any_json_are_bytes_of_json(value: Any) -> None:
    body = json.dumps({"secret": value, "other": [value]}).encode()
    redacted = Redaction.of(["secret"], b"").body(body, is_readable=True)
    assert json.loads(redacted)["secret"] != value or value is None


def test_preview_of_json_with_half_a_pair_shows_its_escape() -> None:
    body = rb'{"name": "\ud83d"}'
    assert preview(body, 0, whole_size=len(body)) == ('{\n  "name": "\\ud83d"\n}', "json")


def test_json_that_is_nested_too_deeply_is_shown_as_text() -> None:
    body = b"[" * 100_000
    assert preview(body, 0, whole_size=len(body))[1] == "text"
