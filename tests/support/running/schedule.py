"""Which worker of pytest-xdist runs which test file, and when.

As many files compute at once as there are processors. On the other workers are files that mostly
wait, for leases to end or for a replica to be elected. The longest files start first, so that all
workers end at about the same time.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

import pytest
from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

from support.running.costs import Cost, read

IN_SESSION = "tests/integration/spark/in_session/"


class Schedule(LoadFileScheduling):  # type: ignore[misc]
    """Files stay on one worker, and so do those that share a JVM."""

    def __init__(
        self,
        config: pytest.Config,
        log: object,
        *,
        costs: Mapping[str, Cost] | None = None,
        processors: int = os.cpu_count() or 1,
    ) -> None:
        super().__init__(config, log)
        self._processors = processors
        self._costs: dict[str, Cost] = {}
        for path, cost in (read() if costs is None else costs).items():
            scope = self._split_scope(path)
            self._costs[scope] = self._costs.get(scope, Cost()) + cost

    def _split_scope(self, nodeid: str) -> str:
        return IN_SESSION if nodeid.startswith(IN_SESSION) else super()._split_scope(nodeid)

    def _assign_work_unit(self, node: WorkerController) -> None:
        self.workqueue.move_to_end(self._next(node), last=False)
        super()._assign_work_unit(node)

    def _next(self, node: WorkerController) -> str:
        others = (work for other, work in self.assigned_work.items() if other is not node)
        computing = sum(any(map(self._computes, _unfinished(work))) for work in others)
        wanted = computing < self._processors
        left: Iterable[str] = self.workqueue
        return max(
            left, key=lambda scope: (self._computes(scope) is wanted, self._cost(scope).duration_s)
        )

    def _reschedule(self, node: WorkerController) -> None:
        # A worker starts a test when it knows the next one. The base class assigns a file when two
        # tests are left, and these may take a minute, in which another worker could run the file.
        if self.workqueue and self._pending_of(self.assigned_work[node]) > 1:
            return
        super()._reschedule(node)

    def _cost(self, scope: str) -> Cost:
        return self._costs.get(scope, Cost())

    def _computes(self, scope: str) -> bool:
        return not self._cost(scope).is_mostly_waiting


def _unfinished(work: Mapping[str, Mapping[str, bool]]) -> list[str]:
    return [scope for scope, tests in work.items() if not all(tests.values())]
