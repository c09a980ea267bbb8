"""How many scenarios of the official SDKs run at once."""

from __future__ import annotations

import threading
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, cast

import pytest

from conformance.runner import Case, Scenario, ScenarioRunner, Site

CASES = 6


class Sdk:
    """An SDK whose process runs two scenarios at once over TLS."""

    side_by_side = True

    def most_at_once(self, *, tls: bool) -> int | None:
        return 2 if tls else None


def most_running(*, tls: bool) -> int:
    """Run cases of the SDK, and return how many ran at once."""
    sdk: Any = Sdk()
    counting, running, most = threading.Lock(), 0, 0
    # Two cases, or all, can only end together.
    together = threading.Barrier(2 if tls else CASES)

    def function(_cluster: object, _sdk: object) -> None:
        nonlocal running, most
        with counting:
            running += 1
            most = max(most, running)
        together.wait(timeout=20)
        with counting:
            running -= 1
        together.wait(timeout=20)

    site = cast(
        Site, SimpleNamespace(cluster=None, door=lambda _case: lambda: nullcontext(object()))
    )
    scenarios = [
        Scenario(f"f{n}", function, {}, False, "", "any", False, False) for n in range(CASES)
    ]
    runner = ScenarioRunner({1: site})
    runner.start([Case(sdk, tls, 1, scenario) for scenario in scenarios])
    for future in runner.futures.values():
        future.result(timeout=30)
    runner.close()
    return most


@pytest.mark.parametrize(("tls", "most"), [(True, 2), (False, CASES)])
def test_scenarios_of_a_process_run_at_once_up_to_the_limit_of_the_sdk(
    tls: bool, most: int
) -> None:
    assert most_running(tls=tls) == most
