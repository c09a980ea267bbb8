"""Accept calls with grpc.aio.

grpc.aio sees every method as one with a stream of requests, which is the same on the wire. So a
handler reads its request itself, after `InFlight` admits the call.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import grpc
from google.protobuf.message import Message

from aerobee_chassis.addresses import is_relayed_tls, peer_address
from aerobee_chassis.port_limits import PortLimits
from aerobee_chassis.rpc.call import Failure
from aerobee_chassis.rpc.connections import late
from aerobee_chassis.rpc.in_flight import InFlight, TooMuchInFlight
from aerobee_chassis.rpc.services import Method, Service
from aerobee_chassis.rpc.transport import (
    Admit,
    Refuse,
    Run,
    admit_all,
    parsed_each,
    serialized,
    server_options,
)
from aerobee_wire.access.caller import ANYBODY

LOOK_S = 1.0
_NO_REQUEST = Failure("INVALID_ARGUMENT", "the request is missing: send one message")


class AioListener:
    has_sockets = True

    def __init__(
        self,
        services: Sequence[Service],
        run: Run,
        in_flight: InFlight,
        refuse: Refuse,
        *,
        limits: PortLimits,
        admit: Admit = admit_all,
        max_age_ms: int | None = None,
    ) -> None:
        self._run = run
        self._in_flight = in_flight
        self._refuse = refuse
        self._admit = admit
        self._limits = limits
        self._loop = asyncio.get_running_loop()
        self._looking: asyncio.TimerHandle | None = None
        self._server = grpc.aio.server(options=server_options(in_flight, limits, max_age_ms))
        for service in services:
            handlers = {
                method.name: self._adapt(service.name, method) for method in service.methods
            }
            self._server.add_generic_rpc_handlers(
                (grpc.method_handlers_generic_handler(service.name, handlers),)
            )

    def bind(self, target: str, credentials: grpc.ServerCredentials | None = None) -> int:
        try:
            if credentials is None:
                return self._server.add_insecure_port(target)
            return self._server.add_secure_port(target, credentials)
        except RuntimeError as error:
            raise OSError(str(error)) from None

    async def start(self) -> None:
        await self._server.start()

    async def stop(self, grace_s: float) -> None:
        await self._server.stop(grace_s)
        if self._looking is not None:
            self._looking.cancel()

    def _watch(self) -> None:
        """Reject requests that have waited too long, every LOOK_S while requests wait."""
        if self._looking is None:
            self._looking = self._loop.call_later(LOOK_S, self._look)

    def _look(self) -> None:
        self._looking = None
        self._in_flight.expire(self._loop.time())
        if self._in_flight.waiting:
            self._watch()

    def _adapt(self, service: str, method: Method) -> grpc.RpcMethodHandler[Any, Any]:
        async def adapted(requests: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
            call = AioCall(context, self._in_flight, method.server_streams)
            outcome = await self._outcome(service, method, requests, call)
            await call.pause()
            if isinstance(outcome, Failure):
                status = getattr(grpc.StatusCode, outcome.status)
                return await context.abort(status, outcome.message, outcome.trailers)
            if method.server_streams and outcome is not None:
                await call.write(outcome)
                return None
            return None if outcome is None else call.last(outcome)

        kind: Callable[..., grpc.RpcMethodHandler[Any, Any]] = (
            grpc.stream_stream_rpc_method_handler
            if method.server_streams
            else grpc.stream_unary_rpc_method_handler
        )
        return kind(adapted, request_deserializer=None, response_serializer=None)

    async def _outcome(
        self, service: str, method: Method, requests: Any, call: AioCall
    ) -> Message | Failure | None:
        if (refusal := call.admit(self._admit, service, method)) is not None:
            return refusal
        if method.client_streams:
            # Some callers wait for the headers of the answer before they send a request.
            await call.send_headers()
            return await self._run(service, method, parsed_each(method, requests), call)
        in_flight = self._in_flight
        admission = Admission(self._loop, in_flight, id(method))
        self._watch()
        reserved = await admission.wait()
        if isinstance(reserved, TooMuchInFlight):
            return self._refuse(method, reserved)
        size = 0
        try:
            async with asyncio.timeout(self._limits.arrival_s):
                request = await anext(aiter(requests), None)
            size = len(request or b"")
        except TimeoutError:
            return late(self._limits)
        finally:
            in_flight.arrived(admission, reserved, size)
        try:
            if request is None:
                return _NO_REQUEST
            running = self._run(service, method, request, call)
            del request  # otherwise its bytes stay in memory beside the parsed message
            return await running
        finally:
            in_flight.done(size)


class Admission:
    """The admission of one call. Implements `Reader`."""

    def __init__(self, loop: asyncio.AbstractEventLoop, in_flight: InFlight, kind: object) -> None:
        self._loop = loop
        self._in_flight = in_flight
        self._outcome: asyncio.Future[int | TooMuchInFlight] = loop.create_future()
        self.kind = kind

    async def wait(self) -> int | TooMuchInFlight:
        """Return the bytes reserved for the request, or the error with which it is refused."""
        self._in_flight.admit(self, self._loop.time())
        try:
            return await self._outcome
        except asyncio.CancelledError:
            if self._outcome.cancelled():
                self._in_flight.forget(self)
            elif isinstance(reserved := self._outcome.result(), int):
                # The call was admitted and cancelled in one loop iteration.
                self._in_flight.arrived(self, reserved, 0)
            raise

    def read(self, reserved: int) -> None:
        if self._outcome.done():  # the call was cancelled
            self._in_flight.arrived(self, reserved, 0)
        else:
            self._outcome.set_result(reserved)

    def refuse(self, error: TooMuchInFlight) -> None:
        if not self._outcome.done():
            self._outcome.set_result(error)


class AioCall:
    """Implement `Call` on a `grpc.aio` context."""

    __slots__ = ("_context", "_delay_s", "_in_flight", "_writing", "caller")

    def __init__(
        self,
        context: grpc.aio.ServicerContext[Any, Any],
        in_flight: InFlight,
        streams: bool = False,
    ) -> None:
        self._context = context
        self._in_flight = in_flight
        self.caller = ANYBODY  # until it is admitted
        self._delay_s = 0.0  # before anything more of the answer
        # grpc.aio loses messages when two tasks write at once.
        self._writing = asyncio.Lock() if streams else None

    def admit(self, admit: Admit, service: str, method: Method) -> Failure | None:
        """Find out who calls. Return the failure of a call that may not be made."""
        admitted = admit(service, method, self)
        if isinstance(admitted, Failure):
            return admitted
        self.caller = admitted
        return None

    @property
    def metadata(self) -> Mapping[str, str]:
        pairs = self._context.invocation_metadata() or ()
        return {key: value for key, value in pairs if isinstance(value, str)}

    @property
    def peer(self) -> str:
        return peer_address(self._context.peer())

    @property
    def certificate_uris(self) -> tuple[str, ...]:
        found = self._context.auth_context().get("peer_uri", ())
        return tuple(uri.decode("ascii", "replace") for uri in found)

    @property
    def is_encrypted(self) -> bool:
        security = self._context.auth_context().get("transport_security_type", ())
        return b"ssl" in security or is_relayed_tls(self._context.peer())

    def time_remaining_s(self) -> float | None:
        remaining = self._context.time_remaining()
        return None if remaining is None else float(remaining)

    def delay_answer(self, seconds: float) -> None:
        self._delay_s = seconds

    async def pause(self) -> None:
        """Wait for the delay of the answer, if it has one."""
        delay_s, self._delay_s = self._delay_s, 0.0
        if delay_s:
            await asyncio.sleep(delay_s)

    async def send_headers(self) -> None:
        await self._context.send_initial_metadata(())

    def last(self, message: Message) -> bytes:
        """Return the only response of an RPC, serialized for grpc.aio.

        Its bytes count as in flight until the call ends.
        """
        data = serialized(message)
        self._in_flight.answering(len(data))
        # The callback runs when the call ends, even if the caller did not take the answer.
        context: Any = self._context
        context.add_done_callback(lambda _: self._in_flight.answered(len(data)))
        return data

    async def write(self, message: Message | bytes) -> None:
        await self.write_all((message,))

    async def write_all(
        self, messages: Iterable[Message | bytes], *, more_follows: bool = False
    ) -> None:
        if self._writing is None:
            raise TypeError("this RPC has one response: return it")
        await self.pause()
        batch = [serialized(message) for message in messages]
        unsent = sum(map(len, batch))
        self._in_flight.answering(unsent)
        try:
            async with self._writing:
                for data in batch:
                    await self._send(data)
                    unsent -= len(data)
                    self._in_flight.answered(len(data))
        finally:
            self._in_flight.answered(unsent)

    async def _send(self, data: bytes) -> None:
        """Send a message.

        Raises CancelledError if the caller has left, or reads nothing for too long.
        """
        try:
            async with asyncio.timeout(self._in_flight.stall_s):
                await self._context.write(data)
        except grpc.aio.InternalError:  # gRPC notices it before it cancels this task
            raise asyncio.CancelledError("the caller has left") from None
        except TimeoutError:
            self._in_flight.cut += 1
            raise asyncio.CancelledError("the caller does not read the answer") from None
