"""Define `aerobee broker`: run a broker, show its state, drain it, or promote a replica."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields
from functools import partial
from inspect import getdoc
from typing import TYPE_CHECKING, Annotated, Any

import click

from aerobee_cli import output
from aerobee_cli.command_line import Argument, Option, ServiceGroup
from aerobee_cli.doctor.broker_group import AbsentReplica, BrokerGroup, look_at
from aerobee_cli.errors import INCOMPLETE, CommandError
from aerobee_cli.options import (
    BadOption,
    ClusterOptions,
    ListingOptions,
    Yes,
    at_once,
    confirm,
    end,
    refuse_context,
)
from aerobee_cli.processes.become import become, inherit_namesrv
from aerobee_cli.progress import Progress
from aerobee_cli.table import Column, number
from aerobee_cli.times import parse_duration
from aerobee_wire.route import MASTER_ID
from aerobee_wire.status import MqError

if TYPE_CHECKING:
    from aerobee_client import AdminClient
    from aerobee_client.admin.descriptions import (
        BrokerBacklog,
        DivergedFile,
        DivergedMessage,
        DivergedPage,
        ReplicaDescription,
    )


POLL_S = 2.0


def _seconds(milliseconds: int | None) -> str:
    return "" if milliseconds is None else f"{milliseconds / 1_000:.1f}"


REPLICA_COLUMNS = (
    number("replica", "replica_id"),
    Column("role", "role"),
    Column("in sync", "in_sync"),
    number("lag (bytes)", "lag_bytes"),
    Column("address", "address"),
    Column("remark", "remark", text=True),
    Column("behind (s)", "behind_ms", _seconds, right=True, extra=True),
    number("epoch", "epoch", extra=True),
    number("end", "end_offset", extra=True),
    number("confirmed", "confirmed_offset", extra=True),
    number("clock (ms)", "clock_offset_ms", extra=True),
)


@click.pass_context
def broker(context: click.Context) -> None:
    """Run a broker in the foreground, or administer a running one.

    Options: --port P, --host H, --data DIR, --namesrv H:P;H:P, --config FILE, --set key=value,
    --print-config.
    """
    if context.invoked_subcommand is None:
        refuse_context(context)
        inherit_namesrv(context)
        become("aerobee_broker", context.obj or [])


app = ServiceGroup(
    "broker",
    callback=broker,
    help=getdoc(broker),
    epilog="Example: aerobee broker --port 10911 --namesrv 127.0.0.1:9876",
    invoke_without_command=True,
    no_args_is_help=False,
)


@app.add(epilog="Example: aerobee broker status broker-a --json")
def status(
    *,
    name: Annotated[
        str | None, Argument(metavar="[BROKER]", help="Name or H:P. Default: every master.")
    ] = None,
    options: ClusterOptions,
) -> None:
    """Show the state of a running broker: its log, counters, disk and memory.

    For a broker with replicas, the state includes the role, the epoch, and the replicas in sync.
    Exit code 3: a broker does not answer, has no master, or is not registered any more. Exit code
    1: this is true of all brokers.
    """
    with options.admin() as admin:
        if name is not None:
            if ":" not in name and (notes := _masterless(admin, name)):
                raise CommandError("; ".join(notes))
            output.show_one(_shown(_state(admin, name), json=options.json), as_json=options.json)
            return
        cluster = admin.cluster()
        brokers = cluster.brokers
        leading = sorted(each.broker_name for each in brokers if MASTER_ID in each.addresses)
        states = at_once(partial(_state_or_error, admin), leading)
        items = [
            _shown(each, json=options.json) for each in states if not isinstance(each, MqError)
        ]
        notes = [str(each) for each in states if isinstance(each, MqError)]
        notes += [
            note
            for each in brokers
            if each.broker_name not in leading
            for note in _masterless(admin, each.broker_name)
        ]
        notes += [f"{each} is not registered any more: start it again" for each in cluster.away]
    if notes and not items:
        raise CommandError("; ".join(notes))
    output.show_each(items, as_json=options.json)
    if not brokers:
        output.note("no broker is registered: start one with `aerobee up` or `aerobee broker`")
    end(notes)


def _masterless(admin: AdminClient, name: str) -> list[str]:
    """Return notes about a broker that is registered without a master; otherwise an empty list."""
    registered = {each.broker_name: each.addresses for each in admin.cluster().brokers}
    if name not in registered or MASTER_ID in registered[name]:
        return []
    return look_at(admin, name).notes or [f"{name} has no master"]


def _shown(state: dict[str, Any], *, json: bool) -> dict[str, Any]:
    """Remove the registration id from a state for people, because commands take the replica id."""
    if json or state["replica_id"] is None:
        return state
    return {"replica": state["replica_id"]} | {
        key: value for key, value in state.items() if key not in ("broker_id", "replica_id")
    }


def _state_or_error(admin: AdminClient, broker: str) -> dict[str, Any] | MqError:
    try:
        return _state(admin, broker)
    except MqError as error:
        return error


def _state(admin: AdminClient, broker: str) -> dict[str, Any]:
    """Return the state of a broker by name or address. The role is "" if it keeps one copy."""
    found = output.items_of([admin.broker_status(broker)])[0]
    own = admin.replica(broker)
    return found | {
        "replica_id": own.replica_id if own else None,
        "role": own.role if own else "",
        "epoch": own.epoch if own else None,
        "in_sync_replicas": own.in_sync_replicas if own else None,
        "required_replicas": own.required_replicas if own else None,
    }


@app.add("ha-status", epilog="Example: aerobee broker ha-status broker-a --json")
def ha_status(
    *,
    name: Annotated[str, Argument(metavar="BROKER", help="Its brokerName.")],
    options: ListingOptions,
) -> None:
    """Show the replicas of a broker: the master, the in-sync set, and the progress of each replica.

    A replica in sync has every acknowledged message, and may become master without a loss. The
    column "clock" shows how far a replica's clock is ahead of the master's clock. Exit code 3: a
    replica does not answer, or there is no master.
    """
    table = options.listing(REPLICA_COLUMNS)
    with options.admin() as admin:
        group = look_at(admin, name)
    found = group.replicas
    items = [item | {"answers": True} for item in output.items_of(found)]
    absent = _absent_items(group)
    if not options.json:
        items = [item | {"remark": _remark(each)} for item, each in zip(items, found, strict=True)]
        absent = [item | {"remark": item["reason"]} for item in absent]
    items += absent
    table.show(items, as_json=options.json)
    if not found:
        output.note(f"{name} keeps one copy: it has no replicas")
    for each in found:
        if each.synchronous is not None and each.required_replicas is not None:
            output.note(_requirement(each))
    for note in group.notes:
        output.note(note)
    if not group.is_complete:
        raise click.exceptions.Exit(INCOMPLETE)


def _absent_items(group: BrokerGroup) -> list[dict[str, Any]]:
    """Return items for the replicas that do not answer, with None for unknown fields."""
    from aerobee_client.admin.descriptions import ReplicaDescription

    unknown = dict.fromkeys(each.name for each in fields(ReplicaDescription))
    in_sync = next((each.in_sync_replicas for each in group.replicas if each.in_sync_replicas), ())
    return [
        unknown
        | {
            "broker_name": group.name,
            "replica_id": each.replica_id,
            "address": each.address,
            "role": "",
            "in_sync": each.replica_id in in_sync if in_sync else None,
            "reason": each.problem,
            "answers": False,
        }
        for each in group.absent
    ]


def _remark(replica: ReplicaDescription) -> str:
    remarks = [replica.reason]
    if replica.damaged_bytes:
        remarks.append(
            f"{replica.damaged_bytes:,} bytes of its log are damaged, in {replica.damaged_ranges} "
            "parts"
        )
    if replica.copying:
        percent = replica.copied_percent
        remarks.append("copies its master's log" + ("" if percent is None else f" ({percent} %)"))
    if replica.learner:
        remarks.append("only reads, and never becomes master")
    if replica.connected is False:
        remarks.append("does not follow")
    if replica.coordinator_reachable is False:
        remarks.append("does not reach etcd")
    return "; ".join(filter(None, remarks))


def _requirement(master: ReplicaDescription) -> str:
    if not master.synchronous:
        return "asynchronous: a send is acknowledged when the master has it on its disk"
    return (
        f"synchronous: a send is acknowledged when all in sync have it on their disks, at least "
        f"{master.required_replicas}"
    )


@app.add(epilog="Example: aerobee broker promote broker-a --to 2")
def promote(
    *,
    name: Annotated[str, Argument(metavar="BROKER", help="Its brokerName.")],
    to: Annotated[
        int | None,
        Option("--to", metavar="ID", help="A replica. Default: the one in sync that has the most."),
    ] = None,
    unclean: Annotated[
        bool,
        Option("--unclean", help="Though acknowledged messages may be lost. Asks first."),
    ] = False,
    yes: Yes = False,
    options: ClusterOptions,
) -> None:
    """Make a replica of a broker its master.

    If the present master can be reached, it stops accepting messages and the other replicas catch
    up. Sends then wait for the new master instead of failing. If the master cannot be reached, a
    replica is promoted only if no acknowledged message can be lost, unless --unclean is given.
    """
    if unclean:
        confirm(f"Acknowledged messages of {name} may be lost. Continue?", yes)
    with options.admin() as admin:
        done = admin.promote_replica(name, to=to, unclean=unclean)
    output.show_one(output.items_of([done])[0], as_json=options.json)
    if done.was_master:
        output.note(f"replica {done.replica_id} is master already")


@app.add(epilog="Example: aerobee broker drain broker-b --wait --timeout 1h")
def drain(
    *,
    name: Annotated[str, Argument(metavar="BROKER", help="Name or H:P.")],
    undo: Annotated[bool, Option("--undo", help="Take messages again.")] = False,
    wait: Annotated[
        bool, Option("--wait", help="Until nothing waits for this broker; then stop it.")
    ] = False,
    timeout: Annotated[
        str | None, Option(metavar="DURATION", help="How long to wait. Default: for ever.")
    ] = None,
    options: ClusterOptions,
) -> None:
    """Empty a broker, so that it can be removed: it accepts no more messages of producers.

    Consumers, retries, delayed messages and open transactions continue. The broker keeps draining
    after a restart. The command shows the messages that are left. Exit code 3: messages are left
    after --wait and its --timeout.
    """
    if wait and undo:
        raise BadOption("--wait and --undo exclude each other")
    if timeout is not None and not wait:
        raise BadOption("--timeout: needs --wait")
    try:
        limit_s = parse_duration(timeout).total_seconds() if timeout else float("inf")
    except ValueError as error:
        raise BadOption(f"--timeout: {error}") from None
    with options.admin() as admin:
        changed = admin.drain_broker(name, draining=not undo)
        if not changed:
            output.note(f"{name} {'takes messages' if undo else 'drains'} already")
        left = admin.broker_backlog(name)
        deadline = time.monotonic() + limit_s
        shown = ""
        while wait and not left.is_empty and time.monotonic() < deadline:
            if shown != (shown := _waiting(left)):
                output.note(shown)
            time.sleep(min(POLL_S, max(0.0, deadline - time.monotonic())))
            left = admin.broker_backlog(name)
    output.show_one({**output.items_of([left])[0], "empty": left.is_empty}, as_json=options.json)
    if wait and not left.is_empty:
        raise click.exceptions.Exit(INCOMPLETE)


def _waiting(left: BrokerBacklog) -> str:
    """Return one line about the messages that keep `--wait` from ending."""
    parts = [
        (sum(lag.messages for lag in left.lags), "to be consumed"),
        (left.in_flight, "in flight"),
        (sum(left.delayed_messages.values()), "delayed"),
        (sum(left.half_messages.values()), "in open transactions"),
    ]
    return "waiting: " + ", ".join(f"{count:,} {what}" for count, what in parts if count)


# ---- diverged: list, show and resend messages that were cut off from the logs of replicas ----


diverged_commands = app.add_group(
    "diverged",
    help="What was cut off the log of a replica, where it left that of a new master.",
    short_help="Messages that replicas have cut off.",
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


@diverged_commands.add("list", epilog="Example: aerobee broker diverged list broker-a --json")
def list_diverged(*, name: Broker, options: ListingOptions) -> None:
    """List the log parts that replicas of a broker have cut off and keep.

    A replica cuts off messages that a former master stored, but the new master does not have. A
    replica that does not answer has a line too, because its parts are not known. Exit code 3: a
    replica does not answer.
    """
    table = options.listing(FILE_COLUMNS)
    with options.asking() as (admin, silent):
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


@diverged_commands.add(epilog="Example: aerobee broker diverged show broker-a 1-1048576.log")
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


@diverged_commands.add(epilog="Example: aerobee broker diverged resend broker-a --dry-run")
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
