"""An S3 server in memory: moto, which `make cluster` installs beside the environment. A program;
the first line that it prints is its port on 127.0.0.1.

moto answers If-None-Match by a look and a write, in a thread for each request; here one request at
a time is answered, so that the two are one step, as they are in S3. Of the bucket `careless` the
header is ignored, as stores do that do not know it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any

from moto.moto_server.werkzeug_app import (  # type: ignore[import-not-found]
    DomainDispatcherApplication,
    MotoRequestHandler,
    create_backend_app,
)
from werkzeug.serving import make_server  # type: ignore[import-not-found]


class Handler(MotoRequestHandler):  # type: ignore[misc]
    def handle_expect_100(self) -> bool:
        """Says nothing: Werkzeug sends a "100 Continue" too, and the second one is the whole answer
        to the asynchronous client of the AWS SDK."""
        return True


def serve() -> None:
    turn = threading.Lock()
    moto = DomainDispatcherApplication(create_backend_app)

    def one_at_a_time(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        if environ["PATH_INFO"].startswith("/careless/"):
            environ.pop("HTTP_IF_NONE_MATCH", None)
        with turn:
            answer: Iterable[bytes] = moto(environ, start)
        return answer

    server = make_server("127.0.0.1", 0, one_at_a_time, threaded=True, request_handler=Handler)
    print(server.server_port, flush=True)
    server.serve_forever()


if __name__ == "__main__":
    serve()
