"""The StatusCode table: what a client says of itself."""

from __future__ import annotations

import pytest
from aerobee_foreign.apache.rocketmq.v2.definition_pb2 import Code

from aerobee_proxy.v2 import validation
from support.proxy.harness import refused


@pytest.mark.parametrize(
    "metadata", [{}, *({"x-mq-client-id": text} for text in ("", "  ", "a" * 513))]
)
def test_client_id_is_required(metadata: dict[str, str]) -> None:
    """StatusCode table: every RPC × CLIENT_ID_REQUIRED."""
    refused(Code.CLIENT_ID_REQUIRED, validation.client_id, metadata)


def test_client_id_is_read_from_the_metadata() -> None:
    for text in ("host@1@0@abc", "a" * 512):
        assert validation.client_id({"x-mq-client-id": text}) == text


@pytest.mark.parametrize(
    "pairs",
    [
        {f"k{n}": "v" for n in range(33)},
        {"": "v"},
        {"1a": "v"},
        {"a b": "v"},
        {"k" * 65: "v"},
        {"rocketmq.x": "v"},
        {"k": "v" * 257},
        {f"k{n}": "v" * 200 for n in range(32)},
    ],
)
def test_invalid_client_properties(pairs: dict[str, str]) -> None:
    """Telemetry × INVALID_CLIENT_PROPERTIES."""
    refused(Code.INVALID_CLIENT_PROPERTIES, validation.check_client_properties, pairs)


def test_valid_client_properties() -> None:
    validation.check_client_properties({f"k{n}": "v" * 120 for n in range(32)})
    validation.check_client_properties({"Zone_a.b-9": "", "k" * 64: "v" * 256})
