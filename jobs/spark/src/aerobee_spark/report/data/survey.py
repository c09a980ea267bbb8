"""Asking the brokers: before a report, what there is to read; after it, why messages are missing.

Without Spark, so that a wrong name fails within a second.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from aerobee_spark.errors import MqError
from aerobee_spark.reading import planning
from aerobee_spark.reading.offsets import AT_EARLIEST, AT_LATEST, Bounds, OffsetRange, Queue
from aerobee_spark.reading.options import ReadOptions
from aerobee_spark.report.data.coverage import QueueCoverage
from aerobee_spark.report.request import ReportRequest

_VANISHED = (
    "the previous report read it, and no broker serves it now: start its broker, or, if the topic "
    "was deleted, remove the previous summary.json"
)


def plan(request: ReportRequest, known: Iterable[Queue] = ()) -> list[QueueCoverage]:
    """Every queue of the report, sorted, with its bounds and the range to read, or with a problem.

    `known`: the queues of the previous report, for a broker that is down for so long that no route
    names it any more. Raises MqError when no name server answers, or the group is unknown.
    """
    with planning.connect(request.name_server) as admin:
        queues = planning.queues_of_group(admin, request.consumer_group, request.kinds)
        answers = planning.bounds_of_queues(admin, queues)
        bounds = {q: found for q, found in answers.items() if not isinstance(found, MqError)}
        ranges = planning.ranges_of(admin, _window(request), bounds)
    of_queue = {offsets.queue: offsets for offsets in ranges}
    planned = [_planned(queue, answers[queue], of_queue.get(queue)) for queue in queues]
    gone = set(known) - set(queues)
    planned += [QueueCoverage(queue, None, None, problem=_VANISHED) for queue in gone]
    return sorted(planned, key=lambda plan: plan.queue)


def _window(request: ReportRequest) -> ReadOptions:
    return ReadOptions(
        request.name_server,
        starting=replace(AT_EARLIEST, timestamp_ms=request.since_ms),
        ending=replace(AT_LATEST, timestamp_ms=request.until_ms),
        fail_on_data_loss=False,
    )


def _planned(queue: Queue, answer: Bounds | MqError, wanted: OffsetRange | None) -> QueueCoverage:
    if isinstance(answer, MqError):
        return QueueCoverage(queue, None, None, problem=answer.message)
    return QueueCoverage(queue, answer, wanted)


def reasons(
    request: ReportRequest, planned: Sequence[QueueCoverage], rows: Mapping[Queue, int]
) -> dict[Queue, str]:
    """Why messages of a queue are missing, as far as its broker shows now."""
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
            f"messages below queue offset {answer.min_offset} were deleted while it was read; "
            "make the report again"
        )
    return (
        "the broker was down while it was read, or left out records that fail their check; look "
        "into its log, and make the report again"
    )
