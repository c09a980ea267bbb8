"""Define `aerobee group`: create, change, show and delete consumer groups and their offsets."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

from aerobee_cli import changes, connected, output, settings
from aerobee_cli.command_line import Argument, CommandGroup, Option
from aerobee_cli.offsets import (
    effects,
    effects_of_reset,
    loss,
    losses_of_group,
    queues_of,
    reset_target,
)
from aerobee_cli.options import (
    Attributes,
    BadOption,
    ClusterOptions,
    CreateMissing,
    DryRun,
    From,
    Group,
    ListingOptions,
    OneGroup,
    Topic,
    Yes,
    confirm,
    end,
    operator,
)
from aerobee_cli.output import Item, items_of, unchanged
from aerobee_cli.settings import LiteModel, Order
from aerobee_cli.table import Column, Table, number
from aerobee_cli.times import format_ms
from aerobee_wire.status import MqError

if TYPE_CHECKING:
    from aerobee_client import AdminClient
    from aerobee_client.admin.descriptions import ClientDescription

app = CommandGroup("group", help="Consumer groups.")

_ORDER_TEXTS = {
    "auto": "auto: messages of topics of the types fifo and lite in order",
    "on": "on: messages of every topic in order",
    "off": "off: messages in no order, also those of topics of the type fifo",
}

GROUP_COLUMNS = (
    Column("group", "consumer_group"),
    number("max attempts", "max_attempts"),
    Column("order", "order"),
    Column("retry delays", "retry", text=True),
    Column("brokers", "brokers", extra=True, text=True),
)
PROGRESS_COLUMNS = (
    Column("topic", "topic"),
    Column("broker", "broker_name"),
    number("queue id", "queue_id"),
    number("consumer offset", "consumer_offset"),
    number("max offset", "max_offset"),
    number("lag", "lag"),
    Column("last consumed", "last_timestamp_ms", extra=True),
    Column("client", "client_id", extra=True),
)
BLOCKED_COLUMNS = (
    Column("message group", "message_group"),
    Column("message id", "message_id"),
    number("attempts", "attempt"),
    number("waiting", "waiting"),
    Column("next try", "next_try_timestamp_ms", extra=True),
    Column("topic", "topic", extra=True),
    Column("broker", "broker_name", extra=True),
    number("queue id", "queue_id", extra=True),
    Column("since", "since_timestamp_ms", extra=True),
    Column("client", "client_id", extra=True),
)
OFFSET_COLUMNS = (
    Column("topic", "topic"),
    Column("broker", "broker_name"),
    number("queue id", "queue_id"),
    number("queue offset", "queue_offset"),
)

MaxAttempts = Annotated[
    int | None,
    Option(min=1, metavar="N", help="Deliveries before a message is dead-lettered. Default: 17."),
]
Delays = Annotated[
    str | None,
    Option(
        "--retry-delays",
        metavar="1s,5s,…",
        help="Wait before each retry; the last one repeats. Default: 10s,30s,1m … 2h.",
    ),
]
Retry = Annotated[
    str | None,
    Option(
        metavar="exponential:initial=5s,max=2h,multiplier=2",
        help="Waits that grow, in place of --retry-delays. What is left out is as shown here.",
    ),
]
OrderOption = Annotated[
    Order | None,
    Option(
        help="Of consumers of the official SDKs. auto (default): topics of the type fifo are "
        "consumed in order, message group by message group; on: every topic; off: none."
    ),
]
Consume = Annotated[
    bool | None, Option("--consume/--no-consume", help="Whether it may consume. Default: so.")
]
FromMin = Annotated[
    bool | None,
    Option(
        "--consume-from-min/--no-consume-from-min",
        help="Whether consumers of the official SDKs begin with the first message of a new topic, "
        "or at its end. Default: with the first.",
    ),
]


LiteParent = Annotated[
    str | None,
    Option(metavar="PARENT", help="Bind it to the lite topics of this topic (--type lite)."),
]
LiteModelOption = Annotated[
    LiteModel | None,
    Option(help="Whether several clients may hold a lite topic. Default: shared."),
]
LiteQuota = Annotated[
    int | None,
    Option(min=-1, metavar="N", help="Lite topics of a client; -1: any number. Default: 2000."),
]


@dataclass(frozen=True, kw_only=True)
class GroupSettings:
    """The options that set or change the settings of a group."""

    max_attempts: MaxAttempts = None
    delays: Delays = None
    retry: Retry = None
    order: OrderOption = None
    consume: Consume = None
    from_min: FromMin = None
    lite_topic: LiteParent = None
    lite_model: LiteModelOption = None
    lite_quota: LiteQuota = None
    attribute: Attributes = None

    def by_name(self) -> dict[str, Any]:
        """Return the settings that the options give, keyed as in a file of `aerobee apply`."""
        lite = settings.lite_attributes(self.lite_topic, self.lite_model, self.lite_quota)
        return {
            "max_attempts": self.max_attempts,
            "retry_delays": self.delays,
            "retry": self.retry,
            "order": self.order,
            "consume": self.consume,
            "consume_from_min": self.from_min,
            "attributes": settings.with_attributes(self.attribute, lite),
        }


@app.add(epilog="Example: aerobee group create billing --max-attempts 5 --retry-delays 1s,5s,30s")
def create(
    *,
    group: OneGroup = None,
    given: GroupSettings,
    file: From = None,
    dry_run: DryRun = False,
    options: ClusterOptions,
) -> None:
    """Create a consumer group on every broker.

    A group that exists with the same settings does not change. If the group exists with other
    settings, the command fails and shows the differences; use `group update` to change settings.

    Exit code 3: a broker is not reached. Repeat the command when it answers.
    """
    wanted = settings.wanted("group", group, given.by_name(), file)
    with options.asking() as (admin, silent):
        made = changes.create_all(
            "group", wanted, admin.create_group, dry_run=dry_run, silent=silent
        )
    changes.show_created("group", made, dry_run=dry_run, as_json=options.json)
    end(unchanged(silent, dry_run=dry_run))


@app.add(epilog="Example: aerobee group update billing --max-attempts 3 --dry-run")
def update(
    *,
    group: OneGroup = None,
    given: GroupSettings,
    file: From = None,
    dry_run: DryRun = False,
    create_missing: CreateMissing = False,
    options: ClusterOptions,
) -> None:
    """Change only the given settings of a group, on every broker that has the group.

    --retry and --retry-delays replace each other.

    Exit code 3: a broker is not reached. Repeat the command when it answers.
    """
    wanted = settings.wanted("group", group, given.by_name(), file)
    with options.asking() as (admin, silent):
        changed = changes.update_all(
            wanted,
            admin.update_group,
            create=admin.create_group if create_missing else None,
            dry_run=dry_run,
            silent=silent,
        )
    changes.show_updated("group", changed, as_json=options.json)
    end(unchanged(silent, dry_run=dry_run))


@app.add("list", epilog="Example: aerobee group list --json")
def list_groups(
    *,
    everything: Annotated[bool, Option("--all", help="Groups of the system too.")] = False,
    options: ListingOptions,
) -> None:
    """List consumer groups.

    Exit code 3: a broker did not answer, and its groups may be missing.
    """
    table = options.listing(GROUP_COLUMNS)
    with options.asking() as (admin, silent):
        groups = admin.list_groups(include_system=everything, silent=silent)
    items = items_of(groups)
    if not options.json:
        items = [{**item, "retry": _retry(item)} for item in items]
    table.show(items, as_json=options.json, empty="no consumer groups")
    end(f"the list may lack groups: {error}" for error in silent)


@app.add(epilog="Example: aerobee group show billing --json")
def show(*, group: Group, options: ClusterOptions) -> None:
    """Show the settings of a consumer group, and whether its members contradict each other.

    Exit code 3: a broker did not answer, and its members may be missing.
    """
    from aerobee_client.admin.descriptions import member_conflicts, subscription_conflicts

    with options.asking() as (admin, silent):
        [item] = items_of([admin.get_group(group, silent=silent)])
        members = _members(admin, group)
    conflicts = subscription_conflicts(members, group)
    item["members"] = len(members)
    item["inconsistent_subscriptions"] = items_of(conflicts)
    differing = member_conflicts(members, group)
    item["inconsistent_members"] = items_of(differing)
    if not options.json:
        item["order"] = _ORDER_TEXTS[item["order"]]
        item["retry_delays"] = _retry(item)
        item["inconsistent_subscriptions"] = [
            connected.conflict_text(conflict, group) for conflict in conflicts
        ]
        item["inconsistent_members"] = [
            connected.member_conflict_text(conflict, group) for conflict in differing
        ]
        del item["retry_delays_ms"], item["exponential_retry"]
    output.show_one(item, as_json=options.json)
    end(f"members may be missing: {error}" for error in silent)


@app.add(epilog="Example: aerobee group members billing")
def members(*, group: Group, options: ListingOptions) -> None:
    """List the consumers of a group: classic clients and official SDKs.

    The list shows the queues that each consumer reads. For the Python client, the list also shows
    the rate of the last minute and failures since the start. It shows the messages that wait in the
    client, and the lag. Exit code 3: a broker did not answer, and its members may be missing.
    """
    table = options.listing(connected.MEMBER_COLUMNS)
    with options.asking() as (admin, silent):
        admin.get_group(group, silent=silent)  # an unknown group is an error, not an empty list
        found = _members(admin, group)
    connected.show_members(found, group, table, as_json=options.json)
    connected.note_conflicts(found, group)
    end(f"members may be missing: {error}" for error in silent)


def _members(admin: AdminClient, group: str) -> list[ClientDescription]:
    """Return the members that brokers know which answer."""
    found = admin.list_clients(group, silent=[])
    return [client for client in found if group in client.consumer_groups]


def _retry(group: Item) -> str:
    """Return the retry delays of a group as text."""
    exponential = group["exponential_retry"]
    if exponential is not None:
        first, last = format_ms(exponential["initial_ms"]), format_ms(exponential["max_ms"])
        return f"{first} to {last}, each {exponential['multiplier']} times the one before"
    return ", ".join(map(format_ms, group["retry_delays_ms"])) or "delay levels from 3 on"


@app.add(epilog="Example: aerobee group progress billing --topic orders")
def progress(
    *,
    group: Group,
    topic: Annotated[str, Option(metavar="TOPIC", help="Only this topic.")] = "",
    options: ListingOptions,
) -> None:
    """Show the progress of a group in every message queue, including its retry topic.

    A broadcasting group is not shown, because each member keeps its own offsets. Exit code 3: a
    broker did not answer, and its queues are missing.
    """
    table = options.listing(PROGRESS_COLUMNS)
    with options.asking() as (admin, silent):
        queues = admin.consume_progress(group, topic, silent=silent)
        members = [] if queues else _members(admin, group)
    if any(member.consumers[group].message_model == "broadcasting" for member in members):
        output.note(f"members of {group} broadcast: each keeps offsets of its own")
    table.show(items_of(queues), as_json=options.json, empty=f"{group} has consumed nothing yet")
    end(f"the lag there is unknown: {error}" for error in silent)


@app.add(epilog="Example: aerobee group blocked dispatch --skip 01AF… --reason 'no such address'")
def blocked(
    *,
    group: Group,
    skip: Annotated[
        str,
        Option(metavar="ID", help="Dead-letter this message, so that its group continues."),
    ] = "",
    reason: Annotated[
        str | None,
        Option(metavar="TEXT", help="Why it is skipped; the dead letter says so."),
    ] = None,
    options: ListingOptions,
) -> None:
    """Show message groups that wait behind a message that the group failed to consume.

    This happens only if the group consumes in order. The blocking message was not consumed within
    its first lease; it is delivered again until its attempts are used up. Exit code 3: a broker has
    more of them than it lists, or did not answer.
    """
    if reason is not None and not skip:
        raise BadOption("--reason: needs --skip")
    omitted: dict[str, int] = {}
    silent: list[MqError] = []
    table = options.listing(BLOCKED_COLUMNS)
    with options.admin() as admin:
        if skip:
            # Brokers without an answer do not matter: the message was found on another one.
            found = [admin.skip_message(group, skip, reason=reason or "Skipped", silent=[])]
            output.note(f"dead-lettered {skip}; {found[0].waiting:,} messages waited behind it")
        else:
            found = admin.blocked_message_groups(group, omitted=omitted, silent=silent)
    where = " on a broker that answers" if silent else ""
    table.show(
        items_of(found), as_json=options.json, empty=f"no message group of {group} waits{where}"
    )
    end(
        [
            *(
                f"broker {name} has {count:,} more, which wait for a shorter time and are not shown"
                for name, count in omitted.items()
            ),
            *(f"message groups may be missing: {error}" for error in silent),
        ]
    )


@app.add(epilog="Example: aerobee group reset-offset billing orders --to 2025-06-01T00:00:00Z")
def reset_offset(
    *,
    group: Group,
    topic: Topic,
    to: Annotated[
        str,
        Option(
            metavar="earliest|latest|now|TIME|OFFSET",
            help="TIME: ISO 8601, UTC by default, or 13 digits, milliseconds since 1970. OFFSET: "
            "the same in each queue.",
        ),
    ],
    queue: Annotated[
        list[str] | None,
        Option(
            "--queue",
            metavar="BROKER/ID",
            help="Only this queue, for example broker-a/3. May be repeated.",
        ),
    ] = None,
    yes: Yes = False,
    options: ClusterOptions,
) -> None:
    """Move a group to another offset in a topic, to consume messages again or to skip them.

    Exit code 3: a broker is not reached. When it answers, repeat the command for its queues only
    (--queue), because the group is moved again in the others too.
    """
    silent: list[MqError] = []
    target, queues = reset_target(to), queues_of(queue or ())
    with options.admin() as admin:
        where = f"{topic} ({', '.join(queue)})" if queue else topic
        question = f"Move group {group} in {where} to {to}?"
        confirm(question, yes, partial(effects_of_reset, admin, group, topic, target, queues))
        before = admin.consume_progress(group, topic, silent=[])
        moved = admin.reset_offsets(
            group, topic, **target, queues=queues, requested_by=operator(), silent=silent
        )
    Table(OFFSET_COLUMNS).show(
        items_of(moved), as_json=options.json, empty=f"{topic} has no queues"
    )
    for note in effects(before, moved, target):
        output.note(note)
    end(
        f"not moved: {error}; when it answers, give --queue {error.broker_name}/ID for its queues"
        for error in silent
    )


@app.add("clone-offsets", epilog="Example: aerobee group clone-offsets billing billing-2 --yes")
def clone_offsets(
    *,
    source: Annotated[str, Argument(metavar="GROUP", help="Its offsets are read.")],
    group: Annotated[str, Argument(metavar="TO", help="The group that is moved; it must exist.")],
    topic: Annotated[str, Option(metavar="TOPIC", help="Only this topic.")] = "",
    dry_run: Annotated[bool, Option("--dry-run", help="Move nothing.")] = False,
    yes: Yes = False,
    options: ClusterOptions,
) -> None:
    """Move a group to the offsets of another one, for example to replace a consumer by a new one.

    Retries of GROUP are its own, and are not cloned.

    Exit code 3: a broker is not reached. Repeat the command when it answers.
    """
    with options.asking() as (admin, silent):
        wanted = admin.clone_offsets(source, group, topic=topic, dry_run=True, silent=silent)
        topics = sorted({each.topic for each in wanted})
        before = [
            each for name in topics for each in admin.consume_progress(group, name, silent=[])
        ]
        costs = list(effects(before, wanted, {}))
        if not dry_run and wanted:
            question = f"Move group {group} in {', '.join(topics)} to the offsets of {source}?"
            confirm(question, yes, lambda: costs)
            silent.clear()  # the second call finds the silent brokers again
            wanted = admin.clone_offsets(source, group, topic=topic, silent=silent)
    empty = f"{source} has no offsets"
    Table(OFFSET_COLUMNS).show(items_of(wanted), as_json=options.json, empty=empty)
    for note in costs:
        output.note(f"would happen: {note}" if dry_run else note)
    end(unchanged(silent, dry_run=dry_run))


@app.add(epilog="Example: aerobee group pause billing")
def pause(*, group: Group, options: ClusterOptions) -> None:
    """Stop the consumption of a group on every broker, until `group resume`.

    Receives of its consumers fail with NO_PERMISSION, and consumers keep asking. Messages that they
    hold can still be acknowledged. Offsets and retries stay.

    Exit code 3: a broker is not reached. Repeat the command when it answers.
    """
    _switch_consumption(options, group, enabled=False)


@app.add(epilog="Example: aerobee group resume billing")
def resume(*, group: Group, options: ClusterOptions) -> None:
    """Let a group consume again that was stopped by `group pause`.

    Exit code 3: a broker is not reached. Repeat the command when it answers.
    """
    _switch_consumption(options, group, enabled=True)


def _switch_consumption(options: ClusterOptions, group: str, *, enabled: bool) -> None:
    with options.asking() as (admin, silent):
        wanted = {group: {"consume_enable": enabled}}
        changed = changes.update_all(
            wanted, admin.update_group, create=None, dry_run=False, silent=silent
        )
    changes.show_updated("group", changed, as_json=options.json)
    end(unchanged(silent))


@app.add(epilog="Example: aerobee group forget billing orders --yes")
def forget(
    *,
    group: Group,
    topic: Topic,
    dry_run: Annotated[bool, Option("--dry-run", help="Drop nothing.")] = False,
    yes: Yes = False,
    options: ClusterOptions,
) -> None:
    """Delete the offsets of a group in a topic that the group no longer consumes.

    If the group consumes the topic again, it begins like a new group. The command fails while a
    member consumes the topic. Exit code 3: a broker is not reached. Repeat the command when it
    answers.
    """
    with options.asking() as (admin, silent):
        offsets = admin.forget_offsets(group, topic, dry_run=True, silent=silent)
        lost = loss(admin, group, offsets) if offsets else ""
        if lost and not dry_run:
            confirm(f"Drop {lost}?", yes)
            offsets = admin.forget_offsets(group, topic, silent=silent)
    absent = f"{group} has no offset in {topic}: nothing was deleted"
    Table(OFFSET_COLUMNS).show(items_of(offsets), as_json=options.json, empty=absent)
    if lost:
        output.note(f"{'would drop' if dry_run else 'dropped'} {lost}")
    end(unchanged(silent, dry_run=dry_run))


@app.add(epilog="Example: aerobee group delete billing --yes")
def delete(*, group: Group, yes: Yes = False, options: ClusterOptions) -> None:
    """Delete a group, its offsets and its retries from every broker. Its dead letters are kept.

    Exit code 3: a broker is not reached. Repeat the command when it answers.
    """
    with options.asking() as (admin, silent):
        question = f"Delete group {group}, its offsets and its retries?"
        confirm(question, yes, partial(losses_of_group, admin, group))
        deleted = admin.delete_group(group, silent=silent)
    changes.show_deleted("group", group, deleted, silent, as_json=options.json)
