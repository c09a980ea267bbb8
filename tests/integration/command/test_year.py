"""`python -m bench.year` over the first flights: the figures of the CSV, and the table."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from aerobee_cli.demo import flights
from bench import year
from support.processes.demo import expected
from support.repository.tree import ROOT
from support.spark import class_archive

MESSAGES = 600
WAYS = "local,facts,sql"  # the report by Spark differs from that by local in one argument


@pytest.mark.spark
@pytest.mark.slow
def test_the_table_has_the_figures_of_the_csv() -> None:
    made = subprocess.run(
        [sys.executable, "-m", "bench.year", "--messages", str(MESSAGES), "--ways", WAYS],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        cwd=ROOT,
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT / "tests"),
            class_archive.VARIABLE: class_archive.java_options(),
        },
    )
    assert made.returncode == 0, made.stderr
    wanted = expected(flights.read_rows(MESSAGES))
    assert wanted.dead_letters > 0
    failed = wanted.dead_letters + wanted.retried
    for what, read in (
        ("`report --engine local`", failed),
        ("`facts --engine spark`", failed),
        ("`facts --engine local`", failed),
        ("`report --facts`", failed),
        ("SQL over the topics", MESSAGES + failed),
    ):
        assert f"| {what} | {wanted.dead_letters:,} | {read:,} |" in made.stdout


def test_a_figure_that_is_not_that_of_the_csv_ends_it() -> None:
    year.check("the report", {"dead_letters": 5}, {"dead_letters": 5})
    with pytest.raises(SystemExit):
        year.check("the report", {"dead_letters": 4}, {"dead_letters": 5})


def test_the_table_has_its_place_on_the_page() -> None:
    page = year.PAGE.read_text(encoding="utf-8")
    assert "9,430" in page.partition(year.BEGIN)[2].partition(year.END)[0]
    again = year.rewritten(page, year.table(5, []))
    assert "5 flights" in again and "9,430" not in again.partition(year.BEGIN)[2]
