"""Run a redrive for the command: connect, send, and show the progress and the result.

The result goes to stdout, as one JSON object or a table of unsent dead letters. The JSON object is
written during the redrive. Therefore the outcomes are never all in memory.
"""

from __future__ import annotations

import asyncio
import gc
import json
import signal
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AsyncExitStack, aclosing, contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from aerobee_cli import output
from aerobee_cli.errors import FAILED, INCOMPLETE, CommandError
from aerobee_cli.options import PRODUCER_GROUP, BadOption
from aerobee_cli.progress import Progress
from aerobee_cli.table import Column, Table
from aerobee_cli.times import Moment
from aerobee_client.admin.dead_letters import DeadLetters, Selection
from aerobee_client.admin.redriving.outcome import Outcome, Status, Tally
from aerobee_client.admin.redriving.rules import Target
from aerobee_wire.status import MqError

if TYPE_CHECKING:
    from aerobee_client import AsyncAdminClient
    from aerobee_client.admin.redriving.journal import Journal
    from aerobee_client.admin.redriving.listed import ListedDeadLetters
    from aerobee_client.admin.redriving.message_ids import MessageIds
    from aerobee_client.admin.redriving.run import Redrive


# This is long enough for the restart of a broker.
SEND_TIMEOUT = timedelta(seconds=30)
# The number of new objects between two runs of the garbage collector. Each dead letter creates
# about ten objects, which are freed without the collector. With Python's default of 700, the
# collector takes a seventh of the time of a redrive.
YOUNG_OBJECTS = 50_000
# The maximum number of rows of a table.
TABLE_ROWS = 1_000
COLUMNS = (
    Column("message id", "message_id"),
    Column("status", "status"),
    Column("topic", "topic"),
    Column("error", "error", text=True),
    Column("tag", "tag", extra=True),
    Column("offset message id", "offset_message_id", extra=True),
)
_KEYS = ("message_id", "offset_message_id", "tag", "topic", "status", "error", "perhaps_twice")


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """The arguments of the command line.

    If `limit` is 0, all dead letters are sent. `listed` and `journal` are files. `since` and
    `until` are bounds of the store time. They are added to `selection` when the clock of the
    brokers is known.
    """

    namesrv: str
    group: str
    selection: Selection
    to: Target
    since: Moment | None = None
    until: Moment | None = None
    rate: float | None = None
    limit: int = 0
    listed: Path | None = None
    journal: Path | None = None
    dry_run: bool = False
    json: bool = False


def run(request: Request) -> int:
    """Run a redrive and return the exit code.

    0: all were sent. 1: some were not sent, or do not exist. 3: some could not be read. If the
    redrive raises an error, the result up to that point is shown first.
    """
    job = _Job(request)
    try:
        with fewer_looks_for_cycles(), _stopped_like_ctrl_c():
            asyncio.run(job.run())
    except (MqError, OSError, KeyboardInterrupt):
        job.show_interrupted()
        raise
    return job.show()


class _Job:
    def __init__(self, request: Request) -> None:
        self._request = request
        self._shown: Shown = JsonObject() if request.json else Rows()
        self._selection = request.selection
        self._ids = request.selection.ids
        self._missing = set(self._ids)
        self._source: DeadLetters | ListedDeadLetters | None = None
        self._redrive: Redrive | None = None
        self._complete = True
        self._unfinished = 0  # messages in flight when an earlier run was interrupted

    async def run(self) -> None:
        from aerobee_client import AsyncAdminClient, AsyncProducer
        from aerobee_client.admin.redriving.message_ids import Claim, MessageIds
        from aerobee_client.admin.redriving.run import Redrive, Settings
        from aerobee_client.runtime.clock import SystemClock

        request = self._request
        settings = Settings(
            consumer_group=request.group,
            target=request.to,
            rate=request.rate,
            limit=request.limit,
            dry_run=request.dry_run,
        )
        async with AsyncExitStack() as stack:
            ids = MessageIds()
            stack.callback(ids.close)
            journal = self._open_journal(ids)
            if journal is not None:
                stack.callback(journal.close)
                self._unfinished = ids.count(Claim.UNKNOWN)
            output.silence_client()
            admin = await stack.enter_async_context(AsyncAdminClient(request.namesrv))
            await self._check_target(admin)
            await self._set_bounds(admin)
            producer = await stack.enter_async_context(
                AsyncProducer(PRODUCER_GROUP, namesrv=request.namesrv, send_timeout=SEND_TIMEOUT)
            )
            clock = SystemClock()
            self._redrive = Redrive(settings, producer, clock=clock, ids=ids, journal=journal)
            await self._send(self._redrive, self._source_of(admin))

    def _open_journal(self, ids: MessageIds) -> Journal | None:
        from aerobee_client.admin.redriving.journal import Journal

        request = self._request
        if request.journal is None:
            return None
        given = (request.journal, request.group, request.to, ids)
        return Journal.open(*given, read_only=request.dry_run)

    async def _check_target(self, admin: AsyncAdminClient) -> None:
        from aerobee_client.admin.redriving.run import reads_retries

        group = self._request.group
        if self._request.to != Target.RETRY:
            return
        if not reads_retries(await admin.list_clients(group), group):
            raise CommandError(
                f"the consumers of {group} do not read its retry topic, as those of the official "
                "SDKs never do: send with --to origin"
            )

    async def _set_bounds(self, admin: AsyncAdminClient) -> None:
        """Set the bounds of the store time in the selection.

        Ages count back from the earliest broker clock, because brokers set the store times.
        """
        request = self._request
        moments = [each for each in (request.since, request.until) if each is not None]
        now_ms = 0
        if any(each.is_age for each in moments):
            now_ms = min((await admin.broker_times_ms()).values())
        check_bounds(request.since, request.until, now_ms)
        self._selection = replace(
            request.selection,
            since_ms=request.since and request.since.at(now_ms),
            until_ms=request.until and request.until.at(now_ms),
        )

    def _source_of(self, admin: AsyncAdminClient) -> DeadLetters | ListedDeadLetters:
        from aerobee_client.admin.redriving.listed import ListedDeadLetters

        request = self._request
        if request.listed is None:
            source: DeadLetters | ListedDeadLetters = DeadLetters(
                admin, request.group, self._selection
            )
        else:
            source = ListedDeadLetters(admin, request.group, request.listed, self._selection)
        self._source = source
        return source

    async def _send(self, redrive: Redrive, source: DeadLetters | ListedDeadLetters) -> None:
        progress = Progress(sys.stderr)
        try:
            async with (
                aclosing(source.pages()) as letters,
                aclosing(redrive.run(letters)) as windows,
            ):
                async for outcomes in windows:
                    self._take(outcomes)
                    progress.update(
                        looked_at=max(source.scanned, redrive.tally.total),  # in a started page
                        total=source.total,
                        sent=redrive.tally.by_status[Status.SENT],
                    )
        finally:
            progress.close()
            warn_unless_complete(source.topic, source.corrupted, source.expired)
            self._complete = source.complete

    def _take(self, outcomes: list[Outcome]) -> None:
        self._shown.add(outcomes)
        if self._missing:
            for outcome in outcomes:
                self._missing -= {outcome.message_id, outcome.offset_message_id}

    @property
    def _tally(self) -> Tally:
        return self._redrive.tally if self._redrive is not None else Tally()

    def show(self) -> int:
        """Show the result, and return the exit code."""
        self._show(interrupted=False)
        for message_id in sorted(self._missing):
            output.note(f"error: {self._request.group} has no dead letter {message_id}")
        counts = self._tally.by_status
        if counts[Status.FAILED] or counts[Status.MISSING] or self._missing:
            return FAILED
        return 0 if self._complete else INCOMPLETE

    def show_interrupted(self) -> None:
        """Show the result up to the interruption, unless no dead letter was examined."""
        if not self._tally.total:
            return
        self._show(interrupted=True)
        if self._request.journal is not None:
            output.note(f"interrupted: the same command resumes, by {self._request.journal}")
        elif self._redrive is not None and self._redrive.last is not None:
            last = self._redrive.last
            output.note(
                f"interrupted behind queue offset {last.queue_offset} of queue {last.queue_id} of "
                f"broker {last.broker_name}: the next redrive of all sends these again, which "
                "--journal FILE prevents"
            )

    def _show(self, *, interrupted: bool) -> None:
        tally, request = self._tally, self._request
        counts = tally.by_status
        self._shown.end(
            {
                "group": request.group,
                "target": str(request.to),
                "topics": sorted(tally.topics),
                **{status.name.lower(): counts[status] for status in Status},
                "perhaps_twice": tally.perhaps_twice,
                "complete": self._complete,
                "interrupted": interrupted,
            }
        )
        status = Status.WOULD_SEND if request.dry_run else Status.SENT
        text = f"{status} {counts[status]:,} of {tally.total:,} dead letters of {request.group}"
        if tally.topics:
            text += f" to {', '.join(sorted(tally.topics))}"
        if self._redrive is not None and self._redrive.limit_is_reached:
            text += f"; --limit {request.limit} ended it, and later dead letters were not examined"
        if counts[Status.SENT_BEFORE]:
            text += f"; {counts[Status.SENT_BEFORE]:,} were sent before, says {request.journal}"
        if tally.perhaps_twice:
            text += (
                f"; {tally.perhaps_twice:,} perhaps twice, with the same message id: they were in "
                "flight when an earlier run broke off"
            )
        output.note(text)


def check_bounds(since: Moment | None, until: Moment | None, now_ms: int) -> None:
    """Raise BadOption if `since` is later than `until`."""
    if since is not None and until is not None and since.at(now_ms) > until.at(now_ms):
        raise BadOption("--since is later than --until: no dead letter was stored then")


@contextmanager
def fewer_looks_for_cycles() -> Iterator[None]:
    """Run Python's garbage collector less often, and only on new objects.

    This saves time because a redrive creates many objects, but no reference cycles.
    """
    thresholds = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, *thresholds[1:])
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()


@contextmanager
def _stopped_like_ctrl_c() -> Iterator[None]:
    """Handle SIGTERM like SIGINT: wait for the messages in flight, and show the result.

    A shell lets background commands of a script ignore SIGINT, but here SIGINT is handled again.
    """

    def interrupt(*_: Any) -> None:
        signal.raise_signal(signal.SIGINT)

    handlers = {signal.SIGTERM: interrupt, signal.SIGINT: signal.default_int_handler}
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def warn_unless_complete(topic: str, corrupted: int, expired: int) -> None:
    """Warn on stderr about records of `topic` that could not be read."""
    if corrupted:
        output.note(
            f"warning: {corrupted} records of {topic} are corrupt and left out: the broker's log "
            "names their file and physical offset"
        )
    if expired:
        output.note(f"warning: {expired} records of {topic} expired before they were read")


class Shown(Protocol):
    def add(self, outcomes: Iterable[Outcome]) -> None: ...
    def end(self, result: Mapping[str, Any]) -> None:
        """Print the last part of the output. `result` has the counts of the whole redrive."""


class JsonObject:
    """Prints the result as one JSON object.

    The object has the array "outcomes" with an item on each line, and then the counts. Dead letters
    that earlier runs sent are only counted.
    """

    def __init__(self) -> None:
        self._separator = '{"outcomes": [\n'

    def add(self, outcomes: Iterable[Outcome]) -> None:
        for outcome in outcomes:
            if outcome.status is not Status.SENT_BEFORE:
                item = outcome._asdict()
                shown = {key: item[key] for key in _KEYS}
                sys.stdout.write(self._separator + json.dumps(shown, ensure_ascii=False))
                self._separator = ",\n"

    def end(self, result: Mapping[str, Any]) -> None:
        start = '{"outcomes": [' if self._separator.startswith("{") else "\n"
        rest = json.dumps(dict(result), ensure_ascii=False)
        sys.stdout.write(f"{start}],\n{rest.removeprefix('{')}\n")
        sys.stdout.flush()


class Rows:
    """Prints a table of the dead letters that were not sent.

    In a dry run, the table also has the dead letters that would be sent.
    """

    def __init__(self) -> None:
        self._rows: list[dict[str, Any]] = []
        self._more = 0

    def add(self, outcomes: Iterable[Outcome]) -> None:
        for outcome in outcomes:
            if outcome.status in (Status.SENT, Status.SENT_BEFORE):
                continue
            if len(self._rows) < TABLE_ROWS:
                self._rows.append(outcome._asdict())
            else:
                self._more += 1

    def end(self, result: Mapping[str, Any]) -> None:
        if self._rows:
            Table(COLUMNS).show(self._rows)
        if self._more:
            output.note(f"{self._more:,} more are not shown: --json lists all")
