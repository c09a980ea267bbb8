"""The topic of a benchmark is made where producers may send."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from aerobee_cli.bench import scratch


class Admin:
    """Two brokers, of which b drains."""

    def __init__(self) -> None:
        self.made: list[str] = []

    async def cluster(self) -> Any:
        brokers = [SimpleNamespace(broker_name=name) for name in "ab"]
        return SimpleNamespace(brokers=brokers, away=())

    async def broker_status(self, broker: str) -> Any:
        return SimpleNamespace(draining_since_ms=1 if broker == "b" else 0)

    async def create_topic(self, topic: str, *, queues: int, broker: str) -> list[Any]:
        self.made.append(broker)
        return []

    async def delete_topic(self, topic: str, *, silent: list[Any]) -> bool:
        return True


async def test_a_broker_that_drains_takes_no_part() -> None:
    admin: Any = Admin()
    of_run = scratch.new_scratch(0)
    async with scratch.created(admin, of_run, 8):
        assert (admin.made, of_run.brokers) == (["a"], ["a"])
        assert "drains" in of_run.problems["b"]
