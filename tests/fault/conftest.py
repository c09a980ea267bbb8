"""Options of the fault suite: how long, and which seed again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
from hypothesis import settings

from aerobee_broker.commit import durable_log
from fault.slow_disk import LIMIT


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--campaign", action="store_true", help="the long fault campaign")
    parser.addoption("--minutes", type=float, default=60, help="of the campaign's cluster run")
    parser.addoption(
        "--fault-seed", type=seeds, metavar="SEED or FROM:TO",
        help="only this seed, to see a failure again; or a part of a campaign: TO is not run",
    )  # fmt: skip


def seeds(text: str) -> range:
    """Raises ValueError unless it is "17" or "1000:2000"."""
    first, _, end = text.partition(":")
    chosen = range(int(first), int(end) if end else int(first) + 1)
    if not chosen:
        raise ValueError(f"no seed is in {text}")
    return chosen


def pytest_configure(config: pytest.Config) -> None:
    settings.register_profile("short", max_examples=60)
    settings.register_profile("campaign", max_examples=3_000)
    settings.load_profile("campaign" if config.getoption("--campaign") else "short")


@dataclass(frozen=True)
class Campaign:
    """How much a test does."""

    long: bool
    chosen: range | None  # by --fault-seed
    report: Callable[[str], None]  # prints a figure, whatever pytest captures
    minutes: float  # of the cluster run

    @property
    def seed(self) -> int | None:
        """The first that was asked for."""
        return self.chosen[0] if self.chosen else None

    def seeds(self, short: int, long: int) -> range:
        """Seeds to try: a few, or the campaign's, or those that were asked for."""
        return self.chosen or range(long if self.long else short)


@pytest.fixture
def small_unflushed_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Senders are turned away while more than this waits for the disk."""
    monkeypatch.setattr(durable_log, "MAX_UNFLUSHED_BYTES", LIMIT)


@pytest.fixture
def campaign(request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]) -> Campaign:
    def report(figures: str) -> None:
        with capsys.disabled():
            print(f"\n  {request.node.name}: {figures}", flush=True)

    long = bool(request.config.getoption("--campaign"))
    minutes = request.config.getoption("--minutes") if long else 0.0
    chosen = request.config.getoption("--fault-seed")
    return Campaign(long, chosen, report if long else print, minutes)
