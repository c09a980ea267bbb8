"""Write a Helm chart from the manifests for Kustomize, so that there is one copy of them.

    python deploy/chart.py build/chart/aerobee     # `make chart` runs this

It needs `kubectl`, which renders deploy/kubernetes/base. With its default values, the chart
installs the same objects. Overlays are for Kustomize alone.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
BASE = ROOT / "deploy" / "kubernetes" / "base"
VERSION = re.compile(r'^VERSION = "(.+)"$', re.MULTILINE)
# A value in an object until its YAML is written, and then a template of Helm.
MARK = re.compile(r"'?@@(.+?)@@'?")
CONFIG_MAP = re.compile(r"^aerobee-[a-z0-9]+$")
# Its name changes with its content, as that of Kustomize, so that a change restarts the pods.
CONFIG_NAME = "@@printf `aerobee-%s` (.Values.settings | toJson | sha256sum | trunc 10)@@"
# `quote` alone writes the number 67108864 in a file of values as 6.7108864e+07. So does `printf`.
IMAGE = '@@printf `%s:%s` .Values.image.repository (.Values.image.tag | toJson | trimAll `"`)@@'
SETTINGS = """data:
{{- range $key, $value := .Values.settings }}
  {{ $key }}: {{ kindIs "string" $value | ternary $value (toJson $value) | quote }}
{{- end }}
"""
HEAD = {
    "image": "# Push the image to a registry that your nodes can reach.",
    "replicas": "# Clients and brokers find all of them by the names of their Services.",
    "storage": "# Of each pod. A claim keeps its size, and outlives the chart.",
    "settings": "# Options of all services as environment variables: docs/configuration.md.",
}

Object = dict[str, Any]


class ChartError(Exception):
    """The chart cannot be written. The message says why."""


def base() -> list[Object]:
    """Return the objects of the base. Raises ChartError."""
    try:
        done = subprocess.run(
            ["kubectl", "kustomize", str(BASE)], capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        raise ChartError("there is no kubectl, which renders the manifests: install it") from None
    if done.returncode:
        raise ChartError(done.stderr.strip())
    return list(yaml.safe_load_all(done.stdout))


def chart(objects: list[Object], version: str) -> dict[str, str]:
    """Return the files of the chart: path → content. Changes the objects."""
    values: Object = {"image": {}, "replicas": {}, "storage": {}, "settings": {}}
    files = {}
    for each in objects:
        kind = each["kind"].lower()
        # The name of the settings has a hash.
        name = kind if kind == "configmap" else f"{each['metadata']['name']}-{kind}"
        files[f"templates/{name}.yaml"] = _template(each, values)
    described = {
        "apiVersion": "v2",
        "name": "aerobee",
        "description": "A message queue: name servers, brokers, proxies and a console",
        "type": "application",
        "version": version,
        "appVersion": version,
    }
    sections = [f"{HEAD[name]}\n{_dumped({name: values[name]})}" for name in HEAD]
    return {"Chart.yaml": _dumped(described), "values.yaml": "\n".join(sections), **files}


def _template(each: Object, values: Object) -> str:
    if each["kind"] == "ConfigMap":
        values["settings"] = each.pop("data")
        each["metadata"]["name"] = CONFIG_NAME
        return SETTINGS + _templated(each)
    if each["kind"] in ("StatefulSet", "Deployment"):
        name, spec = each["metadata"]["name"], each["spec"]
        values["replicas"][name] = spec["replicas"]
        spec["replicas"] = f"@@.Values.replicas.{name}@@"
        for claim in spec.get("volumeClaimTemplates", ()):
            requests = claim["spec"]["resources"]["requests"]
            values["storage"][name] = requests["storage"]
            requests["storage"] = f"@@.Values.storage.{name}@@"
        for container in spec["template"]["spec"]["containers"]:
            repository, _, tag = container["image"].rpartition(":")
            values["image"] = {"repository": repository, "tag": tag}
            container["image"] = IMAGE
            for source in container.get("envFrom", ()):
                if CONFIG_MAP.match(source["configMapRef"]["name"]):
                    source["configMapRef"]["name"] = CONFIG_NAME
    return _templated(each)


def _templated(each: Object) -> str:
    return MARK.sub(r"{{ \1 }}", _dumped(each))


def _dumped(each: Object) -> str:
    # Lines are not folded, because a template must be in one.
    text: str = yaml.safe_dump(each, sort_keys=False, allow_unicode=True, width=1_000)
    return text


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path, help="it is made, and must not exist")
    given = parser.parse_args(arguments)
    text = (ROOT / "proto/src/aerobee_wire/version.py").read_text(encoding="utf-8")
    found = VERSION.search(text)
    assert found is not None, "version.py states no version"
    try:
        files = chart(base(), found[1])
        for name, content in files.items():
            path = given.folder / name
            path.parent.mkdir(parents=True, exist_ok=name != "Chart.yaml")
            path.write_text(content, encoding="utf-8")
    except (ChartError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"wrote {given.folder}: helm install aerobee {given.folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
