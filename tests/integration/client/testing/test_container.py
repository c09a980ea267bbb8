"""RocketMqContainer with a real engine, and an image that deploy/Dockerfile makes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from aerobee_client import AdminClient, Code, Message, Producer, PushConsumer, ReceivedMessage
from aerobee_client.testing import RocketMqContainer
from support.codes import raises_code
from support.processes.engine import built_image, require_engine

pytestmark = [pytest.mark.engine, pytest.mark.slow]


@pytest.fixture(scope="module")
def image() -> Iterator[str]:
    require_engine()
    with built_image() as name:
        yield name


@pytest.fixture
def no_reaper(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its image would be pulled; every container here is stopped by `with`."""
    from testcontainers.core.config import testcontainers_config

    monkeypatch.setattr(testcontainers_config, "ryuk_disabled", True)


@pytest.mark.usefixtures("no_reaper")
def test_a_container_serves_a_client_of_the_host_by_the_routes_that_it_gives(image: str) -> None:
    with RocketMqContainer(image) as container, container.rocketmq() as rocketmq:
        wrapped = container.get_wrapped_container()
        assert "Health" not in wrapped.attrs["State"]  # the image's check asks another port
        namesrv = container.namesrv
        topic, group = rocketmq.topic(), rocketmq.group(max_attempts=3)

        def refuse(message: ReceivedMessage) -> None:
            raise ValueError("no")

        consumer = PushConsumer(group, refuse, namesrv=namesrv)
        consumer.subscribe(topic)
        with consumer, Producer(namesrv=namesrv) as producer:
            producer.send(Message(topic=topic, body=b"7"))
            rocketmq.advance(minutes=1)
            (letter,) = rocketmq.dead_letters(group)
        assert letter.failure_reason == "ValueError"
        with AdminClient(namesrv) as admin:
            (broker,) = admin.cluster().brokers
            assert set(broker.addresses.values()) == {container.broker}
            before = len(rocketmq.messages(topic))
        rocketmq.kill_broker()
        rocketmq.restart_broker()
        assert len(rocketmq.messages(topic)) == before == 1


@pytest.mark.usefixtures("no_reaper")
def test_the_image_may_be_named_by_the_environment(
    image: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AEROBEE_IMAGE", image)
    with (
        RocketMqContainer(sets=["brokerName=mine"]) as container,
        AdminClient(container.namesrv) as admin,
    ):
        assert [broker.broker_name for broker in admin.cluster().brokers] == ["mine"]


def test_without_an_image_it_says_how_to_get_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AEROBEE_IMAGE", raising=False)
    with raises_code(Code.INVALID_PARAMETER) as raised:
        RocketMqContainer()
    assert "docker build" in str(raised.value)
