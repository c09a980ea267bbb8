"""docker-compose.yml with a real engine, under a random project name.

It has ports and images of its own, so that it disturbs no other.
"""

from __future__ import annotations

import os
import subprocess
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from testcontainers.compose import DockerCompose

from aerobee_broker.cluster.identity import free_port
from support.repository.tree import ROOT

PORTS = {
    "namesrv": "AEROBEE_NAMESRV_PORT",
    "broker": "AEROBEE_BROKER_PORT",
    "proxy": "AEROBEE_PROXY_PORT",
    "console": "AEROBEE_CONSOLE_PORT",
}
SPARK_PORTS = {"spark-master": "AEROBEE_SPARK_UI_PORT"}


class Project(DockerCompose):
    """`ports`: service → port on the host. `profiles`: of the compose file. `overlay`: a second
    compose file."""

    def __init__(
        self,
        scratch: Path,
        profiles: Sequence[str] = (),
        *,
        overlay: str = "",
        **environment: str,
    ) -> None:
        self.name = f"aerobee-test-{uuid.uuid4().hex[:8]}"
        variables = PORTS | (SPARK_PORTS if "spark" in profiles else {})
        self.ports = {service: free_port("127.0.0.1") for service in variables}
        self.images = [f"{self.name}:latest"]
        environment |= {"COMPOSE_PROJECT_NAME": self.name, "AEROBEE_IMAGE": self.images[0]}
        if "spark" in profiles:
            self.images.append(f"{self.name}-spark:latest")
            environment |= {"AEROBEE_SPARK_IMAGE": self.images[-1]}
        if "replicated" in profiles:
            self.images.append(f"{self.name}-etcd:latest")
            environment |= {"AEROBEE_ETCD_IMAGE": self.images[-1]}
        environment |= {name: str(self.ports[service]) for service, name in variables.items()}
        env_file = scratch / "compose.env"
        env_file.write_text("".join(f"{key}={value}\n" for key, value in environment.items()))
        super().__init__(
            context=str(ROOT),
            compose_file_name=["docker-compose.yml", *filter(None, [overlay])],
            build=True,
            env_file=str(env_file),
            profiles=list(profiles),
        )

    @contextmanager
    def running(self) -> Iterator[Self]:
        """Started for the block, and removed at its end. A failed start prints the logs."""
        try:
            try:
                self.start()
            except subprocess.CalledProcessError:
                print(self.run("logs"))  # pytest shows it with the failure
                raise
            yield self
        finally:
            self.remove()

    def run(self, *command: str, **environment: str) -> str:
        """`docker compose …` with this project; its output. Raises CalledProcessError."""
        return subprocess.run(
            [*self.docker_compose_command(), *command], env=os.environ | environment,
            cwd=ROOT, check=True, capture_output=True, text=True,
        ).stdout  # fmt: skip

    def inside(
        self, service: str, *command: str, stderr: int = subprocess.STDOUT
    ) -> tuple[str, int]:
        """Output and exit code of a command in the container of `service`."""
        answer = subprocess.run(
            [*self.docker_compose_command(), "exec", "-T", service, *command],
            cwd=ROOT, check=False, stdout=subprocess.PIPE, stderr=stderr, text=True,
        )  # fmt: skip
        return answer.stdout, answer.returncode

    def containers(self) -> list[str]:
        """Ids of all containers of the project, running or not."""
        label = f"label=com.docker.compose.project={self.name}"
        command = ["docker", "ps", "--all", "--quiet", "--filter", label]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()

    def remove(self) -> None:
        """Containers, volumes and images."""
        self.stop()
        subprocess.run(["docker", "image", "rm", *self.images], capture_output=True, check=False)
