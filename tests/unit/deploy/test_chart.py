"""The Helm chart that is made from the manifests: it installs the same objects."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.repository import manifests
from support.repository.manifests import Object, of_kind, pods
from support.repository.tree import ROOT, script

chart = script(ROOT / "deploy" / "chart.py")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    manifests.require_kubectl()
    made = tmp_path_factory.mktemp("chart") / "aerobee"
    assert chart.main([str(made)]) == 0
    return made


def helm(*arguments: str) -> str:
    """The output of Helm. Skips the test without Helm; fails it if AEROBEE_REQUIRE_HELM is set."""
    if shutil.which("helm") is None:
        if os.environ.get("AEROBEE_REQUIRE_HELM"):
            pytest.fail("AEROBEE_REQUIRE_HELM is set, but there is no `helm` on PATH")
        pytest.skip("needs helm, which renders the chart without a cluster")
    done = subprocess.run(["helm", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def rendered(folder: Path, *options: str) -> list[Object]:
    return list(yaml.safe_load_all(helm("template", "any", str(folder), *options)))


def comparable(objects: list[Object]) -> dict[tuple[str, str], Any]:
    """The objects by kind and name, with the name of the settings without its hash."""
    text = re.sub(r"\baerobee-[a-z0-9]{10}\b", "aerobee-HASH", yaml.safe_dump_all(objects))
    return {
        (each["kind"], each["metadata"]["name"]): each for each in yaml.safe_load_all(text) if each
    }


def test_the_chart_has_a_file_for_each_object_and_no_mark(folder: Path) -> None:
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert len(files) == len(manifests.objects("base")) + 2
    assert not [path for path in files if "@@" in path.read_text(encoding="utf-8")]
    values = yaml.safe_load((folder / "values.yaml").read_text(encoding="utf-8"))
    assert values["replicas"] == {"namesrv": 2, "broker": 2, "proxy": 2, "console": 1}


def test_the_default_values_give_the_objects_of_the_base(folder: Path) -> None:
    assert comparable(rendered(folder)) == comparable(manifests.objects("base"))


def test_values_reach_the_objects(folder: Path) -> None:
    made = rendered(
        folder,
        *("--set", "image.repository=registry.example.org:5000/aerobee"),
        *("--set", "image.tag=0.1.0"),
        *("--set", "replicas.broker=3"),
        *("--set", "storage.broker=500Gi"),
        *("--set", "settings.AEROBEE_FILE_RESERVED_TIME=48"),
    )
    brokers = [pod for pod in pods(made) if pod.workload == "broker"]
    assert len(brokers) == 3
    for pod in pods(made):
        assert pod.container["image"] == "registry.example.org:5000/aerobee:0.1.0"
        assert pod.environment["AEROBEE_FILE_RESERVED_TIME"] == "48"
        assert pod.environment["NAMESRV_ADDR"] == "namesrv:9876"
    [broker] = [
        each for each in of_kind(made, "StatefulSet") if each["metadata"]["name"] == "broker"
    ]
    [claim] = broker["spec"]["volumeClaimTemplates"]
    assert claim["spec"]["resources"]["requests"] == {"storage": "500Gi"}


def test_numbers_in_a_file_of_values_are_written_in_full(folder: Path, tmp_path: Path) -> None:
    values = tmp_path / "values.yaml"
    settings = {"AEROBEE_A": 67_108_864, "AEROBEE_B": 0.5, "AEROBEE_C": True, "AEROBEE_D": 'x "y"'}
    written = yaml.safe_dump({"image": {"tag": 20_261_129}, "settings": settings})
    values.write_text(written, encoding="utf-8")
    made = rendered(folder, "-f", str(values))
    for pod in pods(made):
        assert pod.container["image"] == "aerobee:20261129"
    [config] = of_kind(made, "ConfigMap")
    assert (
        config["data"].items()
        >= {
            "AEROBEE_A": "67108864",
            "AEROBEE_B": "0.5",
            "AEROBEE_C": "true",
            "AEROBEE_D": 'x "y"',
        }.items()
    )


def test_other_settings_restart_the_pods(folder: Path) -> None:
    """By another name of their ConfigMap, as with Kustomize."""
    names = {
        config["metadata"]["name"]
        for option in ("AEROBEE_A=1", "AEROBEE_A=2")
        for config in of_kind(rendered(folder, "--set", f"settings.{option}"), "ConfigMap")
    }
    assert len(names) == 2


def test_helm_finds_no_mistake_in_the_chart(folder: Path) -> None:
    assert "0 chart(s) failed" in helm("lint", str(folder))
