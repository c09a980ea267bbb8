"""A job for spark-submit that reads a topic, holds in the middle, and writes what it found.

    spark-submit --py-files aerobee.zip submitted_read.py TOPIC TASK_MESSAGES GATE FILE

Each task from number HELD on waits, with its first rows read, until the file GATE is there. Lines
`tasks DONE ACTIVE` go to stdout. FILE: a JSON object; `module`, where the data source was loaded
from; `keys`, the place of each row that was read.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql import SparkSession

from aerobee_spark import source

if TYPE_CHECKING:
    import pyarrow as pa

HELD = 10
INTERVAL_S = 0.05


def report(spark: SparkSession, ended: threading.Event) -> None:
    tracker, last = spark.sparkContext.statusTracker(), ""
    while not ended.wait(INTERVAL_S):
        for stage in map(tracker.getStageInfo, tracker.getActiveStageIds()):
            said = f"tasks {stage.numCompletedTasks} {stage.numActiveTasks}" if stage else last
            if said != last:
                print(said, flush=True)
                last = said


def main(topic: str, task_messages: str, gate: str, found: str) -> None:
    spark = SparkSession.builder.getOrCreate()
    source.register(spark)
    rows = spark.read.format("rocketmq").option("maxRecordsPerPartition", task_messages).load(topic)

    def hold(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield batch
            task = TaskContext.get()
            while task is not None and task.partitionId() >= HELD and not Path(gate).exists():
                time.sleep(INTERVAL_S)

    places = rows.select("brokerName", "queueId", "queueOffset")
    ended = threading.Event()
    reporting = threading.Thread(target=report, args=(spark, ended))
    reporting.start()
    try:
        keys = [tuple(row) for row in places.mapInArrow(hold, places.schema).collect()]
    finally:
        ended.set()
        reporting.join()
    Path(found).write_text(json.dumps({"module": source.__file__, "keys": keys}), "utf-8")
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
