"""Workers of Celery, which forks the processes of its pool: a client that is made in each works,
and one that the parent used is refused."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aerobee_client import AsyncAdminClient
from support.clock.polling import until_sync
from support.processes.forking import HEAD, assert_refused_at_once, running

if TYPE_CHECKING:
    from celery import Celery

POOL = 2
TASKS = 20

# Messages of the file system, so that no broker of Celery's is needed.
APP = """
from pathlib import Path
from celery import Celery
from celery.signals import worker_process_init, worker_process_shutdown

here = Path(__file__).parent
queue = str(here / "queue")
app = Celery("app")
app.conf.update(
    broker_url="filesystem://",
    broker_transport_options={
        "data_folder_in": queue, "data_folder_out": queue, "control_folder": str(here / "control")
    },
    result_backend=f"file://{here / 'results'}",
)

@app.task
def send(number):
    def use():
        producer.send(Message("celery", b"%d" % number))
    return os.getpid(), *tried(use)
"""
IN_EACH_PROCESS = """
@worker_process_init.connect
def make(**_):
    global producer
    producer = Producer("p")
    producer.start()
    (here / "made" / str(os.getpid())).touch()

@worker_process_shutdown.connect
def close(**_):
    producer.close()
    (here / "closed" / str(os.getpid())).touch()
"""
IN_THE_PARENT = """
producer = Producer("p")
producer.start()
producer.send(Message("celery", b"parent"))
"""


@contextlib.contextmanager
def worker(folder: Path, namesrv: str, program: str) -> Iterator[Celery]:
    """An application whose tasks a worker runs, in a pool of processes that it forks."""
    (folder / "app.py").write_text(HEAD + APP + program, encoding="utf-8")
    for name in ("queue", "control", "results", "made", "closed"):
        (folder / name).mkdir()
    command = [sys.executable, "-m", "celery", "-A", "app", "worker", "--loglevel=INFO"]
    options = ["--pool=prefork", f"--concurrency={POOL}", "--without-gossip", "--without-mingle"]
    with running([*command, *options], folder, namesrv, r"celery@\S+ ready") as _:
        from celery import Celery  # half a second

        client = Celery("client")
        client.conf.update(
            broker_url="filesystem://",
            broker_transport_options={
                "data_folder_in": str(folder / "queue"),
                "data_folder_out": str(folder / "queue"),
                "control_folder": str(folder / "control"),
            },
            result_backend=f"file://{folder / 'results'}",
        )
        yield client


def outcomes(client: Celery) -> list[tuple[int, str, float]]:
    """Of each task: its process, the name of what came of it, seconds."""
    sent = [client.send_task("app.send", (number,)) for number in range(TASKS)]
    return [tuple(result.get(timeout=60)) for result in sent]


async def test_a_client_made_in_each_process_of_the_pool_works(
    namesrv: str, tmp_path: Path
) -> None:
    def pids(folder: str) -> set[int]:
        return {int(path.name) for path in (tmp_path / folder).iterdir()}

    with worker(tmp_path, namesrv, IN_EACH_PROCESS) as client:
        until_sync(lambda: len(pids("made")) == POOL, "each process has made its client")
        found = outcomes(client)
    assert {name for _, name, _ in found} == {"done"}
    assert {pid for pid, _, _ in found} <= pids("made") == pids("closed")
    async with AsyncAdminClient(namesrv) as admin:
        stored = [
            message.body
            for queue_id in range(4)
            for message in (await admin.browse("celery", "broker-a", queue_id, 0)).messages()
        ]
    assert sorted(stored, key=int) == [b"%d" % number for number in range(TASKS)]


def test_a_client_that_the_parent_used_is_refused(namesrv: str, tmp_path: Path) -> None:
    with worker(tmp_path, namesrv, IN_THE_PARENT) as client:
        found: list[list[Any]] = [[name, took_s] for _, name, took_s in outcomes(client)]
    assert_refused_at_once(found)
