"""Serve a service's HTTP endpoint: /metrics for Prometheus, /healthz (alive), /readyz (serving).

A service that has drained answers /readyz with DRAINED: `drain` waits for it.

The endpoint is off by default, and its imports are loaded only when it is on.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from aerobee_chassis.addresses import join_address
from aerobee_chassis.clock import SystemClock
from aerobee_chassis.config import Options
from aerobee_chassis.drain import DRAINED
from aerobee_chassis.errors import PortInUse
from aerobee_chassis.lifecycle import Component
from aerobee_chassis.metrics.exposition import CONTENT_TYPE, Exposition
from aerobee_chassis.metrics.process import SCRAPES_REFUSED
from aerobee_chassis.metrics.series import Registry

if TYPE_CHECKING:
    from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


MAX_REQUESTS = 8  # at once; more are answered with 503
REQUEST_MS = 5_000  # from the connection to the last byte of the answer
# A scrape of 10,000 topics computes for 80 ms. With a pause after each 64 KB it takes 0.4 s, and
# calls of the event loop meanwhile wait for less than 1 ms of it.
PAUSE_BYTES = 1 << 16
PAUSE_S = 0.001
BUSY = (
    b"HTTP/1.0 503 Service Unavailable\r\nContent-Type: text/plain\r\nRetry-After: 5\r\n\r\n"
    b"8 requests run already: scrape less often, or with fewer scrapers\n"
)


class MetricsEndpoint(Component):
    """Serve the metrics of `registry` on a thread that sleeps between scrapes.

    `registry` is read at each scrape. `ready` and `drained` are called at each /readyz. All of them
    are used on other threads.
    The endpoint serves MAX_REQUESTS requests at once, for REQUEST_MS each.
    """

    def __init__(
        self,
        options: Options,
        registry: Registry,
        ready: Callable[[], bool],
        drained: Callable[[], bool] = lambda: False,
    ) -> None:
        self._refused = registry.series(SCRAPES_REFUSED)
        self._enabled = options.metrics_exporter_type == "PROM"
        self._host = options.metrics_prom_exporter_host
        self._port = options.metrics_prom_exporter_port
        self._registry = registry
        self._ready = ready
        self._drained = drained
        self._server: ThreadingHTTPServer | None = None

    @property
    def ready_fields(self) -> Mapping[str, object]:
        """Return `metrics`, the "host:port" of the endpoint, or {} if it does not run."""
        if self._server is None:
            return {}
        return {"metrics": join_address(self._host, int(self._server.server_address[1]))}

    async def start(self) -> None:
        """Start the endpoint if metrics are on. Raises PortInUse."""
        if not self._enabled:
            return
        try:
            self._server = self._bounded((self._host, self._port), self._handler())
        except OSError as error:
            target = join_address(self._host, self._port)
            raise PortInUse(
                f"cannot serve metrics on {target}: {error.strerror}; choose another port", target
            ) from None
        threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True).start()

    async def stop(self) -> None:
        if self._server is not None:
            server, self._server = self._server, None
            # Its thread looks twice a second whether to stop.
            await asyncio.to_thread(server.shutdown)
            server.server_close()

    def _bounded(
        self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]
    ) -> ThreadingHTTPServer:
        """Return a server that refuses requests above the limits."""
        from http.server import ThreadingHTTPServer

        refused = self._refused
        now_ms = SystemClock().monotonic_ms
        deadlines: dict[socket.socket, int] = {}  # of running requests

        class Bounded(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 128  # connections that wait to be accepted

            def process_request(self, request: Any, client_address: Any) -> None:
                if len(deadlines) >= MAX_REQUESTS:
                    refused.add(1)
                    with contextlib.suppress(OSError):
                        request.setblocking(False)
                        request.send(BUSY)
                    self.shutdown_request(request)
                    return
                deadlines[request] = now_ms() + REQUEST_MS
                super().process_request(request, client_address)

            def shutdown_request(self, request: Any) -> None:
                deadlines.pop(request, None)
                super().shutdown_request(request)

            def service_actions(self) -> None:
                """End requests that take too long. The server calls this twice a second."""
                for request, deadline_ms in list(deadlines.items()):
                    if deadline_ms <= now_ms():
                        with contextlib.suppress(OSError):  # its thread then fails, and closes it
                            request.shutdown(socket.SHUT_RDWR)

            def handle_error(self, request: Any, client_address: Any) -> None:
                """Do not print the errors of clients that disconnected."""

        return Bounded(address, handler)

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        from http.server import BaseHTTPRequestHandler

        ready, drained = self._ready, self._drained
        exposition = Exposition(self._registry)

        def answer(path: str) -> tuple[int, str, list[bytes]]:
            if path == "/metrics":
                return 200, CONTENT_TYPE, with_pauses(exposition.write(), time.sleep)
            if path == "/healthz":
                return 200, "text/plain", [b"alive\n"]
            if path == "/readyz":
                if ready():
                    return 200, "text/plain", [b"ready\n"]
                return 503, "text/plain", [DRAINED if drained() else b"not ready\n"]
            return 404, "text/plain", [b"try /metrics, /healthz or /readyz\n"]

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                status, kind, body = answer(self.path.partition("?")[0])
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(sum(map(len, body))))
                self.end_headers()
                for piece in body:
                    self.wfile.write(piece)

            def log_message(self, format: str, *args: object) -> None:
                """Do not log scrapes."""

        return Handler


def with_pauses(pieces: Iterable[bytes], sleep: Callable[[float], None]) -> list[bytes]:
    """Return the pieces of a text, and sleep for PAUSE_S after each PAUSE_BYTES of them."""
    found: list[bytes] = []
    size = 0
    for piece in pieces:
        found.append(piece)
        size += len(piece)
        if size >= PAUSE_BYTES:
            size = 0
            sleep(PAUSE_S)
    return found
