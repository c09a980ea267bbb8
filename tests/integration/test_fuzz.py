"""A small part of `make fuzz`: bad requests, bytes and connections to each service."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fuzz import contract
from fuzz.run import fuzz, problems
from fuzz.targets import Target, running

SEED = "suite"  # the same cases each time: a failure of the suite repeats
CASES = 600


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


def test_contracts_list_codes_by_their_numbers() -> None:
    assert not contract.wrong_numbers()
