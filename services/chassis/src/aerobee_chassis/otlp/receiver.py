"""Call the Export RPC of an OTLP receiver over gRPC, from a thread without an event loop."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import Iterable, Iterator, Mapping

from aerobee_chassis.otlp.encoding import rejection
from aerobee_http2.calls import CallFailed
from aerobee_http2.channel import Channel


class ExportFailed(OSError):
    """The receiver did not accept a request."""


class Receiver:
    """An OTLP receiver, such as a collector.

    Each export has a connection and an event loop of its own, because exports are rare.

    Args:
        target: "http://host:port" for plaintext. Any other target is called with TLS, and must have
            a certificate of an authority that the system trusts.
        headers: The metadata of each call, with names in lower case.
        timeout_s: How long a call may take, in seconds.
    """

    def __init__(self, target: str, headers: Mapping[str, str], *, timeout_s: float) -> None:
        self._target, self._secure = otlp_target(target)
        self._metadata = tuple(headers.items())
        self._timeout_s = timeout_s

    def export(self, method: str, requests: Iterable[bytes]) -> Iterator[str]:
        """Send requests to the path `method`. For each, yield what the receiver rejects, or "".

        Raises:
            ExportFailed: The receiver cannot be reached, or refuses a request.
        """
        with asyncio.Runner() as runner:
            channel = runner.run(self._open())
            try:
                for request in requests:
                    try:
                        answer = runner.run(
                            channel.unary(method, request, self._timeout_s, self._metadata)
                        )
                    except CallFailed as failure:
                        problem = f"{self._target}: {failure.status}: {failure.details}"
                        raise ExportFailed(problem) from None
                    yield rejection(answer)
            finally:
                runner.run(channel.close(None))

    async def _open(self) -> Channel:
        if not self._secure:
            return Channel(self._target)
        tls = ssl.create_default_context()
        tls.set_alpn_protocols(["h2"])
        return Channel(self._target, tls)


def otlp_target(target: str) -> tuple[str, bool]:
    """Return the "host:port" of an OTLP receiver, and whether it is called with TLS.

    As in RocketMQ, a target without "http://" is called with TLS.
    """
    scheme, found, rest = target.strip().partition("://")
    address = (rest if found else scheme).rstrip("/")
    return address, scheme.lower() != "http" or not found


def resource_of(node_type: str) -> dict[str, str]:
    """Return the attributes of this process. Workers of one proxy differ in them."""
    return {
        "service.name": f"aerobee-{node_type}",
        "service.instance.id": f"{socket.gethostname()}:{os.getpid()}",
    }
