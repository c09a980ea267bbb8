"""Alerts and dashboards: each name and label exists, and each alert has its two cases."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest
import yaml

from support.repository.tree import ROOT, docs_script, script

PROMETHEUS = ROOT / "deploy" / "prometheus"
GRAFANA = ROOT / "deploy" / "grafana"
# Labels of each series: of the process, and of Prometheus.
SHARED = {"cluster", "node_type", "node_id", "job", "instance", "le"}
MATCHER = re.compile(r"(\w+)\s*(?:=~|!~|!=|=)\s*\"")
GROUPING = re.compile(r"\b(?:by|on|ignoring|without|group_left)\s*\(([^)]*)\)")


def rules() -> list[dict[str, object]]:
    loaded = yaml.safe_load((PROMETHEUS / "alerts.yml").read_text(encoding="utf-8"))
    return [rule for group in loaded["groups"] for rule in group["rules"]]


def expressions() -> Iterator[tuple[str, str]]:
    for rule in rules():
        yield str(rule["alert"]), str(rule["expr"])
    for path in sorted(GRAFANA.glob("*.json")):
        for panel in json.loads(path.read_text(encoding="utf-8"))["panels"]:
            for target in panel["targets"]:
                yield f"{path.name}: {panel['title']}", target["expr"]


@pytest.mark.parametrize(("place", "expression"), list(expressions()))
def test_names_and_labels_of_an_expression_exist(place: str, expression: str) -> None:
    known = docs_script("metrics").all_metrics()
    # Job names look like metrics, and are values.
    bare = re.sub(r'"[^"]*"', '""', expression)
    labels, found = set(SHARED), []
    for name in re.findall(r"\b(?:rocketmq|aerobee)_\w+", bare):
        metric = known.get(re.sub(r"_(?:bucket|sum|count)$", "", name)) or known.get(name)
        assert metric is not None, name
        is_part = name != metric.exposed
        assert is_part is (metric.kind.value == "histogram"), name
        labels.update(metric.labels)
        found.append(metric)
    assert found or "up{" in expression
    grouped = [each for part in GROUPING.findall(bare) for each in re.findall(r"\w+", part)]
    for label in (*MATCHER.findall(expression), *grouped):
        assert label in labels, (label, place)


def test_former_names_are_not_used() -> None:
    former = {
        metric.former
        for metrics in docs_script("metrics").services().values()
        for metric in metrics
        if metric.former
    }
    for place, expression in expressions():
        assert not former & set(re.findall(r"\w+", expression)), place


def test_each_alert_has_a_case_that_fires_and_one_that_does_not() -> None:
    cases = yaml.safe_load((PROMETHEUS / "alerts_test.yml").read_text(encoding="utf-8"))["tests"]
    fires: dict[str, list[bool]] = {}
    for case in cases:
        for tested in case["alert_rule_test"]:
            fires.setdefault(tested["alertname"], []).append(bool(tested["exp_alerts"]))
    assert fires == {str(rule["alert"]): [True, False] for rule in rules()}
    for rule in rules():
        assert set(dict(rule)["annotations"]) == {"summary", "action"}  # type: ignore[call-overload]


def test_dashboards_are_those_of_the_script_and_choose_their_data_source() -> None:
    dashboards = script(ROOT / "deploy" / "dashboards.py")
    files = {path.stem: path.read_text(encoding="utf-8") for path in GRAFANA.glob("*.json")}
    assert files == {name: dashboards.text(name) for name in dashboards.DASHBOARDS}
    for content in files.values():
        loaded = json.loads(content)
        sources = [panel["datasource"]["uid"] for panel in loaded["panels"]]
        assert set(sources) == {"${datasource}"}
