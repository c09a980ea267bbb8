"""The HTTP endpoint of a service: /metrics for Prometheus, /healthz (alive), /readyz (serving)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from aerobee_chassis.addresses import join_address
from aerobee_chassis.errors import PortInUse


class MetricsEndpoint:
    """Serves `registry` on its own thread, which sleeps between scrapes.

    `ready` is asked at every /readyz; it must be safe to call from another thread.
    """

    def __init__(
        self, registry: CollectorRegistry, host: str, port: int, ready: Callable[[], bool]
    ) -> None:
        self._registry = registry
        self._host = host
        self._port = port
        self._ready = ready
        self._server: ThreadingHTTPServer | None = None

    def start(self) -> int:
        """Binds and serves; returns the port. Raises PortInUse."""
        try:
            self._server = ThreadingHTTPServer((self._host, self._port), self._handler())
        except OSError as error:
            target = join_address(self._host, self._port)
            raise PortInUse(
                f"cannot serve metrics on {target}: {error.strerror}; choose another port"
            ) from None
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True).start()
        return int(self._server.server_address[1])

    def stop(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def _answer(self, path: str) -> tuple[int, str, bytes]:
        if path == "/metrics":
            return 200, CONTENT_TYPE_LATEST, generate_latest(self._registry)
        if path == "/healthz":
            return 200, "text/plain", b"alive\n"
        if path == "/readyz":
            return (
                (200, "text/plain", b"ready\n")
                if self._ready()
                else (503, "text/plain", b"not ready\n")
            )
        return 404, "text/plain", b"try /metrics, /healthz or /readyz\n"

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        answer = self._answer

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                status, kind, body = answer(self.path.partition("?")[0])
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                """Scrapes are not worth a line."""

        return Handler
