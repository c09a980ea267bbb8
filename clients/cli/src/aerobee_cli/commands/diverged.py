"""Define `aerobee broker diverged`: list, show and resend messages cut off from replicas' logs."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import click

from aerobee_cli import output
from aerobee_cli.command_line import Argument, CommandGroup, Option
from aerobee_cli.doctor.broker_group import AbsentReplica, look_at
from aerobee_cli.errors import INCOMPLETE, CommandError
from aerobee_cli.options import (
    BadOption,
    ClusterOptions,
    ListingOptions,
)
from aerobee_cli.progress import Progress
from aerobee_cli.table import Column, number

if TYPE_CHECKING:
    from aerobee_client import AdminClient
    from aerobee_client.admin.descriptions import DivergedFile, DivergedMessage, DivergedPage
    from aerobee_wire.status import MqError

app = CommandGroup(
    "diverged", help="What was cut off the log of a replica, where it left that of a new master."
)

FILE_COLUMNS = (
    number("replica", "replica_id"),
    Column("file", "name"),
    number("epoch", "epoch"),
    number("cut at", "begin_offset"),
    number("bytes", "size"),
)
MESSAGE_COLUMNS = (
    Column("message id", "message_id"),
    Column("topic", "topic"),
    Column("kind", "kind"),
    Column("in the log", "stored"),
    Column("stored at", "store_timestamp_ms", extra=True),
    number("bytes", "body_size", extra=True),
    Column("keys", "keys", extra=True, text=True),
    Column("tag", "tag", extra=True),
)

Broker = Annotated[str, Argument(metavar="BROKER", help="Its brokerName.")]
File = Annotated[
    str | None, Argument(metavar="[FILE]", help="As `list` names it. Default: all of them.")
]
Of = Annotated[int | None, Option("--replica", metavar="ID", help="Only what this replica keeps.")]


@app.add("list", epilog="Example: aerobee broker diverged list broker-a --json")
def list_diverged(*, name: Broker, options: ListingOptions) -> None:
    """List the log parts that replicas of a broker have cut off and keep.

    A replica cuts off messages that a former master stored, but the new master does not have. A
    replica that does not answer has a line too, because its parts are not known. Exit code 3: a
    replica does not answer.
    """
    table = options.listing(FILE_COLUMNS)
    silent: list[MqError] = []
    with options.admin() as admin:
        absent = look_at(admin, name).absent
        files = admin.list_diverged(name, silent=silent)
    items = [item | {"answers": True} for item in output.items_of(files)]
    items += [_unknown(name, each) for each in absent]
    whose = f"the replicas of {name} that answer" if absent else name
    shown = items if options.json else items[: len(files)]
    table.show(shown, as_json=options.json, empty=f"nothing was cut off the logs of {whose}")
    _end(silent, absent)


def _unknown(name: str, replica: AbsentReplica) -> dict[str, Any]:
    """Return the item for a replica that does not answer and whose files are not known."""
    unknown = dict.fromkeys(("name", "epoch", "begin_offset", "size"))
    place = {"broker_name": name, "replica_id": replica.replica_id, "address": replica.address}
    return place | unknown | {"answers": False}


@app.add(epilog="Example: aerobee broker diverged show broker-a 1-1048576.log")
def show(
    *,
    name: Broker,
    file: File = None,
    replica: Of = None,
    missing: Annotated[
        bool, Option("--missing", help="Only those that no broker has in its log.")
    ] = False,
    options: ListingOptions,
) -> None:
    """Show the messages in the parts that were cut off, and whether a broker has each message.

    Exit code 3: a replica did not answer, or a record is damaged.
    """
    table = options.listing(MESSAGE_COLUMNS)
    silent: list[MqError] = []
    reading = _Reading()
    with options.admin() as admin:
        absent = look_at(admin, name).absent
        files = _chosen(admin, name, file, replica, silent)
        items = (
            _item(found, message)
            for found in files
            for page in reading.pages(admin, found)
            for message in page.messages
            if message.is_missing or not missing
        )
        table.show(items, as_json=options.json, empty="no messages")
    reading.note()
    _end(silent, absent, complete=not reading.corrupted)


@app.add(epilog="Example: aerobee broker diverged resend broker-a --dry-run")
def resend(
    *,
    name: Broker,
    file: File = None,
    replica: Of = None,
    dry_run: Annotated[bool, Option("--dry-run", help="Send nothing.")] = False,
    options: ClusterOptions,
) -> None:
    """Send the cut messages again that no broker has in its log.

    Each message goes to its topic and queue with its message id; the property RESENT_FROM names the
    position of the cut record. A delivery time is kept. Half messages are not sent, because only
    their producers know whether to commit them. A second run sends no message twice, unless the
    first copies have expired. The files are kept.

    Exit code 1: some messages were refused. 3: a replica did not answer, or a record is damaged.
    """
    from aerobee_client.admin.diverged import batches
    from aerobee_wire.status import MqError

    silent: list[MqError] = []
    reading, done = _Reading(), _Resent()
    with options.admin() as admin:
        absent = look_at(admin, name).absent
        files = _chosen(admin, name, file, replica, silent)
        reading.total = sum(found.size for found in files)
        progress = Progress(sys.stderr, what="bytes")
        try:
            for found in files:
                for page in reading.pages(admin, found):
                    for batch in batches(done.to_send(page.messages)):
                        try:
                            done.sent += admin.resend_diverged(found, batch, dry_run=dry_run)
                        except MqError as error:  # a batch is stored whole, or not
                            done.refused(batch[0].topic, len(batch), error)
                    progress.update(looked_at=reading.done, total=reading.total, sent=done.sent)
        finally:
            progress.close()
    shown = {
        "broker_name": name,
        "dry_run": dry_run,
        "files": [found.name for found in files],
        "sent": done.sent,
        "in_the_log": done.stored,
        "half_messages": done.half_messages,
        "failed": done.failed,
    }
    if dry_run and not options.json:  # "would send" in its place
        shown = {"would_send" if key == "sent" else key: value for key, value in shown.items()}
    output.show_one(shown, as_json=options.json)
    reading.note()
    for reason in done.errors.values():
        output.note(f"error: {reason.message}")
    if done.failed:
        raise click.exceptions.Exit(1)
    _end(silent, absent, complete=not reading.corrupted)


class _Reading:
    """Reads the pages of files and counts their records. `done` and `total` are in bytes."""

    def __init__(self) -> None:
        self.done = self.total = self.internal = self.corrupted = 0

    def pages(self, admin: AdminClient, file: DivergedFile) -> Iterator[DivergedPage]:
        position = 0
        while position < file.size:
            page = admin.read_diverged(file, position)
            if page.next_position == position:
                return
            self.done += page.next_position - position
            self.internal += page.internal_count
            self.corrupted += page.corrupted_count
            yield page
            position = page.next_position

    def note(self) -> None:
        if self.internal:
            output.note(f"{self.internal:,} records of journals beside them")
        if self.corrupted:
            output.note(f"warning: {self.corrupted:,} records are damaged, and left out")


class _Resent:
    """The counters of a resend.

    `stored` counts messages that a broker has already. `errors` has the first error of each topic.
    """

    def __init__(self) -> None:
        self.sent = self.stored = self.half_messages = self.failed = 0
        self.errors: dict[str, MqError] = {}
        self._seen: set[tuple[str, str, int]] = set()

    def to_send(self, messages: Iterable[DivergedMessage]) -> list[DivergedMessage]:
        """Return the missing messages, those of a topic together.

        A delayed message may be in the log twice, and is returned once.
        """
        found: dict[str, list[DivergedMessage]] = {}
        for message in messages:
            place = (message.topic, message.message_id, message.reconsume_times)
            if message.stored:
                self.stored += 1
            elif not message.is_missing:
                self.half_messages += 1
            elif place not in self._seen:
                self._seen.add(place)
                found.setdefault(message.topic, []).append(message)
        return [message for of_topic in found.values() for message in of_topic]

    def refused(self, topic: str, count: int, error: MqError) -> None:
        self.failed += count
        self.errors.setdefault(topic, error)


def _chosen(
    admin: AdminClient, name: str, file: str | None, replica: int | None, silent: list[MqError]
) -> list[DivergedFile]:
    """Return the chosen files.

    Raises CommandError if `file` does not exist, and BadOption if several replicas keep it.
    """
    files = admin.list_diverged(name, silent=silent)
    found = [
        each for each in files if file in (None, each.name) and replica in (None, each.replica_id)
    ]
    if file is not None and not found:
        known = ", ".join(f"{each.name} (replica {each.replica_id})" for each in files) or "none"
        raise CommandError(f"no replica of {name} that answers keeps {file}: there are {known}")
    if file is not None and len(found) > 1:
        ids = ", ".join(str(each.replica_id) for each in found)
        raise BadOption(f"replicas {ids} keep a file of this name: choose one by --replica")
    return found


def _item(file: DivergedFile, message: DivergedMessage) -> dict[str, Any]:
    return {
        "replica_id": file.replica_id,
        "file": file.name,
        "topic": message.topic,
        "queue_id": message.queue_id,
        "kind": message.kind,
        "message_id": message.message_id,
        "keys": message.keys,
        "tag": message.tag,
        "body_size": message.body_size,
        "reconsume_times": message.reconsume_times,
        "physical_offset": message.physical_offset,
        "store_timestamp_ms": message.store_timestamp_ms,
        "stored": message.stored,
    }


def _end(
    silent: Sequence[MqError], absent: Sequence[AbsentReplica], *, complete: bool = True
) -> None:
    for error in silent:
        output.note(error.message)
    for each in absent:
        output.note(f"{each.name} is not back yet: what it has to cut is not known")
    if silent or absent or not complete:
        raise click.exceptions.Exit(INCOMPLETE)
