"""A proxy process whose port takes TLS and plaintext: messages over both, and its end."""

from __future__ import annotations

import os
import signal
import socket
import ssl
import tempfile
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from aerobee.broker.v1 import message_pb2
from aerobee_foreign.apache.rocketmq.v2 import definition_pb2 as d
from aerobee_foreign.apache.rocketmq.v2 import service_pb2 as s

from aerobee_wire import record
from support.clock.polling import until_sync
from support.observing.scrape import scrape
from support.processes import certificates
from support.processes.command import children
from support.processes.service import METRICS, ServiceProcess, namesrv_and_broker, proxy_process
from support.proxy.client import METADATA
from support.stubs import Stub

NOWHERE = "127.0.0.1:1"  # no name server: these tests need none


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ServiceProcess, ...]]:
    """Broker and proxy."""
    with (
        namesrv_and_broker(tmp_path_factory.mktemp("cluster")) as (namesrv, broker),
        proxy_process(namesrv.address, *METRICS) as proxy,
    ):
        yield broker, proxy


@pytest.fixture
def scratch() -> Iterator[Path]:
    """For temporary files, with a path short enough for a socket's."""
    with tempfile.TemporaryDirectory(dir="/tmp") as directory:
        yield Path(directory)


def test_tls_and_plaintext_with_the_born_host(services: tuple[ServiceProcess, ...]) -> None:
    broker, proxy = services
    pem = ssl.get_server_certificate(("127.0.0.1", proxy.port))
    credentials = grpc.ssl_channel_credentials(pem.encode())
    topic = d.Resource(name="secret")
    with (
        grpc.secure_channel(f"localhost:{proxy.port}", credentials) as tls,
        grpc.insecure_channel(proxy.address) as plaintext,
    ):
        for number, channel in enumerate((tls, plaintext)):
            stub = Stub(s, channel)
            endpoints = d.Endpoints(
                scheme=d.AddressScheme.DOMAIN_NAME,
                addresses=[d.Address(host="localhost", port=proxy.port)],
            )
            route = stub.QueryRoute(
                s.QueryRouteRequest(topic=topic, endpoints=endpoints), metadata=METADATA, timeout=20
            )
            # The client is sent back to the endpoints that it dialled.
            assert {str(queue.broker.endpoints) for queue in route.message_queues} == {
                str(endpoints)
            }
            system = d.SystemProperties(message_id=f"01{number:032X}")
            message = d.Message(topic=topic, body=b"x", system_properties=system)
            answer = stub.SendMessage(
                s.SendMessageRequest(messages=[message]), metadata=METADATA, timeout=20
            )
            assert answer.status.code == d.Code.OK
    hosts = born_hosts(broker.address, "secret")
    assert len(hosts) == 2
    assert all(host.startswith("127.0.0.1:") for host in hosts)
    assert len(set(hosts)) == 2


def born_hosts(broker: str, topic: str) -> list[str]:
    found = []
    with grpc.insecure_channel(broker) as channel:
        stub = Stub(message_pb2, channel)
        for queue_id in range(8):
            request = message_pb2.PullRequest(
                topic=topic, queue_id=queue_id, max_messages=32, max_bytes=1 << 20, browse=True
            )
            records = stub.Pull(request, timeout=20).records
            found += [str(stored.born_host) for stored in record.iter_records(records)]
    return found


def test_connections_are_counted_by_kind(services: tuple[ServiceProcess, ...]) -> None:
    _, proxy = services
    ssl.get_server_certificate(("127.0.0.1", proxy.port))

    def counted() -> bool:
        found = scrape(proxy)
        assert found["aerobee_proxy_certificate_reload_failures_total"] == 0
        return found['aerobee_proxy_connections_total{security="tls"}'] >= 1

    until_sync(counted, "a connection in TLS")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_ended_proxy_leaves_no_process_and_no_file(scratch: Path, number: signal.Signals) -> None:
    with proxy_process(NOWHERE, env={"TMPDIR": str(scratch)}) as proxy:
        assert children(proxy.pid) == []
        # Connections of both kinds are open while it stops.
        plain = socket.create_connection(("127.0.0.1", proxy.port))
        plain.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        assert plain.recv(1)
        ssl.get_server_certificate(("127.0.0.1", proxy.port))
        # The key of the self-signed certificate is not in a file, and its maker has ended.
        assert list(scratch.iterdir()) == []
        assert children(proxy.pid) == []
        os.kill(proxy.pid, number)
        assert proxy.wait() == (-number if number is signal.SIGKILL else 0)
        assert list(scratch.iterdir()) == []
        with plain, socket.create_server(("127.0.0.1", proxy.port)):
            pass  # the port is free


def test_bad_certificate_at_the_start_is_one_line(tmp_path: Path) -> None:
    certificate, _ = certificates.write(tmp_path)
    _, key = certificates.write(tmp_path, "other")
    files = (f"--set=tlsCertPath={certificate}", f"--set=tlsKeyPath={key}")
    process = proxy_process(NOWHERE, *files)
    process.launch()
    assert process.wait() == 1
    assert process.stderr == (
        f"error: the private key {key} is not the one of the certificate {certificate}\n"
    )


def test_failed_certificate_reload_is_logged_and_counted(tmp_path: Path) -> None:
    certificate, key = certificates.write(tmp_path)
    files = (f"--set=tlsCertPath={certificate}", f"--set=tlsKeyPath={key}")
    often = "--set=tlsCertWatchIntervalMs=50"
    with proxy_process(NOWHERE, *files, often, *METRICS) as proxy:
        before = certificates.shown(proxy.port)
        assert before == certificates.serial(certificate)
        certificate.write_text("broken\n")
        event = "certificate_not_reloaded"
        [line] = until_sync(lambda: proxy.events(event), "an error in the log")
        assert line["level"] == "error" and str(certificate) in line["error"]
        assert certificates.shown(proxy.port) == before
        assert scrape(proxy)["aerobee_proxy_certificate_reload_failures_total"] == 1


def test_tls_can_be_turned_off(scratch: Path) -> None:
    environment = {"AEROBEE_TLS_SERVER_MODE": "disabled", "TMPDIR": str(scratch)}
    with proxy_process(NOWHERE, env=environment) as proxy:
        assert proxy.ready["tls"] == "disabled"
        assert children(proxy.pid) == []
        assert list(scratch.iterdir()) == []
        with pytest.raises(OSError):
            ssl.get_server_certificate(("127.0.0.1", proxy.port), timeout=20)
