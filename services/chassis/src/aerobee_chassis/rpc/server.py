"""Run a gRPC server for handlers (`call`), on the running event loop.

The server includes grpc.health.v1 and server reflection. Only this module converts exceptions to
gRPC statuses.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Any, Protocol

import structlog
from google.protobuf.message import Message

from aerobee_chassis.addresses import join_address
from aerobee_chassis.lifecycle import Component
from aerobee_chassis.port_limits import PortLimits
from aerobee_chassis.rpc.access import Access
from aerobee_chassis.rpc.audit import Audit, States
from aerobee_chassis.rpc.call import Call, Failure
from aerobee_chassis.rpc.call_times import CallTimes
from aerobee_chassis.rpc.http2.listener import Http2Listener
from aerobee_chassis.rpc.in_flight import InFlight, TooMuchInFlight
from aerobee_chassis.rpc.services import Method, Service, bind
from aerobee_chassis.rpc.standard_services import (
    HEALTH,
    REFLECTION,
    Health,
    Reflection,
    ServiceNotFound,
)
from aerobee_chassis.rpc.transport import (
    Listener,
    PortTls,
    UnreadableRequest,
    admit_all,
    parsed,
)
from aerobee_wire.access.caller import Caller

FailureOf = Callable[[Exception], Failure | None]
# Return the answer of an RPC when too many bytes are in flight, or None to let it fail.
BusyAnswer = Callable[[Method, TooMuchInFlight], Message | None]

DEFAULT_GRACE_S = 5.0


class Meter(Protocol):
    """Hold callers to their quotas. `path` is "/package.Service/Method"."""

    @property
    def active(self) -> bool:
        """Return whether there is a quota."""

    async def before(self, path: str, request: Any, call: Call) -> None:
        """Delay a call, or raise the error that refuses it."""

    def after(self, path: str, request: Any, call: Call, answer: Any) -> None:
        """Count the answer of a call."""


class Server(Component):
    """Serve `services` on one port: `port`, or a free one if it is 0.

    - `failure_of` returns the failure that the caller gets for an exception of the domain. If it
      returns None, the caller gets INTERNAL without details, and the log gets a traceback.
    - `grace_s` is how long `stop` waits for running calls.
    - `in_flight` limits the bytes that the server holds for calls.
    - `busy_answer` returns the answer for a call that is refused because of that limit. If it
      returns None, the caller gets the failure of the TooMuchInFlight.
    - `limits` are those of the port and its connections.
    - `tls` has the certificates of the port, and says whether it also accepts plaintext. If it is
      None, the port uses plaintext.
    - `listeners` are sockets that are already bound to the port, if several processes share it.
    - `trusted` are the networks of load balancers that send a header of the PROXY protocol.
    - `meter` holds callers to their quotas. It does not see calls that stream their requests.
    - `access` checks callers. It must have a decision for each RPC, also if it is not enforced. If
      it is None, each caller may call.
    - `audit` writes a line before each change. It must start before the server.
    - `call_times` measures unary calls. If it is None, they are not measured.
    """

    def __init__(
        self,
        services: Sequence[Service],
        *,
        host: str,
        port: int,
        failure_of: FailureOf,
        grace_s: float = DEFAULT_GRACE_S,
        in_flight: InFlight | None = None,
        busy_answer: BusyAnswer = lambda _method, _error: None,
        limits: PortLimits | None = None,
        tls: PortTls | None = None,
        listeners: Sequence[socket.socket] = (),
        trusted: Sequence[str] = (),
        access: Access | None = None,
        meter: Meter | None = None,
        audit: Audit | None = None,
        call_times: CallTimes | None = None,
    ) -> None:
        """Create the server. Raises TypeError if an RPC has no row in the table of permissions."""
        names = [service.name for service in services]
        self._health = Health(names)
        reflection = Reflection(services)
        self._services = (
            *services,
            bind(HEALTH, self._health),
            *(bind(each, reflection) for each in REFLECTION),
        )
        self._host = host
        self.port = port  # 0 means a free one, until the server is started
        self._failure_of = failure_of
        self._grace_s = grace_s
        self._in_flight = in_flight or InFlight()
        self._busy_answer = busy_answer
        self._limits = limits or PortLimits()
        self._meter = meter
        self._audit = audit
        self._states = States(self._services)
        self._tls = tls
        self._listeners = listeners
        self._trusted = trusted
        self._call_times = call_times
        self._now_s = monotonic  # until the loop is known
        # Kept, because each check of a call looks its path up.
        self._paths = {
            service.name: {each.name: f"/{service.name}/{each.name}" for each in service.methods}
            for service in self._services
        }
        self._access = access if access is not None and access.enforced else None
        if access is not None:
            access.cover(path for paths in self._paths.values() for path in paths.values())
        self._listener: Listener | None = None

    @property
    def address(self) -> str:
        """Return the "host:port" on which the server listens, after the start."""
        return join_address(self._host, self.port)

    async def start(self) -> None:
        """Start listening. Raises PortInUse or CertificateError."""
        self._now_s = asyncio.get_running_loop().time
        listener = Http2Listener(
            self._services,
            self._run,
            self._in_flight,
            self._refuse,
            admit=admit_all if self._access is None else self._admit,
            limits=self._limits,
            tls=self._tls,
            trusted=self._trusted,
        )
        if self._tls is not None:
            await self._tls.load()
        self.port = listener.bind(join_address(self._host, self.port), self._listeners)
        await listener.start()
        self._listener = listener
        self._health.set(True)

    def set_serving(self, serving: bool) -> None:
        """Set the answer of grpc.health.v1, for the whole process and for each service."""
        self._health.set(serving)

    async def stop(self, grace_s: float | None = None) -> None:
        """Refuse new calls, wait up to `grace_s` for running calls, and then cancel them.

        The default is the `grace_s` of the server. May be called again.
        """
        if self._listener is not None:
            self._health.close()
            await self._stop(self._grace_s if grace_s is None else grace_s)

    async def sever(self) -> None:
        """Close every connection at once, during calls too.

        For clients, this looks as if the process was killed. `stop` must still be called.
        """
        if self._listener is not None:
            self._health.close()
            await self._stop(0)

    async def _stop(self, grace_s: float) -> None:
        assert self._listener is not None
        await self._listener.stop(grace_s)
        self._listener = None

    def _admit(self, service: str, method: Method, call: Call) -> Failure | Caller:
        assert self._access is not None
        path = self._paths[service][method.name]
        try:
            return self._access.admit(path, call)
        except Exception as error:
            return self._failure(path[1:], error)

    async def _run(
        self, service: str, method: Method, request: Any, call: Call
    ) -> Message | Failure | None:
        path = self._paths[service][method.name]
        times = None if method.server_streams or method.client_streams else self._call_times
        begin_s = 0.0 if times is None else self._now_s()
        outcome: Message | Failure | None
        try:
            # The message replaces its bytes, which otherwise stay in memory until the call ends.
            if self._access is None:
                if not method.client_streams:
                    request = parsed(method, request)
                outcome = await self._handle(path, method, request, call)
            else:
                request = _checked(self._access, path, method, request, call)
                checked = None if method.client_streams else request
                with self._access.hold(path, call, checked):
                    outcome = await self._handle(path, method, request, call)
        except Exception as error:
            outcome = self._failure(path[1:], error)
        if times is not None:
            times.ended(method.name, outcome, self._now_s() - begin_s)
        return outcome

    async def _handle(self, path: str, method: Method, request: Any, call: Call) -> Message | None:
        if self._meter is None or method.client_streams or not self._meter.active:
            return await self._call(path, method, request, call)
        await self._meter.before(path, request, call)
        answer = await self._call(path, method, request, call)
        self._meter.after(path, request, call, answer)
        return answer

    async def _call(self, path: str, method: Method, request: Any, call: Call) -> Message | None:
        audit = self._audit
        if audit is None:
            return await method.handler(request, call)
        if audit.covers(path, request):
            async with audit.change(path, request, call, self._states):
                return await method.handler(request, call)
        answer = await method.handler(request, call)
        if audit.reads(path):
            audit.read(path, request, call)
        return answer

    def _refuse(self, method: Method, error: TooMuchInFlight) -> Message | Failure:
        return self._busy_answer(method, error) or self._failure(method.name, error)

    def _failure(self, path: str, error: Exception) -> Failure:
        if isinstance(error, UnreadableRequest):
            return Failure(
                "INVALID_ARGUMENT",
                "the request is not a valid message of its type: use the .proto files of this "
                "version",
            )
        if isinstance(error, ServiceNotFound):
            return Failure("NOT_FOUND", str(error))
        failure = self._failure_of(error)
        if failure is None and isinstance(error, TooMuchInFlight):
            return Failure("RESOURCE_EXHAUSTED", str(error))
        if failure is None:
            structlog.get_logger().error("handler_failed", rpc=path, exc_info=error)
            return Failure("INTERNAL", "internal error: see the log of the server")
        return failure


def _checked(access: Access, path: str, method: Method, request: Any, call: Call) -> Any:
    """Return a request parsed, if the caller may make it now. Raises MqError.

    A stream of requests is returned as it is.
    """
    caller = access.renewed(path, call)
    if method.client_streams:
        return request
    access.check_request(path, caller, request, call)
    message = parsed(method, request)
    access.authorize(path, caller, message, call)
    return message
