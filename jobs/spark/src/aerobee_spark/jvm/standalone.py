"""Whether a standalone master serves, and whether the worker of this machine is registered with it:
for health checks.

    python -m aerobee_spark.jvm.standalone HOST:PORT             # of the master's web pages
    python -m aerobee_spark.jvm.standalone HOST:PORT --worker

The exit code is 0 when it is so, else 1. The master's own record counts: a worker that has lost it
serves nobody.
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
    """What the master says of itself, its workers and its applications. Raises OSError when it does
    not answer, ValueError when that is no JSON: its web server is up before its pages are."""
    with urllib.request.urlopen(f"http://{address}/json/", timeout=TIMEOUT_S) as answer:
        found: dict[str, Any] = json.load(answer)
    return found


def problem(found: dict[str, Any], host: str | None) -> str | None:
    """None when the master serves, and, given a `host`, a worker there is registered with it."""
    if found["status"] != ALIVE:
        return f"the master is {found['status']}"
    alive = {worker["host"] for worker in found["workers"] if worker["state"] == ALIVE}
    if host is not None and host not in alive:
        return f"no worker at {host} is registered, but {', '.join(sorted(alive)) or 'none'}"
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
