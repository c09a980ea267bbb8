"""gRPC services that exist in no proto file: their requests and responses are StringValues."""

from __future__ import annotations

from google.protobuf import descriptor_pb2, descriptor_pool
from google.protobuf.descriptor import ServiceDescriptor

TEXT = ".google.protobuf.StringValue"


def service(name: str, **methods: tuple[bool, bool]) -> ServiceDescriptor:
    """`test.NAME`. `methods`: whether the client streams, and whether the server does."""
    file = descriptor_pb2.FileDescriptorProto(
        name=f"test_{name}.proto",
        package="test",
        syntax="proto3",
        dependency=["google/protobuf/wrappers.proto"],
    )
    made = file.service.add(name=name)
    for method, (client_streams, server_streams) in methods.items():
        made.method.add(
            name=method,
            input_type=TEXT,
            output_type=TEXT,
            client_streaming=client_streams,
            server_streaming=server_streams,
        )
    pool = descriptor_pool.Default()
    pool.Add(file)
    return pool.FindFileByName(file.name).services_by_name[name]
