"""Namespaces in the names of topics and consumer groups."""

from __future__ import annotations

import pytest
from apache.rocketmq.v2.definition_pb2 import Resource

from aerobee_proxy.v2.resources import resource_of, stored_name


@pytest.mark.parametrize(
    ("namespace", "name", "stored"),
    [
        ("", "orders", "orders"),
        ("eu", "orders", "eu%orders"),
        ("eu", "%DLQ%billing", "%DLQ%eu%billing"),
        ("eu", "%RETRY%billing", "%RETRY%eu%billing"),
    ],
)
def test_namespace_is_part_of_the_stored_name_and_comes_off_again(
    namespace: str, name: str, stored: str
) -> None:
    resource = Resource(resource_namespace=namespace, name=name)
    assert stored_name(resource) == stored
    assert resource_of(stored, namespace) == resource


def test_name_that_has_its_namespace_already_gets_no_second() -> None:
    assert stored_name(Resource(resource_namespace="eu", name="eu%orders")) == "eu%orders"


def test_empty_name_stays_empty() -> None:
    assert stored_name(Resource(resource_namespace="eu")) == ""


def test_stored_name_of_another_namespace_stays_whole() -> None:
    assert resource_of("us%orders", "eu") == Resource(resource_namespace="eu", name="us%orders")
