"""A reverse proxy with HTTPS: it passes one path of its host on to a console."""

from __future__ import annotations

import http.client
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

HOP_BY_HOP = frozenset({"connection", "keep-alive", "transfer-encoding", "te", "upgrade"})
PART = 65_536


@contextmanager
def reverse_proxy(backend: str, path: str, certificate: Path, key: Path) -> Iterator[str]:
    """Pass requests below `path` on to `backend`, and yield the address of the proxy.

    The proxy keeps the header Host and the path, and adds X-Forwarded-Proto and X-Forwarded-For, as
    the documentation of the console demands. Other paths have an answer of another program.
    """

    class Handler(BaseHTTPRequestHandler):
        def _pass(self) -> None:
            if self.path != path and not self.path.startswith((f"{path}/", f"{path}?")):
                self._answer(404, b"another program of this host")
                return
            length = int(self.headers.get("content-length", "0"))
            headers = {
                name: value
                for name, value in self.headers.items()
                if name.lower() not in HOP_BY_HOP
            }
            headers["X-Forwarded-Proto"] = "https"
            headers["X-Forwarded-For"] = self.client_address[0]
            connection = http.client.HTTPConnection(backend, timeout=60)
            try:
                connection.request(self.command, self.path, self.rfile.read(length), headers)
                answer = connection.getresponse()
                self.send_response_only(answer.status, answer.reason)
                for name, value in answer.getheaders():
                    if name.lower() not in HOP_BY_HOP:
                        self.send_header(name, value)
                self.send_header("Connection", "close")
                self.end_headers()
                while part := answer.read1(PART):  # an event stream never ends
                    self.wfile.write(part)
                    self.wfile.flush()
            except OSError:
                pass  # the browser left, or the console did
            finally:
                connection.close()

        do_GET = do_POST = _pass

        def _answer(self, status: int, body: bytes) -> None:
            self.send_response_only(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *arguments: object) -> None:
            """Log nothing."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: object, client_address: object) -> None:
            """Ignore browsers that close a connection before they use it."""

    server = Server(("127.0.0.1", 0), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server.socket = context.wrap_socket(
        server.socket, server_side=True, do_handshake_on_connect=False
    )
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"https://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
