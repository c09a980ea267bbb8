"""Several workers on one port: all of them serve, one that dies is replaced, none outlives the
parent, and clients notice nothing but a connection that breaks."""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path

import pytest
from aerobee_foreign.apache.rocketmq.v2.definition_pb2 import Code

from support.clock.polling import until_sync
from support.processes.service import (
    METRICS,
    ServiceProcess,
    drain,
    proxy_process,
)
from support.proxy.client import Client

TOPIC = "worked"
COUNT = 3


def proxy(namesrv: ServiceProcess, *options: str) -> ServiceProcess:
    return proxy_process(namesrv.address, f"--set=workers={COUNT}", *options)


def alive(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False


@pytest.mark.parametrize("mode", ["permissive", "disabled"])
def test_calls_over_several_workers(namesrv: ServiceProcess, mode: str) -> None:
    with proxy(namesrv, f"--set=tlsServerMode={mode}") as started:
        assert len(started.ready["workers"]) == COUNT
        clients = [Client(started.address) for _ in range(6)]
        queue = clients[0].queue(TOPIC)
        assert queue.broker.endpoints == clients[0].endpoints
        for number in range(12):
            assert clients[number % 6].send(TOPIC, b"x").status.code == Code.OK
        seen: set[str] = set()

        def all_settled() -> bool:
            for number, client in enumerate(clients):
                for message in client.receive(queue):
                    # Acknowledged over another connection.
                    assert clients[number - 1].ack(message) == Code.OK
                    assert message.system_properties.message_id not in seen
                    seen.add(message.system_properties.message_id)
            return len(seen) == 12

        until_sync(all_settled, "all messages, each once")
        for client in clients:
            client.channel.close()
    assert not started.events("rpc_failed") and not started.events("worker_failed")


def test_dead_worker_is_replaced_and_all_stop_with_the_parent(namesrv: ServiceProcess) -> None:
    with proxy(namesrv) as started:
        first = started.ready["workers"]
        os.kill(first[0], signal.SIGKILL)
        until_sync(lambda: started.events("worker_serves_again"), "another worker")
        (line,) = started.events("worker_ended")
        assert line["exit_code"] == -signal.SIGKILL
        with Client(started.address) as client:
            client.queue(TOPIC)
        assert started.stop() == 0
        assert not any(map(alive, first))
        assert len(started.events("stopped")) >= COUNT


def test_all_workers_drain(namesrv: ServiceProcess) -> None:
    with proxy(namesrv, *METRICS) as started, Client(started.address) as client:
        client.queue(TOPIC)
        workers = started.ready["workers"]
        drain(started)
        assert all(map(alive, workers))
        with pytest.raises(OSError):
            socket.create_connection(("127.0.0.1", started.port))
        assert started.stop() == 0


def test_killed_parent_leaves_no_worker(namesrv: ServiceProcess) -> None:
    with proxy(namesrv) as started:
        workers = started.ready["workers"]
        assert all(map(alive, workers))
        started.kill()
        until_sync(lambda: not any(map(alive, workers)), "the workers to end")


def test_port_in_use_is_one_error(namesrv: ServiceProcess) -> None:
    with proxy(namesrv) as started:
        other = proxy(namesrv)
        other.arguments[1] = str(started.port)
        other.launch()
        assert other.wait() == 1
        assert other.stderr.count("error: cannot listen on") == 1


def test_parent_exits_when_workers_cannot_start(namesrv: ServiceProcess, tmp_path: Path) -> None:
    users = f"authenticationUsersFile={tmp_path / 'none.json'}"
    broken = proxy(namesrv, "--set", "authenticationEnabled=true", "--set", users)
    broken.launch()
    assert broken.wait() == 1
    assert str(tmp_path / "none.json") in broken.stderr


def test_each_worker_has_its_own_metrics(namesrv: ServiceProcess) -> None:
    with proxy(namesrv, *METRICS) as started:
        assert len(set(started.ready["metrics"])) == COUNT
