"""Probe the port of a master after its stream broke, to detect that its process has ended."""

from __future__ import annotations

import asyncio

from aerobee_chassis.addresses import split_address

PROBES, PROBE_PAUSE_S = 2, 0.3
PROBE_TIMEOUT_S = 1.0


async def refuses(address: str) -> bool:
    """Return whether the port refuses connections.

    If it does, the process has ended but its machine is up.
    """
    host, port = split_address(address)
    for probe in range(PROBES):
        if probe:
            await asyncio.sleep(PROBE_PAUSE_S)
        try:
            async with asyncio.timeout(PROBE_TIMEOUT_S):
                _, writer = await asyncio.open_connection(host, port)
        except ConnectionRefusedError:
            continue
        except (OSError, TimeoutError):
            return False
        writer.close()
        return False
    return True
