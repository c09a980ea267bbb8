"""Calls taken by grpc.aio."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import grpc
from google.protobuf.message import Message

from aerobee_chassis.addresses import peer_address
from aerobee_chassis.rpc.call import Failure
from aerobee_chassis.rpc.services import Method, Service
from aerobee_chassis.rpc.transport import SERVER_OPTIONS, Run, parsed_each, serialized

# By (client streams, server streams).
_KINDS: Mapping[tuple[bool, bool], Callable[..., grpc.RpcMethodHandler[Any, Any]]] = {
    (False, False): grpc.unary_unary_rpc_method_handler,
    (False, True): grpc.unary_stream_rpc_method_handler,
    (True, False): grpc.stream_unary_rpc_method_handler,
    (True, True): grpc.stream_stream_rpc_method_handler,
}


class AioListener:
    def __init__(self, services: Sequence[Service], run: Run) -> None:
        self._run = run
        self._server = grpc.aio.server(options=SERVER_OPTIONS)
        for service in services:
            handlers = {
                method.name: self._adapt(service.name, method) for method in service.methods
            }
            self._server.add_generic_rpc_handlers(
                (grpc.method_handlers_generic_handler(service.name, handlers),)
            )

    def bind(self, target: str) -> int:
        try:
            return self._server.add_insecure_port(target)
        except RuntimeError as error:
            raise OSError(str(error)) from None

    async def start(self) -> None:
        await self._server.start()

    async def stop(self, grace_s: float) -> None:
        await self._server.stop(grace_s)

    def _adapt(self, service: str, method: Method) -> grpc.RpcMethodHandler[Any, Any]:
        run = self._run

        async def adapted(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
            if method.client_streams:
                # Some callers send no request before they have the headers of the answer.
                await context.send_initial_metadata(())
                request = parsed_each(method, request)
            call = AioCall(context, method.server_streams)
            outcome = await run(service, method, request, call)
            if isinstance(outcome, Failure):
                status = getattr(grpc.StatusCode, outcome.status)
                return await context.abort(status, outcome.message, outcome.trailers)
            if method.server_streams and outcome is not None:
                await call.write(outcome)
                return None
            return outcome

        kind = _KINDS[method.client_streams, method.server_streams]
        return kind(adapted, request_deserializer=None, response_serializer=serialized)


class AioCall:
    """`Call` over a `grpc.aio` context."""

    __slots__ = ("_context", "_writing")

    def __init__(self, context: grpc.aio.ServicerContext[Any, Any], streams: bool = False) -> None:
        self._context = context
        # grpc.aio loses messages when two tasks write at once.
        self._writing = asyncio.Lock() if streams else None

    @property
    def metadata(self) -> Mapping[str, str]:
        pairs = self._context.invocation_metadata() or ()
        return {key: value for key, value in pairs if isinstance(value, str)}

    @property
    def peer(self) -> str:
        return peer_address(self._context.peer())

    def time_remaining_s(self) -> float | None:
        remaining = self._context.time_remaining()
        return None if remaining is None else float(remaining)

    def cancelled(self) -> bool:
        return bool(self._context.cancelled())

    async def write(self, message: Message | bytes) -> None:
        await self.write_all((message,))

    async def write_all(
        self, messages: Iterable[Message | bytes], *, more_follows: bool = False
    ) -> None:
        if self._writing is None:
            raise TypeError("this RPC has one response: return it")
        async with self._writing:
            for message in messages:
                await self._context.write(message)
