"""Print messages that brokers found, for `aerobee message browse`, `tail` and `search`."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aerobee_cli import output
from aerobee_cli.message_lines import Format, MessageLines
from aerobee_cli.options import BadOption
from aerobee_cli.times import parse_moment
from aerobee_client.admin.descriptions import QueueRange, SearchResult
from aerobee_wire.printable import printable_json

if TYPE_CHECKING:
    from aerobee_client import AdminClient, Sql
    from aerobee_wire.status import MqError


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The conditions and bounds of the command line. A time is None if it is not given."""

    topic: str
    tag: str = "*"
    sql: str = ""
    key: str = ""
    text: str = ""
    begin: str | None = None
    end: str | None = None
    broker: str = ""
    queue: int | None = None
    first_offset: int | None = None
    last_offset: int | None = None

    def expression(self) -> str | Sql:
        """Return the filter. Raises BadOption if two filters are given."""
        if not self.sql:
            return self.tag
        if self.tag != "*":
            raise BadOption("give --tag or --sql, not both")
        from aerobee_client import Sql

        return Sql(self.sql)

    def ranges(self, admin: AdminClient) -> list[QueueRange]:
        """Return the parts of queues to search; an empty list for all queues.

        Raises BadOption if options of a place are incomplete.
        """
        has_offset = self.first_offset is not None or self.last_offset is not None
        if has_offset and (self.queue is None or not self.broker):
            raise BadOption(
                "--from-offset and --to-offset count in one queue: add --broker, --queue"
            )
        if self.queue is None and not self.broker:
            return []
        end = None if self.last_offset is None else self.last_offset + 1
        if self.broker and self.queue is not None:
            return [QueueRange(self.broker, self.queue, self.first_offset or 0, end)]
        found = [
            QueueRange(each.broker_name, each.queue_id)
            for each in admin.topic_status(self.topic)
            if self.broker in ("", each.broker_name) and self.queue in (None, each.queue_id)
        ]
        if not found:
            raise BadOption(
                f"{self.topic} has no queue {self.queue} on {self.broker or 'a broker'}"
            )
        return found

    def search(
        self, admin: AdminClient, *, newest_first: bool, limit: int, max_scanned: int = 0
    ) -> SearchResult:
        return admin.search_messages(
            self.topic,
            expression=self.expression(),
            key=self.key,
            text=self.text,
            begin_timestamp_ms=time_of("--from", self.begin),
            end_timestamp_ms=time_of("--to", self.end),
            ranges=self.ranges(admin),
            newest_first=newest_first,
            max_messages=limit,
            max_scanned=max_scanned,
        )


def time_of(option: str, text: str | None) -> int:
    """Parse a time to milliseconds since the epoch; 0 if it is not given. Raises BadOption."""
    if text is None:
        return 0
    try:
        return parse_moment(text).at(round(time.time() * 1_000))
    except ValueError as error:
        raise BadOption(f"{option}: {error}") from None


def show(result: SearchResult, form: Format, *, as_json: bool) -> None:
    """Print the messages of a search: one JSON object with its state, or each in its format."""
    if as_json:
        print(printable_json(item_of(result)))
        return
    lines = MessageLines(form)
    for message in result.messages:
        print(lines.of(message))


def item_of(result: SearchResult) -> output.Item:
    from aerobee_client.admin.export import full

    return {
        "messages": [full(message) for message in result.messages],
        "stops": dict(result.stops),
        "left": output.items_of(result.left),
        "scanned": result.scanned,
        "unreadable": result.unreadable,
        "silent": {name: error.message for name, error in result.silent.items()},
    }


def problems(result: SearchResult) -> list[str]:
    """Return why the result may lack messages, as sentences for the operator."""
    found = [f"warning: {text}" for text in unanswered(result.silent.values())]
    if result.unreadable:
        found.append(
            f"warning: {output.counted(result.unreadable, 'message')} may match and cannot be read"
        )
    if "SCAN_LIMIT" in result.stops.values():
        found.append("warning: not all messages are examined: give a higher --max-scanned")
    return found


def unanswered(errors: Iterable[MqError]) -> list[str]:
    return [f"messages of a broker are left out: {error.message}" for error in errors]


def truncation(result: SearchResult) -> str:
    """Return where the search stopped, and why; "" if it examined everything."""
    stops = {name: reason for name, reason in result.stops.items() if reason != "COMPLETE"}
    if not stops:
        return ""
    reasons = {
        "MESSAGE_LIMIT": "there are more messages: give a higher --limit",
        "BYTE_LIMIT": "the messages are larger than 64 MiB: narrow the search",
        "SCAN_LIMIT": "the limit of --max-scanned is reached",
    }
    why = ", ".join(sorted({reasons.get(stop, stop) for stop in stops.values()}))
    places = [
        f"{each.broker_name}/{each.queue_id}@{each.begin_offset}..{each.end_offset}"
        for each in result.left
        if each.end_offset is None or each.end_offset > each.begin_offset
    ]
    where = f"; left: {', '.join(places[:8])}" if places else ""
    more = f" and {len(places) - 8} more queues" if len(places) > 8 else ""
    return f"stopped after {output.counted(result.scanned, 'message')}: {why}{where}{more}"


def follow(admin: AdminClient, wanted: Wanted, result: SearchResult, form: Format) -> list[MqError]:
    """Print messages that are stored after the result, until Ctrl-C.

    If a broker stops answering, print a warning at once. Return the errors of these brokers. Raises
    MqError if no broker answers any more.
    """
    silent: list[MqError] = []

    def warn(error: MqError) -> None:
        silent.append(error)
        for text in unanswered([error]):
            output.note(f"warning: {text}")

    lines = MessageLines(form)
    messages = admin.follow_messages(
        wanted.topic,
        expression=wanted.expression(),
        key=wanted.key,
        text=wanted.text,
        ranges=result.ends,
        on_error=warn,
    )
    try:
        for message in messages:
            print(lines.of(message), flush=True)
    except KeyboardInterrupt:
        print(file=sys.stderr)
    return silent
