"""Accept calls on the completion queue of the event loop (`loop`).

While calls wait, or requests or answers are on their way, the listener checks every second for
calls that have waited too long, and for callers that do not send their requests or do not read
their answers.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any

from aerobee_chassis.port_limits import PortLimits
from aerobee_chassis.rpc.call import Failure
from aerobee_chassis.rpc.completion_queue.cygrpc import cygrpc
from aerobee_chassis.rpc.completion_queue.loop import CompletionQueueLoop
from aerobee_chassis.rpc.completion_queue.server_call import (
    STATUS_CODES,
    CompletionQueueCall,
    nothing,
)
from aerobee_chassis.rpc.in_flight import InFlight
from aerobee_chassis.rpc.services import Service
from aerobee_chassis.rpc.transport import Admit, PortTls, Refuse, Run, admit_all, server_options

GOODBYE_S = 0.5  # for clients to close their connections after their calls have ended
WAITING_CALLS = 32  # new calls that gRPC may hand over before it is asked for more
LOOK_S = 1.0
_UNKNOWN_METHOD = Failure("UNIMPLEMENTED", "Method not found!")


class CompletionQueueListener:
    counts_connections = False

    def __init__(
        self,
        loop: CompletionQueueLoop,
        services: Sequence[Service],
        run: Run,
        in_flight: InFlight,
        refuse: Refuse,
        *,
        limits: PortLimits,
        admit: Admit = admit_all,
        max_age_ms: int | None = None,
    ) -> None:
        self.loop = loop
        self.run = run
        self.in_flight = in_flight
        self.refuse = refuse
        self.admit = admit
        self.limits = limits
        self.active: set[CompletionQueueCall] = set()
        self.has_plaintext = False  # whether some calls may come without TLS
        self._methods = {
            f"/{service.name}/{method.name}".encode(): (service.name, method)
            for service in services
            for method in service.methods
        }
        self._queue = loop.queue
        self._server = cygrpc.Server(server_options(in_flight, limits, max_age_ms), False)
        self._server.register_completion_queue(self._queue)
        self._stopping = False
        self._idle = asyncio.Event()
        self._down: asyncio.Future[None] = loop.create_future()
        self._looking: asyncio.TimerHandle | None = None

    def bind(self, target: str, tls: PortTls | None = None) -> int:
        given: Any = None if tls is None else tls.credentials()
        core = () if given is None else (given._credentials,)
        try:
            port = int(self._server.add_http2_port(target.encode(), *core))
        except RuntimeError as error:
            raise OSError(str(error)) from None
        if not port:
            raise OSError(f"cannot listen on {target}")
        self.has_plaintext |= tls is None
        return port

    async def start(self) -> None:
        self._server.start()
        for _ in range(WAITING_CALLS):
            self._server.request_call(self._queue, self._queue, self._on_call)

    async def stop(self, grace_s: float) -> None:
        self._stopping = True
        self._server.shutdown(self._queue, self._on_down)
        if self.active and grace_s > 0:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._idle.wait(), grace_s)
        if grace_s > 0 and not self.active:
            # Clients have received a GOAWAY, and close their connections.
            await asyncio.wait((self._down,), timeout=min(grace_s, GOODBYE_S))
        if not self._down.done():
            self._server.cancel_all_calls()  # clients see an error; connections are closed
        await self._down
        tasks = [call.task for call in self.active if call.task is not None]
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._looking is not None:
            self._looking.cancel()
        self._server.destroy()

    def ended(self, call: CompletionQueueCall) -> None:
        self.active.discard(call)
        call.task = None  # it may refer to the call
        if self._stopping and not self.active:
            self._idle.set()

    def watch(self) -> None:
        """Start the checks: a call waits, or a request or an answer was not read yet."""
        if self._looking is None:
            self._looking = self.loop.call_later(LOOK_S, self._look)

    def _on_call(self, event: Any) -> None:
        if not event.success:  # the server is shutting down
            return
        if not self._stopping:
            self._server.request_call(self._queue, self._queue, self._on_call)
        found = self._methods.get(event.call_details.method)
        if found is None:
            _refuse(event.call)
            return
        call = CompletionQueueCall(self, event, *found)
        self.active.add(call)
        call.begin()

    def _on_down(self, _event: Any) -> None:
        self._down.set_result(None)

    def _look(self) -> None:
        """Check for calls that wait too long, and for callers that do not send or read."""
        now_s, in_flight = self.loop.time(), self.in_flight
        self._looking = None
        if in_flight.waiting:
            in_flight.expire(now_s)
            for call in tuple(self.active):
                call.hurry()
        if in_flight.answers:
            stalled_looks = max(1, round(in_flight.stall_s / LOOK_S))
            for call in tuple(self.active):
                call.check_reader(stalled_looks)
        if in_flight.is_reading:
            late_looks = max(1, round(self.limits.arrival_s / LOOK_S))
            for call in tuple(self.active):
                call.check_arrival(late_looks)
        if in_flight.waiting or in_flight.answers or in_flight.is_reading:
            self.watch()


def _refuse(core: Any) -> None:
    status = STATUS_CODES[_UNKNOWN_METHOD.status], _UNKNOWN_METHOD.message.encode()
    core.start_server_batch(
        (
            cygrpc.SendInitialMetadataOperation((), 0),
            cygrpc.ReceiveCloseOnServerOperation(0),
            cygrpc.SendStatusFromServerOperation((), *status, 0),
        ),
        nothing,
    )
