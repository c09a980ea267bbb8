"""`aerobee up`: real services, real ports, real signals."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import urllib.request
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from aerobee_cli.processes.suite import OnDemandConsole
from support.clock.polling import until, until_sync
from support.processes.command import (
    COMMAND,
    Up,
    aerobee,
    aerobee_json,
    children,
    command_line,
    is_alive,
)
from support.processes.terminal import Terminal


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Up]:
    with Up(tmp_path) as up:
        yield up


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """For tests that leave it as it is."""
    with Up(tmp_path_factory.mktemp("data")) as up:
        yield up


def can_connect(address: str) -> bool:
    host, _, port = address.rpartition(":")
    with socket.socket() as client:
        return client.connect_ex((host, int(port))) == 0


def lines(up: Up) -> list[str]:
    """What it printed, except a warning about this machine's disk."""
    return [line for line in up.stdout.splitlines() if "the disk of the store" not in line]


def test_a_variable_is_an_option_of_all_three_services(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AEROBEE_METRICS_EXPORTER_TYPE", "LOG")
    monkeypatch.setenv("AEROBEE_METRIC_LOGGING_EXPORTER_INTERVAL_IN_MILLS", "200")
    with Up(tmp_path, "--log-format", "json") as up:

        def exporting() -> set[str]:
            events = map(json.loads, filter(None, up.stderr.splitlines()))
            metrics = (each for each in events if each["event"] == "metric")
            return {each["labels"]["node_type"] for each in metrics}

        until_sync(lambda: exporting() == {"nameserver", "broker", "proxy"}, timeout_s=60)


def test_the_ready_line_has_every_address(shared: Up) -> None:
    address = r"127\.0\.0\.1:\d+"
    until_sync(lambda: len(lines(shared)) >= 3, "the remark comes behind the ready line")
    ready, console, remark = lines(shared)
    assert re.fullmatch(f"ready namesrv={address} broker={address} proxy={address}", ready)
    assert re.fullmatch(f"console http://{address} starts with its first visitor", console)
    assert "autoCreateTopicEnable" in remark
    assert can_connect(shared.namesrv) and can_connect(shared.broker) and can_connect(shared.proxy)


def visit(address: str) -> int:
    with urllib.request.urlopen(f"http://{address}", timeout=30) as answer:
        return int(answer.status)


def test_the_console_starts_with_its_first_visitor(shared: Up) -> None:
    def consoles() -> list[int]:
        ours = children(shared.process.pid)
        return [pid for pid in ours if "aerobee_console" in command_line(pid)]

    assert consoles() == []
    assert visit(f"{shared.console}/brokers") == 200 and len(consoles()) == 1


async def test_a_console_ends_after_its_last_visitor_and_starts_again() -> None:
    lines: list[str] = []

    def has_ended(times: int) -> bool:
        return sum('"stopped"' in line for line in lines) == times

    console = OnDemandConsole(0, lines.append, idle_s=0.3)
    serving = asyncio.create_task(console.serve("127.0.0.1:1"))
    try:
        for ends in (1, 2):
            assert await asyncio.to_thread(visit, f"{console.address}/keys") == 200
            await until(partial(has_ended, ends))
    finally:
        serving.cancel()
        await console.stop()
    assert not can_connect(console.address)


def test_a_port_of_the_console_that_is_in_use_is_named(shared: Up, tmp_path: Path) -> None:
    port = shared.console.rpartition(":")[2]
    done = aerobee("up", "--data", str(tmp_path), "--console-port", port)
    assert done.returncode == 1 and f"127.0.0.1:{port}" in done.stderr
    assert done.stderr.count("\n") == 1


def test_logs_go_to_stderr_as_json(shared: Up) -> None:
    def all_said_ready() -> bool:  # the two pipes are read by two threads
        events = [json.loads(line) for line in shared.stderr.splitlines()]
        said = {event["service"] for event in events if event["event"] == "ready"}
        return said >= {"namesrv", "broker", "proxy"}

    until_sync(all_said_ready)


def test_on_a_terminal_all_of_it_is_for_people(tmp_path: Path) -> None:
    ports = [f"--{name}-port=0" for name in ("namesrv", "broker", "proxy", "console")]
    # A mark that every disk is above: the hint of a nearly full one is shown.
    full = ("--set", "diskMaxUsedSpaceRatio=1")
    command = [*COMMAND, "up", "--data", str(tmp_path), *ports, *full]
    with Terminal(command, columns=80) as terminal:
        terminal.until_shown("(?s)ready namesrv.*and dead letters")
        for service in ("namesrv", "broker", "proxy"):
            terminal.until_shown(rf"Z {service:<7} \[info     \] ready ")
        assert terminal.end() == 0
    assert "{" not in terminal.text
    said = [line for line in terminal.lines if not re.match(r"\^C|\d\d:\d\d:\d\dZ ", line)]
    assert said[0].startswith("ready namesrv=") and all(len(line) <= 80 for line in said)
    assert said[1].startswith("console http://127.0.0.1:")
    assert said[2:4] == [
        "topics are created by their first use; to create them by hand only: --set",
        "autoCreateTopicEnable=false",
    ]
    assert "also unread messages and dead letters" in " ".join(said[4:])


def test_the_format_of_the_logs_can_be_chosen(tmp_path: Path) -> None:
    with Up(tmp_path, "--log-format", "console") as up:
        until_sync(lambda: len(re.findall(r"Z \w+ +\[info     \] ready  ", up.stderr)) == 3)
    done = aerobee("up", "--set", "proxy.logFormat=console")
    assert done.returncode == 2 and "--log-format" in done.stderr


def test_the_broker_is_known_when_it_is_ready(shared: Up) -> None:
    (broker,) = aerobee_json("cluster", "list", namesrv=shared.namesrv)
    assert broker["address"] == shared.broker


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_stops_everything_in_order(tmp_path: Path, number: signal.Signals) -> None:
    with Up(tmp_path) as up:
        pids = children(up.process.pid)
        assert len(pids) == 3
        assert up.end(number) == 0
    assert not any(map(is_alive, pids))
    stopped = [
        event["service"]
        for event in map(json.loads, up.stderr.splitlines())
        if event["event"] == "stopped"
    ]
    assert stopped == ["proxy", "broker", "namesrv"]
    assert not can_connect(up.namesrv) and not can_connect(up.broker)
    assert len(lines(up)) == 3


def test_one_process_serves_and_stops_in_order(tmp_path: Path) -> None:
    with Up(tmp_path, "--one-process") as up:
        (child,) = children(up.process.pid)
        assert not children(child)
        assert can_connect(up.namesrv) and can_connect(up.broker) and can_connect(up.proxy)
        (broker,) = aerobee_json("cluster", "list", namesrv=up.namesrv)
        assert broker["address"] == up.broker
        assert up.end(signal.SIGTERM) == 0
    assert not is_alive(child)
    assert not can_connect(up.namesrv) and not can_connect(up.broker)


def test_no_service_outlives_the_killed_command(up: Up) -> None:
    pids = children(up.process.pid)
    up.end(signal.SIGKILL)
    until_sync(lambda: not any(map(is_alive, pids)), "all services have ended")


@pytest.mark.parametrize("module", ["aerobee_namesrv", "aerobee_broker", "aerobee_proxy"])
def test_one_service_that_dies_stops_the_others(up: Up, module: str) -> None:
    pids = children(up.process.pid)
    os.kill(up.service_pid(module), signal.SIGKILL)
    assert up.wait() == 1
    name = module.removeprefix("aerobee_")
    assert up.stderr.splitlines()[-1] == f"error: {name} ended by SIGKILL: see its log"
    assert not any(map(is_alive, pids))


def refused(data: Path, *arguments: str) -> str:
    """The last line of a start that fails."""
    ports = ("--namesrv-port", "--broker-port", "--proxy-port")
    free = [f"{port}=0" for port in ports if port not in arguments]
    done = aerobee("up", "--data", str(data), *free, *arguments)
    assert done.returncode == 1 and not done.stdout
    return done.stderr.splitlines()[-1]


def test_a_port_in_use_is_one_line(shared: Up, tmp_path: Path) -> None:
    port = shared.broker.rpartition(":")[2]
    error = refused(tmp_path / "other", "--broker-port", port)
    assert error.startswith("error: broker: ") and port in error


def test_a_data_directory_in_use_is_one_line(shared: Up) -> None:
    error = refused(shared.data)
    assert error.startswith("error: ") and str(shared.data) in error


@pytest.mark.parametrize(
    ("item", "service", "nearest"),
    [
        ("flushDiskTyp=ASYNC_FLUSH", "broker", "flushDiskType"),
        ("namesrv.listenPrt=1", "namesrv", "listenPort"),
        ("proxy.maxMessageSiz=1", "proxy", "maxMessageSize"),
    ],
)
def test_an_unknown_option_is_refused_with_the_nearest(
    tmp_path: Path, item: str, service: str, nearest: str
) -> None:
    error = refused(tmp_path, "--set", item)
    assert error.startswith(f"error: {service}: ") and nearest in error


def test_messages_survive_a_restart(tmp_path: Path) -> None:
    with Up(tmp_path) as up:
        aerobee_json("topic", "create", "orders", "--queues", "3", namesrv=up.namesrv)
        sent = aerobee_json("message", "send", "orders", "hello", namesrv=up.namesrv)
        assert up.end(signal.SIGTERM) == 0
    with Up(tmp_path) as up:
        queues = aerobee_json("topic", "status", "orders", namesrv=up.namesrv)
        assert len(queues) == 3
        (found,) = aerobee_json(
            "message", "query", "orders", "--id", sent["message_id"], namesrv=up.namesrv
        )
        assert found["queue_offset"] == sent["queue_offset"]


@pytest.mark.parametrize("service", ["namesrv", "broker"])
def test_a_service_can_be_run_alone(service: str) -> None:
    done = aerobee(service, "--print-config", "--port", "4711")
    assert done.returncode == 0
    assert json.loads(done.stdout)["listenPort"] == 4711


def test_shards_are_brokers_that_end_with_it(tmp_path: Path) -> None:
    with Up(tmp_path, "--set", "shards=2", "--set", "brokerName=broker-a") as up:
        assert len(up.broker.split(",")) == 2 and all(map(can_connect, up.broker.split(",")))
        found = aerobee_json("bench", "--check", namesrv=up.namesrv)
        assert {each["broker_name"] for each in found} == {"broker-a", "broker-a-1"}
        shards = children(up.service_pid("aerobee_broker"))
        assert len(shards) == 2
        up.process.kill()
        until_sync(lambda: not any(map(is_alive, shards)), "the shards to end")


def test_a_group_of_brokers_replicates_and_one_that_dies_comes_back(tmp_path: Path) -> None:
    with Up(tmp_path, "--replicas", "3", "--set", "brokerName=group") as up:
        assert len(up.broker.split(",")) == 3

        def replicas() -> dict[int, dict[str, object]]:
            shown = aerobee("broker", "ha-status", "group", "--json", namesrv=up.namesrv)
            found = json.loads(shown.stdout) if shown.stdout else []
            return {each["replica_id"]: each for each in found}

        def all_in_sync() -> bool:
            found = replicas()
            return len(found) == 3 and all(each["in_sync"] for each in found.values())

        until_sync(all_in_sync, "three in sync", timeout_s=60)
        aerobee_json("topic", "create", "t", namesrv=up.namesrv)
        aerobee_json("message", "send", "t", "before", namesrv=up.namesrv)
        assert replicas()[0]["role"] == "master"
        os.kill(up.service_pid("brokerId=0"), signal.SIGKILL)
        until_sync(
            lambda: replicas().get(0, {}).get("epoch") == 2 and all_in_sync(),
            "the master is back",
            timeout_s=60,
        )
        aerobee_json("message", "send", "t", "after", namesrv=up.namesrv)
        assert up.end(signal.SIGTERM) == 0
