"""F1, F2 of lite topics: sends, subscriptions, settlements and a TTL, until the process is killed,
the power is cut, or it goes within a write; and what was answered holds, whatever derived file is
lost or torn.

A failure names its seed; `pytest tests/fault -k test_lite_topics --fault-seed SEED` plays it again.
"""

from __future__ import annotations

import pytest

from aerobee_broker.delivery.lite import ttl
from fault.conftest import Campaign
from fault.slow_disk import on_a_virtual_loop
from support.lite.crash_history import ENDINGS, TTL_MS, LiteHistory


def test_each_lite_topic_keeps_its_order_what_was_stored_and_what_was_settled(
    campaign: Campaign, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ttl, "MINUTE_MS", TTL_MS)
    monkeypatch.setattr(ttl, "SLICE", 2)
    histories = sent = settled = 0
    for seed in campaign.seeds(18, 3_000):
        print(f"seed {seed}")
        ending, expires = ENDINGS[seed % len(ENDINGS)], seed // len(ENDINGS) % 2 == 1
        history = LiteHistory(seed, ending, expires=expires)
        on_a_virtual_loop(history.run)
        histories += 1
        sent += len(history.stored_ms)
        settled += history.settled
    campaign.report(
        f"{histories:,} histories of three crashes, {sent:,} messages acknowledged, {settled:,}"
        " acknowledgements of three groups, 0 lost, 0 again, 0 out of order"
    )
