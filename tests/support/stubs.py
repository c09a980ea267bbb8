"""Call and serve RPCs by gRPC's library, without generated code."""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING, Any

import grpc
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message_factory import GetMessageClass


class Stub:
    """Has a call for each RPC: `Stub(message_pb2, channel).Send(request)`."""

    def __init__(self, module: ModuleType, channel: grpc.Channel | grpc.aio.Channel) -> None:
        """`module` is generated from a .proto file with one service."""
        service = service_of(module)
        for method in service.methods:
            callable_of = getattr(channel, kind_of(method))
            call = callable_of(
                f"/{service.full_name}/{method.name}",
                request_serializer=GetMessageClass(method.input_type).SerializeToString,
                response_deserializer=GetMessageClass(method.output_type).FromString,
            )
            setattr(self, method.name, call)

    if TYPE_CHECKING:

        def __getattr__(self, rpc: str) -> Any: ...


def add_handlers(server: grpc.Server, module: ModuleType, handlers: object) -> None:
    """Serve the RPCs for which `handlers` has a method. The others answer UNIMPLEMENTED."""
    service = service_of(module)
    served = {
        method.name: getattr(grpc, f"{kind_of(method)}_rpc_method_handler")(
            getattr(handlers, method.name),
            request_deserializer=GetMessageClass(method.input_type).FromString,
            response_serializer=GetMessageClass(method.output_type).SerializeToString,
        )
        for method in service.methods
        if hasattr(handlers, method.name)
    }
    generic = grpc.method_handlers_generic_handler(service.full_name, served)
    server.add_generic_rpc_handlers((generic,))


def service_of(module: ModuleType) -> ServiceDescriptor:
    service: ServiceDescriptor
    [service] = module.DESCRIPTOR.services_by_name.values()
    return service


def kind_of(method: MethodDescriptor) -> str:
    """As gRPC's library names it, e.g. "unary_stream"."""
    streams = (method.client_streaming, method.server_streaming)
    return "_".join("stream" if each else "unary" for each in streams)
