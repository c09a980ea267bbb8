"""An official SDK at the proxy of the plugin's suite: a push consumer whose messages die in virtual
time.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from aerobee_client import AdminClient
from aerobee_client.admin.letters import LetterJobSpec
from aerobee_client.testing import RocketMq
from support.clock.polling import until_sync
from support.proxy import sdk_cluster
from support.proxy.official_sdk import Sdk, newest

pytestmark = pytest.mark.slow

ATTEMPTS = 4


@pytest.mark.parametrize("language", ["python", "node"])
def test_each_retry_is_delivered_and_refused_before_time_goes_on(
    rocketmq: RocketMq, tmp_path: Path, language: str
) -> None:
    topic = rocketmq.topic(queues=1)
    group = rocketmq.group(max_attempts=ATTEMPTS)
    with Sdk(newest(language), rocketmq.proxy, tmp_path) as sdk:
        subscriptions = {topic: sdk_cluster.ALL}
        sdk.do("push", id="c", group=group, subscriptions=subscriptions, succeed_from=99)
        (body,) = sdk_cluster.send(sdk, topic, 1)
        rocketmq.advance(hours=1)
        delivered = sdk_cluster.delivered(sdk, "c", ATTEMPTS)
        assert sdk_cluster.bodies_of(delivered) == [body] * ATTEMPTS
        (letter,) = rocketmq.dead_letters(group)
        assert letter.body.decode() == body
        # To the group alone: the SDK receives it for its topic, settles it, and it dies again.
        with AdminClient(rocketmq.namesrv) as admin:
            (broker,) = admin.broker_times_ms()
            spec = LetterJobSpec(consumer_group=group, target="group")
            admin.start_letter_job(broker, f"again-{language}", spec)
            until_sync(lambda: admin.letter_jobs(consumer_group=group)[0].state == "done")
        rocketmq.advance(hours=1)
        delivered = sdk_cluster.delivered(sdk, "c", 2 * ATTEMPTS)
        assert sdk_cluster.bodies_of(delivered) == [body] * 2 * ATTEMPTS
        assert {each["topic"] for each in delivered} == {topic}
        assert len(rocketmq.dead_letters(group)) == 2
