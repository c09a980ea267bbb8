"""A small part of `make fuzz`: bad requests, bytes and connections to each service."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fuzz import connections, contract
from fuzz.run import fuzz, problems, state_of
from fuzz.targets import Target, running
from support.clock.polling import until_sync

SEED = "suite"  # the same cases each time: a failure of the suite repeats
CASES = 600
RESET_CONNECTIONS, RESET_CALLS = 50, 300
MOST_RESET_BYTES = 40 << 20


@pytest.fixture(scope="module")
def targets(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Target]]:
    with running(tmp_path_factory.mktemp("fuzz")) as targets:
        yield targets


@pytest.mark.parametrize("service", ["namesrv", "broker", "proxy"])
def test_bad_requests_get_a_listed_code_and_disturb_no_other_client(
    targets: dict[str, Target], service: str
) -> None:
    report = fuzz(targets[service], CASES, SEED)
    assert report.cases == CASES
    assert report.served
    assert not problems(report)


@pytest.mark.parametrize("service", ["namesrv", "broker"])
def test_calls_that_are_reset_at_once_leave_no_memory_behind(
    targets: dict[str, Target], service: str
) -> None:
    """grpc.aio keeps 7 KB of each: 100 MiB here.

    A server returns freed memory to the system within 10 s, and ends the last calls before that.
    """
    target = targets[service]
    before_bytes = state_of(target)["memory"]
    for _ in range(RESET_CONNECTIONS):
        data = connections.reset_calls(target.rpcs[0].path, RESET_CALLS)
        connections.attack(target.process.address, data)
    until_sync(
        lambda: state_of(target)["memory"] - before_bytes < MOST_RESET_BYTES,
        "the memory of the calls is free",
        timeout_s=60,
    )
    target.use()


def test_contracts_list_codes_by_their_numbers() -> None:
    assert not contract.wrong_numbers()
