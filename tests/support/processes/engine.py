"""A Docker engine, for tests that cannot do without one, and the image of the services."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

from aerobee_chassis import healthcheck
from support.repository.tree import ROOT

READY_TIMEOUT_S = 30.0
# Options of `docker run` for a container in which no shell can be started.
NO_SHELL = tuple(f"--volume=/dev/null:/bin/{shell}:ro" for shell in ("sh", "dash", "bash"))
POLL_S = 0.02


def require_engine() -> None:
    """Skips the test where no engine can be used; fails it when AEROBEE_REQUIRE_ENGINE is set."""
    found = problem()
    if found and os.environ.get("AEROBEE_REQUIRE_ENGINE"):
        pytest.fail(f"AEROBEE_REQUIRE_ENGINE is set, but {found}")
    if found:
        pytest.skip(f"needs a Docker engine: {found}")


def problem() -> str | None:
    """Why no engine can be used here, or None."""
    if shutil.which("docker") is None:
        return "no `docker` command"
    for command, missing in (("info", "no engine answers"), ("compose version", "no Compose v2")):
        answer = subprocess.run(
            ["docker", *command.split()], capture_output=True, text=True, check=False
        )
        if answer.returncode != 0:
            return f"{missing}: {answer.stderr.strip().splitlines()[-1:]}"
    return None


@contextmanager
def built_image() -> Iterator[str]:
    """The image of deploy/Dockerfile under a name of its own; removed on leaving."""
    name = f"aerobee-test-{uuid.uuid4().hex[:8]}"
    docker("build", "--quiet", "--file", "deploy/Dockerfile", "--tag", name, ".")
    try:
        yield name
    finally:
        docker("image", "rm", name)


@dataclass(frozen=True)
class Container:
    """A running container. `ports`: port inside → port on the host's loopback."""

    id: str
    ports: dict[int, int]

    def address(self, port: int) -> str:
        return f"127.0.0.1:{self.ports[port]}"

    def until_serving(self, port: int) -> None:
        """Waits until the service at this port of the container is healthy."""
        deadline = time.monotonic() + READY_TIMEOUT_S
        while not _serving(self.address(port)):
            if time.monotonic() > deadline:
                raise TimeoutError(f"port {port} does not serve:\n{docker('logs', self.id)}")
            time.sleep(POLL_S)


@contextmanager
def running(image: str, ports: Sequence[int], *arguments: str) -> Iterator[Container]:
    """`docker run` of an image, with these ports published at free ones of the host's loopback."""
    published = [option for port in ports for option in ("--publish", f"127.0.0.1::{port}")]
    identifier = docker("run", "--detach", *published, image, *arguments).strip()
    try:
        found = {port: docker("port", identifier, str(port)).splitlines()[0] for port in ports}
        numbers = {port: int(line.rpartition(":")[2]) for port, line in found.items()}
        yield Container(identifier, numbers)
    finally:
        docker("rm", "--force", "--volumes", identifier)


def docker(*arguments: str) -> str:
    """Output of a command of the engine's client. Raises CalledProcessError."""
    return subprocess.run(
        ["docker", *arguments], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True
    ).stdout


def _serving(address: str) -> bool:
    try:
        return healthcheck.serving(address)
    except OSError:
        return False
