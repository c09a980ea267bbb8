"""Find the commit-log files that store the dead letters of a report.

Retention deletes a file as a whole. This module streams the facts and uses no engine.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from aerobee_spark.report.data.forecast import DeadLettersOfFile
from aerobee_spark.report.request import DLQ

BATCH_ROWS = 65_536
# Length of the physical offset at the end of an offset message id, in hex digits.
_DIGITS = 16


def dead_letters_by_file(
    folder: Path, file_bytes: Mapping[str, int]
) -> dict[str, list[DeadLettersOfFile]]:
    """Return broker name → files with dead letters, oldest first.

    Args:
        folder: the folder of the facts.
        file_bytes: broker name → size of a commit-log file in bytes. Other brokers are left out.
    """
    found: dict[str, dict[int, DeadLettersOfFile]] = {name: {} for name in file_bytes}
    facts = ds.dataset(folder, format="parquet", exclude_invalid_files=False)
    named = pa.array(list(file_bytes), pa.string())
    dead = (ds.field("kind") == DLQ) & ds.field("brokerName").isin(named)
    columns = ["brokerName", "offsetMsgId"]
    for batch in facts.to_batches(columns=columns, filter=dead, batch_size=BATCH_ROWS):
        for name, files in found.items():
            chosen = batch.filter(pc.equal(batch.column("brokerName"), name))
            _count(files, physical_offsets(chosen.column("offsetMsgId")), file_bytes[name])
    return {name: [files[number] for number in sorted(files)] for name, files in found.items()}


def physical_offsets(offset_message_ids: pa.Array) -> npt.NDArray[np.int64]:
    digits = pc.utf8_slice_codeunits(offset_message_ids, -_DIGITS).to_pylist()
    return np.frombuffer(bytes.fromhex("".join(digits)), ">i8").astype(np.int64)


def _count(
    files: dict[int, DeadLettersOfFile], offsets: npt.NDArray[np.int64], file_bytes: int
) -> None:
    numbers, places = np.unique(offsets // file_bytes, return_inverse=True)
    counts = np.bincount(places.ravel(), minlength=len(numbers))
    for place, number in enumerate(numbers.tolist()):
        first = int(offsets[places.ravel() == place].min())
        known = files.get(number)
        if known is not None:
            first = min(first, known.first_physical_offset)
        count = int(counts[place]) + (known.count if known else 0)
        files[number] = DeadLettersOfFile(count, first)
