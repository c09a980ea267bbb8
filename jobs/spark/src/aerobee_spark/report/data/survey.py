"""Asks the brokers: beforehand what there is to read, afterwards why some of it was not read.

Reads only, and not through Spark: a wrong name is told within a second.
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
    "the report that stood here before read it, and no broker serves it now: start its broker, or, "
    "if the topic was deleted, remove the earlier summary.json"
)


def plan(request: ReportRequest, known: Iterable[Queue] = ()) -> list[QueueCoverage]:
    """Every queue of the report, sorted, with its bounds and the range to read, or why there is
    none.

    `known`: queues of an earlier report. A broker that has been away for longer than the name
    server remembers leaves no other trace. Raises MqError when no name server answers, or the
    group is unknown.
    """
    with planning.connect(request.name_server) as admin:
        queues = planning.queues_of_group(admin, request.consumer_group, request.kinds)
        answers = planning.bounds_of_queues(admin, queues)
        bounds = {q: each for q, each in answers.items() if not isinstance(each, MqError)}
        ranges = planning.ranges_of(admin, _window(request), bounds)
    of_queue = {each.queue: each for each in ranges}
    planned = [_planned(queue, answers[queue], of_queue.get(queue)) for queue in queues]
    gone = set(known) - set(queues)
    planned += [QueueCoverage(queue, None, None, problem=_VANISHED) for queue in gone]
    return sorted(planned, key=lambda each: each.queue)


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
    """Why queues were not read to their end, as far as their brokers can tell afterwards."""
    short = {
        each.queue: each.wanted
        for each in planned
        if each.wanted is not None and rows.get(each.queue, 0) != each.expected
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
        "the broker was away while it was read, or left out records that fail their check; look "
        "into its log, and make the report again"
    )
