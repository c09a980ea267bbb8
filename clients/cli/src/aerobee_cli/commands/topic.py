"""Define `aerobee topic`: create, update, rebalance, list, show and delete topics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

from aerobee_cli import changes, output, settings
from aerobee_cli.command_line import CommandGroup, Option
from aerobee_cli.offsets import losses_of_topic
from aerobee_cli.options import (
    Attributes,
    ClusterOptions,
    CreateMissing,
    DryRun,
    From,
    ListingOptions,
    OneTopic,
    Topic,
    Yes,
    confirm,
    end,
)
from aerobee_cli.output import Item, items_of, unchanged
from aerobee_cli.settings import MessageType, Permission
from aerobee_cli.table import Column, Table, number
from aerobee_wire.route import READ, WRITE

app = CommandGroup("topic", help="Topics.")


def _queues_of(brokers: Sequence[Item]) -> str:
    return ", ".join(
        f"{broker['broker_name']} ({broker['write_queue_count']} queues)" for broker in brokers
    )


def permission_text(permission: int) -> str:
    return ("r" if permission & READ else "-") + ("w" if permission & WRITE else "-")


TOPIC_COLUMNS = (
    Column("topic", "topic"),
    Column("type", "message_type", str.lower),
    Column("brokers", "brokers", _queues_of, text=True),
)
REBALANCED_COLUMNS = (
    Column("broker", "broker_name"),
    Column("address", "address"),
    number("queues", "queues"),
    Column("groups", "groups", text=True),
)
ROUTE_COLUMNS = (
    Column("broker", "broker_name"),
    Column("cluster", "cluster", extra=True),
    number("read queues", "read_queue_count"),
    number("write queues", "write_queue_count"),
    Column("permission", "permission", permission_text),
    Column("addresses", "addresses", text=True),
)
STATUS_COLUMNS = (
    Column("broker", "broker_name"),
    number("queue id", "queue_id"),
    number("min offset", "min_offset"),
    number("max offset", "max_offset"),
    number("messages", "message_count"),
    Column("latest", "latest_timestamp_ms"),
    Column("earliest", "earliest_timestamp_ms", extra=True),
)

Queues = Annotated[
    int | None, Option(min=1, metavar="N", help="Message queues on each broker. Default: 8.")
]
ReadQueues = Annotated[
    int | None, Option(min=1, metavar="N", help="Those that can be read, where not all can.")
]
WriteQueues = Annotated[
    int | None, Option(min=1, metavar="N", help="Those that get messages, where not all do.")
]
PermissionOption = Annotated[Permission | None, Option(help="Read, write, or both. Default: rw.")]
Kind = Annotated[
    MessageType | None,
    Option(
        "--type",
        help="Type of its messages; with priority, one queue for each priority. Default: normal.",
    ),
]

LiteTtl = Annotated[
    str | None,
    Option(
        metavar="30m|2h|never",
        help="With --type lite: how long a lite topic stays after its last message, consumed or "
        "not. Default: never removed.",
    ),
]


@dataclass(frozen=True, kw_only=True)
class TopicSettings:
    """The options that set or change the settings of a topic."""

    kind: Kind = None
    queues: Queues = None
    read_queues: ReadQueues = None
    write_queues: WriteQueues = None
    permission: PermissionOption = None
    lite_ttl: LiteTtl = None
    attribute: Attributes = None

    def by_name(self) -> dict[str, Any]:
        """Return the settings that the options give, keyed as in a file of `aerobee apply`."""
        lite = settings.lite_ttl_attributes(self.lite_ttl)
        return {
            "type": self.kind,
            "queues": self.queues,
            "read_queues": self.read_queues,
            "write_queues": self.write_queues,
            "permission": self.permission,
            "attributes": settings.with_attributes(self.attribute, lite),
        }


@app.add(epilog="Example: aerobee topic create orders --queues 8")
def create(
    *,
    topic: OneTopic = None,
    given: TopicSettings,
    file: From = None,
    dry_run: DryRun = False,
    options: ClusterOptions,
) -> None:
    """Create a topic on every broker.

    A topic that exists with the same settings does not change. If the topic exists with other
    settings, the command fails and shows the differences; use `topic update` to change settings.

    Exit code 3: a broker is not reached. Repeat the command when it answers.
    """
    wanted = settings.wanted("topic", topic, given.by_name(), file)
    with options.asking() as (admin, silent):
        made = changes.create_all(
            "topic", wanted, admin.create_topic, dry_run=dry_run, silent=silent
        )
    changes.show_created("topic", made, dry_run=dry_run, as_json=options.json)
    end(unchanged(silent, dry_run=dry_run))


@app.add(epilog="Example: aerobee topic update orders --queues 16 --dry-run")
def update(
    *,
    topic: OneTopic = None,
    given: TopicSettings,
    file: From = None,
    dry_run: DryRun = False,
    create_missing: CreateMissing = False,
    force: Annotated[bool, Option("--force", help="Also when messages become unreadable.")] = False,
    options: ClusterOptions,
) -> None:
    """Change only the given settings of a topic, on every broker that has the topic.

    If you reduce the number of read queues, messages in the removed queues become unreadable, which
    needs --force. To remove queues without a loss, reduce --write-queues first. Wait until all
    messages are consumed (topic status, group progress), then reduce --read-queues.

    Exit code 3: a broker is not reached. Repeat the command when it answers.
    """
    wanted = settings.wanted("topic", topic, given.by_name(), file)
    with options.asking() as (admin, silent):
        changed = changes.update_all(
            wanted,
            partial(admin.update_topic, force=force),
            create=admin.create_topic if create_missing else None,
            dry_run=dry_run,
            silent=silent,
            force=force,
        )
    changes.show_updated("topic", changed, as_json=options.json)
    end(unchanged(silent, dry_run=dry_run))


@app.add(epilog="Example: aerobee topic rebalance orders --dry-run")
def rebalance(*, topic: Topic, dry_run: DryRun = False, options: ClusterOptions) -> None:
    """Create a topic on the brokers that do not have it, such as a broker that was just added.

    Each of these brokers gets the topic and the missing consumer groups, with their settings from
    other brokers. Message groups of a FIFO topic are then distributed again. If the queue of a
    message group changes, its order is kept before and after the change, but not across it.

    Exit code 3: a broker is not reached. Repeat the command when it answers.
    """
    with options.asking() as (admin, silent):
        made = admin.rebalance_topic(topic, dry_run=dry_run, silent=silent)
    table = Table(REBALANCED_COLUMNS)
    having = "every broker that answers" if silent else "every broker"
    table.show(items_of(made), as_json=options.json, empty=f"{having} has {topic} already")
    end(unchanged(silent, dry_run=dry_run))


@app.add("list", epilog="Example: aerobee topic list --all --json")
def list_topics(
    *,
    everything: Annotated[
        bool, Option("--all", help="System, retry and dead-letter topics too.")
    ] = False,
    options: ListingOptions,
) -> None:
    """List topics.

    Exit code 3: a broker did not answer, and its topics may be missing.
    """
    table = options.listing(TOPIC_COLUMNS)
    with options.asking() as (admin, silent):
        topics = admin.list_topics(
            include_system=everything, include_derived=everything, silent=silent
        )
    table.show(items_of(topics), as_json=options.json, empty="no topics")
    end(f"the list may lack topics: {error}" for error in silent)


@app.add(epilog="Example: aerobee topic route orders")
def route(*, topic: Topic, options: ListingOptions) -> None:
    """Show the brokers that serve a topic, and their addresses."""
    table = options.listing(ROUTE_COLUMNS)
    with options.admin() as admin:
        found = items_of([admin.topic_route(topic)])[0]
    if options.json:
        output.show_one(found, as_json=True)
        return
    brokers = {broker["broker_name"]: broker for broker in found["brokers"]}
    items = [queues | brokers[queues["broker_name"]] for queues in found["queues"]]
    table.show(items, empty=f"no broker serves {topic}")


@app.add(epilog="Example: aerobee topic status orders")
def status(*, topic: Topic, options: ListingOptions) -> None:
    """Show the lowest and highest offset of every message queue of a topic.

    Exit code 3: a broker did not answer, and its queues are missing.
    """
    table = options.listing(STATUS_COLUMNS)
    with options.asking() as (admin, silent):
        queues = items_of(admin.topic_status(topic, silent=silent))
    items = [
        queue | {"message_count": queue["max_offset"] - queue["min_offset"]} for queue in queues
    ]
    table.show(items, as_json=options.json, empty=f"{topic} has no queues")
    end(f"queues are missing: {error}" for error in silent)


@app.add(epilog="Example: aerobee topic delete orders --yes")
def delete(*, topic: Topic, yes: Yes = False, options: ClusterOptions) -> None:
    """Delete a topic from every broker, with its messages and its consumer offsets.

    Exit code 3: a broker is not reached. Repeat the command when it answers.
    """
    with options.asking() as (admin, silent):
        question = f"Delete topic {topic}, its messages, and its consumer offsets?"
        confirm(question, yes, partial(losses_of_topic, admin, topic))
        deleted = admin.delete_topic(topic, silent=silent)
    changes.show_deleted("topic", topic, deleted, silent, as_json=options.json)
