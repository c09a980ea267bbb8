"""The pages and changes of what waits: delayed messages, transactions, leases, lite topics."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeVar

from starlette.requests import Request
from starlette.responses import Response

from aerobee_cli.output import counted
from aerobee_client.admin.waiting import HeldLease, OpenTransaction
from aerobee_console.reading import held
from aerobee_console.reading.effects import Effects
from aerobee_console.web.console import Console
from aerobee_console.web.fields import Fields, fields_of
from aerobee_console.web.forms import Action, Changed, Form, Input, Result, confirmed
from aerobee_console.web.paths import part
from aerobee_wire.status import MqError

R = TypeVar("R")

TAB = "waiting"
OUTCOMES = ("commit", "rollback")
LISTED = 20  # rows that a form lists


async def show_delayed(request: Request, console: Console) -> Response:
    found = await delayed_of(console, fields_of(request))
    return console.page(request, "delayed.html.j2", tab=TAB, live=True, page=found)


async def delayed_of(console: Console, fields: Fields) -> held.DelayedList:
    return await held.delayed_list(console.source, fields.text("topic"))


async def show_transactions(request: Request, console: Console) -> Response:
    found = await transactions_of(console, fields_of(request))
    return console.page(
        request, "transactions.html.j2", tab=TAB, live=True, page=found, key=held.transaction_key,
        many_checks=held.MANY_CHECKS,
    )  # fmt: skip


async def transactions_of(console: Console, fields: Fields) -> held.TransactionList:
    return await held.transaction_list(
        console.source, topic=fields.text("topic"), producer_group=fields.text("group")
    )


async def show_leases(request: Request, console: Console) -> Response:
    found = await leases_of(console, fields_of(request))
    return console.page(
        request, "leases.html.j2", tab=TAB, live=True, page=found, key=held.lease_key
    )


async def leases_of(console: Console, fields: Fields) -> held.LeaseList:
    return await held.lease_list(
        console.source,
        fields.text("group"),
        topic=fields.text("topic"),
        client_id=fields.text("client"),
    )


async def show_lite(request: Request, console: Console) -> Response:
    found = await lite_of(console, fields_of(request))
    return console.page(request, "lite.html.j2", tab=TAB, live=True, page=found)


async def lite_of(console: Console, fields: Fields) -> held.LiteList:
    return await held.lite_list(console.source, fields.text("topic"), fields.text("group"))


# ---- changes ----


def _filters(fields: Fields, *names: str) -> list[Input]:
    """Return the filters of the list in which the rows were chosen, so that it is read again."""
    return [Input(name=name, label="", kind="hidden", value=fields.text(name)) for name in names]


async def _each(
    rows: Sequence[R], act: Callable[[R], Awaitable[None]], name: Callable[[R], str]
) -> tuple[int, list[str]]:
    """Act on each row. Return the number of successes, and a sentence for each failure.

    Raises the first failure if there is no success.
    """
    done, failures, first = 0, [], None
    for row in rows:
        try:
            await act(row)
            done += 1
        except MqError as error:
            first = first or error
            failures.append(f"{name(row)}: {error.message}")
    if first is not None and not done:
        raise first
    return done, failures


def _missing(found: held.Held, rows: int, keys: Sequence[str]) -> list[str]:
    """Return a sentence for each key that is not in a list of `rows` rows."""
    return [f"{key}: {found.why_missing(key, rows)}" for key in keys]


def _effects(found: held.Held, texts: Sequence[str], missing: Sequence[str]) -> Effects:
    shown = list(texts[:LISTED])
    if len(texts) > LISTED:
        shown.append(f"and {len(texts) - LISTED:,} more")
    shown += missing[:LISTED]
    if len(missing) > LISTED:
        shown.append(f"and {len(missing) - LISTED:,} more that are not in the list")
    return Effects(texts=tuple(shown), seen="", silent=found.silent, asked_at_ms=found.asked_at_ms)


def _gone(what: str, missing: Sequence[str]) -> Changed:
    found = "; ".join(missing[:LISTED])
    return Changed(f"no {what} that was chosen is in the list, and nothing was changed: {found}")


async def _transactions(
    console: Console, fields: Fields
) -> tuple[held.TransactionList, list[OpenTransaction], list[str]]:
    keys = fields.names("transactions")
    found = await held.transaction_list(
        console.source,
        topic=fields.text("topic"),
        producer_group=fields.text("group"),
        limit=held.MOST,
    )
    rows, missing = held.chosen(found.rows, held.transaction_key, keys)
    return found, rows, _missing(found, len(found.rows), missing)


def _transaction_name(row: OpenTransaction) -> str:
    return f"{row.transaction_id} for {row.topic}"


async def _end_form(console: Console, __: Mapping[str, str], fields: Fields) -> Form:
    found, rows, missing = await _transactions(console, fields)
    outcome = fields.choice("outcome", OUTCOMES, "commit")
    verb = "delivered" if outcome == "commit" else "discarded"
    texts = [
        f"the message of {_transaction_name(row)} is {verb}, without regard to producer group "
        f"{row.producer_group}"
        for row in rows
    ]
    verb = "Commit" if outcome == "commit" else "Roll back"
    return Form(
        title=f"{verb} {counted(len(rows), 'transaction')}",
        submit=verb,
        back="/transactions",
        inputs=(
            Input(name="transactions", label="", kind="hidden",
                  value=" ".join(map(held.transaction_key, rows))),
            Input(name="outcome", label="Outcome", kind="fixed", value=outcome),
            *_filters(fields, "topic", "group"),
        ),
        effects=_effects(found, texts, missing),
        confirm=outcome,
        danger=True,
    )  # fmt: skip


async def _end(console: Console, __: Mapping[str, str], fields: Fields) -> Result:
    """Commit or roll back open transactions in place of their producers."""
    outcome = fields.choice("outcome", OUTCOMES, "commit")
    confirmed(fields, outcome)
    _, rows, missing = await _transactions(console, fields)
    if not rows:
        raise _gone("transaction", missing)
    admin = console.source.admin
    done, failures = await _each(
        rows,
        lambda row: admin.end_transaction(row, commit=outcome == "commit"),
        _transaction_name,
    )
    verb = "committed" if outcome == "commit" else "rolled back"
    return Result(
        title=f"{counted(done, 'transaction')} {verb}",
        incomplete=[*failures, *missing],
        back="/transactions",
    )


async def _leases(
    console: Console, group: str, fields: Fields
) -> tuple[held.LeaseList, list[HeldLease], list[str]]:
    keys = fields.names("leases")
    found = await held.lease_list(
        console.source,
        group,
        topic=fields.text("topic"),
        client_id=fields.text("client"),
        limit=held.MOST,
    )
    rows, missing = held.chosen(found.rows, held.lease_key, keys)
    return found, rows, _missing(found, len(found.rows), missing)


def _lease_name(row: HeldLease) -> str:
    return row.message_id or f"{row.topic}/{row.broker_name}/{row.queue_id}@{row.queue_offset}"


async def _release_form(console: Console, names: Mapping[str, str], fields: Fields) -> Form:
    group = names["group"]
    found, rows, missing = await _leases(console, group, fields)
    texts = [
        f"{_lease_name(row)} is delivered again at once; {row.client_id or 'an unknown client'} "
        "has it now"
        for row in rows
    ]
    return Form(
        title=f"Release {counted(len(rows), 'lease')} of {group}",
        submit="Release",
        back=f"/leases?group={part(group)}",
        inputs=(
            Input(name="leases", label="", kind="hidden",
                  value=" ".join(map(held.lease_key, rows))),
            *_filters(fields, "topic", "client"),
        ),
        effects=_effects(found, texts, missing),
        notes=("If the client still works on a message, the group may consume it twice.",),
    )  # fmt: skip


async def _release(console: Console, names: Mapping[str, str], fields: Fields) -> Result:
    """End leases now, so that their messages are delivered again."""
    group = names["group"]
    _, rows, missing = await _leases(console, group, fields)
    if not rows:
        raise _gone("lease", missing)
    admin = console.source.admin
    done, failures = await _each(rows, lambda row: admin.release_lease(group, row), _lease_name)
    return Result(
        title=f"{counted(done, 'lease')} of {group} released",
        incomplete=[*failures, *missing],
        back=f"/leases?group={part(group)}",
    )


PAGES = {
    "/delayed": show_delayed,
    "/transactions": show_transactions,
    "/leases": show_leases,
    "/lite": show_lite,
}
ACTIONS: dict[str, Action] = {
    "/transactions/end": Action(
        _end_form, _end, TAB, fields=("transactions", "outcome", "topic", "group")
    ),
    "/leases/{group}/release": Action(
        _release_form, _release, TAB, fields=("leases", "topic", "client")
    ),
}
