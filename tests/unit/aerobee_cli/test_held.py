"""`aerobee transaction commit` and `rollback`: which transaction they end, and what they print."""

from __future__ import annotations

import json
from typing import Any, Self

import click
import pytest

from aerobee_cli.commands import held
from aerobee_cli.options import ClusterOptions
from aerobee_client.admin.waiting import OpenTransaction, Waiting
from aerobee_wire.status import Code
from support.codes import raises_code

MOST = 1_000  # transactions of one answer


class Admin:
    """A broker has open transactions."""

    def __init__(self, *ids: str) -> None:
        self._open = [
            OpenTransaction(
                topic="orders",
                broker_name="a",
                producer_group="shop",
                transaction_id=each,
                queue_offset=n,
                stored_timestamp_ms=n,
                checks=0,
            )
            for n, each in enumerate(ids)
        ]
        self.ended: dict[str, bool] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def list_transactions(
        self, *, transaction_id: str = "", limit: int = 100
    ) -> Waiting[OpenTransaction]:
        found = [each for each in self._open if transaction_id in ("", each.transaction_id)]
        return Waiting(rows=tuple(found[: min(limit, MOST)]), total=len(found), unanswered={})

    def end_transaction(self, ended: OpenTransaction, *, commit: bool) -> None:
        self.ended[ended.transaction_id] = commit


def end(
    admin: Admin,
    command: Any,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
    *,
    json: bool = False,
) -> None:
    monkeypatch.setattr("aerobee_cli.options.admin_client", lambda _: admin)
    options = ClusterOptions(context=click.Context(click.Command("end")), json=json)
    command(transaction_id=name, yes=True, options=options)


def test_a_transaction_that_no_list_has_room_for_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    admin = Admin(*(f"T{n}" for n in range(MOST + 1)))
    end(admin, held.commit, f"T{MOST}", monkeypatch)
    assert admin.ended == {f"T{MOST}": True}


@pytest.mark.parametrize("name", ["", "another"])
def test_an_id_that_no_transaction_has_ends_none(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    admin = Admin("T0")
    with raises_code(Code.INVALID_TRANSACTION_ID):
        end(admin, held.rollback, name, monkeypatch)
    assert admin.ended == {}


@pytest.mark.parametrize(
    ("command", "outcome"),
    [(held.commit, "committed"), (held.rollback, "rolled back")],
)
def test_the_ended_transaction_is_printed_as_json(
    command: Any, outcome: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    end(Admin("T0"), command, "T0", monkeypatch, json=True)
    shown = json.loads(capsys.readouterr().out)
    assert (shown["transaction_id"], shown["topic"], shown["outcome"]) == ("T0", "orders", outcome)
