"""Names and texts of strangers steer no terminal, forge no line of a log, and bloat no metric."""

from __future__ import annotations

import json
from typing import Any

import pytest
import structlog

from aerobee_broker.delivery.gauges import LONGEST_LABEL, sdk_labels
from aerobee_broker.registry.clients import Client
from aerobee_chassis import logs
from aerobee_chassis.metrics.exposition import Exposition
from aerobee_chassis.metrics.series import Kind, Metric, Registry
from aerobee_cli import main, output
from aerobee_cli.app import app
from aerobee_cli.errors import CommandError
from aerobee_cli.table import Column, Table

# A command of a terminal in two forms, a new line, an override of the direction, a separator.
STEERING = "\x1b[2J", "\x9b2J", "\x07", "\u202e", "\u2066", "\u200f", "\u2028"
NAME = "orders" + "".join(STEERING) + '\r\n{"event": "forged"}'


def steers(text: str) -> list[str]:
    """Return the characters of a text that are not to be shown as they are."""
    return [each for each in text if not each.isprintable() and each not in "\n\t"]


@pytest.mark.parametrize("for_people", [False, True], ids=["json", "people"])
@pytest.mark.parametrize("value", [NAME, [NAME], {NAME: NAME}, NAME.encode()], ids=str)
def test_injection_into_logs(for_people: bool, value: Any) -> None:
    event: Any = {"event": "call_rejected", "caller": value}
    for processor in logs._rendering(for_people=for_people):
        event = processor(structlog.get_logger(), "warning", event)
    assert steers(event) == []
    if not for_people:
        assert "\n" not in event and json.loads(event)["event"] == "call_rejected"


def test_injection_into_terminals(capsys: pytest.CaptureFixture[str]) -> None:
    item = {"name": NAME, "queues": 4}
    columns = [Column("NAME", "name"), Column("QUEUES", "queues")]
    for as_json in (False, True):
        output.show_one(item, as_json=as_json)
        output.show_each([item], as_json=as_json)
        Table(columns).show([item], as_json=as_json)
    output.note(f"topic {NAME} does not exist")
    shown = capsys.readouterr()
    assert steers(shown.out) == [] and steers(shown.err) == []
    output.show_one(item, as_json=True)
    assert json.loads(capsys.readouterr().out) == item, "JSON keeps the name"


def test_injection_by_an_error(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server may be a stranger, and the text of its errors too."""

    def fail(*_: object, **__: object) -> None:
        raise CommandError(NAME)

    monkeypatch.setattr(app, "main", fail)
    assert main.main(["topic", "list"]) == 1
    found = capsys.readouterr().err
    assert steers(found) == [] and found.count("\n") == 1


def test_injection_into_metrics() -> None:
    metric = Metric("clients", Kind.GAUGE, "Clients.", ("language", "version"))
    registry = Registry()
    series = registry.series(metric)
    for number in range(3):
        client = Client(f"client-{number}", language=NAME, version="9" * 10_000 + str(number))
        labels = sdk_labels(client)
        assert all(len(each) <= 4 * LONGEST_LABEL for each in labels)
        series.add(1, *labels)
    (line,) = [
        line
        for line in b"".join(Exposition(registry).write()).decode().splitlines()
        if not line.startswith("#")
    ]
    assert steers(line) == [] and line.endswith(" 3"), "clients alike are counted together"
