"""Create and update topics or groups, one or several at once, and print changes.

All topics or groups are checked before the first one is changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from aerobee_cli import output
from aerobee_cli.errors import CommandError
from aerobee_cli.options import end
from aerobee_cli.output import Item, unchanged
from aerobee_cli.settings import Arguments
from aerobee_cli.table import Column, Table
from aerobee_wire.printable import printable
from aerobee_wire.status import Code, MqError

if TYPE_CHECKING:
    from aerobee_client.admin.descriptions import AccessChange, Created, UnreadableQueue, Update

# Methods of AdminClient. Their arguments are the name, the settings and `dry_run`.
Create = Callable[..., "list[Created]"]
ChangeSettings = Callable[..., "Update"]


def create_all(
    kind: str,
    wanted: Mapping[str, Arguments],
    create: Create,
    *,
    dry_run: bool,
    silent: list[MqError],
) -> list[Item]:
    """Create the `wanted` topics or groups, whose settings are given by name.

    If one of them exists with other settings, none is created. `silent` collects the errors of
    brokers that are not reached. Return an item for each name and broker.
    """
    for run_dry in (True,) if dry_run else (True, False):
        made = {
            name: create(name, **each, dry_run=run_dry, silent=silent)
            for name, each in wanted.items()
        }
    return [{kind: name, **asdict(each)} for name, listed in made.items() for each in listed]


def show_created(kind: str, items: Iterable[Item], *, dry_run: bool, as_json: bool) -> None:
    done = "would be created" if dry_run else "created"
    columns = (
        Column(kind, kind),
        Column("broker", "broker_name"),
        Column("address", "address"),
        Column("result", "created", lambda created: done if created else "was there"),
    )
    shown = list(items)
    Table(columns).show(shown, as_json=as_json)
    _note_unreachable(address for item in shown for address in item["unreachable_namesrvs"])


def _note_unreachable(namesrvs: Iterable[str]) -> None:
    for address in sorted(set(namesrvs)):
        output.note(
            f"warning: name server {address} was not reached; it learns of the change from the "
            "next registration of the broker"
        )


def update_all(
    wanted: Mapping[str, Arguments],
    update: ChangeSettings,
    *,
    create: Create | None,
    dry_run: bool,
    silent: list[MqError],
    force: bool = False,
) -> list[Item]:
    """Change the `wanted` topics or groups, whose settings are given by name.

    If one of them cannot be changed, none is changed. A missing topic or group is created by
    `create`, also on single brokers that lack it; it is an error if `create` is None. `silent`
    collects the errors of brokers that are not reached. Return an item for each setting that
    changes on a broker. Raise CommandError if messages would become unreadable, unless `force` is
    given; so does a dry run.
    """
    for run_dry in (True,) if dry_run else (True, False):
        items: list[Item] = []
        lost: list[UnreadableQueue] = []
        unreachable: list[str] = []
        for name, settings in wanted.items():
            try:
                completed = {"complete": True} if create is not None else {}
                done = update(name, **settings, **completed, dry_run=run_dry, silent=silent)
            except MqError as error:
                if create is None or error.code not in _ABSENT:
                    raise
                made = create(name, **settings, dry_run=run_dry, silent=silent)
                items += [_created(name, each.broker_name) for each in made if each.created]
                unreachable += [address for each in made for address in each.unreachable_namesrvs]
            else:
                items += map(asdict, done.changes)
                lost += done.unreadable
                unreachable += done.unreachable_namesrvs
        if lost and not force:
            raise CommandError(
                f"nothing was changed, because messages would become unreadable: {_listed(lost)}; "
                "take fewer --write-queues first, and fewer --read-queues when these are consumed, "
                "or give --force"
            )
    if lost:
        become = "would become" if dry_run else "are now"
        output.note(f"{become} unreadable: {_listed(lost)}")
    _note_unreachable(unreachable)
    return items


_ABSENT = (Code.TOPIC_NOT_EXIST, Code.SUBSCRIPTION_GROUP_NOT_EXIST)


def show_updated(kind: str, items: list[Item], *, as_json: bool) -> None:
    columns = (
        Column(kind, "name"),
        Column("broker", "broker_name"),
        Column("setting", "setting"),
        Column("before", "before", _value, text=True),
        Column("after", "after", _value, text=True),
    )
    Table(columns).show(items, as_json=as_json, empty="nothing to change")


def show_deleted(
    kind: str, name: str, deleted: bool, silent: Sequence[MqError], *, as_json: bool
) -> None:
    """Report a deletion. Exits with INCOMPLETE if `silent` has errors of brokers not reached.

    A deletion of what does not exist succeeds: a repeated deletion completes the first one, and a
    broker that did not answer in time may have carried that out.
    """
    where = " on a broker that answers" if silent else ""
    absent = f"there was no {kind} {name}{where}: nothing was deleted"
    item = {kind: name, "deleted": deleted}
    output.show_done(f"deleted {name}" if deleted else absent, item, as_json=as_json)
    end(unchanged(silent))


def _created(name: str, broker_name: str) -> Item:
    values: dict[str, Any] = {"setting": "created", "before": False, "after": True}
    return {"name": name, "broker_name": broker_name, **values}


def _value(value: Any) -> str:
    return "" if value is None else output.text_of(value)


def _listed(queues: Iterable[UnreadableQueue]) -> str:
    return ", ".join(
        f"{queue.messages:,} messages of {queue.name} in queue {queue.queue_id} of "
        f"{queue.broker_name}"
        for queue in queues
    )


def show_access(done: str, change: AccessChange, more: Mapping[str, str], *, as_json: bool) -> None:
    """Print a change of the access table, and `more` results.

    Exit with INCOMPLETE if a process lacks the change.
    """
    item = {"changed_at": change.changed_at, "lacking": dict(change.lacking), **more}
    if as_json:
        output.show_one(item, as_json=True)
    else:
        print(done)
        for key, value in more.items():
            print(printable(f"{key.replace('_', ' ')}: {value}"))
    end(f"{process} does not have it: {reason}" for process, reason in change.lacking.items())
