"""Check for health checks that a standalone Spark master serves, and optionally this worker.

    python -m aerobee_spark.jvm.standalone HOST:PORT             # address of the master's web pages
    python -m aerobee_spark.jvm.standalone HOST:PORT --worker    # also check this machine's worker

The exit code is 0 if the check passes, else 1. The check reads the master's own record, because a
worker that the master has lost gets no tasks.
"""

from __future__ import annotations

import json
import socket
import sys
import urllib.request
from typing import Any

TIMEOUT_S = 4.0
ALIVE = "ALIVE"


def record(address: str) -> dict[str, Any]:
    """Return the master's record of itself, its workers and its applications.

    Raises:
        OSError: the master does not answer.
        ValueError: the answer is not JSON; the web server starts before its pages exist.
    """
    with urllib.request.urlopen(f"http://{address}/json/", timeout=TIMEOUT_S) as answer:
        found: dict[str, Any] = json.load(answer)
    return found


def problem(found: dict[str, Any], host: str | None) -> str | None:
    """Return what is wrong; None if the master serves and has registered a worker at `host`."""
    if found["status"] != ALIVE:
        return f"the master is {found['status']}"
    alive = {worker["host"] for worker in found["workers"] if worker["state"] == ALIVE}
    if host is not None and host not in alive:
        return (
            f"no worker at {host} is registered; registered: {', '.join(sorted(alive)) or 'none'}"
        )
    return None


def main(arguments: list[str]) -> int:
    address, *more = arguments
    host = socket.gethostbyname(socket.gethostname()) if more == ["--worker"] else None
    try:
        wrong = problem(record(address), host)
    except (OSError, ValueError) as error:
        wrong = f"no master answers at {address}: {error}"
    print(wrong or "serving")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
