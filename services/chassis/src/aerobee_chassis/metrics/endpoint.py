"""Serve a service's HTTP endpoint: /metrics for Prometheus, /healthz (alive), /readyz (serving).

The endpoint is off by default, and its imports are loaded only when it is on.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from aerobee_chassis.addresses import join_address
from aerobee_chassis.config import Options
from aerobee_chassis.errors import PortInUse
from aerobee_chassis.lifecycle import Component
from aerobee_chassis.metrics.exposition import CONTENT_TYPE, Exposition
from aerobee_chassis.metrics.series import Registry

if TYPE_CHECKING:
    from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class MetricsEndpoint(Component):
    """Serve the metrics of `registry` on a thread that sleeps between scrapes.

    `registry` is read at each scrape and `ready` is called at each /readyz, both on other threads.
    """

    def __init__(self, options: Options, registry: Registry, ready: Callable[[], bool]) -> None:
        self._enabled = options.metrics_exporter_type == "PROM"
        self._host = options.metrics_prom_exporter_host
        self._port = options.metrics_prom_exporter_port
        self._registry = registry
        self._ready = ready
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
        from http.server import ThreadingHTTPServer

        try:
            self._server = ThreadingHTTPServer((self._host, self._port), self._handler())
        except OSError as error:
            target = join_address(self._host, self._port)
            raise PortInUse(
                f"cannot serve metrics on {target}: {error.strerror}; choose another port", target
            ) from None
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True).start()

    async def stop(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        from http.server import BaseHTTPRequestHandler

        ready = self._ready
        exposition = Exposition(self._registry)

        def answer(path: str) -> tuple[int, str, list[bytes]]:
            if path == "/metrics":
                return 200, CONTENT_TYPE, list(exposition.write())
            if path == "/healthz":
                return 200, "text/plain", [b"alive\n"]
            if path == "/readyz":
                if ready():
                    return 200, "text/plain", [b"ready\n"]
                return 503, "text/plain", [b"not ready\n"]
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
