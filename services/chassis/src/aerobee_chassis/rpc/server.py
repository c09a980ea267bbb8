"""Run a gRPC server for handlers (`call`), on the transport of the running event loop.

The server includes grpc.health.v1 and server reflection. Only this module converts exceptions to
gRPC statuses.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import structlog
from google.protobuf.message import Message

from aerobee_chassis.addresses import join_address
from aerobee_chassis.errors import PortInUse
from aerobee_chassis.lifecycle import Component
from aerobee_chassis.rpc.access import Access
from aerobee_chassis.rpc.call import Call, Failure
from aerobee_chassis.rpc.in_flight import InFlight, TooMuchInFlight
from aerobee_chassis.rpc.loops import make_listener
from aerobee_chassis.rpc.peer_tls import ServerTls
from aerobee_chassis.rpc.services import Method, Service, bind
from aerobee_chassis.rpc.standard_services import (
    HEALTH,
    REFLECTION,
    Health,
    Reflection,
    ServiceNotFound,
)
from aerobee_chassis.rpc.transport import Listener, UnreadableRequest, admit_all, parsed
from aerobee_wire.access.caller import Caller

FailureOf = Callable[[Exception], Failure | None]
# Return the answer of an RPC when too many bytes are in flight, or None to let it fail.
BusyAnswer = Callable[[Method], Message | None]

DEFAULT_GRACE_S = 5.0


class Server(Component):
    """Serve `services` on one port: `port`, or a free one if it is 0.

    - `failure_of` returns the failure that the caller gets for an exception of the domain. If it
      returns None, the caller gets INTERNAL without details, and the log gets a traceback.
    - `grace_s` is how long `stop` waits for running calls.
    - `in_flight` limits the bytes that the server holds for calls.
    - `busy_answer` returns the answer for a call that is refused because of that limit. If it
      returns None, the caller gets the failure of TooMuchInFlight.
    - `tls` has the certificates of the port. If it is None, the port uses plaintext.
    - `access` checks callers. It must have a decision for each RPC, also if it is not enforced. If
      it is None, each caller may call.
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
        busy_answer: BusyAnswer = lambda _: None,
        tls: ServerTls | None = None,
        access: Access | None = None,
    ) -> None:
        """Create the server. Raises TypeError if an RPC has no row in the table of permissions."""
        names = [service.name for service in services]
        self._health = Health(names)
        self._services = (
            *services,
            bind(HEALTH, self._health),
            bind(REFLECTION, Reflection(services)),
        )
        self._host = host
        self.port = port  # 0 means a free one, until the server is started
        self._failure_of = failure_of
        self._grace_s = grace_s
        self._in_flight = in_flight or InFlight()
        self._busy_answer = busy_answer
        self._tls = tls
        self._access = access if access is not None and access.enforced else None
        if access is not None:
            access.cover(
                f"/{service.name}/{method.name}"
                for service in self._services
                for method in service.methods
            )
        self._listener: Listener | None = None

    @property
    def address(self) -> str:
        """Return the "host:port" on which the server listens, after the start."""
        return join_address(self._host, self.port)

    async def start(self) -> None:
        """Start listening. Raises PortInUse, or CertificateError."""
        credentials = None if self._tls is None else self._tls.credentials()
        listener = make_listener(
            self._services,
            self._run,
            self._in_flight,
            self._refuse,
            admit=admit_all if self._access is None else self._admit,
            max_age_ms=None if self._tls is None else self._tls.max_age_ms,
        )
        target = join_address(self._host, self.port)
        try:
            self.port = listener.bind(target, credentials)
        except OSError:
            raise PortInUse(
                f"cannot listen on {target}: the port is in use or not ours; choose another", target
            ) from None
        await listener.start()
        self._listener = listener
        self._health.set(True)

    def set_serving(self, serving: bool) -> None:
        """Set the answer of grpc.health.v1, for the whole process and for each service."""
        self._health.set(serving)

    async def stop(self) -> None:
        """Refuse new calls, wait up to `grace_s` for running calls, and then cancel them."""
        if self._listener is not None:
            self._health.close()
            await self._listener.stop(self._grace_s)
            self._listener = None

    async def sever(self) -> None:
        """Close every connection at once, during calls too.

        For clients, this looks as if the process was killed. `stop` must still be called.
        """
        if self._listener is not None:
            self._health.close()
            await self._listener.stop(0)
            self._listener = None

    def _admit(self, service: str, method: Method, call: Call) -> Failure | Caller:
        assert self._access is not None
        path = f"/{service}/{method.name}"
        try:
            return self._access.admit(path, call)
        except Exception as error:
            return self._failure(path[1:], error)

    async def _run(
        self, service: str, method: Method, request: Any, call: Call
    ) -> Message | Failure | None:
        try:
            if self._access is not None:
                return await self._run_checked(self._access, service, method, request, call)
            if not method.client_streams:
                request = parsed(method, request)
            return await method.handler(request, call)
        except Exception as error:
            return self._failure(f"{service}/{method.name}", error)

    async def _run_checked(
        self, access: Access, service: str, method: Method, request: Any, call: Call
    ) -> Message | None:
        path, caller, checked = f"/{service}/{method.name}", call.caller, None
        if not method.client_streams:
            access.check_request(path, caller, request)
            request = checked = parsed(method, request)
            access.authorize(path, caller, request)
        with access.hold(path, caller, checked):
            return await method.handler(request, call)

    def _refuse(self, method: Method) -> Message | Failure:
        answer = self._busy_answer(method)
        return answer or self._failure(method.name, TooMuchInFlight(self._in_flight.limit))

    def _failure(self, path: str, error: Exception) -> Failure:
        if isinstance(error, UnreadableRequest):
            return Failure("INVALID_ARGUMENT", "the request cannot be parsed as its message type")
        if isinstance(error, ServiceNotFound):
            return Failure("NOT_FOUND", str(error))
        failure = self._failure_of(error)
        if failure is None and isinstance(error, TooMuchInFlight):
            return Failure("RESOURCE_EXHAUSTED", str(error))
        if failure is None:
            structlog.get_logger().error("handler_failed", rpc=path, exc_info=error)
            return Failure("INTERNAL", "internal error: see the log of the server")
        return failure
