"""Print what became of a message in each consumer group, for `aerobee message track`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aerobee_cli import output
from aerobee_cli.errors import CommandError
from aerobee_cli.options import BadOption
from aerobee_cli.table import Column, Table, number
from aerobee_client.admin.descriptions import GroupState, TrackedMessage
from aerobee_client.admin.export import summary
from aerobee_client.errors import BrokerUnreachable, RequestTimeout
from aerobee_wire.printable import printable
from aerobee_wire.status import Code, MqError

if TYPE_CHECKING:
    from aerobee_client import AdminClient

UNKNOWN = "unknown"
COLUMNS = (
    Column("group", "consumer_group"),
    Column("state", "state"),
    Column("client", "client_id"),
    Column("when", "when"),
    Column("until", "until"),
    number("attempt", "attempt"),
    number("ahead", "ahead", extra=True),
    Column("stored as", "place"),
    Column("why", "why", text=True),
)
# In these states, a client or an operator has acted.
_ACTED = {"ON_LEASE", "CONSUMED", "SKIPPED"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The messages to track: by id, by key, or by place."""

    message_id: str
    topic: str
    key: str
    broker: str
    queue: int | None
    offset: int | None
    groups: tuple[str, ...]
    limit: int

    def track(self, admin: AdminClient, silent: list[MqError]) -> list[TrackedMessage]:
        """Return the messages. `silent` collects the errors of brokers that do not answer.

        Raises BadOption if the options do not name messages, CommandError if a group does not
        exist, and MqError.
        """
        place = (self.broker, self.queue, self.offset)
        has_place = any(each not in ("", None) for each in place)
        if bool(self.message_id) + bool(self.key) + has_place != 1:
            raise BadOption("give a message id, --key, or --broker with --queue and --offset")
        if not self.message_id and not self.topic:
            raise BadOption("--topic: needed for --key and for a place")
        if has_place and not (self.broker and self.queue is not None and self.offset is not None):
            raise BadOption("a place needs --broker, --queue and --offset")
        for group in self.groups:  # a group that does not exist would be NOT_YET
            try:
                admin.get_group(group, silent=[])
            except MqError as error:
                if error.code is not Code.SUBSCRIPTION_GROUP_NOT_EXIST:
                    raise
                raise CommandError(
                    f"--group {group}: this consumer group does not exist: see 'aerobee group list'"
                ) from error
        if self.message_id:
            return admin.track_message(self.message_id, groups=self.groups, silent=silent)
        if self.key:
            return self._by_key(admin, silent)
        assert self.queue is not None and self.offset is not None
        at = self.topic, self.broker, self.queue, self.offset
        return [admin.track_place(*at, groups=self.groups)]

    def _by_key(self, admin: AdminClient, silent: list[MqError]) -> list[TrackedMessage]:
        found = admin.search_messages(
            self.topic, key=self.key, newest_first=True, max_messages=self.limit
        )
        silent += found.silent.values()
        if not found.messages:
            where = " on a broker that answers: " if silent else ""
            left_out = "; ".join(error.message for error in silent)
            raise MqError(
                Code.QUERY_NOT_FOUND,
                f"no message of {self.topic} has the key {self.key!r}{where}{left_out}",
            )
        tracked: list[TrackedMessage] = []
        for message in found.messages:
            place = (message.stored_topic, message.broker_name)
            at = (*place, message.queue_id, message.queue_offset)
            try:
                tracked.append(admin.track_place(*at, groups=self.groups))
            except (BrokerUnreachable, RequestTimeout) as error:
                silent.append(error)
        if not tracked:
            raise silent[-1]
        return tracked


def show(found: Sequence[TrackedMessage], *, as_json: bool) -> None:
    """Print the messages: one JSON array, or for each a line and a table of its groups."""
    if as_json:
        output.write_array(map(item_of, found))
        return
    table = Table(COLUMNS)
    for number_, tracked in enumerate(found):
        print("\n" if number_ else "", end="")
        print(printable(head_of(tracked)))
        table.show(map(row_of, tracked.groups), empty=_without_groups(tracked))


def item_of(tracked: TrackedMessage) -> output.Item:
    message = tracked.message
    item = output.items_of([tracked])[0]
    # A broker answers without the bodies, so their size is not known.
    shown = None if message is None else {**summary(message), "body_size": None}
    return {**item, "message": shown}


def head_of(tracked: TrackedMessage) -> str:
    """Return one line about a message: its id, its place, and when it was stored."""
    at = tracked.place
    where = f"{at.topic} at {tracked.broker_name}/{at.queue_id}@{at.queue_offset}"
    message = tracked.message
    if message is None:
        return f"{where}: not stored any more, or damaged"
    stored = output.iso_time(message.store_timestamp_ms)
    keys = f", keys {', '.join(message.keys)}" if message.keys else ""
    return f"{message.message_id}  {where}, stored {stored}{keys}"


def _without_groups(tracked: TrackedMessage) -> str:
    if tracked.due_timestamp_ms:
        return f"it waits for its delivery time {output.iso_time(tracked.due_timestamp_ms)}"
    if tracked.uncommitted:
        return "it is in a transaction that was not committed: open, or rolled back"
    return "no consumer group consumes the topic"


def row_of(state: GroupState) -> dict[str, Any]:
    """Return the cells of a group. A value that should be there and is not known is "unknown"."""
    acted = state.state in _ACTED
    place = state.place
    failure = ": ".join(text for text in (state.failure_reason, state.failure_description) if text)
    return {
        "consumer_group": state.consumer_group,
        "state": state.state,
        "client_id": state.client_id or (UNKNOWN if acted and "began" not in state.reason else ""),
        "when": _when(state) or (UNKNOWN if acted else ""),
        "until": output.iso_time(state.until_timestamp_ms),
        "attempt": state.attempt or None,
        "ahead": state.ahead or None,
        "place": f"{place.topic}/{place.queue_id}@{place.queue_offset}" if place else "",
        "why": f"{failure} ({state.reason})" if failure else state.reason,
    }


def _when(state: GroupState) -> str:
    if state.since_timestamp_ms == state.at_timestamp_ms:
        return output.iso_time(state.at_timestamp_ms)
    since, at = map(output.iso_time, (state.since_timestamp_ms, state.at_timestamp_ms))
    return f"{since} to {at}"
