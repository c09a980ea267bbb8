"""Aerobee and the official Python SDK in one environment and one process."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from conformance import coexistence
from support.proxy.official_sdk import OfficialSdk, official_sdks

PYTHON_SDKS = [sdk for sdk in official_sdks() if sdk.language == "python"]


@pytest.mark.parametrize("first", ["ours", "theirs"])
@pytest.mark.parametrize("sdk", PYTHON_SDKS, ids=str)
def test_both_clients_and_the_services_share_a_process(
    sdk: OfficialSdk, first: str, tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    if sdk != PYTHON_SDKS[0] and not pytestconfig.getoption("--every-sdk"):
        pytest.skip("one version suffices without --every-sdk")
    (packages,) = (sdk.built / "lib").glob("python*/site-packages")
    ended = subprocess.run(
        [sys.executable, coexistence.__file__, first, str(tmp_path / "data"), str(packages)],
        check=False,
        capture_output=True,
        text=True,
        env={**sdk.environment(tmp_path), "PYTHONSAFEPATH": "1"},
        timeout=120,
    )
    assert ended.returncode == 0, ended.stderr
    both = ["ours", "theirs"]
    assert json.loads(ended.stdout.splitlines()[-1]) == {
        "received": {"ours": both, "theirs": both},
        "clients": [
            [False, [], ["of-ours"]],
            [False, [coexistence.TOPIC], []],
            [True, [], ["of-theirs"]],
            [True, [coexistence.TOPIC], []],
        ],
        "unmet": [],
    }
