"""Metrics: the page has them all, and each difference from RocketMQ has a reason."""

from __future__ import annotations

import re

import pytest

from support.repository.tree import ROOT, docs_script


def test_the_page_has_the_tables_of_the_code() -> None:
    metrics = docs_script("metrics")
    page = metrics.PAGE.read_text(encoding="utf-8")
    assert metrics.rewritten(page) == page, "run docs/metrics.py"
    with pytest.raises(SystemExit):
        metrics.rewritten("no marks")


def test_each_metric_of_rocketmq_is_served_or_has_a_reason() -> None:
    metrics = docs_script("metrics")
    contract = metrics.contract()
    assert len(contract) == 45
    ours = {each.name: each for each in metrics.services()["broker"]}
    for name, expected in contract.items():
        assert (name in ours) is not bool(expected.missing), name
        if expected.missing:
            continue
        metric = ours[name]
        found = (metric.kind.value, metric.unit, set(metric.labels))
        same = found == (expected.type, expected.unit, set(expected.labels))
        assert same or expected.differs, f"{name} differs without a reason: {found}"
        assert found[0] == expected.type and found[2] <= set(expected.labels), name
    theirs = {name for name in ours if name.startswith("rocketmq_")}
    assert theirs <= contract.keys()


def test_names_are_unique_and_say_their_unit() -> None:
    metrics = docs_script("metrics")
    every = [each for group in metrics.services().values() for each in group]
    names = [name for each in every for name in (each.exposed, each.former) if name]
    assert len(names) == len(set(names))
    for each in every:
        assert each.exposed.endswith("_total") is (each.kind.value == "counter"), each.name
        assert each.text.endswith("."), each.name


def test_pages_name_only_metrics_that_exist() -> None:
    metrics = docs_script("metrics")
    known = {*metrics.all_metrics(), *metrics.contract()}
    packages = {path.name for path in ROOT.glob("*/*/src/*")} | {"aerobee_wire", "aerobee_foreign"}
    for page in sorted((ROOT / "docs").glob("*.md")):
        if page.name not in {"metrics.md", "spark.md", "testing.md"}:
            named = set(re.findall(r"`((?:rocketmq|aerobee)_[a-z_]+)`", page.read_text("utf-8")))
            assert named - packages <= known, page.name
