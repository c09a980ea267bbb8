"""The facts: every message of the report as one row of Parquet, read from the broker once.

All figures are computed from these files, so they agree with each other and with the files. Besides
the columns of the data source a row has `kind`, `consumerGroup`, the history of the message from
its properties, and `producerHost`. Both engines write the same columns. Pure, but for `time_span`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from aerobee_spark.reading.offsets import OffsetRange
from aerobee_spark.report.request import ReportRequest
from aerobee_wire import properties as props

# Column → the properties that it comes from: the first that is there.
HISTORY = {
    "originTopic": (props.DLQ_ORIGIN_TOPIC, props.RETRY_TOPIC),
    "originMsgId": (props.DLQ_ORIGIN_MESSAGE_ID, props.ORIGIN_MESSAGE_ID),
    "reason": (props.DLQ_REASON,),
    "reasonDescription": (props.DLQ_REASON_DESCRIPTION,),
}
# The end of a bornHost: the port, which changes with every connection, is no part of producerHost.
PORT = ":[0-9]+$"

# A broker that restarts is back within this.
PULL_TIMEOUT_MS = 30_000


def read_options(
    request: ReportRequest, ranges: Sequence[OffsetRange], tasks: int = 1
) -> dict[str, str]:
    """Options of the data source that read exactly `ranges`, in so many tasks at least.

    Neither data loss nor a broker that is down makes the read fail: missing messages show in the
    number of rows, and the report is then not complete.
    """
    redact = {"redact": ",".join(request.redact)} if request.redact else {}
    return redact | {
        "nameServer": request.name_server,
        "assign": json.dumps(_nested((*wanted.queue, None) for wanted in ranges)),
        "startingOffsets": json.dumps(_nested((*wanted.queue, wanted.start) for wanted in ranges)),
        "endingOffsets": json.dumps(_nested((*wanted.queue, wanted.end) for wanted in ranges)),
        "minPartitions": str(tasks),
        "failOnDataLoss": "false",
        "failOnUnreachableBroker": "false",
        "pullTimeoutMs": str(PULL_TIMEOUT_MS),
        "includeBody": str(request.include_bodies).lower(),
    }


def _nested(rows: Iterable[tuple[str, str, int, int | None]]) -> dict[str, dict[str, Any]]:
    """topic → broker name → queue id → offset, as the options have it."""
    nested: dict[str, dict[str, Any]] = {}
    for topic, broker_name, queue_id, offset in rows:
        nested.setdefault(topic, {}).setdefault(broker_name, {})[str(queue_id)] = offset
    return nested


def time_span(folder: Path) -> tuple[int, int] | None:
    """First and last store time in ms of the facts in `folder`, from the statistics of the files;
    None when there is no message."""
    import pyarrow.dataset as ds

    bounds: list[datetime] = []
    for fragment in ds.dataset(folder, format="parquet").get_fragments():
        for group in fragment.row_groups:
            stored = (group.statistics or {}).get("storeTimestamp")
            if stored:
                bounds += [stored["min"], stored["max"]]
    if not bounds:
        return None
    times = [round(bound.timestamp() * 1000) for bound in bounds]
    return min(times), max(times)
