"""Each container of the manifests, started by an engine as the kubelet would.

It has the same command, environment, user, file system and names. Its probes succeed, and a message
goes through all of them. None has a shell.
"""

from __future__ import annotations

import subprocess
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from support.clock.polling import until_sync
from support.processes.command import aerobee
from support.processes.engine import NO_SHELL, built_image, docker, require_engine
from support.repository import manifests
from support.repository.manifests import NAMESPACE, Pod, pods

pytestmark = [pytest.mark.engine, pytest.mark.slow]

READY_S = 90.0
# A caller without a certificate.
PLAINTEXT = ("/opt/aerobee/bin/aerobee", "--namesrv", "namesrv-0.namesrv:9876", "topic", "list")
PROBES = ("startupProbe", "livenessProbe", "readinessProbe")
# Prints what a URL answers; exits with 0 if that has the status 200. Like the kubelet, it checks no
# certificate.
GET = """
import ssl, sys, urllib.request as r
request = r.Request(sys.argv[1], headers=dict(each.split("=") for each in sys.argv[2:]))
print(r.urlopen(request, timeout=3, context=ssl._create_unverified_context()).read().decode())
"""


@pytest.fixture(scope="module")
def image() -> Iterator[str]:
    manifests.require_kubectl()
    require_engine()
    with built_image() as name:
        yield name


class Cluster:
    """The pods of an overlay as containers of one network, by name."""

    def __init__(self, image: str, overlay: str, stack: ExitStack, secrets: Path) -> None:
        """`secrets` has a directory for each Secret."""
        self._image, self._stack, self._secrets = image, stack, secrets
        self._network = f"aerobee-test-{uuid.uuid4().hex[:8]}"
        docker("network", "create", self._network)
        stack.callback(docker, "network", "rm", self._network)
        self.pods = {pod.name: pod for pod in pods(manifests.objects(overlay))}
        self.containers = {name: self._run(pod) for name, pod in self.pods.items()}

    def _run(self, pod: Pod) -> str:
        # The name of a workload has a record for each of its pods, as that of a headless Service.
        own = f"{pod.name}.{pod.workload}"
        names = (pod.workload, own, f"{own}.{NAMESPACE}.svc")
        user = pod.spec["securityContext"]["runAsUser"]
        command = pod.container.get("command", [])
        identifier = docker(
            *("run", "--detach", "--network", self._network, "--hostname", pod.name),
            *(option for name in names for option in ("--network-alias", name)),
            *("--user", f"{user}:{user}", "--read-only", "--cap-drop", "ALL"),
            *("--security-opt", "no-new-privileges"),
            *NO_SHELL,
            *(f"--env={name}={value}" for name, value in pod.environment.items()),
            *self._mounts(pod),
            *(f"--entrypoint={each}" for each in command[:1]),
            self._image,
            *(*command[1:], *pod.container.get("args", ())),
        ).strip()
        self._stack.callback(docker, "rm", "--force", "--volumes", identifier)
        return identifier

    def _mounts(self, pod: Pod) -> Iterator[str]:
        volumes = {each["name"]: each for each in pod.spec.get("volumes", ())}
        for mount in pod.container.get("volumeMounts", ()):
            volume, path = volumes.get(mount["name"]), mount["mountPath"]
            if volume is None:
                yield f"--volume={path}"  # a claim
            elif "emptyDir" in volume:
                yield f"--tmpfs={path}"
            else:
                secret = self._secrets / volume["secret"]["secretName"]
                yield f"--volume={secret}:{path}:ro"

    def until_probes_succeed(self) -> None:
        for name, pod in self.pods.items():
            ports = {each["name"]: each["containerPort"] for each in pod.container["ports"]}
            for probe in PROBES:
                request = pod.container[probe]["httpGet"]
                scheme = request.get("scheme", "HTTP").lower()
                target = f"{scheme}://127.0.0.1:{ports[request['port']]}{request['path']}"
                headers = [
                    f"{one['name']}={one['value']}" for one in request.get("httpHeaders", ())
                ]
                check = partial(self.succeeds, name, "python", "-c", GET, target, *headers)
                until_sync(check, f"{probe} of {name} succeeds", timeout_s=READY_S)

    def succeeds(self, pod: str, *command: str) -> bool:
        done = subprocess.run(
            ["docker", "exec", self.containers[pod], *command], capture_output=True, check=False
        )
        return done.returncode == 0

    def start_admin(self) -> None:
        """Start the pod for commands."""
        pod = manifests.admin_pod()
        [container] = pod["spec"]["containers"]
        environment = {each["name"]: each["value"] for each in container["env"]}
        name = pod["metadata"]["name"]
        self.pods[name] = Pod(name, name, pod["spec"], container, environment)
        self.containers[name] = self._run(self.pods[name])

    def aerobee(self, pod: str, *arguments: str) -> str:
        return docker("exec", self.containers[pod], "aerobee", *arguments)


def test_each_container_starts_and_a_message_goes_through(image: str, tmp_path: Path) -> None:
    with ExitStack() as stack:
        cluster = Cluster(image, "base", stack, tmp_path)
        cluster.until_probes_succeed()
        for name in ("namesrv-0", "namesrv-1"):
            at = ("--namesrv", f"{name}.namesrv:9876")
            brokers = cluster.aerobee("proxy-0", *at, "cluster", "list", "--json")
            for number in (0, 1):
                assert f'"broker-{number}.broker.{NAMESPACE}.svc:10911"' in brokers
        cluster.aerobee("proxy-0", "topic", "create", "orders")
        cluster.aerobee("proxy-0", "message", "send", "orders", "42 apples")
        shown = cluster.aerobee(
            "proxy-1", "message", "consume", "orders", "--from", "earliest", "--count", "1"
        )
        assert "42 apples" in shown
        topics = ("python", "-c", GET, "http://127.0.0.1:8082/api/v1/topics")
        assert '"orders"' in docker("exec", cluster.containers["console-0"], *topics)
        for name, pod in cluster.pods.items():
            if name.endswith("-0") and "lifecycle" in pod.container:
                assert cluster.succeeds(
                    name, *pod.container["lifecycle"]["preStop"]["exec"]["command"]
                )


def secrets(directory: Path) -> None:
    """Make the Secrets as docs/kubernetes.md does, readable by the user of the containers."""
    certs = directory / "certs"
    hosts = f"proxy,console,*.namesrv,*.broker.{NAMESPACE}.svc"
    assert aerobee("certs", "init", str(certs), "--hosts", hosts).returncode == 0
    names = {"namesrv": ["namesrv"], "broker": ["broker-0", "broker-1"], "proxy": ["proxy"]}
    names["console"] = ["console"]
    for name in names["broker"]:
        issue = ("certs", "issue", str(certs), "--role", "broker", "--name", name)
        assert aerobee(*issue, "--hosts", hosts).returncode == 0
    names["admin"] = ["admin"]
    for service, files in names.items():
        secret = directory / f"aerobee-{service}"
        secret.mkdir()
        secret.chmod(0o755)
        for file in ("ca.crt", *(f"{name}.{kind}" for name in files for kind in ("crt", "key"))):
            (secret / file).write_bytes((certs / file).read_bytes())
            (secret / file).chmod(0o644)


def test_secure_containers_serve_callers_with_certificates_only(image: str, tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    secrets(tmp_path)
    with ExitStack() as stack:
        cluster = Cluster(image, "overlays/secure", stack, tmp_path)
        cluster.until_probes_succeed()
        cluster.start_admin()
        cluster.aerobee("admin", "topic", "create", "orders")
        cluster.aerobee("admin", "message", "send", "orders", "42 apples")
        shown = cluster.aerobee(
            "admin", "message", "consume", "orders", "--from", "earliest", "--count", "1"
        )
        assert "42 apples" in shown
        created = cluster.aerobee("admin", "user", "create", "ops", "--super", "--generate")
        assert "created user ops" in created and "secret key" in created
        assert not cluster.succeeds("proxy-0", "env", "-i", *PLAINTEXT)
