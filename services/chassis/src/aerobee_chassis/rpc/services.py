"""gRPC services as values: their methods, each with its handler."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

from google.protobuf import message_factory
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor

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


# Changes what a server serves: a test's refusals, or a service beside those of the process.
Adapt = Callable[[Sequence[Service]], Sequence[Service]]


def bind(descriptor: ServiceDescriptor, *handlers: object) -> Service:
    """The service of `descriptor` with one handler for each RPC: the coroutine of its name in
    snake_case, of whichever of `handlers` has it.

    Raises TypeError when a coroutine is missing, or two have it.
    """
    methods = []
    for method in descriptor.methods:
        name, coroutines = _coroutines(method, handlers)
        if len(coroutines) != 1:
            owners = ", ".join(type(owner).__name__ for owner in handlers)
            count = "no" if not coroutines else "more than one"
            raise TypeError(f"{owners}: {count} coroutine {name} for {method.full_name}")
        methods.append(_method(method, coroutines[0]))
    return Service(descriptor.full_name, tuple(methods))


def bind_part(descriptor: ServiceDescriptor, *handlers: object) -> Service:
    """Of the service of `descriptor` the RPCs, one at least, that `handlers` have a coroutine
    for."""
    methods = [
        _method(method, coroutines[0])
        for method in descriptor.methods
        if (coroutines := _coroutines(method, handlers)[1])
    ]
    assert methods, f"{descriptor.full_name} has an RPC for which there is a coroutine"
    return Service(descriptor.full_name, tuple(methods))


def _coroutines(method: MethodDescriptor, handlers: Sequence[object]) -> tuple[str, list[Handler]]:
    """The name of the coroutine for an RPC, and those that there are."""
    name = re.sub(r"(?<!^)(?=[A-Z])", "_", method.name).lower()
    found = [getattr(owner, name, None) for owner in handlers]
    return name, [cast(Handler, each) for each in found if inspect.iscoroutinefunction(each)]


def declare(descriptor: ServiceDescriptor, handler_of: Callable[[str], Handler]) -> Service:
    """The service of `descriptor`; `handler_of` gives the handler of "package.Service/Method"."""
    methods = (
        _method(method, handler_of(f"{descriptor.full_name}/{method.name}"))
        for method in descriptor.methods
    )
    return Service(descriptor.full_name, tuple(methods))


def _method(descriptor: MethodDescriptor, handler: Handler) -> Method:
    return Method(
        descriptor.name,
        handler,
        message_factory.GetMessageClass(descriptor.input_type),
        bool(descriptor.server_streaming),
        bool(descriptor.client_streaming),
    )
