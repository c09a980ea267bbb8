"""Serve a service's HTTP endpoint: /metrics for Prometheus, /healthz (alive), /readyz (serving).

The endpoint is off by default. When it is on, it loads prometheus_client, which takes 4 MB with its
imports.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from aerobee_chassis.addresses import join_address
from aerobee_chassis.clock import SystemClock
from aerobee_chassis.config import Options
from aerobee_chassis.errors import PortInUse
from aerobee_chassis.lifecycle import Component
from aerobee_chassis.port_limits import PortCollector, PortLimits

if TYPE_CHECKING:
    from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

    from prometheus_client import Metric
    from prometheus_client.registry import Collector


MAX_REQUESTS = 8  # at once; more are answered with 503
REQUEST_MS = 5_000  # from the connection to the last byte of the answer
BUSY = (
    b"HTTP/1.0 503 Service Unavailable\r\nContent-Type: text/plain\r\nRetry-After: 5\r\n\r\n"
    b"8 requests run already: scrape less often, or with fewer scrapers\n"
)


class QuotaCounts(Protocol):
    """The numbers of calls that were beyond a quota."""

    @property
    def refused(self) -> int: ...

    @property
    def delayed(self) -> int: ...


class MetricsEndpoint(Component):
    """Serve the metrics of `collector` on a thread that sleeps between scrapes.

    `collector` is called at each scrape and `ready` at each /readyz, both on other threads. The
    counts of the port are in `limits`, and those of quotas in `quotas`. The endpoint serves
    MAX_REQUESTS requests at once, for REQUEST_MS each.
    """

    def __init__(
        self,
        options: Options,
        collector: Collector,
        ready: Callable[[], bool],
        limits: PortLimits | None = None,
        quotas: QuotaCounts | None = None,
    ) -> None:
        self._quotas = quotas
        self._limits = limits or PortLimits()
        self.refused = 0  # requests
        self._enabled = options.metrics_exporter_type == "PROM"
        self._host = options.metrics_prom_exporter_host
        self._port = options.metrics_prom_exporter_port
        self._collector = collector
        self._options = options
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
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def _bounded(
        self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]
    ) -> ThreadingHTTPServer:
        """Return a server that refuses requests above the limits."""
        from http.server import ThreadingHTTPServer

        endpoint = self
        now_ms = SystemClock().monotonic_ms
        deadlines: dict[socket.socket, int] = {}  # of running requests

        class Bounded(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 128  # connections that wait to be accepted

            def process_request(self, request: Any, client_address: Any) -> None:
                if len(deadlines) >= MAX_REQUESTS:
                    endpoint.refused += 1
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

        from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

        ready = self._ready
        registry = CollectorRegistry()
        registry.register(self._collector)
        registry.register(_Security(self._options))
        registry.register(PortCollector(self._limits))
        registry.register(_Refused(self))
        if self._quotas is not None:
            registry.register(_OverQuota(self._quotas))

        def answer(path: str) -> tuple[int, str, bytes]:
            if path == "/metrics":
                return 200, CONTENT_TYPE_LATEST, generate_latest(registry)
            if path == "/healthz":
                return 200, "text/plain", b"alive\n"
            if path == "/readyz":
                if ready():
                    return 200, "text/plain", b"ready\n"
                return 503, "text/plain", b"not ready\n"
            return 404, "text/plain", b"try /metrics, /healthz or /readyz\n"

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                status, kind, body = answer(self.path.partition("?")[0])
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                """Do not log scrapes."""

        return Handler


class _OverQuota:
    """Collect the number of calls beyond a quota."""

    def __init__(self, quotas: QuotaCounts) -> None:
        self._quotas = quotas

    def collect(self) -> Iterator[Metric]:
        from prometheus_client.core import CounterMetricFamily

        calls = CounterMetricFamily(
            "aerobee_over_quota_calls", "Calls beyond a quota of their caller.", labels=["outcome"]
        )
        calls.add_metric(["refused"], self._quotas.refused)
        calls.add_metric(["delayed"], self._quotas.delayed)
        yield calls


class _Refused:
    """Collect the number of requests that the endpoint refused."""

    def __init__(self, endpoint: MetricsEndpoint) -> None:
        self._endpoint = endpoint

    def collect(self) -> Iterator[Metric]:
        from prometheus_client.core import CounterMetricFamily

        yield CounterMetricFamily(
            "aerobee_scrapes_refused",
            "Requests for metrics that were refused because too many ran.",
            value=self._endpoint.refused,
        )


class _Security:
    """Collect whether the port is open, and when certificates expire, for each service."""

    def __init__(self, options: Options) -> None:
        self._options = options

    def collect(self) -> Iterator[Metric]:
        from prometheus_client.core import GaugeMetricFamily

        yield GaugeMetricFamily(
            "aerobee_insecure",
            "1 if other machines may reach the port and it serves each caller, else 0.",
            value=self._options.is_insecure,
        )
        expiries = GaugeMetricFamily(
            "aerobee_certificate_expiry_timestamp_seconds",
            "When the first certificate of the file that the option names expires.",
            labels=["option"],
        )
        for option, expires in self._options.expiries().items():
            expiries.add_metric([option], expires.timestamp())
        yield expiries
