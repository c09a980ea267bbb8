"""Changes of topics and groups: the remarks about parts that did not follow."""

from __future__ import annotations

import json
from typing import Any

import click
import pytest

from aerobee_cli.changes import create_all, show_created, show_deleted, update_all
from aerobee_cli.errors import INCOMPLETE
from aerobee_client.admin.descriptions import Created, Update
from aerobee_wire.status import Code, MqError

AWAY = "10.0.0.9:9876"


def create(name: str, *, dry_run: bool, **_: Any) -> list[Created]:
    unreachable = () if dry_run else (AWAY,)
    return [
        Created(broker, "a:1", created=True, unreachable_namesrvs=unreachable) for broker in "ab"
    ]


def update(name: str, *, dry_run: bool, **_: Any) -> Update:
    return Update((), unreachable_namesrvs=() if dry_run else (AWAY,))


def absent(name: str, *, dry_run: bool, **_: Any) -> Update:
    raise MqError(Code.TOPIC_NOT_EXIST, "no such topic")


@pytest.mark.parametrize("dry_run", [False, True])
def test_a_name_server_that_missed_a_creation_is_named_once(
    dry_run: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    made = create_all("topic", {"t": {}}, create, dry_run=dry_run, silent=[])
    show_created("topic", made, dry_run=dry_run, as_json=True)
    assert capsys.readouterr().err.count(AWAY) == (0 if dry_run else 1)


@pytest.mark.parametrize("change", [update, absent])
@pytest.mark.parametrize("dry_run", [False, True])
def test_a_name_server_that_missed_an_update_is_named_once(
    change: Any, dry_run: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    update_all({"t": {}, "u": {}}, change, create=create, dry_run=dry_run, silent=[])
    assert capsys.readouterr().err.count(AWAY) == (0 if dry_run else 1)


@pytest.mark.parametrize("deleted", [False, True])
def test_a_deletion_may_be_repeated(deleted: bool, capsys: pytest.CaptureFixture[str]) -> None:
    """A broker that did not answer in time may have deleted what it had."""
    show_deleted("topic", "t", deleted, [], as_json=True)
    assert json.loads(capsys.readouterr().out) == {"topic": "t", "deleted": deleted}


def test_a_deletion_that_missed_a_broker_is_not_complete(
    capsys: pytest.CaptureFixture[str],
) -> None:
    error = MqError(Code.REQUEST_TIMEOUT, "broker b: no answer")
    error.at_broker("b")
    with pytest.raises(click.exceptions.Exit) as caught:
        show_deleted("group", "g", False, [error], as_json=False)
    assert caught.value.exit_code == INCOMPLETE
    assert "on a broker that answers" in capsys.readouterr().err
