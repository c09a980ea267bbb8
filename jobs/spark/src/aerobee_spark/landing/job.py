"""Run the job of `aerobee facts`, which writes messages in batches into a facts table.

The table has each message once, and readers do not see part of a batch. This holds even if a
broker, Spark or this process is killed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from aerobee_spark.errors import MqError, ReportError
from aerobee_spark.jvm import session
from aerobee_spark.landing.request import LandRequest, LandResult, OnStep
from aerobee_spark.reading import planning
from aerobee_spark.reading.offsets import Bounds, Queue
from aerobee_spark.reading.options import ReadOptions
from aerobee_spark.report.engines import choice
from aerobee_spark.report.request import AUTO, LOCAL, SPARK
from aerobee_spark.table import letter_states
from aerobee_spark.table.commits import Commit, Span, spans
from aerobee_spark.table.files import FactsFiles
from aerobee_spark.table.hadoop_files import HadoopFiles
from aerobee_spark.table.letter_states import QueueStates
from aerobee_spark.table.local_files import LocalFiles
from aerobee_wire import topics

if TYPE_CHECKING:
    from aerobee_client import AdminClient


# The bounds of each queue, or the error of its broker.
Answers = Mapping[Queue, Bounds | MqError]


def land(request: LandRequest, on_step: OnStep) -> LandResult:
    """Write messages into a facts table: the existing messages, or new ones until interrupted.

    After an error the table is still consistent, and the next run continues where this one ended.

    Raises:
        MqError: the messages cannot be read.
        ReportError: Spark fails, or the table does not match the request.
    """
    if _engine(request) == LOCAL and not isinstance(request.table, str):
        return _land_locally(request, LocalFiles(request.table), on_step)
    choice.check(SPARK)
    from aerobee_spark.landing import spark_landing
    from aerobee_spark.report.engines.spark_engine import spark_path

    if isinstance(request.table, str):
        with spark_landing.started(request, on_step) as running:
            files = FactsFiles(HadoopFiles(running.spark, request.table))
            landing = spark_landing.Landing(files, files.where, request, on_step)
            return _land(request, files, lambda held, asked: spark_landing.stream(running, landing))
    here = LocalFiles(request.table)
    files = FactsFiles(here)

    def stream(held: Sequence[int], asked: Answers) -> None:
        """Run the stream in a Java process that also holds the lock of the table."""
        with spark_path(here.path) as link, spark_landing.started(request, on_step, held) as spark:
            landing = spark_landing.Landing(files, str(link), request, on_step)
            spark_landing.stream(spark, landing)

    return _land(request, files, stream)


def _engine(request: LandRequest) -> str:
    """Choose the engine: Spark for a table at a URI and under spark-submit, else the local one.

    Raise ReportError if the local engine was requested for a table at a URI.
    """
    if request.engine == LOCAL and isinstance(request.table, str):
        raise ReportError(
            f"the local engine does not write to {request.table}: use a path, or --engine spark",
            request.table,
        )
    if request.engine != AUTO:
        return request.engine
    return SPARK if isinstance(request.table, str) or session.is_submitted() else LOCAL


def _land_locally(request: LandRequest, place: LocalFiles, on_step: OnStep) -> LandResult:
    from aerobee_spark.landing.local_landing import LocalLanding

    files = FactsFiles(place)

    def ask() -> Answers:
        asked = _ask(request, files)
        check_not_made_again(asked, spans(files.commits()))
        return asked

    def refresh(answers: Answers) -> None:
        _refresh_states(request, files, answers)

    landing = LocalLanding(files, request, ask, refresh, on_step)
    return _land(request, files, lambda held, asked: landing.run(asked))


def _land(
    request: LandRequest, files: FactsFiles, write: Callable[[Sequence[int], Answers], None]
) -> LandResult:
    """Write messages with `write`, which gets the open files of the lock and the bounds."""
    asked = _ask(request, files)
    check_not_made_again(asked, spans(_known(files)))
    files.create(request.about())
    with files.lock() as held:
        before = {commit.name for commit in files.commits()}
        write(held, asked)
        asked_again = _ask(request, files)
        states, states_unknown = _refresh_states(request, files, asked_again)
        commits = files.commits()
        mine = [commit for commit in commits if commit.name not in before]
        landed = spans(commits)
    away = [*_problems(asked), *_problems(asked_again), *_behind(asked, landed)]
    return LandResult(
        sum(commit.rows for commit in mine),
        sum(span.lost for span in spans(mine)),
        len(mine),
        tuple(dict.fromkeys(away)),
        tuple(landed),
        states,
        states_unknown,
    )


def _refresh_states(
    request: LandRequest, files: FactsFiles, answers: Answers
) -> tuple[dict[str, int], dict[str, str]]:
    """Replace the states of the dead letters in the table; see `refresh_letter_states`."""
    if not request.has_letters:
        return {}, {}
    with planning.connect(request.name_server) as admin:
        return refresh_letter_states(files, admin, answers)


def _ask(request: LandRequest, files: FactsFiles) -> Answers:
    """Ask brokers for the minimum and maximum offset of the queues of the request and the table.

    The value of a queue is an MqError if its broker did not answer.

    Raises:
        MqError: no name server answers, or a group or topic does not exist.
    """
    options = ReadOptions.parse(request.options())
    known = {landed.queue for commit in _known(files) for landed in commit.queues}
    with planning.connect(request.name_server) as admin:
        try:
            queues = set(planning.queues_of(admin, options))
        except MqError:
            if not known:
                raise
            queues = set()
        return planning.bounds_of_queues(admin, sorted(known | queues))


def check_not_made_again(answers: Answers, landed: Sequence[Span]) -> None:
    """Raise ReportError if a queue ends before the last offset that the table has of it.

    Such a queue was deleted and created again. Its new messages would have the same offsets as
    earlier messages in the table, and readers would not see them.
    """
    for span in landed:
        bounds = answers.get(span.queue)
        if isinstance(bounds, Bounds) and bounds.max_offset < span.end:
            raise ReportError(
                f"{span.queue} ends at queue offset {bounds.max_offset}, but the table has it up "
                f"to {span.end}: the topic was deleted and created again, or purged; use a new "
                "--table",
                str(span.queue),
            )


def _problems(answers: Answers) -> list[str]:
    return [answer.message for answer in answers.values() if isinstance(answer, MqError)]


def _behind(answers: Answers, landed: Sequence[Span]) -> list[str]:
    """Return a sentence for each queue that was not written up to its end at the start of the run.

    The broker of such a queue was unavailable for a while, but may be available again.
    """
    ends = {span.queue: span.end for span in landed}
    return [
        f"{queue}: written up to queue offset {ends.get(queue, 0)} of {bounds.max_offset}: its "
        "broker was unavailable for a while; run the command again"
        for queue, bounds in answers.items()
        if not isinstance(bounds, MqError)
        and ends.get(queue, bounds.min_offset) < bounds.max_offset
    ]


def _known(files: FactsFiles) -> list[Commit]:
    try:
        files.about()
    except ReportError:
        return []
    return files.commits()


# ---- states of dead letters ----
#
# Ask brokers for the states of a group's dead letters, for the facts table.


PAGE = 4_096  # letters of one request


def refresh_letter_states(
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
