"""The manifests of deploy/kubernetes as `kubectl kustomize` makes them, and what their pods get."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import pytest
import yaml

from support.repository.tree import ROOT

FOLDER = ROOT / "deploy" / "kubernetes"
OVERLAYS = ("base", "overlays/small", "overlays/secure", "overlays/replicated")
NAMESPACE = "messages"

Object = dict[str, Any]


def require_kubectl() -> None:
    """Skip the test where there is no `kubectl`; fail it when AEROBEE_REQUIRE_KUBECTL is set."""
    if shutil.which("kubectl") is None:
        if os.environ.get("AEROBEE_REQUIRE_KUBECTL"):
            pytest.fail("AEROBEE_REQUIRE_KUBECTL is set, but there is no `kubectl` on PATH")
        pytest.skip("needs kubectl, which renders the manifests without a cluster")


def rendered(overlay: str) -> str:
    """Return the manifests of an overlay as YAML."""
    require_kubectl()
    done = subprocess.run(
        ["kubectl", "kustomize", str(FOLDER / overlay)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def objects(overlay: str) -> list[Object]:
    return list(yaml.safe_load_all(rendered(overlay)))


def of_kind(manifests: list[Object], *kinds: str) -> list[Object]:
    return [each for each in manifests if each["kind"] in kinds]


def workloads(manifests: list[Object]) -> list[Object]:
    return of_kind(manifests, "StatefulSet", "Deployment")


class Pod(NamedTuple):
    """A pod that a workload starts, with the environment that the kubelet gives its container."""

    workload: str
    name: str
    spec: Object
    container: Object
    environment: Mapping[str, str]


def admin_pod() -> Object:
    """Return the manifest of the pod for commands."""
    found: Object = yaml.safe_load((FOLDER / "admin.yaml").read_text(encoding="utf-8"))
    return found


def pods(manifests: list[Object]) -> Iterator[Pod]:
    for workload in workloads(manifests):
        name, spec = workload["metadata"]["name"], workload["spec"]
        template = spec["template"]
        first = spec.get("ordinals", {}).get("start", 0)
        for index in range(first, first + spec["replicas"]):
            pod = f"{name}-{index}"
            labels = {**template["metadata"]["labels"], "apps.kubernetes.io/pod-index": str(index)}
            for container in template["spec"]["containers"]:
                environment = _environment(manifests, container, pod, labels)
                yield Pod(name, pod, template["spec"], container, environment)


def _environment(
    manifests: list[Object], container: Object, pod: str, labels: Mapping[str, str]
) -> dict[str, str]:
    maps = {each["metadata"]["name"]: each["data"] for each in of_kind(manifests, "ConfigMap")}
    given: dict[str, str] = {}
    for source in container.get("envFrom", ()):
        given |= maps[source["configMapRef"]["name"]]
    fields = {"metadata.name": pod, "metadata.namespace": NAMESPACE}
    fields |= {f"metadata.labels['{label}']": value for label, value in labels.items()}
    for variable in container.get("env", ()):
        if "value" in variable:
            value = variable["value"]
        else:
            value = fields[variable["valueFrom"]["fieldRef"]["fieldPath"]]
        # A variable is replaced only after its definition, as by the kubelet.
        value = re.sub(r"\$\((\w+)\)", lambda found: given.get(found[1], found[0]), value)
        given[variable["name"]] = value
    return given
