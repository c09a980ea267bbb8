"""Drain a service before it is stopped: `python -m aerobee_chassis.drain HOST:PORT SECONDS`.

The service moves its clients to other processes. The command waits for that, but not longer than
SECONDS. HOST:PORT is the service's HTTP endpoint (`metricsExporterType=PROM`). A proxy with workers
has one for each: name all of them before SECONDS.

In a container the service is process 1. `--pid` names another one. The command sends SIGUSR1, so it
needs no credentials, and only the user of the service may drain it.

Exit codes: 0 the clients have moved, 1 they have not moved in time or the service did not answer,
2 bad command line.
"""

from __future__ import annotations

import os
import signal
import sys
import time

from aerobee_chassis.clock import SystemClock

POLL_S = 0.2
TIMEOUT_S = 3.0
DRAINED = b"drained\n"  # what a drained service answers at /readyz
USAGE = "usage: python -m aerobee_chassis.drain [--pid PID] HOST:PORT [HOST:PORT …] SECONDS"


def drain(pid: int, addresses: list[str], limit_s: float) -> list[str]:
    """Drain the process, and return a line for each address that has not drained in time.

    Raises OSError if the process does not exist or belongs to another user.
    """
    now_ms = SystemClock().monotonic_ms
    end_ms = now_ms() + round(limit_s * 1_000)
    os.kill(pid, signal.SIGUSR1)
    waiting = {address: state(address) for address in addresses}
    while (waiting := {each: said for each, said in waiting.items() if said != DRAINED}) and (
        now_ms() < end_ms
    ):
        time.sleep(POLL_S)
        waiting = {address: state(address) for address in waiting}
    return [f"{each}: {said.decode(errors='replace').strip()}" for each, said in waiting.items()]


def state(address: str) -> bytes:
    """Return what the service answers at /readyz, or why it did not answer."""
    import http.client  # only here: services import this module for DRAINED

    host, _, port = address.rpartition(":")
    connection = http.client.HTTPConnection(host.strip("[]"), int(port), timeout=TIMEOUT_S)
    try:
        connection.request("GET", "/readyz")
        return connection.getresponse().read()
    except (OSError, http.client.HTTPException) as error:
        return str(error).encode()
    finally:
        connection.close()


def main(arguments: list[str]) -> int:
    pid = 1
    if arguments[:1] == ["--pid"] and len(arguments) > 1 and arguments[1].isdecimal():
        pid, arguments = int(arguments[1]), arguments[2:]
    *addresses, seconds = arguments or [""]
    if not addresses or not seconds.isdecimal() or not all(map(is_address, addresses)):
        print(USAGE, file=sys.stderr)
        return 2
    try:
        waiting = drain(pid, addresses, float(seconds))
    except OSError as error:
        print(f"error: cannot drain process {pid}: {error.strerror}", file=sys.stderr)
        return 1
    for line in waiting:
        print(f"error: not drained within {seconds} s: {line}", file=sys.stderr)
    return 1 if waiting else 0


def is_address(text: str) -> bool:
    host, _, port = text.rpartition(":")
    return bool(host) and port.isdecimal()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
