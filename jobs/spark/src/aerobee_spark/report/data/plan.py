"""Ask brokers for the plan of a report, for the reasons of missing messages, and for the forecast.

The plan lists the ranges of offsets to read. It is made without Spark, so that a wrong name fails
within a second. The forecast reads the Parquet files of the report to find the commit-log files of
dead letters, because retention deletes whole commit-log files.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from aerobee_spark.errors import MqError
from aerobee_spark.reading import planning
from aerobee_spark.reading.offsets import AT_EARLIEST, AT_LATEST, Bounds, OffsetRange, Queue
from aerobee_spark.reading.options import ReadOptions
from aerobee_spark.report.data.coverage import QueueCoverage, kind_of
from aerobee_spark.report.data.forecast import (
    BrokerExpiry,
    DeadLettersOfFile,
    Forecast,
    Trend,
    trend_window,
)
from aerobee_spark.report.request import DLQ, ReportRequest

if TYPE_CHECKING:
    from aerobee_client import AdminClient
    from aerobee_client.admin.descriptions import BrokerStatus

T = TypeVar("T")
log = logging.getLogger(__name__)

# The largest number of offsets in one request, so that the broker answers it at once.
MOST_OFFSETS = 4096
BATCH_ROWS = 65_536
# The number of hex digits of the physical offset at the end of an offset message id.
_DIGITS = 16
_VANISHED = (
    "the previous report read this queue, but no broker serves it: start its broker, or, if the "
    "topic was deleted, delete the previous summary.json, which also resets new_dead_letters"
)


def queues(request: ReportRequest, known: Iterable[Queue] = ()) -> list[QueueCoverage]:
    """Plan the report: return its queues with their ranges to read, sorted by queue.

    If the broker of a queue does not answer, the queue has a problem instead of a range.

    Args:
        request: the request for the report.
        known: the queues of the previous report. Queues that are missing now are added with a
            problem, because the route of a broker that is down expires after a while.

    Raises:
        MqError: no name server answers, or the group does not exist.
    """
    with planning.connect(request.name_server) as admin:
        found = planning.queues_of_group(admin, request.consumer_group, request.kinds)
        answers = planning.bounds_of_queues(admin, found)
        bounds = {q: each for q, each in answers.items() if not isinstance(each, MqError)}
        ranges = _between(admin, request, bounds, (request.since_ms, request.until_ms))
    of_queue = {offsets.queue: offsets for offsets in ranges}
    planned = [_planned(queue, answers[queue], of_queue.get(queue)) for queue in found]
    gone = set(known) - set(found)
    planned += [QueueCoverage(queue, None, None, problem=_VANISHED) for queue in gone]
    return sorted(planned, key=lambda plan: plan.queue)


def _planned(queue: Queue, answer: Bounds | MqError, wanted: OffsetRange | None) -> QueueCoverage:
    if isinstance(answer, MqError):
        return QueueCoverage(queue, None, None, problem=answer.message)
    return QueueCoverage(queue, answer, wanted)


def reasons(
    request: ReportRequest, planned: Sequence[QueueCoverage], rows: Mapping[Queue, int]
) -> dict[Queue, str]:
    """Return the reason why messages of each incomplete queue are missing.

    `rows` is the number of rows read from each queue. The broker of the queue is asked for its
    current offsets.
    """
    short = {
        plan.queue: plan.wanted
        for plan in planned
        if plan.wanted is not None and rows.get(plan.queue, 0) != plan.expected
    }
    if not short:
        return {}
    with planning.connect(request.name_server) as admin:
        answers = planning.bounds_of_queues(admin, short)
    return {queue: _reason(short[queue], answer) for queue, answer in answers.items()}


def _reason(wanted: OffsetRange, answer: Bounds | MqError) -> str:
    if isinstance(answer, MqError):
        return answer.message
    if answer.min_offset > wanted.start:
        return (
            f"messages below queue offset {answer.min_offset} were deleted during the read; "
            "create the report again"
        )
    return (
        "the broker was down during the read, or left out records with a wrong checksum; check "
        "its log, and create the report again"
    )


# ---- forecast ----


def forecast(
    request: ReportRequest, planned: Sequence[QueueCoverage], facts: Path, now_ms: int
) -> Forecast:
    """Ask brokers for the forecast. Values that brokers do not return are None.

    Args:
        request: the request for the report.
        planned: the queues of the report.
        facts: the folder of the facts.
        now_ms: the current time, in milliseconds since the epoch.
    """
    with planning.connect(request.name_server) as admin:
        group = _or_none(lambda: admin.get_group(request.consumer_group))
        if DLQ not in request.kinds:
            return Forecast(group)
        dead = [plan for plan in planned if kind_of(plan.queue.topic) == DLQ]
        return Forecast(
            group,
            _or_none(lambda: _trend(admin, request, dead, now_ms)),
            _expiries(admin, dead, facts),
        )


def _or_none(ask: Callable[[], T]) -> T | None:
    """Return the result of `ask`. If it raises MqError, log a warning and return None."""
    try:
        return ask()
    except MqError as error:
        log.warning("%s", error.message)
        return None


def _trend(
    admin: AdminClient, request: ReportRequest, dead: Sequence[QueueCoverage], now_ms: int
) -> Trend | None:
    """Compute the trend of dead letters from the offsets at three times.

    No messages are read. Return None if a broker did not answer, or if the time window is empty.
    """
    since_ms, until_ms = trend_window(request.since_ms, request.until_ms, now_ms)
    bounds = {plan.queue: plan.bounds for plan in dead if plan.bounds is not None}
    if len(bounds) < len(dead) or until_ms <= since_ms:
        return None
    earlier = _between(admin, request, bounds, (2 * since_ms - until_ms, since_ms))
    window = _between(admin, request, bounds, (since_ms, request.until_ms))
    return Trend(
        since_ms,
        until_ms,
        sum(map(len, window)),
        sum(map(len, earlier)),
        all(_reaches_back(bounds[offsets.queue], offsets) for offsets in earlier),
    )


def _reaches_back(bounds: Bounds, offsets: OffsetRange) -> bool:
    """Return whether retention has certainly not deleted messages at the start of the range."""
    return bounds.min_offset == 0 or offsets.start > bounds.min_offset


def _between(
    admin: AdminClient,
    request: ReportRequest,
    bounds: Mapping[Queue, Bounds],
    window: tuple[int | None, int | None],
) -> list[OffsetRange]:
    options = ReadOptions(
        request.name_server,
        starting=replace(AT_EARLIEST, timestamp_ms=window[0]),
        ending=replace(AT_LATEST, timestamp_ms=window[1]),
        fail_on_data_loss=False,
    )
    return planning.ranges_of(admin, options, bounds)


def _expiries(admin: AdminClient, dead: Sequence[QueueCoverage], facts: Path) -> list[BrokerExpiry]:
    answers: dict[str, BrokerStatus | str] = {}
    for plan in dead:
        name = plan.queue.broker_name
        if plan.bounds is None:  # the broker did not answer the plan, so do not wait for it again
            answers[name] = plan.problem
        elif name not in answers:
            answers[name] = _status(admin, name)
    file_bytes = {
        name: answer.commit_log_file_bytes
        for name, answer in answers.items()
        if not isinstance(answer, str)
    }
    files = dead_letters_by_file(facts, file_bytes)
    return [
        BrokerExpiry(name, None, (), answer)
        if isinstance(answer, str)
        else _expiry(admin, name, answer, files[name])
        for name, answer in sorted(answers.items())
    ]


def _status(admin: AdminClient, name: str) -> BrokerStatus | str:
    """Return the status of a broker, or the reason why it is unknown."""
    try:
        status = admin.broker_status(name)
    except MqError as error:
        return error.message
    known = status.commit_log_file_bytes > 0
    return status if known else "the broker's version does not report the size of its log files"


def _expiry(
    admin: AdminClient, name: str, status: BrokerStatus, files: list[DeadLettersOfFile]
) -> BrokerExpiry:
    goes: list[int] = []
    try:
        for start in range(0, len(files), MOST_OFFSETS):
            offsets = [file.first_physical_offset for file in files[start : start + MOST_OFFSETS]]
            goes += admin.broker_status(name, physical_offsets=offsets).expiry_timestamps_ms
    except MqError as error:
        return BrokerExpiry(name, None, (), error.message)
    return BrokerExpiry(name, status, list(zip(files, goes, strict=True)))


def dead_letters_by_file(
    folder: Path, file_bytes: Mapping[str, int]
) -> dict[str, list[DeadLettersOfFile]]:
    """Count the dead letters in each commit-log file. Return broker name → files, oldest first.

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
