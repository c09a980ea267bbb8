"""Describe gRPC services as values: their methods, each with its handler."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

from google.protobuf import message_factory
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.descriptor_pool import DescriptorPool

from aerobee_chassis.rpc.call import Handler


@dataclass(frozen=True, slots=True)
class Method:
    name: str
    handler: Handler
    request: type[Any]
    server_streams: bool
    client_streams: bool


@dataclass(frozen=True, slots=True)
class Service:
    name: str
    methods: tuple[Method, ...]
    pool: DescriptorPool | None = None  # that describes it; None is protobuf's default pool


# Change the services of a server. Tests use it to add services or to let calls fail.
Adapt = Callable[[Sequence[Service]], Sequence[Service]]


def bind(descriptor: ServiceDescriptor, *handlers: object) -> Service:
    """Return the service of `descriptor` with one handler for each RPC.

    The handler is a coroutine method of one of the objects in `handlers`, with the RPC's name in
    snake_case. Raises TypeError if a method is missing, or if two objects have it.
    """
    methods = []
    for method in descriptor.methods:
        name, coroutines = _coroutines(method, handlers)
        if len(coroutines) != 1:
            owners = ", ".join(type(owner).__name__ for owner in handlers)
            count = "no" if not coroutines else "more than one"
            raise TypeError(f"{owners}: {count} coroutine {name} for {method.full_name}")
        methods.append(_method(method, coroutines[0]))
    return Service(descriptor.full_name, tuple(methods), descriptor.file.pool)


def bind_part(descriptor: ServiceDescriptor, *handlers: object) -> Service:
    """Return the service of `descriptor` with only the RPCs that `handlers` implement.

    `handlers` must implement at least one RPC.
    """
    methods = [
        _method(method, coroutines[0])
        for method in descriptor.methods
        if (coroutines := _coroutines(method, handlers)[1])
    ]
    assert methods, f"{descriptor.full_name} has an RPC for which there is a coroutine"
    return Service(descriptor.full_name, tuple(methods), descriptor.file.pool)


def _coroutines(method: MethodDescriptor, handlers: Sequence[object]) -> tuple[str, list[Handler]]:
    """Return the name of the coroutine method for an RPC, and the methods that exist."""
    name = re.sub(r"(?<!^)(?=[A-Z])", "_", method.name).lower()
    found = [getattr(owner, name, None) for owner in handlers]
    return name, [cast(Handler, each) for each in found if inspect.iscoroutinefunction(each)]


def declare(descriptor: ServiceDescriptor, handler_of: Callable[[str], Handler]) -> Service:
    """Return the service of `descriptor`.

    `handler_of` maps "package.Service/Method" to a handler.
    """
    methods = (
        _method(method, handler_of(f"{descriptor.full_name}/{method.name}"))
        for method in descriptor.methods
    )
    return Service(descriptor.full_name, tuple(methods), descriptor.file.pool)


def _method(descriptor: MethodDescriptor, handler: Handler) -> Method:
    return Method(
        descriptor.name,
        handler,
        message_factory.GetMessageClass(descriptor.input_type),
        bool(descriptor.server_streaming),
        bool(descriptor.client_streaming),
    )
