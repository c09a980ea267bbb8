"""`aerobee broker config` and `aerobee namesrv config` against real processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from aerobee_cli.errors import INCOMPLETE
from aerobee_client import AdminClient, Code, Message, Producer
from support.clock.polling import until_sync
from support.codes import raises_code
from support.processes.broker_group import BROKER, broker_group
from support.processes.command import aerobee, aerobee_json
from support.processes.service import broker_process, namesrv_process


def value_of(namesrv: str, *arguments: str) -> tuple[Any, Any]:
    """The value and the source of an option of a single process."""
    [option] = aerobee_json(*arguments, namesrv=namesrv)
    return option["value"], option["source"]


def test_options_of_a_broker_change_without_a_restart_and_survive_one(tmp_path: Path) -> None:
    broker, limit = tmp_path / "broker", ("broker", "config", "get", "broker-a", "maxMessageSize")
    with namesrv_process(tmp_path / "namesrv") as servers:
        namesrv = servers.address
        with (
            broker_process(broker, namesrv=namesrv) as process,
            Producer("p", namesrv=namesrv) as producer,
        ):
            producer.send(Message("t", b"abcd"))
            change = ("maxMessageSize=3", "logLevel=debug", "autoCreateTopicEnable=false")
            [done] = aerobee_json("broker", "config", "set", "broker-a", *change, namesrv=namesrv)
            assert done == {"address": process.address, "without_effect": []}
            with raises_code(Code.MESSAGE_ILLEGAL):
                producer.send(Message("t", b"abcd"))
            with raises_code(Code.TOPIC_NOT_EXIST):
                producer.send(Message("new", b"abc"))
            assert value_of(namesrv, *limit) == ("3", "run time")
        with broker_process(broker, "--set=logLevel=info", namesrv=namesrv) as process:
            assert process.events("options_restored")
            [warning] = process.events("runtime_options_without_effect")
            assert warning["keys"] == ["logLevel"]
            assert value_of(namesrv, *limit) == ("3", "run time")
            again = aerobee(
                "broker", "config", "set", "broker-a", "logLevel=debug", namesrv=namesrv
            )
            assert again.returncode == INCOMPLETE and "logLevel" in again.stderr
            keys = ("maxMessageSize", "autoCreateTopicEnable")
            aerobee_json("broker", "config", "unset", process.address, *keys, namesrv=namesrv)
            assert value_of(namesrv, *limit) == ("4194304", "default")


def test_each_replica_gets_a_change_and_keeps_it_as_the_next_master(tmp_path: Path) -> None:
    copies = ("totalReplicas=2", "inSyncReplicas=2")
    change, limit = ("maxMessageSize=3",), ("broker", "config", "get", BROKER, "maxMessageSize")
    with broker_group(tmp_path) as group, AdminClient(group.namesrv) as admin:
        master = group.add("brokerRole=SYNC_MASTER", *copies)
        slave = group.add("brokerRole=SLAVE", *copies)
        group.until_in_sync(master, slave)
        done = aerobee_json("broker", "config", "set", BROKER, *change, namesrv=group.namesrv)
        assert {each["address"] for each in done} == {master.address, slave.address}
        shown = aerobee_json(*limit, namesrv=group.namesrv)
        assert [each["value"] for each in shown] == ["3", "3"]
        admin.promote_replica(BROKER, to=slave.number)
        until_sync(slave.leads_now, "it is master")
        with Producer("p", namesrv=group.namesrv) as producer:
            producer.send(Message("t", b"abc"))
            with raises_code(Code.MESSAGE_ILLEGAL):
                producer.send(Message("t", b"abcd"))


def test_switches_of_a_name_server_survive_a_restart(tmp_path: Path) -> None:
    switch = ("namesrv", "config", "get", "orderMessageEnable")
    with namesrv_process(tmp_path) as servers:
        namesrv = servers.address
        aerobee_json("namesrv", "config", "set", "orderMessageEnable=true", namesrv=namesrv)
        assert value_of(namesrv, *switch) == ("true", "run time")
    with namesrv_process(tmp_path) as servers:
        namesrv = servers.address
        assert value_of(namesrv, *switch) == ("true", "run time")
        aerobee_json("namesrv", "config", "unset", "orderMessageEnable", namesrv=namesrv)
        assert value_of(namesrv, *switch) == ("false", "default")


@pytest.mark.parametrize(
    ("pair", "hint"),
    [
        ("kvConfigPath=/etc/passwd", "can be set at start only"),
        ("enableTopicLst=true", "did you mean enableTopicList"),
        ("enableTopicList", "write orderMessageEnable=true"),
    ],
)
def test_what_may_not_change_is_refused_with_what_to_do(
    tmp_path: Path, pair: str, hint: str
) -> None:
    with namesrv_process(tmp_path) as servers:
        done = aerobee("namesrv", "config", "set", pair, namesrv=servers.address)
    assert done.returncode in (1, 2)
    assert hint in " ".join(done.stderr.split())
