"""`aerobee facts` as a process that kills itself with SIGKILL at a place of the landing.

python -m support.spark.killed_landing PLACE BATCH ARGUMENT…

PLACE: `writing` (a file of the batch is under way), `written` (its output is there, its commit is
not), or `committed` (the commit is there, Spark does not know yet). BATCH counts the batches that
this run lands, from 0 on. The same for both engines.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

from aerobee_spark.__main__ import main
from aerobee_spark.landing.local_landing import RUN, LocalLanding
from aerobee_spark.landing.spark_landing import Landing
from aerobee_spark.table.commits import Commit
from aerobee_spark.table.files import FactsFiles

INTERVAL_S = 0.001


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def die_while_writing(files: FactsFiles, run: str, number: int) -> None:
    folder = Path(files.where.removeprefix("file://")) / f"run={run}" / f"batch={number}"
    while not any(folder.rglob("*.parquet")):
        time.sleep(INTERVAL_S)
    die()


def arm(place: str, batch: int) -> None:
    """Puts the kill into the classes that land, in this process alone."""
    land, commit = Landing.batch, FactsFiles.commit
    land_locally = LocalLanding._batch
    begun: list[int] = []

    def begins(files: FactsFiles, run: str, number: int) -> None:
        begun.append(number)
        if len(begun) == batch + 1 and place == "writing":
            arguments = (files, run, number)
            threading.Thread(target=die_while_writing, args=arguments, daemon=True).start()

    def batch_begins(self: Landing, rows: Any, number: int) -> None:
        if self.files.is_committed(self._run(), number):
            land(self, rows, number)  # a replay, which is skipped
            return
        begins(self.files, self._run(), number)
        land(self, rows, number)

    def local_batch_begins(self: LocalLanding, *given: Any) -> Any:
        begins(self.files, RUN, self.files.next_seq())
        return land_locally(self, *given)

    def commits(self: FactsFiles, given: Commit) -> None:
        armed = len(begun) == batch + 1
        if armed and place == "written":
            die()
        commit(self, given)
        if armed and place == "committed":
            die()

    setattr(Landing, "batch", batch_begins)  # noqa: B010
    setattr(LocalLanding, "_batch", local_batch_begins)  # noqa: B010
    setattr(FactsFiles, "commit", commits)  # noqa: B010


if __name__ == "__main__":
    arm(sys.argv[1], int(sys.argv[2]))
    sys.exit(main(["facts", *sys.argv[3:]]))
