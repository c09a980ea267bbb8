"""A form that is sent twice changes once, and both requests show the same result."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass

import pytest

from aerobee_console.web.once import KEPT_MS, MAX_KEPT, Once
from aerobee_wire.status import Code, MqError
from support.console.visitor import Visitor


@dataclass
class Made:
    number: int
    incomplete: tuple[str, ...] = ()


class Change:
    """A change that counts how often it is made, and fails with the given errors first."""

    def __init__(self, *errors: Exception, incomplete: tuple[str, ...] = ()) -> None:
        self.made = 0
        self.may_end = asyncio.Event()
        self.may_end.set()
        self._errors = list(errors)
        self._incomplete = incomplete

    async def __call__(self) -> Made:
        self.made += 1
        await self.may_end.wait()
        if self._errors:
            raise self._errors.pop(0)
        return Made(self.made, self._incomplete)


class Clock:
    ms = 1_000

    def __call__(self) -> int:
        return self.ms


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def once(clock: Clock) -> Once:
    return Once(clock)


async def test_two_requests_at_once_make_one_change(once: Once) -> None:
    change = Change()
    change.may_end.clear()
    both = [asyncio.create_task(once.perform("f", "/p", {"a": "1"}, change)) for _ in range(2)]
    await asyncio.sleep(0)
    both[0].cancel()  # the browser closes the first connection
    change.may_end.set()
    assert (await both[1]).number == 1 and both[0].cancelled()
    assert (await once.perform("f", "/p", {"a": "1"}, change)).number == 1


@pytest.mark.parametrize(
    ("form_id", "path", "values"),
    [("g", "/p", {"a": "1"}), ("f", "/q", {"a": "1"}), ("f", "/p", {"a": "2"})],
)
async def test_another_form_path_or_value_is_another_change(
    once: Once, form_id: str, path: str, values: dict[str, str]
) -> None:
    change = Change()
    await once.perform("f", "/p", {"a": "1"}, change)
    assert (await once.perform(form_id, path, values, change)).number == 2


async def test_a_failure_at_a_broker_is_kept_and_a_refusal_is_not(once: Once) -> None:
    failing = Change(MqError(Code.REQUEST_TIMEOUT, "no answer"))
    for _ in range(2):
        with pytest.raises(MqError):
            await once.perform("f", "/p", {}, failing)
    assert failing.made == 1
    refused = Change(ValueError("type orders to confirm"))
    with pytest.raises(ValueError):
        await once.perform("g", "/p", {}, refused)
    assert (await once.perform("g", "/p", {}, refused)).number == 2


async def test_an_incomplete_change_may_be_repeated(once: Once) -> None:
    change = Change(incomplete=("not changed: no answer from b",))
    await once.perform("f", "/p", {}, change)
    assert (await once.perform("f", "/p", {}, change)).number == 2


async def test_outcomes_are_forgotten_by_age_and_by_number(once: Once, clock: Clock) -> None:
    change = Change()
    for number in range(2 * MAX_KEPT):
        await once.perform(f"f{number}", "/p", {}, change)
    assert len(once._outcomes) == MAX_KEPT
    clock.ms += KEPT_MS + 1
    await once.perform("newest", "/p", {}, change)
    assert len(once._outcomes) == 1


@pytest.mark.parametrize("together", [True, False])
async def test_a_double_click_on_create_without_scripts_creates_once(
    together: bool, visitor: Visitor
) -> None:
    """A second creation would say that each broker had the topic already."""
    form = await visitor.get("/new-topic")
    found = re.search(r'name="form_id" value="([^"]+)"', form.text)
    assert found
    fields = {"topic": "invoices", "form_id": found[1]}
    if together:
        answers = await asyncio.gather(*(visitor.post("/new-topic", fields) for _ in range(2)))
    else:
        answers = [await visitor.post("/new-topic", fields) for _ in range(2)]
    for answer in answers:
        assert answer.status == 200 and "a: created" in answer.words, answer.words
    later = await visitor.post("/new-topic", {"topic": "invoices", "form_id": "of another form"})
    assert "a: created" not in later.words
