"""The table in Parquet of docs/spark.md. The one in Delta: tests/cluster/test_delta.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from aerobee_client import AdminClient
from support.processes.service import namesrv_and_broker
from support.spark.recipe import TOPIC, Recipe, send

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def test_a_batch_that_is_repeated_is_in_the_table_once(tmp_path: Path) -> None:
    data = tmp_path / "services"
    data.mkdir()
    with namesrv_and_broker(data) as (namesrv, _):
        with AdminClient(namesrv.address) as admin:
            admin.create_topic(TOPIC, queues=2)
        recipe = Recipe(tmp_path, namesrv.address, "orders-table", "parquet")
        send(namesrv.address, 50)
        assert recipe.run() == (50, 50)
        recipe.forget_last_commit()
        send(namesrv.address, 30)
        assert recipe.run() == (80, 80)
