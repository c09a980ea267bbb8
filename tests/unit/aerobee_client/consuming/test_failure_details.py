"""What a dead letter keeps of an exception: its causes, its stack trace, and who failed."""

from __future__ import annotations

import os
from collections.abc import Callable

from aerobee_client import DeadLetter, ReconsumeLater
from aerobee_client.consuming.failure_details import (
    MAX_CAUSES,
    STACK_TRACE_BYTES,
    causes_of,
    stack_trace_of,
    this_consumer,
)
from aerobee_client.consuming.listener import rejection_of


def caught(raising: Callable[[], object]) -> BaseException:
    try:
        raising()
    except Exception as error:
        return error
    raise AssertionError("it raised nothing")


CARDS: dict[str, str] = {}


def charge() -> None:
    try:
        CARDS["card"]  # the KeyError
    except KeyError as error:
        raise ValueError("no card for order 7") from error


def suppressed() -> None:
    try:
        charge()
    except ValueError:
        raise TimeoutError from None


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError


def test_causes_are_listed_from_the_nearest() -> None:
    def outer() -> None:
        try:
            charge()
        except ValueError:
            raise OSError("cannot bill")  # noqa: B904  # the context counts too

    assert causes_of(caught(outer)) == "ValueError: no card for order 7\nKeyError: 'card'"
    assert causes_of(caught(suppressed)) == ""


def test_causes_are_bounded_and_survive_a_broken_text() -> None:
    error: BaseException = Unprintable()
    for number in range(100):
        outer = ValueError(number)
        outer.__cause__ = error
        error = outer
    assert len(causes_of(error).splitlines()) == MAX_CAUSES
    outer = ValueError()
    outer.__cause__ = Unprintable()
    assert causes_of(outer) == "Unprintable: (its __str__ raised RuntimeError)"


def test_a_stack_trace_ends_with_the_innermost_call_and_is_bounded() -> None:
    def deep(depth: int) -> None:
        if depth:
            deep(depth - 1)
        charge()

    trace = stack_trace_of(caught(lambda: deep(500)))
    assert len(trace.encode()) <= STACK_TRACE_BYTES
    assert trace.splitlines()[-1].strip().startswith("raise ValueError")
    assert ", in charge" in trace


def test_a_verdict_names_its_reason() -> None:
    found = rejection_of(DeadLetter("the card is stolen", reason="FraudSuspected"))
    assert (found.reason, found.description) == ("FraudSuspected", "the card is stolen")
    assert rejection_of(DeadLetter("x")).reason == "DeadLetter"
    assert rejection_of(ReconsumeLater("x", reason="OutOfStock")).reason == "OutOfStock"

    class Bare(DeadLetter):
        def __init__(self) -> None:
            Exception.__init__(self, "bare")

    assert rejection_of(Bare()).reason == "Bare"


def test_the_consumer_is_its_host_and_process() -> None:
    assert this_consumer().endswith(f"@{os.getpid()}")
