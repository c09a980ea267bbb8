"""Run name server, broker and proxy in one container, for testcontainers.

Each port has the same number inside and outside. A route contains the broker's address, which works
only if the broker and its clients see the same port.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Sequence
from typing import Self

from aerobee_client.runtime.loop_thread import LoopThread
from aerobee_client.testing.rocketmq import RocketMq
from aerobee_client.testing.suite_process import unless_given
from aerobee_http2.calls import CallFailed
from aerobee_http2.channel import Channel
from aerobee_wire.status import Code, MqError, invalid_parameter

try:
    from testcontainers.core.container import DockerContainer
except ImportError as error:
    raise ImportError(
        f"testcontainers is not installed ({error}): pip install 'aerobee-client[testcontainers]'"
    ) from None

IMAGE_VARIABLE = "AEROBEE_IMAGE"
READY_TIMEOUT_S = 60.0
POLL_S = 0.1
CALL_TIMEOUT_S = 1.0
HEALTH_CHECK = "/grpc.health.v1.Health/Check"
SERVING = (
    b"\x08\x01"  # HealthCheckResponse(status=SERVING); the request for the whole server is empty
)


class RocketMqContainer(DockerContainer):
    """A container with a cluster. Use it in a `with` block, or call `start()` and `stop()`.

    Args:
        image: An image of deploy/Dockerfile. Default: the environment variable AEROBEE_IMAGE.
        sets: Options as "key=value" for the broker, "proxy.key=value" and "namesrv.key=value".

    Raises:
        MqError: INVALID_PARAMETER without an image.
    """

    def __init__(self, image: str = "", *, sets: Sequence[str] = ()) -> None:
        chosen = image or os.environ.get(IMAGE_VARIABLE, "")
        if not chosen:
            raise invalid_parameter(
                f"no image is given: pass image='aerobee', or set {IMAGE_VARIABLE}; build one by "
                "docker build -f deploy/Dockerfile -t aerobee ."
            )
        # The image's check asks port 8081. This class asks all three ports itself.
        super().__init__(chosen, healthcheck={"test": ["NONE"]})
        self._sets = tuple(sets)
        self._ports = _free_ports(3)
        for port in self._ports:
            self.with_bind_ports(port, port)

    @property
    def namesrv(self) -> str:
        """The address of the name server, "host:port"."""
        return self._address(0)

    @property
    def broker(self) -> str:
        return self._address(1)

    @property
    def proxy(self) -> str:
        """The address of the proxy for the official SDKs, "host:port"."""
        return self._address(2)

    def rocketmq(self) -> RocketMq:
        """Return the cluster as the fixture `rocketmq` does. The caller must close it."""
        return RocketMq(self.namesrv, self.proxy)

    def start(self) -> Self:
        """Start the container. Return when name server, broker and proxy accept calls.

        Raises:
            MqError: SERVICE_NOT_AVAILABLE, with the end of the container's log.
        """
        namesrv, broker, proxy = self._ports
        command = [
            *("aerobee_suite", "--host", "0.0.0.0", "--data", "/data", "--test-control"),
            "--insecure",
            *("--namesrv-port", str(namesrv), "--broker-port", str(broker)),
            *("--proxy-port", str(proxy)),
        ]
        defaults = (f"brokerIP1={self._host()}", "mappedFileSizeCommitLog=67108864")
        for item in (*unless_given(defaults, self._sets), *self._sets):
            command += ["--set", item]
        self.with_command(command)
        super().start()
        try:
            self._until_serving()
        except BaseException:
            self.stop()
            raise
        return self

    def _address(self, place: int) -> str:
        return f"{self._host()}:{self._ports[place]}"

    def _host(self) -> str:
        """Return the host on which the ports of containers are published."""
        return str(self.get_docker_client().host())

    def _until_serving(self) -> None:
        end = time.monotonic() + READY_TIMEOUT_S
        loop = LoopThread("a check of containers")
        loop.start()
        try:
            for address in (self.namesrv, self.broker, self.proxy):
                while not loop.run(serves(address)):
                    if time.monotonic() >= end:
                        logs = b"".join(self.get_logs()).decode("utf-8", "replace")
                        raise MqError(
                            Code.SERVICE_NOT_AVAILABLE,
                            f"{address} does not serve after {READY_TIMEOUT_S:g} s:\n"
                            f"{logs[-4_000:]}",
                        )
                    time.sleep(POLL_S)
        finally:
            loop.stop()


async def serves(address: str) -> bool:
    """Return whether the server at `address` reports SERVING by grpc.health.v1."""
    channel = Channel(address)
    try:
        return await channel.unary(HEALTH_CHECK, b"", CALL_TIMEOUT_S) == SERVING
    except CallFailed:
        return False
    finally:
        await channel.close(None)


def _free_ports(count: int) -> tuple[int, ...]:
    """Return different ports that are free on this host."""
    probes = [socket.socket() for _ in range(count)]
    try:
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return tuple(int(probe.getsockname()[1]) for probe in probes)
    finally:
        for probe in probes:
            probe.close()
