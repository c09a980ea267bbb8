"""Call the Export RPC of an OTLP receiver over gRPC."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Iterator, Mapping
from typing import cast

import grpc

from aerobee_chassis.otlp.encoding import rejection


class ExportFailed(OSError):
    """The receiver did not accept a request."""


class Receiver:
    """An OTLP receiver, such as a collector.

    Each export opens a connection of its own: exports are rare, and in this process gRPC does not
    notice by itself that an idle connection is gone.

    Args:
        target: "http://host:port" for plaintext. Any other target is called with TLS.
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
        with self._channel() as channel:
            # Without serializers, gRPC passes bytes.
            call = channel.unary_unary(method, None, None)
            for request in requests:
                try:
                    answer = call(request, timeout=self._timeout_s, metadata=self._metadata)
                except grpc.RpcError as error:
                    # The stubs do not say that the error of a unary call is also its grpc.Call.
                    failed = cast(grpc.Call, error)
                    problem = f"{self._target}: {failed.code().name}: {failed.details()}"
                    raise ExportFailed(problem) from None
                yield rejection(answer)

    def _channel(self) -> grpc.Channel:
        if self._secure:
            return grpc.secure_channel(self._target, grpc.ssl_channel_credentials())
        return grpc.insecure_channel(self._target)


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
