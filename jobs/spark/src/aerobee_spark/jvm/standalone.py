"""Check the health of a standalone Spark master, and optionally of the worker on this machine.

    python -m aerobee_spark.jvm.standalone HOST:PORT             # address of the master's web pages
    python -m aerobee_spark.jvm.standalone HOST:PORT --worker    # also check this machine's worker

The exit code is 0 if the check passes, else 1. The check asks the master for its workers, because a
worker does not get tasks if the master has lost it.
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
    """Ask a Spark master for its state, its workers and its applications.

    Raises:
        OSError: the master does not answer.
        ValueError: the answer is not JSON, because the master has not started completely.
    """
    with urllib.request.urlopen(f"http://{address}/json/", timeout=TIMEOUT_S) as answer:
        found: dict[str, Any] = json.load(answer)
    return found


def problem(found: dict[str, Any], host: str | None) -> str | None:
    """Return a description of the problem, or None if the master is healthy.

    `found` is the answer of the master. If `host` is set, a worker on that host must be registered.
    """
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
