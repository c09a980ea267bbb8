"""Services, client and test kit without what only Linux has, as on macOS.

Each process takes the portable path: its Python lacks epoll, eventfd, fdatasync, posix_fallocate
and more (support/without_linux).
"""

from __future__ import annotations

import os
import select
import signal
import ssl
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from aerobee_chassis import healthcheck
from support.clock.polling import until_sync
from support.processes.command import Up, children, is_alive
from support.repository.tree import ROOT

RUN_TIMEOUT_S = 120.0
CLIENT = """
import select, sys, threading
from aerobee_client import ConsumeFromWhere, Message, Producer, PushConsumer

assert not hasattr(select, "epoll")
with Producer() as producer:
    for number in range(20):
        producer.send(Message("orders", f"{number}".encode()))
got, done = set(), threading.Event()

def take(message):
    got.add(int(message.body))
    if len(got) == 20:
        done.set()

with PushConsumer("billing", take, consume_from_where=ConsumeFromWhere.FIRST_OFFSET) as consumer:
    consumer.subscribe("orders")
    assert done.wait(60), got
print("received", len(got))
"""
TEST = """
import select
from aerobee_client import Message, Producer, PushConsumer

def test_an_order_that_always_fails_is_dead_lettered(rocketmq):
    assert not hasattr(select, "epoll")
    topic, group = rocketmq.topic("orders"), rocketmq.group("billing")
    consumer = PushConsumer(group, lambda message: int(message.body))
    consumer.subscribe(topic)
    with consumer, Producer() as producer:
        producer.send(Message(topic=topic, body=b"seven"))
        rocketmq.advance(hours=5)
        (letter,) = rocketmq.dead_letters(group)
    assert letter.failure_reason == "ValueError"
"""


@pytest.fixture
def without_linux(monkeypatch: pytest.MonkeyPatch) -> Mapping[str, str]:
    """The environment of all processes that the test starts."""
    path = [str(ROOT / "tests" / "support" / "without_linux"), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, path)))
    return os.environ


@pytest.fixture(params=[(), ("--one-process",)], ids=["processes", "one-process"])
def up(
    request: pytest.FixtureRequest, tmp_path: Path, without_linux: Mapping[str, str]
) -> Iterator[Up]:
    with Up(tmp_path, *request.param) as up:
        yield up


def run(*arguments: str, env: Mapping[str, str], cwd: Path) -> str:
    """Output of a Python. Fails the test when it fails."""
    done = subprocess.run(
        [sys.executable, *arguments], env=env, cwd=cwd, capture_output=True, text=True,
        timeout=RUN_TIMEOUT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_client_sends_and_receives(
    up: Up, tmp_path: Path, without_linux: Mapping[str, str]
) -> None:
    env = {**without_linux, "NAMESRV_ADDR": up.namesrv}
    assert run("-c", CLIENT, env=env, cwd=tmp_path) == "received 20\n"


def test_the_proxy_takes_plaintext_and_tls(up: Up) -> None:
    host, _, port = up.proxy.rpartition(":")
    assert healthcheck.serving(up.proxy)
    assert "BEGIN CERTIFICATE" in ssl.get_server_certificate((host, int(port)))
    assert healthcheck.ask_over_tls(host, int(port))


def test_everything_stops_in_order(up: Up) -> None:
    pids = children(up.process.pid)
    pids += [child for pid in pids for child in children(pid)]
    assert up.end(signal.SIGTERM) == 0
    until_sync(lambda: not any(map(is_alive, pids)), "every process has ended")


def test_the_test_kit_advances_time(tmp_path: Path, without_linux: Mapping[str, str]) -> None:
    (tmp_path / "test_orders.py").write_text(TEST)
    plugin = ("-p", "aerobee_client.testing.plugin", "-p", "no:cacheprovider")
    said = run("-m", "pytest", *plugin, "test_orders.py", env=without_linux, cwd=tmp_path)
    assert "1 passed" in said


def test_this_process_has_what_the_others_lack() -> None:
    assert hasattr(select, "epoll") == (sys.platform == "linux")
