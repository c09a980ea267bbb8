"""Whether the process of a master has ended: its port, asked after its stream broke."""

from __future__ import annotations

import asyncio

from aerobee_chassis.addresses import split_address

PROBES, PROBE_PAUSE_S = 2, 0.3
PROBE_TIMEOUT_S = 1.0


async def refuses(address: str) -> bool:
    """Whether nobody listens there: of a process that has ended, on a machine that is up."""
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
