"""Measure how long unary calls take, by RPC, outcome, and whether they waited for something.

A handler that waits for an event on behalf of its caller, such as a long poll, calls `begin_wait`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

from aerobee_chassis.metrics.series import Distribution, Metric, Series
from aerobee_chassis.rpc.call import Failure

PROTOCOL = "grpc"
SUCCESS = "success"
_waited: ContextVar[bool] = ContextVar("waited", default=False)


def begin_wait() -> None:
    """Record that the present call waits for an event, so that its time is not the server's."""
    _waited.set(True)


class CallTimes:
    """The times of the calls of one server.

    Args:
        metric: A histogram of milliseconds with the labels protocol type, RPC, outcome, and
            whether the call waited.
        outcome_of: Returns the name of a failure.
    """

    def __init__(self, metric: Metric, outcome_of: Callable[[Failure], str]) -> None:
        self.series = Series(metric)
        self._outcome_of = outcome_of
        # (RPC, outcome, whether it waited) → its series, so that a call costs one look-up
        self._found: dict[tuple[str, str, bool], Distribution] = {}

    def ended(self, rpc: str, outcome: Any, seconds: float) -> None:
        """Count a call in the context of its task."""
        code = self._outcome_of(outcome) if isinstance(outcome, Failure) else SUCCESS
        key = (rpc, code, _waited.get())
        found = self._found.get(key)
        if found is None:
            name = re.sub(r"(?<!^)(?=[A-Z])", "_", rpc).lower()
            labels = (PROTOCOL, name, code, "true" if key[2] else "false")
            found = self._found[key] = Distribution(self.series.metric.buckets)
            self.series.values[labels] = found
        found.observe(seconds * 1_000)
