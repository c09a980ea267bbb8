"""Generated protobuf modules as data, so that two sets of generated code can be compared.

Run as a program it prints the description of the modules it is given, for a set of generated code
that only another environment has.

    python descriptors.py rocketmq.grpc_protocol.definition_pb2 …
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterable, Iterator

from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor, FileDescriptor

# "field Message.name" → "number label type", "value Enum.NAME" → "number",
# "message Name" → "", "rpc Service.Name" → "Request -> Response"
Description = dict[str, str]

SCALARS = {
    number: name.removeprefix("TYPE_").lower()
    for name, number in vars(FieldDescriptor).items()
    if name.startswith("TYPE_")
}


def describe(modules: Iterable[str]) -> Description:
    """What the modules declare; names without their package."""
    description: Description = {}
    for module in modules:
        file = importlib.import_module(module).DESCRIPTOR
        description.update(_of_file(file))
    return description


def _of_file(file: FileDescriptor) -> Iterator[tuple[str, str]]:
    for message in file.message_types_by_name.values():
        yield from _of_message(message)
    for enum in file.enum_types_by_name.values():
        yield from _of_enum(enum)
    for service in file.services_by_name.values():
        for method in service.methods:
            sent = "stream " * method.client_streaming + method.input_type.name
            received = "stream " * method.server_streaming + method.output_type.name
            yield f"rpc {service.name}.{method.name}", f"{sent} -> {received}"


def _of_message(message: Descriptor) -> Iterator[tuple[str, str]]:
    name = _short(message)
    yield f"message {name}", ""
    for field in message.fields:
        yield f"field {name}.{field.name}", f"{field.number} {_label(field)} {_type(field)}"
    for enum in message.enum_types:
        yield from _of_enum(enum)
    for nested in message.nested_types:
        if not nested.GetOptions().map_entry:
            yield from _of_message(nested)


def _of_enum(enum: EnumDescriptor) -> Iterator[tuple[str, str]]:
    for value in enum.values:
        yield f"value {_short(enum)}.{value.name}", str(value.number)


def _label(field: FieldDescriptor) -> str:
    if field.is_repeated:
        return "map" if _map_entry(field) else "repeated"
    if field.containing_oneof is not None:
        # What `optional` compiles to is a oneof of its own, named after the field.
        name = str(field.containing_oneof.name)
        return "optional" if name == f"_{field.name}" else f"oneof:{name}"
    return "singular"


def _type(field: FieldDescriptor) -> str:
    if entry := _map_entry(field):
        key, value = entry.fields_by_name["key"], entry.fields_by_name["value"]
        return f"<{_type(key)},{_type(value)}>"
    declared = field.message_type or field.enum_type
    return _short(declared) if declared is not None else SCALARS[field.type]


def _map_entry(field: FieldDescriptor) -> Descriptor | None:
    entry = field.message_type
    return entry if entry is not None and entry.GetOptions().map_entry else None


def _short(declared: Descriptor | EnumDescriptor) -> str:
    package = "apache.rocketmq.v2."
    return str(declared.full_name).removeprefix(package)


if __name__ == "__main__":
    json.dump(describe(sys.argv[1:]), sys.stdout, indent=0, sort_keys=True)
