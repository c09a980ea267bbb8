"""Whether the consumers of a group read its retry topic."""

from __future__ import annotations

import pytest

from aerobee_client.admin.descriptions import ClientDescription
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
def test_consumers_of_the_official_sdks_read_no_retry_topic(
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
