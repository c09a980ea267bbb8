"""Several workers on one port: all of them serve, one that dies is replaced, none outlives the
parent, and clients notice nothing but a connection that breaks."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from apache.rocketmq.v2 import definition_pb2 as d
from apache.rocketmq.v2 import service_pb2 as s
from apache.rocketmq.v2 import service_pb2_grpc

from support.clock.polling import until_sync
from support.processes.service import ServiceProcess

METADATA = (("x-mq-client-id", "host@1@0@abc"),)
GROUP, TOPIC = d.Resource(name="workers"), d.Resource(name="worked")
COUNT = 3


@pytest.fixture(scope="module")
def namesrv(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    data = ("--port", "0", "--data", str(tmp_path_factory.mktemp("cluster")))
    with (
        ServiceProcess("aerobee_namesrv", *data) as namesrv,
        ServiceProcess("aerobee_broker", *data, "--namesrv", namesrv.address),
    ):
        yield namesrv


def proxy(namesrv: ServiceProcess, *options: str) -> ServiceProcess:
    return ServiceProcess(
        *("aerobee_proxy", "--port", "0", "--namesrv", namesrv.address),
        *("--set", f"workers={COUNT}", *options),
    )


class Client:
    """A channel with a connection of its own, which any worker may get."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self.endpoints = d.Endpoints(
            scheme=d.AddressScheme.IPv4, addresses=[d.Address(host=host, port=int(port))]
        )
        self.channel = grpc.insecure_channel(
            address, options=(("grpc.use_local_subchannel_pool", 1),)
        )
        self.stub = service_pb2_grpc.MessagingServiceStub(self.channel)

    def ask(self, rpc: str, request: Any) -> Any:
        return getattr(self.stub, rpc)(request, metadata=METADATA, timeout=30, wait_for_ready=True)

    def queue(self) -> d.MessageQueue:
        request = s.QueryRouteRequest(topic=TOPIC, endpoints=self.endpoints)
        queue = self.ask("QueryRoute", request).message_queues[0]
        assert isinstance(queue, d.MessageQueue)
        assert queue.broker.endpoints == self.endpoints
        return queue

    def send(self, message_id: str) -> int:
        system = d.SystemProperties(message_id=message_id)
        message = d.Message(topic=TOPIC, body=b"x", system_properties=system)
        answer = self.ask("SendMessage", s.SendMessageRequest(messages=[message]))
        return int(answer.status.code)

    def receive(self, queue: d.MessageQueue) -> list[d.Message]:
        request = s.ReceiveMessageRequest(group=GROUP, message_queue=queue, batch_size=32)
        request.invisible_duration.seconds = 60
        request.long_polling_timeout.seconds = 1
        answers = self.ask("ReceiveMessage", request)
        return [answer.message for answer in answers if answer.HasField("message")]

    def ack(self, message: d.Message) -> int:
        system = message.system_properties
        entry = s.AckMessageEntry(
            message_id=system.message_id, receipt_handle=system.receipt_handle
        )
        request = s.AckMessageRequest(group=GROUP, topic=TOPIC, entries=[entry])
        return int(self.ask("AckMessage", request).status.code)


def alive(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False


def test_calls_over_several_workers(namesrv: ServiceProcess) -> None:
    with proxy(namesrv) as started:
        assert len(started.ready["workers"]) == COUNT
        clients = [Client(started.address) for _ in range(6)]
        queue = clients[0].queue()
        for number in range(12):
            assert clients[number % 6].send(f"M{number}") == d.Code.OK
        seen: set[str] = set()

        def all_settled() -> bool:
            for number, client in enumerate(clients):
                for message in client.receive(queue):
                    # Acknowledged over another connection.
                    assert clients[number - 1].ack(message) == d.Code.OK
                    assert message.system_properties.message_id not in seen
                    seen.add(message.system_properties.message_id)
            return len(seen) == 12

        until_sync(all_settled, "all messages, each once")
        for client in clients:
            client.channel.close()
    assert not started.events("rpc_failed") and not started.events("worker_failed")


def test_dead_worker_is_replaced_and_all_stop_with_the_parent(
    namesrv: ServiceProcess,
) -> None:
    with proxy(namesrv) as started:
        first = started.ready["workers"]
        os.kill(first[0], signal.SIGKILL)
        until_sync(lambda: started.events("worker_serves_again"), "another worker")
        (line,) = started.events("worker_ended")
        assert line["exit_code"] == -signal.SIGKILL
        client = Client(started.address)
        client.queue()
        client.channel.close()
        assert started.stop() == 0
        assert not any(map(alive, first))
        assert len(started.events("stopped")) >= COUNT


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
    assert "cannot read the file of users" in broken.stderr


def test_each_worker_has_its_own_metrics(namesrv: ServiceProcess) -> None:
    metrics = ("--set", "metricsExporterType=PROM", "--set", "metricsPromExporterPort=0")
    with proxy(namesrv, *metrics) as started:
        assert len(set(started.ready["metrics"])) == COUNT


def test_workers_need_relays() -> None:
    process = ServiceProcess(
        *("aerobee_proxy", "--port", "0", "--namesrv", "127.0.0.1:9876"),
        *("--set", "workers=2", "--set", "tlsServerMode=disabled"),
    )
    process.launch()
    assert process.wait() == 2
    assert "tlsServerMode=disabled allows one" in process.stderr
