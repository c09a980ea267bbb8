"""Ask brokers for the states of a group's dead letters, for the facts table."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from aerobee_spark.errors import MqError
from aerobee_spark.reading.offsets import Bounds, Queue
from aerobee_spark.table import letter_states
from aerobee_spark.table.commits import spans
from aerobee_spark.table.files import FactsFiles
from aerobee_spark.table.letter_states import QueueStates
from aerobee_wire import topics

if TYPE_CHECKING:
    from aerobee_client import AdminClient

PAGE = 4_096  # letters of one request


def refresh(
    files: FactsFiles, admin: AdminClient, bounds: Mapping[Queue, Bounds | MqError]
) -> tuple[dict[str, int], dict[str, str]]:
    """Replace the states of the letters that the table and the brokers have.

    Letters that arrived after the last batch of their queue are left to the next run. If a broker
    does not answer, its letters keep the states of the last run.

    Returns:
        The number of letters of the table by state, and the error of each broker.
    """
    landed = {span.queue: span for span in spans(files.commits())}
    found: list[QueueStates] = []
    problems: dict[str, str] = {}
    for queue, at in sorted(bounds.items(), key=lambda each: each[0]):
        if not topics.is_dead_letter(queue.topic) or queue.broker_name in problems:
            continue
        try:
            if isinstance(at, MqError):
                raise at
            if (span := landed.get(queue)) is None:
                continue
            within = Bounds(max(at.min_offset, span.start), min(at.max_offset, span.end))
            if within.min_offset < within.max_offset:
                found.append(_states_of(admin, queue, within))
        except MqError as error:
            problems[queue.broker_name] = error.message
    return letter_states.update(files, found), problems


def _states_of(admin: AdminClient, queue: Queue, bounds: Bounds) -> QueueStates:
    group = queue.topic.removeprefix(topics.DLQ_PREFIX)
    states = QueueStates(queue, *bounds, round(time.time() * 1000))
    for begin in range(bounds.min_offset, bounds.max_offset, PAGE):
        end = min(begin + PAGE, bounds.max_offset)
        page = admin.letter_states(group, queue.broker_name, queue.queue_id, begin, end)
        for offset, status in page.items():
            if begin <= offset < end:
                told = status.at_ms, status.job_id, status.target, status.requested_by
                states.handled[offset] = (status.state.value, *told)
    return states
