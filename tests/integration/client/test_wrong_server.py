"""An address of another kind of server: the error names what is there, and what is needed."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from aerobee_client import AdminClient, Message, MqError, Producer, PushConsumer
from aerobee_wire.status import Code
from support.processes.command import aerobee
from support.processes.service import namesrv_and_broker, proxy_process


@pytest.fixture(scope="module")
def addresses(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    with (
        namesrv_and_broker(tmp_path_factory.mktemp("suite")) as (namesrv, broker),
        proxy_process(namesrv.address) as proxy,
    ):
        yield {"name server": namesrv.address, "broker": broker.address, "proxy": proxy.address}


def send(namesrv: str) -> None:
    with Producer(namesrv=namesrv) as producer:
        producer.send(Message("orders", b"x"))


def consume(namesrv: str) -> None:
    consumer = PushConsumer("g", print, namesrv=namesrv)
    consumer.subscribe("orders")
    consumer.start()


def administer(namesrv: str) -> None:
    with AdminClient(namesrv) as admin:
        admin.list_topics()


@pytest.mark.parametrize("call", [send, consume, administer])
@pytest.mark.parametrize("server", ["broker", "proxy"])
def test_what_is_no_name_server_is_named(
    addresses: dict[str, str], server: str, call: Callable[[str], None]
) -> None:
    with pytest.raises(MqError) as caught:
        call(addresses[server])
    assert caught.value.code is Code.REQUEST_CODE_NOT_SUPPORTED
    assert not caught.value.retryable
    assert f"{addresses[server]} is a {server}" in caught.value.message
    assert "9876" in caught.value.message


@pytest.mark.parametrize("server", ["name server", "proxy"])
def test_what_is_no_broker_is_named(addresses: dict[str, str], server: str) -> None:
    with AdminClient(addresses["name server"]) as admin, pytest.raises(MqError) as caught:
        admin.broker_status(addresses[server])
    assert f"{addresses[server]} is a {server}" in caught.value.message
    assert "10911" in caught.value.message


def test_a_port_of_a_proxy_that_does_not_administer_it_is_named(addresses: dict[str, str]) -> None:
    with AdminClient(addresses["name server"]) as admin, pytest.raises(MqError) as caught:
        admin.proxy_config(addresses["proxy"])
    assert "is a proxy: give the address of the administration port" in caught.value.message


def test_the_command_names_it_in_one_line(addresses: dict[str, str]) -> None:
    done = aerobee("topic", "list", namesrv=addresses["proxy"])
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert "is a proxy" in line
    done = aerobee("topic", "list", namesrv="127.0.0.1:1")
    (line,) = done.stderr.splitlines()
    assert "connection refused" in line and len(line) < 120
