"""Reflection describes services, files and extensions, from each pool of the services."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aerobee_foreign.grpc.reflection.v1 import reflection_pb2 as v1
from aerobee_foreign.grpc.reflection.v1alpha import reflection_pb2 as v1alpha
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool

from aerobee_chassis.rpc.services import Service
from aerobee_chassis.rpc.standard_services import HEALTH, REFLECTION, Reflection

INVALID_ARGUMENT, NOT_FOUND = 3, 5


def pool() -> DescriptorPool:
    """Extended is in a file of its own, and the extensions 130 and 120 are in another one."""
    base = FileDescriptorProto(name="base.proto", package="t", syntax="proto2")
    base.message_type.add(name="Extended").extension_range.add(start=100, end=200)
    more = FileDescriptorProto(name="more.proto", package="t", syntax="proto2")
    more.dependency.append("base.proto")
    for number in (130, 120):
        more.extension.add(
            name=f"extra{number}",
            number=number,
            extendee=".t.Extended",
            type=FieldDescriptorProto.TYPE_STRING,
            label=FieldDescriptorProto.LABEL_OPTIONAL,
        )
    found = DescriptorPool()
    for file in (base, more):
        found.AddSerializedFile(file.SerializeToString())
    return found


def answered(version: Any = v1, **asked: Any) -> Any:
    """Return the answer of a server whose only service has the pool above."""
    answers: list[Any] = []

    class Call:
        async def write(self, answer: Any) -> None:
            answers.append(answer)

    async def requests() -> AsyncIterator[Any]:
        yield version.ServerReflectionRequest(host="here", **asked)

    reflection = Reflection([Service("t.Service", (), pool())])
    asyncio.run(reflection.server_reflection_info(requests(), Call()))  # type: ignore[arg-type]
    [answer] = answers
    assert isinstance(answer, version.ServerReflectionResponse)
    assert answer.original_request == version.ServerReflectionRequest(host="here", **asked)
    return answer


def files(answer: Any) -> list[str]:
    described = answer.file_descriptor_response.file_descriptor_proto
    return [FileDescriptorProto.FromString(each).name for each in described]


@pytest.mark.parametrize("version", [v1, v1alpha], ids=lambda each: each.DESCRIPTOR.package)
def test_services_are_listed_by_their_names(version: Any) -> None:
    listed = answered(version, list_services="*").list_services_response.service
    names = [*(each.full_name for each in (HEALTH, *REFLECTION)), "t.Service"]
    assert [each.name for each in listed] == names


def test_a_file_comes_with_those_that_it_imports() -> None:
    both = ["more.proto", "base.proto"]
    assert files(answered(file_by_filename="more.proto")) == both
    assert files(answered(file_containing_symbol="t.extra120")) == both
    extension = {"containing_type": "t.Extended", "extension_number": 130}
    assert files(answered(file_containing_extension=extension)) == both
    assert files(answered(file_containing_symbol="t.Extended")) == ["base.proto"]


def test_the_services_of_each_server_are_described() -> None:
    for each in (HEALTH, *REFLECTION):
        assert files(answered(file_containing_symbol=each.full_name)) == [each.file.name]


def test_what_no_service_has_in_its_pool_comes_from_the_default_one() -> None:
    file = FileDescriptorProto.DESCRIPTOR.file.name
    assert files(answered(file_by_filename=file)) == [file]


def test_numbers_of_extensions_are_sorted() -> None:
    answer = answered(all_extension_numbers_of_type="t.Extended").all_extension_numbers_response
    assert (answer.base_type_name, list(answer.extension_number)) == ("t.Extended", [120, 130])


@pytest.mark.parametrize(
    "asked",
    [
        {"file_by_filename": "none.proto"},
        {"file_containing_symbol": "t.None"},
        {"file_containing_extension": {"containing_type": "t.None", "extension_number": 1}},
        {"file_containing_extension": {"containing_type": "t.Extended", "extension_number": 199}},
        {"all_extension_numbers_of_type": "t.None"},
    ],
    ids=str,
)
def test_what_does_not_exist_is_not_found(asked: dict[str, Any]) -> None:
    answer = answered(**asked)
    assert answer.error_response.error_code == NOT_FOUND
    assert not answer.HasField("file_descriptor_response")


def test_a_request_for_nothing_is_invalid() -> None:
    assert answered().error_response.error_code == INVALID_ARGUMENT
