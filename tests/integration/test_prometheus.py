"""Prometheus over a suite under load: rules, panels, and alerts that are caused."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
from pathlib import Path

from aerobee.broker.v1 import client_pb2, message_pb2

from support.broker.calls import BrokerCaller
from support.clock.polling import until_sync
from support.observing.prometheus import FOLDER, Prometheus, prometheus, tool
from support.processes.service import METRICS, broker_process, namesrv_process, proxy_process
from support.repository.tree import ROOT

# Panels of what the suite below does not have.
WITHOUT_DATA = re.compile(
    r"aerobee_replica_|aerobee_subscription|lease|pop_revive_retry|commit_messages|lateness"
    r'|half_messages|is_retry="true"|response_code!="success"|request_code="send"'
)


def test_the_rules_pass_their_tests() -> None:
    promtool = tool("promtool")
    for arguments in (
        ("check", "config", "prometheus.yml"),
        ("check", "rules", "alerts.yml"),
        ("test", "rules", "alerts_test.yml"),
    ):
        done = subprocess.run(
            [promtool, *arguments],
            cwd=FOLDER,
            check=False,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stdout + done.stderr


async def begin(address: str) -> None:
    """A group with a dead letter and one that lags and has no members; two that contradict."""
    async with BrokerCaller(address) as caller:
        await caller.put_topic("t")
        for group in ("g", "idle", "contrary"):
            await caller.put_group(group, attempts=1)
        for client, expression in (("a", "one"), ("b", "two")):
            data = client_pb2.ConsumerData(
                consumer_group="contrary",
                subscriptions=[message_pb2.Subscription(topic="t", expression=expression)],
            )
            beat = client_pb2.HeartbeatRequest(
                client_id=client, producer_groups=["p"], consumers=[data]
            )
            await caller.call(caller.clients.Heartbeat, beat)
        [dead] = await caller.send("t", b"dead")
        await caller.give_back("g", dead.physical_offset)
        await load(address)


async def load(address: str) -> None:
    async with BrokerCaller(address) as caller:
        await caller.send_batch("t", [b"a"] * 300)
        for group in ("g", "idle"):
            await caller.pull(group, "t", max_messages=5, commit_offset=0)


def panels() -> list[tuple[str, str]]:
    found = []
    for path in sorted((ROOT / "deploy" / "grafana").glob("*.json")):
        for panel in json.loads(path.read_text(encoding="utf-8"))["panels"]:
            query = panel["targets"][0]["expr"].replace("$__rate_interval", "30s")
            found.append(
                (f"{path.stem}: {panel['title']}", re.sub(r"\$(cluster|topic|group)", ".*", query))
            )
    return found


def without_data(running: Prometheus) -> list[str]:
    """The panels without data, of those of which something happens here. Each query is valid."""
    return [
        title
        for title, query in panels()
        if not running.query(query) and not WITHOUT_DATA.search(query)
    ]


def test_panels_have_data_and_alerts_fire(tmp_path: Path) -> None:
    """A name server and a proxy that go, a dead letter, lag without members, contradiction."""
    with (
        namesrv_process(tmp_path / "n", *METRICS) as namesrv,
        broker_process(tmp_path / "b", *METRICS, namesrv=namesrv.address) as broker,
        proxy_process(namesrv.address, *METRICS) as proxy,
    ):
        jobs = {"nameserver": namesrv, "broker": broker, "proxy": proxy}
        targets = {f"aerobee-{name}": str(each.ready["metrics"]) for name, each in jobs.items()}
        asyncio.run(begin(broker.address))
        with prometheus(tmp_path, targets) as running:

            def measured() -> bool:
                asyncio.run(load(broker.address))
                lag = running.query('rocketmq_consumer_lag_messages{consumer_group="idle"} > 1000')
                return bool(lag)

            until_sync(measured, "the lag grows")
            until_sync(lambda: not without_data(running), "each panel has data")
            caused = {
                "AerobeeDeadLetters",
                "AerobeeLagWithoutMembers",
                "AerobeeSubscriptionsDiffer",
            }
            until_sync(lambda: caused <= running.firing(), "three alerts fire")
            assert not running.firing() & {"AerobeeProxyDown", "AerobeeNameServerDown"}
            proxy.stop()
            namesrv.stop()
            gone = {"AerobeeProxyDown", "AerobeeNameServerDown"}
            until_sync(lambda: gone <= running.firing(), "two more alerts fire")
            assert "AerobeeBrokerDown" not in running.firing()
            assert "AerobeeInsecure" not in running.firing()
