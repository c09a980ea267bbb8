"""Define `aerobee broker`: run a broker, show its state, drain it, or promote a replica."""

from __future__ import annotations

import time
from dataclasses import fields
from functools import partial
from inspect import getdoc
from typing import TYPE_CHECKING, Annotated, Any

import click

from aerobee_cli import output
from aerobee_cli.command_line import Argument, Option, ServiceGroup
from aerobee_cli.doctor.broker_group import BrokerGroup, look_at
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
from aerobee_cli.table import Column, number
from aerobee_cli.times import parse_duration
from aerobee_wire.route import MASTER_ID
from aerobee_wire.status import MqError

if TYPE_CHECKING:
    from aerobee_client import AdminClient
    from aerobee_client.admin.descriptions import BrokerBacklog, ReplicaDescription

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
