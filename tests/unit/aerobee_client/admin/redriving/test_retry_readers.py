"""Whether the consumers of a group read its retry topic."""

from __future__ import annotations

import pytest

from aerobee_client.admin.descriptions import ClientDescription, ConsumerDescription
from aerobee_client.admin.redriving.letter_job import reads_retries
from support.client.dead_letters import GROUP, RETRY


@pytest.mark.parametrize(
    ("connected", "expected"),
    [
        ([], True),
        ([{"orders": "*"}], False),
        ([{"orders": "*"}, {"orders": "*", RETRY: "*"}], True),
        ([{"orders": "*", "%RETRY%other": "*"}], False),
    ],
)
def test_a_consumer_that_pulls_reads_the_retry_topic_if_it_subscribes_to_it(
    connected: list[dict[str, str]], expected: bool
) -> None:
    clients = [
        ClientDescription(
            client_id="c",
            address="",
            language="",
            version="",
            consumer_groups=(GROUP,),
            subscriptions=subscriptions,
        )
        for subscriptions in connected
    ]
    assert reads_retries(clients, GROUP) is expected


@pytest.mark.parametrize(("consume_type", "expected"), [("pop", True), ("push", False)])
def test_consumers_of_the_official_sdks_read_the_retry_topic(
    consume_type: str, expected: bool
) -> None:
    client = ClientDescription(
        client_id="c",
        address="",
        language="",
        version="",
        consumer_groups=(GROUP,),
        consumers={GROUP: ConsumerDescription(consume_type=consume_type)},
        subscriptions={"orders": "*"},
    )
    assert reads_retries([client], GROUP) is expected
