"""Two proxies of one broker: a client may talk to either, call by call."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from aerobee_foreign.apache.rocketmq.v2 import service_pb2 as s
from aerobee_foreign.apache.rocketmq.v2.definition_pb2 import Code

from aerobee_proxy.cluster.leasing.lease_renewal import SCAN_S
from support.proxy.harness import CLIENT_ID
from support.proxy.public_requests import GROUP, QUEUE, TOPIC, VALID, change
from support.proxy.whole_cluster import WholeCluster


async def received(cluster: WholeCluster) -> Any:
    """A leased message, whose lease the proxy renews; None if there is none within a second."""
    request = s.ReceiveMessageRequest(
        group=GROUP, message_queue=QUEUE, batch_size=1, auto_renew=True
    )
    request.long_polling_timeout.seconds = 1
    answers = await cluster.ask("ReceiveMessage", request)
    return answers[1].message if answers[0].status.code == Code.OK else None


async def time_passes(cluster: WholeCluster, seconds: float) -> None:
    """The first proxy renews, and its client stays alive."""
    while seconds > 0:
        await asyncio.sleep(SCAN_S)
        seconds -= SCAN_S
        cluster.proxy.sessions.touch(CLIENT_ID, cluster.clock.monotonic_ms())
        await cluster.proxy.lease_renewal.scan()


async def given_back(first: WholeCluster, second: WholeCluster, handle: str) -> None:
    request = change(handle)
    request.invisible_duration.seconds = 70
    (answer,) = await second.ask("ChangeInvisibleDuration", request)
    assert answer.status.code == Code.OK
    await time_passes(first, 71)
    assert not len(first.proxy.lease_renewal)
    again = await received(second)
    assert again is not None and again.system_properties.delivery_attempt == 2


async def settled(first: WholeCluster, second: WholeCluster, handle: str) -> None:
    (answer,) = await second.ask("AckMessage", VALID["AckMessage"](handle))
    assert answer.status.code == Code.OK
    await time_passes(first, 71)
    assert not len(first.proxy.lease_renewal)
    assert await received(second) is None


async def heard_elsewhere(first: WholeCluster, second: WholeCluster, handle: str) -> None:
    """The client's heartbeats go to the second proxy only, until it terminates there."""
    for _ in range(30):
        await second.ask("Heartbeat", VALID["Heartbeat"](""))
        await asyncio.sleep(10)
        await first.proxy.lease_renewal.scan()
    assert len(first.proxy.lease_renewal) == 1
    await second.ask("NotifyClientTermination", VALID["NotifyClientTermination"](""))
    await first.proxy.lease_renewal.scan()
    assert not len(first.proxy.lease_renewal)
    await asyncio.sleep(2)
    again = await received(second)
    assert again is not None and again.system_properties.delivery_attempt == 2


async def kept(first: WholeCluster, second: WholeCluster, handle: str) -> None:
    """Until the message is acknowledged, the first proxy renews its lease."""
    await time_passes(first, 600)
    assert len(first.proxy.lease_renewal) == 1
    assert await received(second) is None


@pytest.mark.parametrize("what", [given_back, settled, heard_elsewhere, kept])
async def test_lease_of_one_proxy_is_settled_through_another(tmp_path: Path, what: Any) -> None:
    first = await WholeCluster.begin(tmp_path)
    second = first.another_proxy()
    first.topic(TOPIC.name)
    await first.broker.group(GROUP.name)
    await first.ask("SendMessage", VALID["SendMessage"](""))
    message = await received(first)
    await what(first, second, message.system_properties.receipt_handle)
    await first.end()
