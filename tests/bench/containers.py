"""How soon containers are ready, and the processor time of those of docker-compose.yml while idle.

Needs a Docker engine. Without one, the rows are left out and the reason is printed.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
import time
from pathlib import Path

import docker

from bench.measure import Result
from support.processes.compose import Project
from support.processes.engine import built_image, problem, running

READY_LIMIT_S = 2.0
HEALTHY_LIMIT_S = 10.0
ATTEMPTS = 5
PROXY = 8081
IDLE_LIMIT_PERCENT = 2.0  # of one core, all containers together
IDLE_S = 62.0  # two health checks of each container


async def results() -> list[Result]:
    """The image with everything in one process, and the default profile of Compose."""
    if reason := problem():
        print(f"left out: no Docker engine can be used: {reason}", file=sys.stderr)
        return []
    return [await asyncio.to_thread(image), *await asyncio.to_thread(compose)]


def image() -> Result:
    """From `docker run` until the proxy serves."""
    took = []
    with built_image() as name:
        for _ in range(ATTEMPTS):
            began = time.perf_counter()
            with running(name, (PROXY,)) as container:
                container.until_serving(PROXY)
                took.append(time.perf_counter() - began)
    note = f"`docker run`, median of {ATTEMPTS}, worst {max(took):.2f} s; baseline: the limit"
    return row("image_ready_s", "s", statistics.median(took), READY_LIMIT_S, note)


def compose() -> list[Result]:
    with tempfile.TemporaryDirectory() as scratch:
        project = Project(Path(scratch))
        try:
            project.run("build")
            began = time.perf_counter()
            project.run("up", "--detach", "--wait")
            healthy = time.perf_counter() - began
            before, began = processor_s(project), time.perf_counter()
            time.sleep(IDLE_S)
            used, passed = processor_s(project) - before, time.perf_counter() - began
        finally:
            project.remove()
    idle = used / passed * 100
    note = f"namesrv, broker and proxy with their health checks, {IDLE_S:g} s; baseline: the limit"
    ready = "`up --wait` of namesrv, broker and proxy, image built; baseline: the limit"
    return [
        row("compose_healthy_s", "s", healthy, HEALTHY_LIMIT_S, ready),
        row("compose_idle_cpu", "% of a core", idle, IDLE_LIMIT_PERCENT, note),
    ]


def row(name: str, unit: str, ours: float, limit: float, note: str) -> Result:
    return Result(name, unit, ours, limit, ours / limit, 1.0, note)


def processor_s(project: Project) -> float:
    """Processor time of all containers since their start, with that of their health checks."""
    engine = docker.from_env()
    try:
        found = [
            engine.containers.get(identifier).stats(stream=False)
            for identifier in project.run("ps", "--quiet").split()
        ]
    finally:
        engine.close()
    return float(sum(each["cpu_stats"]["cpu_usage"]["total_usage"] for each in found)) / 1e9
