"""The image, with a real engine: what it runs without arguments, its labels, what is in it."""

from __future__ import annotations

import json
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from aerobee.namesrv.v1 import namesrv_pb2

from aerobee_chassis import healthcheck
from aerobee_wire.version import VERSION
from support.clock.polling import until_sync
from support.processes.engine import (
    NO_SHELL,
    Container,
    built_image,
    docker,
    require_engine,
    running,
)
from support.proxy import sdk_cluster
from support.proxy.official_sdk import Sdk, newest
from support.repository.tree import ROOT, locked
from support.stubs import Stub

pytestmark = [pytest.mark.engine, pytest.mark.slow]

NAMESRV, BROKER, PROXY = 9876, 10911, 8081
SOON_S = 60.0


@pytest.fixture(scope="module")
def image() -> Iterator[str]:
    require_engine()
    with built_image() as name:
        yield name


@pytest.fixture(scope="module")
def container(image: str) -> Iterator[Container]:
    with running(image, (NAMESRV, BROKER, PROXY)) as made:
        made.until_serving(PROXY)
        yield made


def test_an_official_sdk_on_the_host_needs_the_proxy_s_port_alone(
    container: Container, tmp_path: Path
) -> None:
    """The first send creates the topic."""
    with Sdk(newest("python"), container.address(PROXY), tmp_path) as sdk:
        sent = sdk_cluster.send(sdk, "orders", 10)
        sdk_cluster.simple(sdk, "billing", "orders")
        assert sorted(sdk_cluster.bodies_of(sdk_cluster.receive(sdk, 10))) == sorted(sent)


def test_the_route_has_the_published_port_of_the_broker(container: Container) -> None:
    """So the classic client on the host works with 9876 and 10911 published under these numbers."""
    with grpc.insecure_channel(container.address(NAMESRV)) as channel:
        stub = Stub(namesrv_pb2, channel)
        [broker] = stub.GetClusterInfo(namesrv_pb2.GetClusterInfoRequest(), timeout=10.0).brokers
    assert dict(broker.addresses) == {0: f"127.0.0.1:{BROKER}"}
    assert healthcheck.serving(container.address(BROKER))


def test_the_command_in_the_container_finds_its_name_server(container: Container) -> None:
    docker("exec", container.id, "aerobee", "topic", "create", "by-hand")
    topics = json.loads(docker("exec", container.id, "aerobee", "topic", "list", "--json"))
    assert "by-hand" in {topic["topic"] for topic in topics}


def test_labels_say_what_the_image_is(image: str) -> None:
    labels = json.loads(docker("inspect", "--format", "{{json .Config.Labels}}", image))
    shown = {name.removeprefix("org.opencontainers.image."): labels[name] for name in labels}
    assert shown["title"] and shown["licenses"] == "Apache-2.0"
    assert shown.keys() >= {"version", "revision"}


def test_the_image_of_make_has_the_version_and_the_commit_of_the_tree() -> None:
    """And the other platform is built, or the reason is printed."""
    require_engine()
    prefix = f"test-{uuid.uuid4().hex[:8]}/"
    make = ["make", "--silent", "image", f"ARGS=--prefix={prefix}"]
    done = subprocess.run(make, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    name = f"{prefix}aerobee"
    shown = docker("inspect", "--format", "{{json .Config.Labels}}", f"{name}:{VERSION}")
    docker("image", "rm", f"{name}:latest", f"{name}:{VERSION}")
    labels = json.loads(shown)
    commit = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.strip()
    assert labels["org.opencontainers.image.version"] == VERSION
    assert labels["org.opencontainers.image.revision"] == commit
    said = (done.stdout + done.stderr).splitlines()
    base = labels["org.opencontainers.image.base.name"]
    assert ("@sha256:" in base) != any(line.startswith("not pinned: ") for line in said)
    for platform in ("linux/amd64", "linux/arm64"):
        assert any(
            line == f"built aerobee for {platform}"
            or line.startswith(f"skipped aerobee for {platform}: ")
            for line in said
        ), said


def test_the_bill_of_materials_lists_what_is_installed(image: str, tmp_path: Path) -> None:
    """It is checked against the schema, and the same image gives the same bytes."""
    tools = ROOT / "build" / "tools" / "env" / "bin" / "python"
    subprocess.run(["make", "build/tools/.installed"], cwd=ROOT, check=True, capture_output=True)
    texts = []
    for folder in (tmp_path / "first", tmp_path / "second"):
        subprocess.run([tools, "deploy/sbom.py", image, folder], cwd=ROOT, check=True)
        texts.append((folder / f"{image}.cdx.json").read_text(encoding="utf-8"))
    assert texts[0] == texts[1]
    found = json.loads(texts[0])
    assert found["bomFormat"] == "CycloneDX"
    versions = {each["name"]: each["version"] for each in found["components"]}
    assert versions["aerobee"] == VERSION and "libc6" in versions
    pinned = locked(ROOT / "deploy" / "requirements-services.lock")
    assert pinned.keys() <= versions.keys()
    needs = {each["ref"]: each.get("dependsOn", []) for each in found["dependencies"]}
    (client,) = [ref for ref in needs if ref.startswith("pkg:pypi/aerobee-client@")]
    assert any(ref.startswith("pkg:pypi/protobuf@") for ref in needs[client])


def test_no_program_runs_as_another_user(image: str) -> None:
    find = ("--entrypoint", "find", image, "/", "-xdev", "-type", "f", "-perm", "/6000")
    assert docker("run", "--rm", "--user", "0", *find) == ""


def test_nothing_is_written_but_data_and_temporary_files(container: Container) -> None:
    """By a container whose root file system is not read-only."""
    docker("exec", container.id, "aerobee", "topic", "create", "written")
    changed = {line.partition(" ")[2] for line in docker("diff", container.id).splitlines()}
    assert {path for path in changed if not path.startswith(("/data", "/tmp"))} == set()


def test_probes_need_no_shell(image: str) -> None:
    identifier = docker("run", "--detach", *NO_SHELL, image).strip()
    try:
        status = ("inspect", "--format", "{{.State.Health.Status}}", identifier)
        until_sync(lambda: docker(*status) == "healthy\n", "it is healthy", timeout_s=SOON_S)
        with pytest.raises(subprocess.CalledProcessError):
            docker("exec", identifier, "sh", "-c", "true")
    finally:
        docker("rm", "--force", "--volumes", identifier)


def test_the_container_becomes_healthy_and_stops_in_order(image: str) -> None:
    with running(image, (PROXY,)) as container:
        status = ("inspect", "--format", "{{.State.Health.Status}}", container.id)
        until_sync(lambda: docker(*status) == "healthy\n", "it is healthy", timeout_s=SOON_S)
        docker("stop", container.id)
        code = docker("inspect", "--format", "{{.State.ExitCode}}", container.id)
        assert code == "0\n", docker("logs", container.id)
