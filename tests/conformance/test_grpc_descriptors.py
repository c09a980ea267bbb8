"""Our generated grpc.health and grpc.reflection against those of gRPC's packages, name by name."""

from __future__ import annotations

import pytest

from support.repository.descriptors import describe


@pytest.mark.parametrize(
    ("ours", "official"),
    [
        ("health.v1.health", "grpc_health.v1.health"),
        ("reflection.v1alpha.reflection", "grpc_reflection.v1alpha.reflection"),
        ("reflection.v1.reflection", "grpc_reflection.v1alpha.reflection"),
    ],
)
def test_the_contracts_of_grpc_are_the_same(ours: str, official: str) -> None:
    """v1 of reflection is v1alpha by another name."""
    described = [describe([f"{each}_pb2"]) for each in (f"aerobee_foreign.grpc.{ours}", official)]
    assert described[0] and _unversioned(described[0]) == _unversioned(described[1])


def _unversioned(description: dict[str, str]) -> dict[str, str]:
    return {
        name.replace("v1alpha.", "v1."): value.replace("v1alpha.", "v1.")
        for name, value in description.items()
    }
