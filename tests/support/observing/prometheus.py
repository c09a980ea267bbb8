"""A Prometheus that scrapes processes of a test, and promtool."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.clock.polling import until_sync
from support.repository.tree import ROOT

FOLDER = ROOT / "deploy" / "prometheus"


def tool(name: str) -> str:
    """Return the path of prometheus or promtool, or skip the test.

    Fails if AEROBEE_REQUIRE_PROMETHEUS is set.
    """
    found = shutil.which(name)
    if found is not None:
        return found
    if os.environ.get("AEROBEE_REQUIRE_PROMETHEUS"):
        pytest.fail(f"AEROBEE_REQUIRE_PROMETHEUS is set, but there is no {name} on PATH")
    pytest.skip(f"needs {name} (Debian's package prometheus)")


class Prometheus:
    def __init__(self, address: str) -> None:
        self.address = address

    def get(self, path: str, **fields: str) -> Any:
        query = urllib.parse.urlencode(fields)
        with urllib.request.urlopen(f"http://{self.address}{path}?{query}", timeout=20) as answer:
            return json.load(answer)

    def query(self, expression: str) -> list[Any]:
        """The result of an expression now. Raises HTTPError if it is not valid."""
        found: list[Any] = self.get("/api/v1/query", query=expression)["data"]["result"]
        return found

    def firing(self) -> set[str]:
        alerts = self.get("/api/v1/alerts")["data"]["alerts"]
        return {each["labels"]["alertname"] for each in alerts if each["state"] == "firing"}

    def answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://{self.address}/-/ready", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False


@contextmanager
def prometheus(folder: Path, targets: Mapping[str, str]) -> Iterator[Prometheus]:
    """Scrape each job of prometheus.yml every second, with its alerts but a shorter `for`."""
    program = tool("prometheus")
    config = yaml.safe_load((FOLDER / "prometheus.yml").read_text(encoding="utf-8"))
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    for job in config["scrape_configs"]:
        job["static_configs"] = [{"targets": [targets[job["job_name"]]]}]
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config), encoding="utf-8")
    rules = (FOLDER / "alerts.yml").read_text(encoding="utf-8")
    (folder / "alerts.yml").write_text(re.sub(r"for: \w+", "for: 1s", rules), encoding="utf-8")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    arguments = (
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address={address}",
        "--log.level=error",
    )
    with subprocess.Popen([program, *arguments]) as process:
        try:
            running = Prometheus(address)
            until_sync(running.answers, "Prometheus answers")
            yield running
        finally:
            process.terminate()
