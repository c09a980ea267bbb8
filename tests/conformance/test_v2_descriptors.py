"""Our generated apache.rocketmq.v2 against that of the official Python SDK, name by name."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from support.proxy.official_sdk import newest
from support.repository import descriptors
from support.repository.descriptors import Description, describe

FILES = ("definition", "service", "admin")
NEWER = Path(__file__).with_name("v2_newer_than_the_sdk.tsv")


@pytest.fixture(scope="module")
def ours() -> Description:
    return describe(f"aerobee_foreign.apache.rocketmq.v2.{name}_pb2" for name in FILES)


@pytest.fixture(scope="module")
def official() -> Description:
    """What SDK 5.1.2 declares: 67 messages, of which the protocol has grown to 106."""
    modules = [f"rocketmq.grpc_protocol.{name}_pb2" for name in FILES]
    printed = subprocess.run(
        [str(newest("python").built / "bin" / "python"), str(descriptors.__file__), *modules],
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    ).stdout
    return dict(json.loads(printed))


@pytest.fixture(scope="module")
def newer() -> Description:
    lines = [line for line in NEWER.read_text("utf-8").splitlines() if not line.startswith("#")]
    return {name: value for name, _, value in (line.partition("\t") for line in lines)}


def test_everything_of_the_official_sdk_is_here_and_the_same(
    ours: Description, official: Description
) -> None:
    assert {name: ours.get(name) for name in official} == official


def test_what_is_newer_than_the_sdk_is_as_the_protocol_has_it(
    ours: Description, newer: Description
) -> None:
    assert {name: ours.get(name) for name in newer} == newer


def test_nothing_is_here_that_the_protocol_does_not_have(
    ours: Description, official: Description, newer: Description
) -> None:
    assert ours.keys() - official.keys() - newer.keys() == set()


def test_the_whole_protocol_is_compared(ours: Description) -> None:
    """Its size as published: 106 messages, 365 fields, 128 enum values, 33 RPCs."""
    kinds = Counter(name.split()[0] for name in ours)
    assert kinds == {"message": 106, "field": 365, "value": 128, "rpc": 33}
