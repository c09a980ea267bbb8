"""List all dead letters of a report, as CSV for a spreadsheet and as JSON lines for a redrive.

This module reads the Parquet files of the report in batches, so a million dead letters need little
memory. It does not use Spark.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pyarrow.dataset as ds

from aerobee_spark.report.data.clusters import Clusters
from aerobee_spark.report.data.states import STATE_COLUMNS, LetterStates, as_columns
from aerobee_spark.report.formats import iso
from aerobee_spark.report.request import DLQ
from aerobee_spark.report.view.tables import write_csv
from aerobee_wire import properties as props

BATCH_ROWS = 8192

# column of the Parquet files → name in the listing
_COLUMNS = {
    "consumerGroup": "group",
    "topic": "topic",
    "brokerName": "broker_name",
    "queueId": "queue_id",
    "queueOffset": "queue_offset",
    "msgId": "message_id",
    "offsetMsgId": "offset_message_id",
    "originTopic": "origin_topic",
    "originMsgId": "origin_message_id",
    "tags": "tag",
    "keys": "keys",
    "reason": "reason",
    "reasonDescription": "description",
    "reconsumeTimes": "reconsume_times",
    "bornTimestamp": "born_at",
    "storeTimestamp": "stored_at",
    "producerHost": "producer",
    "bodySize": "body_size",
}
# name in the listing → property of the message
_FROM_PROPERTIES = {
    "lite_topic": props.LITE_TOPIC,
    "redrive_times": props.REDRIVE_TIMES,
    "redrive_timestamp_ms": props.REDRIVE_TIMESTAMP,
    "cause": props.DLQ_CAUSE,
    "consumer": props.DLQ_CONSUMER,
}
_STACK_TRACE = "stack_trace"  # used for the clusters, and not listed
# The fields that a redrive needs.
_REDRIVE = (
    "group",
    "topic",
    "broker_name",
    "queue_id",
    "queue_offset",
    "message_id",
    "offset_message_id",
    "origin_topic",
)


def dead_letters(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield the dead letters in the Parquet files of `folder`, in the order of the files."""
    facts = ds.dataset(folder, format="parquet", exclude_invalid_files=False)
    batches = facts.to_batches(
        columns=[*_COLUMNS, "properties"], filter=ds.field("kind") == DLQ, batch_size=BATCH_ROWS
    )
    for batch in batches:
        properties = batch.column("properties")
        found = [
            pc.map_lookup(properties, name, "first").to_pylist()
            for name in (*_FROM_PROPERTIES.values(), props.DLQ_STACK_TRACE)
        ]
        names = (*_FROM_PROPERTIES, _STACK_TRACE)
        for row, *values in zip(batch.select(list(_COLUMNS)).to_pylist(), *found, strict=True):
            yield {
                **{name: _plain(row[column]) for column, name in _COLUMNS.items()},
                **{name: _plain(v) for name, v in zip(names, values, strict=True)},
            }


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return iso(round(value.timestamp() * 1000))
    return "" if value is None else value


def write(
    folder: Path, csv_file: Path, redrive_file: Path, states: LetterStates, clusters: Clusters
) -> None:
    """Write all dead letters to a CSV file, and the fields for a redrive to a JSON lines file.

    `folder` has the Parquet files of the report, which are read only once. The letters are also
    counted in `states` and `clusters`.
    """
    with redrive_file.open("w", encoding="utf-8") as redrive:

        def rows() -> Iterator[tuple[Any, ...]]:
            for row in dead_letters(folder):
                redrive.write(json.dumps({name: row[name] for name in _REDRIVE}) + "\n")
                status = states.look_up(
                    row["topic"], row["broker_name"], row["queue_id"], row["queue_offset"]
                )
                stack_trace = row.pop(_STACK_TRACE)
                is_open = None if status is None else status.state.value == "open"
                clusters.add(row, stack_trace, is_open=is_open)
                yield (*row.values(), *as_columns(status).values())

        write_csv(csv_file, (*_COLUMNS.values(), *_FROM_PROPERTIES, *STATE_COLUMNS), rows())
