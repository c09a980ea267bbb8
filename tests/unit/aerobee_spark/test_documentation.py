"""Test that docs/spark.md has every option, column and key, with its default."""

from __future__ import annotations

import argparse
import dataclasses
import re
from pathlib import Path

import pytest

from aerobee_spark import __main__ as command
from aerobee_spark.reading.columns import ARROW_SCHEMA
from aerobee_spark.reading.options import ALIASES, OPTIONS, ReadOptions
from aerobee_spark.report.data.summary import KEYS
from aerobee_spark.writing import message_columns as written
from aerobee_spark.writing import options as write_options

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "spark.md").read_text(encoding="utf-8")


def table(heading: str) -> dict[str, list[str]]:
    """Return the first table after a heading as name → cells; a row may have several names."""
    body = PAGE.split(f"# {heading}\n", 1)[1]
    lines = re.search(r"(?:^\|.*\n)+", body, re.MULTILINE)
    assert lines
    rows: dict[str, list[str]] = {}
    for line in lines.group().splitlines()[2:]:
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        for name in re.findall(r"`([^`]+)`", cells[0].partition(" (")[0]):
            rows[name] = cells
    return rows


def test_every_option_of_the_data_source_is_described() -> None:
    assert set(table("Options")) == set(OPTIONS)


def test_aliases_stand_beside_their_options() -> None:
    described = table("Options")
    for alias, name in ALIASES.items():
        assert f"`{alias}`" in described[name][0]


@pytest.mark.parametrize(
    "name",
    [
        "maxRecordsPerPartition",
        "minPartitions",
        "failOnDataLoss",
        "failOnUnreachableBroker",
        "includeBody",
        "includeProperties",
        "pullBatchSize",
        "maxBytesPerPull",
        "pullTimeoutMs",
        "bodyEncoding",
        "pushdown",
    ],
)
def test_defaults_are_the_ones_described(name: str) -> None:
    fields = {field.name: field.default for field in dataclasses.fields(ReadOptions)}
    default = fields[OPTIONS[name][0]]
    assert table("Options")[name][1].strip("`") == str(default).lower()


def test_every_column_is_described() -> None:
    assert list(table("Columns")) == ARROW_SCHEMA.names


def test_every_option_and_column_of_the_sink_is_described() -> None:
    assert set(table("Options of the sink")) == set(write_options.OPTIONS)
    assert set(table("Columns of the sink")) == set(written.COLUMNS)


@pytest.mark.parametrize("name", ["createTopic", "maxMessageSize", "sendTimeoutMs"])
def test_defaults_of_the_sink_are_the_ones_described(name: str) -> None:
    fields = {field.name: field.default for field in dataclasses.fields(write_options.WriteOptions)}
    default = fields[write_options.OPTIONS[name][0]]
    assert table("Options of the sink")[name][1].strip("`") == str(default).lower()


def test_the_columns_that_are_left_out_are_named() -> None:
    page = PAGE.split("**A frame that was read**", 1)[1].partition("\n\n")[0]
    assert all(f"`{name}`" in page for name in written.LEFT_OUT)


def test_every_key_of_the_summary_is_described() -> None:
    assert set(table("summary.json")) == KEYS


@pytest.mark.parametrize(
    ("name", "heading"), [("report", "The report"), ("facts", "The facts table")]
)
def test_every_argument_is_described(name: str, heading: str) -> None:
    (commands,) = (
        action
        for action in command._parser()._actions
        if isinstance(action, argparse._SubParsersAction)
    )
    arguments = {
        option
        for action in commands.choices[name]._actions
        for option in action.option_strings
        if option.startswith("--") and option != "--help"
    }
    section = PAGE.split(f"## {heading}\n", 1)[1].partition("\n## ")[0]
    rows = re.findall(r"^\| `--.*$", section, re.MULTILINE)
    assert arguments == {
        name for row in rows for name in re.findall(r"`(--[a-z-]+)", row.split(" | ")[0])
    }
