"""Leases: which failures end one, and which of several were not acknowledged."""

from __future__ import annotations

import asyncio

import pytest
from aerobee.broker.v1.pop_pb2 import AckFailure, AckResponse, LeaseResult

from aerobee_cluster.leases import ack_failures, is_over
from aerobee_cluster.receiving import holder
from aerobee_wire.status import Code, MqError
from support.codes import raises_code


@pytest.mark.parametrize(
    ("failure", "over"),
    [
        (MqError(Code.INVALID_RECEIPT_HANDLE, "ended"), True),
        (MqError(Code.BROKER_UNREACHABLE, "away"), False),
        (ValueError("a defect"), False),
        (asyncio.CancelledError(), False),
        (None, False),
    ],
)
def test_only_a_refused_handle_shows_that_a_lease_is_over(
    failure: BaseException | None, over: bool
) -> None:
    assert is_over(failure) is over


def test_each_refused_lease_is_found_in_its_set() -> None:
    ended = LeaseResult(code=Code.INVALID_RECEIPT_HANDLE, message="ended")
    places = [(0, 1), (2, 0), (2, 3)]
    answer = AckResponse(
        lease_sets=3,
        failures=[AckFailure(lease_set=one, place=place, result=ended) for one, place in places],
    )
    found = ack_failures(answer, 3, broker_name="broker-a", caller="client")
    assert [sorted(failures) for failures in found] == [[1], [], [0, 3]]
    assert all(is_over(failure) for failures in found for failure in failures.values())


def test_an_entry_without_a_failure_is_acknowledged() -> None:
    answer = AckResponse(lease_sets=1, failures=[AckFailure(result=LeaseResult())])
    assert ack_failures(answer, 1, broker_name="broker-a", caller="proxy") == [{}]


def test_a_broker_that_knows_no_lease_sets_has_acknowledged_nothing() -> None:
    with raises_code(Code.VERSION_NOT_SUPPORTED):
        ack_failures(AckResponse(), 1, broker_name="broker-a", caller="proxy")


# ---- test receiving ----
#
# A repeated attempt to receive: which source has its messages.


async def test_the_source_that_knows_the_attempt_is_found() -> None:
    async def is_repeated(source: str) -> bool:
        return source in "bc"

    assert await holder("abc", is_repeated) == "b"
    assert await holder("ad", is_repeated) is None
    assert await holder("", is_repeated) is None


async def test_all_sources_are_asked_at_once() -> None:
    everyone = asyncio.Barrier(3)

    async def is_repeated(source: str) -> bool:
        await everyone.wait()
        return False

    assert await holder("abc", is_repeated) is None
