"""Rows of `make bench ARGS='--only growth'`."""

from __future__ import annotations

import asyncio
import os

import pytest

from bench.growth import stored
from bench.growth.points import cost_us, curve
from bench.run import SUITES, selected


def test_a_folder_selects_its_suites_and_a_row_selects_one() -> None:
    of_folder = {module for module in SUITES if module.startswith("growth.")}
    assert len(of_folder) == 5
    assert set(selected({"growth"})) == of_folder
    assert set(selected({"growth_queues_100"})) == {"growth.queues"}
    assert set(selected({"growth.cold"})) == {"growth.cold"}
    assert set(selected({"store"})) == {"store"}
    assert set(selected(set())) == set(SUITES)


def test_a_point_is_compared_with_what_was_measured_in_the_same_rounds() -> None:
    base = [1.0, 2.0, 40.0]
    rows = curve(
        "growth_queues", {1: base, 100: [2.0, 4.0, 40.0]}, base, unit="us", limit=2, note="n"
    )
    assert [(each.name, each.ours, each.ratio) for each in rows] == [
        ("growth_queues_1", 2.0, 1.0),
        ("growth_queues_100", 4.0, 2.0),
    ]


async def test_a_cost_is_the_processor_time_without_that_of_idle_work() -> None:
    async def nothing() -> int:
        await asyncio.sleep(0)
        return 1

    cost = await cost_us(os.getpid(), nothing, in_flight=1, seconds=0.05)
    with_idle = await cost_us(os.getpid(), nothing, in_flight=1, seconds=0.05, idle=10.0)
    assert cost > 0 and with_idle < 0


async def test_the_growing_store_has_all_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    small = {"SCALE": 0.001, "QUEUES": 1, "APPENDS": 2, "ROUNDS": 2, "READS": 5}
    for name, value in {**small, "FILE_SIZE": 4 << 20}.items():
        monkeypatch.setattr(stored, name, value)
    rows = await stored.results()
    assert tuple(row.name for row in rows) == SUITES["growth.stored"]
    assert all(row.ours > 0 and row.baseline > 0 for row in rows)
