"""The profile `spark` of docker-compose.yml with a real engine: built, started, used, stopped.

Without an engine these tests are skipped, unless AEROBEE_REQUIRE_ENGINE says that there must be
one. Not in the suite: the image takes minutes to build.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from packaging.utils import canonicalize_name

from aerobee_spark.jvm import standalone
from aerobee_spark.table import rows
from aerobee_spark.table.files import FactsFiles
from support.client.dead_letter_group import dead_letter
from support.processes.compose import Project
from support.processes.engine import require_engine
from support.repository.tree import ROOT, locked

pytestmark = [pytest.mark.engine, pytest.mark.slow]

GROUP, TOPIC, COUNT = "billing", "orders", 40
JOB = f"""
from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()
orders = spark.readStream.format("rocketmq").load("{TOPIC}")
query = (
    orders.writeStream.format("parquet")
    .option("checkpointLocation", "/checkpoints/orders")
    .trigger(availableNow=True)
    .start("/data/orders.parquet")
)
query.awaitTermination()
print("rows", spark.read.parquet("/data/orders.parquet").count())
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    require_engine()
    made = Project(tmp_path_factory.mktemp("compose"), profiles=["spark"])
    with made.running():
        dead_letter(f"127.0.0.1:{made.ports['namesrv']}", GROUP, TOPIC, COUNT)
        yield made


def record(project: Project) -> dict[str, Any]:
    """The master's own, at its published port."""
    return standalone.record(f"127.0.0.1:{project.ports['spark-master']}")


def job(service: str, project: Project, *arguments: str) -> str:
    """`docker compose run` of a job, which has to be one more that the master knows as finished."""
    before = len(record(project)["completedapps"])
    said = project.run("run", "--rm", "--no-TTY", service, *arguments)
    found = record(project)
    assert [app["state"] for app in found["completedapps"][before:]] == ["FINISHED"]
    assert found["activeapps"] == []
    return said


@pytest.mark.parametrize("service", ["spark-master", "spark-worker", "spark-shell"])
def test_a_service_runs_with_no_rights_that_it_does_not_need(
    project: Project, service: str
) -> None:
    assert project.inside(service, "id", "-u") == ("10001\n", 0)
    _, code = project.inside(service, "touch", "/opt/aerobee/x")
    assert code != 0
    for folder in ("/data", "/checkpoints"):
        assert project.inside(service, "sh", "-c", f"touch {folder}/x && rm {folder}/x") == ("", 0)


def test_the_image_holds_what_its_lock_names_and_ours(project: Project) -> None:
    script = "import importlib.metadata as m; print(*(d.name for d in m.distributions()))"
    output, code = project.inside("spark-shell", "python", "-c", script)
    assert code == 0, output
    wanted = locked(ROOT / "deploy" / "requirements-spark.lock").keys()
    ours = {"aerobee-client", "aerobee-spark"}
    assert sorted(canonicalize_name(name) for name in output.split()) == sorted({*wanted, *ours})


def test_only_the_master_s_page_is_published_and_on_loopback(project: Project) -> None:
    published = {
        (service, port.URL, port.TargetPort)
        for service in ("spark-master", "spark-worker", "spark-shell")
        for port in project.get_container(service).Publishers
        if port.PublishedPort
    }
    assert published == {("spark-master", "127.0.0.1", 8080)}


def test_health_is_that_of_the_master_and_of_the_worker_s_registration(project: Project) -> None:
    check = ("python", "-m", "aerobee_spark.jvm.standalone")
    assert project.inside("spark-worker", *check, "spark-master:8080", "--worker")[1] == 0
    assert project.inside("spark-shell", *check, "spark-master:8080")[1] == 0
    assert project.inside("spark-shell", *check, "spark-master:8080", "--worker")[1] == 1
    assert project.inside("spark-shell", *check, "spark-master:1")[1] == 1


def test_the_report_is_made_on_the_worker_and_stands_on_the_page(
    project: Project, tmp_path: Path
) -> None:
    said = json.loads(job("report", project, "--group", GROUP, "--json", "--quiet"))
    assert (said["complete"], said["dead_letters"], said["engine"]) == (True, COUNT, "spark")
    project.run("cp", "spark-shell:/data/report", str(tmp_path / "report"))
    page = (tmp_path / "report" / "report.html").read_text("utf-8")
    assert "LookupError" in page and GROUP in page
    assert json.loads((tmp_path / "report" / "summary.json").read_text("utf-8")) == said
    listed = (tmp_path / "report" / "redrive.jsonl").read_text("utf-8").splitlines()
    assert len(listed) == COUNT


def test_facts_are_landed_once_by_the_worker(project: Project, tmp_path: Path) -> None:
    first = json.loads(job("facts", project, "--group", GROUP, "--json", "--quiet"))
    assert (first["rows"], first["away"], first["lost"]) == (2 * COUNT, [], 0)
    again = json.loads(job("facts", project, "--group", GROUP, "--json", "--quiet"))
    assert again["rows"] == 0
    project.run("cp", "spark-shell:/data/facts", str(tmp_path / "facts"))
    files = FactsFiles(tmp_path / "facts")
    assert sum(batch.num_rows for batch in rows.read(files, files.snapshot())) == 2 * COUNT


def test_a_job_of_one_s_own_runs_from_the_shell(project: Project, tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(JOB)
    project.run("cp", str(tmp_path / "job.py"), "spark-shell:/data/job.py")
    for _ in range(2):  # the second finds its checkpoint, and nothing new
        said, code = project.inside("spark-shell", "spark-submit", "/data/job.py")
        assert code == 0 and f"rows {COUNT}" in said.splitlines(), said


def test_a_worker_that_died_is_started_again_and_registered(project: Project) -> None:
    before = {worker["id"] for worker in record(project)["workers"]}
    project.inside("spark-worker", "sh", "-c", "kill -9 -1")
    project.run("up", "--detach", "--wait", "--no-build", "--no-recreate")
    alive = {
        worker["id"] for worker in record(project)["workers"] if worker["state"] == standalone.ALIVE
    }
    assert alive and not alive & before


def test_everything_goes_down(project: Project) -> None:
    """Last in the file."""
    project.run("--profile", "spark", "down")
    assert project.containers() == []
