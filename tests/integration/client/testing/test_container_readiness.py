"""The check whether a service of a container serves, against a service of this process."""

from __future__ import annotations

from aerobee_chassis.rpc.server import Server
from aerobee_client.testing.container import serves


async def test_a_service_serves_between_its_start_and_its_stop() -> None:
    server = Server([], host="127.0.0.1", port=0, failure_of=lambda _: None, grace_s=0)
    await server.start()
    found = [await serves(server.address)]
    await server.stop()
    found.append(await serves(server.address))
    assert found == [True, False]
