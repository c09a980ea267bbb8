"""`aerobee message tail`: it names brokers that stop answering, and exits with their code."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Self

import click
import pytest

from aerobee_cli.commands import message
from aerobee_cli.errors import INCOMPLETE
from aerobee_cli.options import NamesrvOptions
from aerobee_client import ReceivedMessage
from aerobee_client.admin.descriptions import SearchResult
from aerobee_wire.status import Code, MqError

NOTHING = SearchResult((), {}, (), (), scanned=0, unreadable=0, silent={})
LOST = MqError(Code.BROKER_UNREACHABLE, "broker-b is unreachable")


@dataclass
class Admin:
    """An admin client whose user presses Ctrl-C before a message arrives."""

    found: SearchResult = NOTHING
    lost: list[MqError] = field(default_factory=list)  # while the topic is followed

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def search_messages(self, *_: Any, **__: Any) -> SearchResult:
        return self.found

    def follow_messages(
        self, topic: str, *, on_error: Callable[[MqError], object], **_: Any
    ) -> Iterator[ReceivedMessage]:
        for error in self.lost:
            on_error(error)
        yield from ()
        raise KeyboardInterrupt


def exit_code_of_tail(admin: Admin, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr("aerobee_cli.options.admin_client", lambda _: admin)
    try:
        options = NamesrvOptions(context=click.Context(click.Command("tail")))
        message.tail(topic="orders", limit=1, options=options)
    except click.exceptions.Exit as end:
        return end.exit_code
    return 0


def test_ctrl_c_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert exit_code_of_tail(Admin(), monkeypatch) == 0


def test_a_broker_that_stops_answering_is_named_at_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code_of_tail(Admin(lost=[LOST]), monkeypatch) == INCOMPLETE
    assert capsys.readouterr().err.count(LOST.message) == 1


def test_a_broker_that_did_not_answer_the_search_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = replace(NOTHING, silent={"broker-b": LOST})
    assert exit_code_of_tail(Admin(found), monkeypatch) == INCOMPLETE
    assert capsys.readouterr().err.count(LOST.message) == 1
