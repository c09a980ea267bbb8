"""States of dead letters in a report: a page at a time, and unknown if a broker does not answer."""

from __future__ import annotations

from typing import Any, cast

from aerobee_client import AdminClient
from aerobee_client.admin.letters import LetterState, LetterStatus
from aerobee_spark.report.data.states import PAGE, BrokerStates, LetterStates
from aerobee_wire.status import Code, MqError

TOPIC = "%DLQ%billing"
SENT = LetterStatus(LetterState.REDRIVEN, 5, "job")


class Brokers:
    """Letter 1 of each broker was redriven; broker-b does not answer."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def letter_states(self, group: str, broker: str, *place: int) -> dict[int, LetterStatus]:
        self.calls.append((group, broker, *place))
        if broker == "broker-b":
            raise MqError(Code.BROKER_UNREACHABLE, "broker-b does not answer")
        return {1: SENT}


def test_states_are_fetched_by_pages_and_counted() -> None:
    brokers = Brokers()
    states = LetterStates(BrokerStates(cast(AdminClient, brokers)))
    found = [states.look_up(TOPIC, "broker-a", 0, n) for n in (0, 1, 2, PAGE)]
    assert [status and status.state.value for status in found] == [
        *("open", "redriven", "open", "open")
    ]
    assert brokers.calls == [
        ("billing", "broker-a", 0, 0, PAGE),
        ("billing", "broker-a", 0, PAGE, 2 * PAGE),
    ]
    assert states.counts == {"open": 3, "redriven": 1} and not states.problems


def test_states_of_a_silent_broker_are_unknown_and_asked_for_once() -> None:
    brokers = Brokers()
    states = LetterStates(BrokerStates(cast(AdminClient, brokers)))
    assert [states.look_up(TOPIC, "broker-b", 0, n) for n in (1, PAGE)] == [None, None]
    assert len(brokers.calls) == 1
    assert states.counts == {"unknown": 2}
    assert states.problems == {"broker-b": "broker-b does not answer"}


def test_states_are_unknown_without_brokers() -> None:
    states = LetterStates(None)
    assert states.look_up(TOPIC, "broker-a", 0, 1) is None
    assert states.counts == {"unknown": 1} and not states.problems
