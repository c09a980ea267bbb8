"""The polling helpers of the tests: what they return, retry and tell."""

from __future__ import annotations

import pytest

from support.clock.polling import until, until_sync


async def test_first_truthy_value_is_returned() -> None:
    values = iter([0, "", "done"])
    assert await until(lambda: next(values)) == "done"
    assert until_sync(iter([0, 7]).__next__) == 7


async def test_coroutine_function_is_awaited() -> None:
    values = iter([None, "done"])

    async def condition() -> str | None:
        return next(values)

    assert await until(condition) == "done"


async def test_failed_assertion_and_chosen_errors_count_as_not_yet() -> None:
    failures = iter([AssertionError("soon"), OSError("refused")])

    def condition() -> bool:
        for failure in failures:
            raise failure
        return True

    assert await until(condition, retry_on=(OSError,))


def test_other_errors_end_the_wait() -> None:
    def condition() -> bool:
        raise KeyError("x")

    with pytest.raises(KeyError):
        until_sync(condition)


async def test_deadline_names_the_condition_and_what_was_last_seen() -> None:
    with pytest.raises(TimeoutError) as caught:
        await until(list, "the broker is registered", timeout_s=0)
    assert "the broker is registered" in str(caught.value) and "[]" in str(caught.value)
    with pytest.raises(TimeoutError) as caught:
        until_sync(refused, timeout_s=0, retry_on=(OSError,))
    assert repr(OSError("refused")) in str(caught.value)


def refused() -> bool:
    raise OSError("refused")
