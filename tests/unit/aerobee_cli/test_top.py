"""What `aerobee top` shows of a second."""

from __future__ import annotations

import pytest

from aerobee_cli.commands.top import busiest, figure_text, screen
from aerobee_client.admin.stats import (
    BROKER_FIGURES,
    GROUP_FIGURES,
    TOPIC_FIGURES,
    Sample,
    StatsSample,
)


def sample_of(figures: tuple[str, ...], **by_broker: float | None) -> Sample:
    parts = {name: dict.fromkeys(figures, value) for name, value in by_broker.items()}
    known = [value for value in by_broker.values() if value is not None]
    total = sum(known) if len(known) == len(by_broker) else None
    return Sample(cluster=dict.fromkeys(figures, total), by_broker=parts)


def second(**fields: object) -> StatsSample:
    given: dict[str, object] = {
        "end_timestamp_ms": {"a": 1_000},
        "brokers": sample_of(BROKER_FIGURES, a=12.0),
        "topics": {},
        "groups": {},
        "omitted": {},
        "unanswered": {},
    }
    return StatsSample(**given | fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "?"), (0, "0"), (2.0, "2"), (0.25, "0.2"), (9.96, "10.0"), (12_345.6, "12,346")],
)
def test_a_figure_is_short_and_an_unknown_one_is_a_question_mark(
    value: float | None, text: str
) -> None:
    assert figure_text(value) == text


def test_the_busiest_are_first_then_those_that_are_behind() -> None:
    samples = {
        "idle": sample_of(TOPIC_FIGURES, a=0.0),
        "busy": sample_of(TOPIC_FIGURES, a=1.0, b=None),
        "busier": sample_of(TOPIC_FIGURES, a=3.0),
        "behind": sample_of(("messages_out",), a=0.0),
    }
    samples["behind"].by_broker["a"]["lag"] = 7.0  # type: ignore[index]
    assert [item["name"] for item in busiest(samples, 3)] == ["busier", "busy", "behind"]


def test_a_screen_has_brokers_topics_and_groups() -> None:
    lines = screen(
        second(
            topics={"orders": sample_of(TOPIC_FIGURES, a=2.0)},
            groups={"billing": sample_of(GROUP_FIGURES, a=3.0)},
        ),
        rows=10,
        width=200,
    )
    text = "\n".join(lines)
    assert "orders" in text and "billing" in text and "send p99 (ms)" in text
    assert not [line for line in lines if line.startswith(("all", "no answer"))]


def test_a_screen_names_the_brokers_that_do_not_answer() -> None:
    brokers = Sample(
        cluster=dict.fromkeys(BROKER_FIGURES), by_broker={"a": dict.fromkeys(BROKER_FIGURES, 1.0)}
    )
    lines = screen(
        second(brokers=brokers, unanswered={"b": "it hangs"}, omitted={"a": 2}), rows=5, width=200
    )
    (whole,) = [line for line in lines if line.startswith("all")]
    assert whole.split()[1:] == ["?"] * len(BROKER_FIGURES)
    assert "no answer: b: it hangs" in lines
    assert any("2 active" in line for line in lines)
