"""Define the facts of a report: Parquet files with one row for each message of the report.

Each message is read once from its broker, and all figures are computed from the facts. Thus the
figures agree with each other and with the files. A row has the columns of the data source, `kind`,
`consumerGroup`, `producerHost`, and columns from the properties that record earlier deliveries.
Both engines write the same columns. Only `time_span` does I/O.
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

# Column → properties that may have its value. The first property that exists is used.
HISTORY = {
    "originTopic": (props.DLQ_ORIGIN_TOPIC, props.RETRY_TOPIC),
    "originMsgId": (props.DLQ_ORIGIN_MESSAGE_ID, props.ORIGIN_MESSAGE_ID),
    "reason": (props.DLQ_REASON,),
    "reasonDescription": (props.DLQ_REASON_DESCRIPTION,),
}
# Matches the port at the end of a bornHost. producerHost omits the port, because it changes with
# every connection.
PORT = ":[0-9]+$"

# If a broker is unavailable, the read waits up to this time in milliseconds for it.
PULL_TIMEOUT_MS = 30_000


def read_options(
    request: ReportRequest, ranges: Sequence[OffsetRange], tasks: int = 1
) -> dict[str, str]:
    """Return options of the data source that read exactly `ranges`.

    The read does not fail if messages are lost or a broker is unavailable. Then the number of rows
    is too small, and the report is incomplete.

    Args:
        request: the request for the report.
        ranges: the ranges to read.
        tasks: the smallest number of tasks to use.
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
    """Convert offsets to the form of the options: topic → broker name → queue id → offset."""
    nested: dict[str, dict[str, Any]] = {}
    for topic, broker_name, queue_id, offset in rows:
        nested.setdefault(topic, {}).setdefault(broker_name, {})[str(queue_id)] = offset
    return nested


def time_span(folder: Path) -> tuple[int, int] | None:
    """Return first and last store time of the messages in `folder`, or None without messages.

    The times are in milliseconds since the epoch. They come from the statistics of the files.
    """
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
