"""Accept connections and calls on sockets of the event loop (`aerobee_http2.server`).

While calls wait, or requests or answers are on their way, the listener checks every second for
calls that have waited too long, and for callers that do not send their requests or do not read
their answers. What is due at a known time has one common timer: deadlines of calls, and the silence
and age of connections.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
import socket
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

import structlog

from aerobee_chassis.errors import CertificateError
from aerobee_chassis.port_limits import PortLimits
from aerobee_chassis.rpc.connections import (
    MAX_PING_STRIKES,
    MIN_PING_INTERVAL_MS,
    AcceptedConnections,
)
from aerobee_chassis.rpc.http2.handshake import TlsProtocol
from aerobee_chassis.rpc.http2.hello import AcceptedSocket, Hellos
from aerobee_chassis.rpc.http2.peer import SocketPeer
from aerobee_chassis.rpc.http2.server_call import Http2Call
from aerobee_chassis.rpc.http2.sockets import ListeningSockets
from aerobee_chassis.rpc.in_flight import LOOKAHEAD_BYTES, InFlight
from aerobee_chassis.rpc.services import Service
from aerobee_chassis.rpc.transport import Admit, PortTls, Refuse, Run, admit_all
from aerobee_chassis.turns import at_end_of_turn
from aerobee_http2.framing import receive_buffer
from aerobee_http2.request_head import RequestHead, trailers
from aerobee_http2.server import ServerConnection, ServerLimits
from aerobee_http2.server_stream import ServerStream, unknown_encoding

# A silent peer is pinged, and its connection is closed if it does not answer. The machine of a
# consumer may be lost without closing its connection. Then its leases must not be renewed for
# hours.
KEEPALIVE_S = 60.0
PING_TIMEOUT_S = 30.0
GOODBYE_S = 0.5  # for clients to close their connections after their calls have ended
LOOK_S = 1.0
SOONEST_S = 0.05  # between two runs of the timer for what is due
AGE_JITTER = 0.1  # so that connections of one moment do not end in one moment
REPORT_REFUSED_S = 10.0  # between two lines of the log about refused connections
# Handshakes of TLS that begin in one turn of the loop. Each takes half a millisecond, and calls of
# other connections wait for it.
HANDSHAKES_A_TURN = 4
SHORTEST_S = 0.001  # asyncio accepts no handshake without time
_UNKNOWN_METHOD = trailers("UNIMPLEMENTED", "Method not found!")


class Http2Listener:
    def __init__(
        self,
        services: Sequence[Service],
        run: Run,
        in_flight: InFlight,
        refuse: Refuse,
        *,
        limits: PortLimits,
        admit: Admit = admit_all,
        tls: PortTls | None = None,
        trusted: Sequence[str] = (),
    ) -> None:
        """Create a listener for the services. Without `tls`, it uses plaintext.

        Connections from the networks `trusted` (CIDR) begin with a header of the PROXY protocol.
        """
        self.loop = asyncio.get_running_loop()
        self.now_s = time.monotonic  # the time of the loop may be simulated
        self.run = run
        self.in_flight = in_flight
        self.refuse = refuse
        self.admit = admit
        self.limits = limits
        self.active: set[Http2Call] = set()
        self._methods = {
            f"/{service.name}/{method.name}": (service.name, method)
            for service in services
            for method in service.methods
        }
        self._limits = ServerLimits(
            streams=limits.streams,
            lookahead_bytes=LOOKAHEAD_BYTES,
            keepalive_s=KEEPALIVE_S,
            ping_timeout_s=PING_TIMEOUT_S,
            ping_interval_s=MIN_PING_INTERVAL_MS / 1_000,
            ping_strikes=MAX_PING_STRIKES,
        )
        max_age_ms = None if tls is None else tls.max_age_ms
        self._max_age_s = math.inf if max_age_ms is None else max_age_ms / 1_000
        self._tls = tls
        self._buffer = receive_buffer()
        self._counts = AcceptedConnections(limits)
        self._hellos = Hellos(
            self.loop,
            self._counts,
            limits,
            tls=tls,
            trusted=trusted,
            now_s=self.now_s,
            accept=self._accept,
            report=self._report_refused,
        )
        self._sockets = ListeningSockets(self.loop, self._hellos.begin)
        self._connections: dict[ServerConnection, float] = {}  # with the time when each is old
        self._unbegun: deque[AcceptedSocket] = deque()  # whose handshakes have not begun
        self._connecting: set[asyncio.Task[None]] = set()
        self._stopping = False
        self._changed = asyncio.Event()  # a call or a connection has ended during a stop
        self._looking: asyncio.TimerHandle | None = None
        self._due: asyncio.TimerHandle | None = None
        self._due_at_s = math.inf
        self._due_after_s = -math.inf  # not before this time again
        self._reported_at_s = -math.inf  # when a refused connection was logged

    def bind(self, target: str, listeners: Sequence[socket.socket] = ()) -> int:
        return self._sockets.bind(target, listeners)

    async def start(self) -> None:
        self._sockets.start()

    async def stop(self, grace_s: float) -> None:
        self._stopping = True
        self._sockets.close()
        self._hellos.close()
        for accepted in self._unbegun:
            self._drop(accepted)
        self._unbegun.clear()
        for task in self._connecting:
            task.cancel()
        if grace_s > 0:
            for connection in self._connections:
                connection.drain()
            await self._until(lambda: not self.active, grace_s)
            if not self.active:  # clients have received a GOAWAY, and close their connections
                await self._until(lambda: not self._connections, min(grace_s, GOODBYE_S))
        calls = tuple(self.active)
        for connection in tuple(self._connections):
            connection.abort()
        tasks = [call.task for call in calls if call.task is not None]
        await asyncio.gather(*tasks, *self._connecting, return_exceptions=True)
        await self._until(lambda: not self._connections, GOODBYE_S)  # their sockets are closed
        for timer in (self._looking, self._due):
            if timer is not None:
                timer.cancel()

    async def _until(self, condition: Callable[[], bool], timeout_s: float) -> None:
        """Wait up to some time for a condition that depends on calls and connections."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while not condition():
                    self._changed.clear()
                    await self._changed.wait()

    # ---- connections ----

    def _accept(self, accepted: AcceptedSocket) -> None:
        if not accepted.is_tls:
            self._begin_connection(accepted)
            return
        if not self._unbegun:
            self.loop.call_soon(self._begin_handshakes)
        self._unbegun.append(accepted)

    def _begin_handshakes(self) -> None:
        for _ in range(min(HANDSHAKES_A_TURN, len(self._unbegun))):
            self._begin_connection(self._unbegun.popleft())
        if self._unbegun:
            self.loop.call_soon(self._begin_handshakes)

    def _begin_connection(self, accepted: AcceptedSocket) -> None:
        task = self.loop.create_task(self._connect(accepted))
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)

    async def _connect(self, accepted: AcceptedSocket) -> None:
        """Make a connection of a socket. With TLS, the handshake comes first."""
        peer = SocketPeer(accepted)
        connection = ServerConnection(
            self.loop,
            self._buffer,
            self._limits,
            accept=partial(self._begin, peer),
            at_end=partial(at_end_of_turn, self.loop),
            now_s=self.now_s,
            on_made=partial(self._made, peer),
            on_closed=partial(self._closed, accepted.host),
            silent_at_s=accepted.silent_at_s,
        )
        counts = self.limits.counts
        try:
            if accepted.is_tls:
                await self._shake_hands(accepted, connection)
            else:
                await self.loop.connect_accepted_socket(lambda: connection, accepted.socket)
        except CertificateError:  # which is logged where it occurs
            counts.failed_handshakes += 1
        except ConnectionResetError:  # the peer has left
            counts.failed_handshakes += 1
        except ConnectionAbortedError as error:  # the handshake took too long
            counts.silent += 1
            self._report_refused(accepted.address, _cause(error))
        except OSError as error:
            counts.failed_handshakes += 1
            self._report_refused(accepted.address, _cause(error))
        finally:
            if not connection.is_made:  # otherwise, it reports its end itself
                self._drop(accepted)

    async def _shake_hands(self, accepted: AcceptedSocket, connection: ServerConnection) -> None:
        """Complete the handshake of TLS. Raises CertificateError, OSError."""
        assert self._tls is not None
        context = await self._tls.context()
        left_s = max(accepted.silent_at_s - self.now_s(), SHORTEST_S)
        tls = TlsProtocol(self.loop, connection, context, self._buffer, left_s)
        await tls.shake_hands(accepted.socket)

    def _drop(self, accepted: AcceptedSocket) -> None:
        accepted.socket.close()
        self._counts.release(accepted.host)

    def _report_refused(self, address: str, reason: str) -> None:
        """Log a connection that was refused, at most one each REPORT_REFUSED_S."""
        now_s = self.now_s()
        if now_s >= self._reported_at_s + REPORT_REFUSED_S:
            self._reported_at_s = now_s
            structlog.get_logger().warning("connection_refused", peer=address, reason=reason)

    def _made(self, peer: SocketPeer, connection: ServerConnection) -> None:
        if self._stopping:
            connection.abort()
        peer.connected(connection.transport)
        if peer.is_encrypted:
            self.limits.counts.tls += 1
        else:
            self.limits.counts.plaintext += 1
        now_s = self.now_s()
        age_s = self._max_age_s * random.uniform(1 - AGE_JITTER, 1 + AGE_JITTER)
        self._connections[connection] = now_s + age_s
        self.due(min(connection.check(now_s), now_s + age_s))

    def _closed(self, host: str, connection: ServerConnection) -> None:
        self._counts.release(host)
        del self._connections[connection]
        self._changed.set()

    # ---- calls ----

    def _begin(
        self, peer: SocketPeer, _connection: ServerConnection, head: RequestHead
    ) -> ServerStream | bytes | None:
        if self._stopping:
            return None
        found = self._methods.get(head.path)
        if found is None:
            return _UNKNOWN_METHOD
        if (ending := unknown_encoding(head)) is not None:
            return ending
        call = Http2Call(self, peer, head, *found)
        self.active.add(call)
        return call

    def ended(self, call: Http2Call) -> None:
        self.active.discard(call)
        if self._stopping:
            self._changed.set()

    # ---- checks ----

    def watch(self) -> None:
        """Start the checks: a call waits, or a request or an answer was not read yet."""
        if self._looking is None:
            self._looking = self.loop.call_later(LOOK_S, self._look)

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

    def due(self, at_s: float) -> None:
        """Check deadlines and connections at this time, or soon after it."""
        if at_s < self._due_at_s:
            if self._due is not None:
                self._due.cancel()
            self._due_at_s = max(at_s, self._due_after_s)
            wait_s = max(0.0, self._due_at_s - self.now_s())
            self._due = self.loop.call_later(wait_s, self._check_due)

    def _check_due(self) -> None:
        now_s = self.now_s()
        self._due, self._due_at_s, self._due_after_s = None, math.inf, now_s + SOONEST_S
        next_s = math.inf
        for connection, old_at_s in tuple(self._connections.items()):
            if now_s >= old_at_s:
                connection.drain()
            else:
                next_s = min(next_s, old_at_s)
            next_s = min(next_s, connection.check(now_s))
        for call in tuple(self.active):
            deadline_s = call.check_deadline(now_s)
            if deadline_s is not None and deadline_s < next_s:
                next_s = deadline_s
        if next_s != math.inf:
            self.due(next_s)


def _cause(error: OSError) -> str:
    """Return why a handshake of TLS failed."""
    why = getattr(error, "reason", None) or error.strerror or error
    problem = getattr(error, "verify_message", "")  # of the certificate of the caller
    return f"the handshake failed: {why}{f' ({problem})' if problem else ''}"
