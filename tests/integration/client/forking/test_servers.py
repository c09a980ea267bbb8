"""Servers that load their application before they fork: a client that was used then is refused in
the workers, at once, and one that is made after the fork works."""

from __future__ import annotations

import contextlib
import json
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.processes.forking import HEAD, assert_refused_at_once, running

PRELOADED = """
producer = Producer("p")
producer.start()
producer.send(Message("forked", b"preloaded"))

def app(environ, respond):
    def another():
        with Producer("p") as own:
            own.send(Message("forked", b"worker"))
    found = {
        "inherited": tried(lambda: producer.send(Message("forked", b"worker"))),
        "new": tried(another),
    }
    respond("200 OK", [])
    return [json.dumps(found).encode()]
"""

AFTER_THE_FORK = """
producer = None

def app(environ, respond):
    respond("200 OK", [])
    return [json.dumps({"own": tried(lambda: producer.send(Message("forked", b"w")))}).encode()]
"""
CONFIGURATION = """
import app

def post_fork(server, worker):
    app.producer = app.Producer("p")
    app.producer.start()
"""


BY_POSTFORK = """
from uwsgidecorators import postfork

@postfork
def make():
    global producer
    producer = Producer("p")
    producer.start()
    print("made a client", flush=True)
"""
IN_EACH_WORKER = """
producer = Producer("p")
producer.start()
print("made a client", flush=True)
"""


@contextlib.contextmanager
def gunicorn(folder: Path, namesrv: str, *options: str) -> Iterator[str]:
    """The URL of a preloading server of `app.py` in `folder`."""
    command = (sys.executable, "-m", "gunicorn", "--preload", "--workers=2", "--bind=127.0.0.1:0")
    serves = r"Listening at: (http://\S+)"
    with running([*command, "app:app", *options], folder, namesrv, serves) as found:
        yield found[1]


@contextlib.contextmanager
def uwsgi(
    folder: Path, namesrv: str, *options: str, kill: bool = False, after_fork: str = ""
) -> Iterator[str]:
    """The URL of a server of `app.py` in `folder`, once each worker has printed `after_fork`."""
    command = (sys.executable, "-c", "import pyuwsgi; pyuwsgi.run()", "--die-on-term")
    workers = ("--master", "--processes=2", "--enable-threads")
    application = ("--http-socket=127.0.0.1:0", "--wsgi-file=app.py", "--callable=app")
    # A worker that is asked to stop while it loads the application, or runs what comes after the
    # fork, does not.
    loads = 2 if "--lazy-apps" in options else 1
    serves = (
        r"(?s)bound to TCP address (127\.0\.0\.1:\d+)(?=.*spawned uWSGI worker 2)"
        + (f"(?={f'.*?{after_fork}' * 2})" if after_fork else "")
        + r".*?WSGI app 0 \S+ ready" * loads
    )
    arguments = [*command, *workers, *application, *options]
    with running(arguments, folder, namesrv, serves, kill=kill) as found:
        yield f"http://{found[1]}"


def answer(url: str) -> dict[str, Any]:
    with urllib.request.urlopen(url, timeout=60) as response:
        found: dict[str, Any] = json.load(response)
        return found


def test_under_a_preloading_gunicorn_a_used_client_is_refused(namesrv: str, tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(HEAD + PRELOADED, encoding="utf-8")
    with gunicorn(tmp_path, namesrv) as url:
        assert_refused_at_once(list(answer(url).values()))


def test_under_a_preloading_gunicorn_a_client_made_after_the_fork_works(
    namesrv: str, tmp_path: Path
) -> None:
    (tmp_path / "app.py").write_text(HEAD + AFTER_THE_FORK, encoding="utf-8")
    (tmp_path / "conf.py").write_text(CONFIGURATION, encoding="utf-8")
    with gunicorn(tmp_path, namesrv, "--config=conf.py") as url:
        assert answer(url)["own"][0] == "done"


def test_under_uwsgi_a_used_client_is_refused_when_python_is_notified_of_the_fork(
    namesrv: str, tmp_path: Path
) -> None:
    (tmp_path / "app.py").write_text(HEAD + PRELOADED, encoding="utf-8")
    with uwsgi(tmp_path, namesrv, "--py-call-osafterfork", kill=True) as url:
        assert_refused_at_once(list(answer(url).values()))


@pytest.mark.parametrize(
    ("made", "options"),
    [(BY_POSTFORK, ()), (IN_EACH_WORKER, ("--lazy-apps",))],
    ids=["postfork", "lazy-apps"],
)
def test_under_uwsgi_a_client_made_after_the_fork_works(
    namesrv: str, tmp_path: Path, made: str, options: tuple[str, ...]
) -> None:
    (tmp_path / "app.py").write_text(HEAD + AFTER_THE_FORK + made, encoding="utf-8")
    with uwsgi(tmp_path, namesrv, *options, after_fork="made a client") as url:
        assert answer(url)["own"][0] == "done"
