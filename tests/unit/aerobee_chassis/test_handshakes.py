"""How many handshakes of TLS a listener begins in one turn of its loop."""

from __future__ import annotations

import asyncio
import socket
from itertools import pairwise
from unittest.mock import Mock

from aerobee_chassis.port_limits import PortLimits
from aerobee_chassis.rpc.http2.hello import AcceptedSocket
from aerobee_chassis.rpc.http2.listener import HANDSHAKES_A_TURN, Http2Listener
from aerobee_chassis.rpc.in_flight import InFlight
from aerobee_chassis.rpc.transport import refuse_plainly

MANY = 3 * HANDSHAKES_A_TURN + 1


class CountingListener(Http2Listener):
    """It begins connections, but does nothing with them."""

    def __init__(self) -> None:
        super().__init__([], Mock(), InFlight(), refuse_plainly, limits=PortLimits())
        self.begun: list[AcceptedSocket] = []

    def _begin_connection(self, accepted: AcceptedSocket) -> None:
        self.begun.append(accepted)


def accepted(number: int, *, is_tls: bool) -> AcceptedSocket:
    host = f"192.0.2.{number}"
    return AcceptedSocket(Mock(spec=socket.socket), host, f"{host}:1", is_tls, 10.0)


async def test_handshakes_are_spread_over_turns_in_their_order() -> None:
    listener = CountingListener()
    clients = [accepted(number, is_tls=True) for number in range(MANY)]
    for client in clients:
        listener._accept(client)
    assert listener.begun == []
    plaintext = accepted(MANY, is_tls=False)
    listener._accept(plaintext)
    assert listener.begun == [plaintext], "plaintext does not wait for them"
    counts = [1]
    while counts[-1] < 1 + MANY:
        await asyncio.sleep(0)
        counts.append(len(listener.begun))
    assert all(after - before <= HANDSHAKES_A_TURN for before, after in pairwise(counts))
    assert listener.begun[1:] == clients


async def test_a_stop_closes_connections_whose_handshakes_have_not_begun() -> None:
    listener = CountingListener()
    client = accepted(1, is_tls=True)
    assert listener._counts.admit(client.host)
    listener._accept(client)
    await listener.stop(0)
    await asyncio.sleep(0)
    assert listener.begun == []
    client.socket.close.assert_called_once_with()  # type: ignore[attr-defined]
    assert listener.limits.counts.open == 0
