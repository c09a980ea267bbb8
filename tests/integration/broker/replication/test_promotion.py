"""Looking at a broker group, and making another replica master by hand."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aerobee.broker.v1 import client_pb2
from prometheus_client.parser import text_string_to_metric_families

from aerobee_client import AdminClient
from aerobee_wire.epochs import PROMOTION_STEP
from aerobee_wire.status import Code, MqError
from support.broker.calls import BrokerCaller
from support.clock.polling import until, until_sync
from support.codes import raises_code
from support.etcd.etcd_process import etcd_members
from support.processes.broker_group import (
    BROKER,
    BrokerGroup,
    Member,
    broker_group,
)
from support.processes.sending import Sending
from support.processes.service import METRICS, run

MASTER, SLAVE, THREE = "brokerRole=SYNC_MASTER", "brokerRole=SLAVE", "totalReplicas=3"
STRICT = "inSyncReplicas=2"
TOPIC = "orders"


@pytest.fixture
def group(tmp_path: Path) -> Iterator[BrokerGroup]:
    with broker_group(tmp_path) as group:
        yield group


def three(group: BrokerGroup) -> tuple[Member, Member, Member]:
    """A master and two slaves, in sync."""
    master = group.add(MASTER, THREE)
    one, two = group.add_all(2, SLAVE, THREE, STRICT)
    group.until_in_sync(master, one, two)
    return master, one, two


async def bodies(address: str) -> set[bytes]:
    async with BrokerCaller(address) as caller:
        return {message.body for message in await caller.read(TOPIC)}


async def test_a_slave_is_promoted_and_the_master_hands_over_without_a_send_that_fails(
    group: BrokerGroup,
) -> None:
    master, one, two = three(group)
    with AdminClient(group.namesrv) as admin, Sending(group.namesrv, TOPIC) as sending:
        done = admin.promote_replica(BROKER, to=one.number)
        assert (done.replica_id, done.epoch, done.handed_over) == (one.number, PROMOTION_STEP, True)
        until_sync(one.leads_now, "it says so")
        sending.until_more()
        group.until_in_sync(one, master, two)
        again = admin.promote_replica(BROKER, to=one.number)
        assert (again.epoch, again.was_master) == (PROMOTION_STEP, True)
    assert not sending.failed
    assert set(sending.sent) <= await bodies(one.address)
    group.until_alike(one, master, two)


async def test_a_new_master_lists_members_once_they_have_had_time_to_register(
    group: BrokerGroup,
) -> None:
    """The first master of a group waits for nobody."""
    master, slave = (
        group.add(MASTER, "totalReplicas=2"),
        group.add(SLAVE, "totalReplicas=2", STRICT),
    )
    group.until_in_sync(master, slave)
    asked = client_pb2.ListGroupMembersRequest(consumer_group="readers")
    async with BrokerCaller(master.address) as caller:
        await caller.call(caller.clients.ListGroupMembers, asked)
    with AdminClient(group.namesrv) as admin:
        await asyncio.to_thread(admin.promote_replica, BROKER, to=slave.number)
    async with BrokerCaller(slave.address) as caller:
        with raises_code(Code.SERVICE_NOT_AVAILABLE):
            await caller.call(caller.clients.ListGroupMembers, asked)

        async def listed() -> bool:
            try:
                await caller.call(caller.clients.ListGroupMembers, asked)
            except MqError as error:
                if error.code is not Code.SERVICE_NOT_AVAILABLE:
                    raise
                return False
            return True

        await until(listed, "members are listed", timeout_s=30)


async def test_roles_outlive_restarts_once_a_replica_was_promoted(group: BrokerGroup) -> None:
    """The options still say that the first one is the master."""
    master, one, two = three(group)
    with AdminClient(group.namesrv) as admin:
        admin.promote_replica(BROKER, to=one.number)
    group.until_in_sync(one, master, two)
    for member in (master, one):
        member.process.stop()
    master.start()
    one.start()
    until_sync(one.leads_now, "the promoted one leads again", timeout_s=60)
    group.until_in_sync(one, master, two)
    assert not master.leads_now()


async def test_what_would_acknowledge_with_fewer_copies_is_not_promoted(
    group: BrokerGroup,
) -> None:
    master, slave = group.add(MASTER, "totalReplicas=2"), group.add(SLAVE, "totalReplicas=2")
    group.until_in_sync(master, slave)
    with AdminClient(group.namesrv) as admin:
        with raises_code(Code.ILLEGAL_OPERATION):
            admin.promote_replica(BROKER)
        with raises_code(Code.ILLEGAL_OPERATION):
            admin.promote_replica(BROKER, to=7)
    async with BrokerCaller(master.address) as caller:
        await caller.send(TOPIC, b"goes on")


async def test_a_replica_of_a_group_with_etcd_is_promoted(tmp_path: Path) -> None:
    with etcd_members(tmp_path) as [etcd], broker_group(tmp_path / "group", first=1) as group:
        members = group.add_all(3, MASTER, THREE, f"etcdEndpoints={etcd.endpoint}")
        master = group.until_led()
        others = [member for member in members if member is not master]
        group.until_in_sync(master, *others)
        with AdminClient(group.namesrv) as admin, Sending(group.namesrv, TOPIC) as sending:
            done = admin.promote_replica(BROKER, to=others[0].number)
            assert (done.epoch, done.handed_over) == (2, True)
            until_sync(others[0].leads_now, "it says so")
            sending.until_more()
            group.until_in_sync(others[0], master, others[1])
        assert not sending.failed
        assert set(sending.sent) <= await bodies(others[0].address)


async def test_the_commands_show_a_group_and_promote(group: BrokerGroup) -> None:
    master, one, two = three(group)
    shown = shown_by(group, "broker", "ha-status", BROKER)
    assert [(each["replica_id"], each["role"], each["in_sync"]) for each in shown] == [
        (0, "master", True),
        (1, "slave", True),
        (2, "slave", True),
    ]
    assert {each["epoch"] for each in shown} == {1}
    state = shown_by(group, "broker", "status", BROKER)
    assert (state["role"], state["epoch"]) == ("master", 1)
    assert state["in_sync_replicas"] == [0, 1, 2]
    assert state["required_replicas"] == 2
    listed = shown_by(group, "cluster", "list")
    assert {(each["broker_id"], each["role"]) for each in listed} == {
        (0, "master"),
        (1, "slave"),
        (2, "slave"),
    }
    assert replicas_that_are_ill(group) == set()
    two.process.kill()
    group.until_in_sync(master, one)
    assert f"{BROKER}" in replicas_that_are_ill(group)
    two.start()
    group.until_in_sync(master, one, two)
    done = shown_by(group, "broker", "promote", BROKER)
    assert done["handed_over"]
    assert done["replica_id"] in (one.number, two.number)
    until_sync(lambda: not master.leads_now(), "the old master says that it follows")


def replicas_that_are_ill(group: BrokerGroup) -> set[str]:
    """As the doctor says, who also looks at this machine."""
    done = run("aerobee_cli", "doctor", "--json", "--namesrv", group.namesrv)
    return {each["subject"] for each in json.loads(done.stdout) if each["check"] == "replica"}


def metrics_of(member: Member) -> dict[str, float]:
    """Name → value, summed over labels."""
    with urllib.request.urlopen(f"http://{member.process.ready['metrics']}/metrics") as page:
        families = list(text_string_to_metric_families(page.read().decode()))
    found: dict[str, float] = {}
    for sample in (sample for family in families for sample in family.samples):
        found[sample.name] = found.get(sample.name, 0.0) + sample.value
    return found


async def test_metrics_show_a_promotion_and_what_waits_for_replicas(
    group: BrokerGroup,
) -> None:
    exported = [setting.removeprefix("--set=") for setting in METRICS]
    master, slave = (
        group.add(MASTER, "totalReplicas=2", *exported),
        group.add(SLAVE, "totalReplicas=2", STRICT, *exported),
    )
    group.until_in_sync(master, slave)
    async with BrokerCaller(master.address) as caller:
        await caller.send(TOPIC, b"x" * 1_000)

    def reported(member: Member, name: str) -> float:
        return metrics_of(member).get(f"aerobee_replica_{name}", 0.0)

    await until(lambda: reported(master, "wait_seconds_count") > 0, "a flush has waited")
    await until(lambda: reported(slave, "received_bytes_total") > 1_000, "the slave was sent it")
    assert reported(master, "elections_total") == 1
    # The alerts of full disks and failed flushes see a slave too.
    health = {"aerobee_store_read_only", "aerobee_disk_full", "aerobee_disk_free_bytes"}
    await until(lambda: health <= metrics_of(slave).keys(), "the slave measures its disk")
    assert metrics_of(slave)["aerobee_disk_free_bytes"] > 0
    with AdminClient(group.namesrv) as admin:
        await asyncio.to_thread(admin.promote_replica, BROKER, to=slave.number)
    await until(lambda: reported(slave, "elections_total") == 1, "it was promoted")
    await until(lambda: reported(master, "following") == 1, "the old master follows", timeout_s=60)
    assert health <= metrics_of(master).keys()
    await until(lambda: "aerobee_replica_clock_offset_seconds" in metrics_of(slave), "clocks")


def shown_by(group: BrokerGroup, *arguments: str) -> Any:
    """The JSON that the command prints."""
    done = run("aerobee_cli", *arguments, "--json", "--namesrv", group.namesrv)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
