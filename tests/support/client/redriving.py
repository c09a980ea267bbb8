"""Redrives of the group "billing", over a cluster in memory."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from aerobee_client import AsyncAdminClient, AsyncProducer
from aerobee_client.admin.dead_letters import DeadLetters
from aerobee_client.admin.redriving.journal import Journal
from aerobee_client.admin.redriving.message_ids import Claim, MessageIds
from aerobee_client.admin.redriving.outcome import Outcome
from aerobee_client.admin.redriving.rules import Target
from aerobee_client.admin.redriving.run import Redrive, Settings
from support.client.dead_letters import GROUP
from support.clock.manual_clock import ManualClock

NOW_MS = 1_700_000_000_000


def redrive_of(
    producer: AsyncProducer,
    ids: MessageIds,
    target: Target = Target.RETRY,
    journal: Journal | None = None,
    **settings: Any,
) -> Redrive:
    given = Settings(consumer_group=GROUP, target=target, **settings)
    return Redrive(given, producer, clock=ManualClock(NOW_MS), ids=ids, journal=journal)


async def all_of(redrive: Redrive, admin: AsyncAdminClient) -> list[Outcome]:
    windows = redrive.run(DeadLetters(admin, GROUP).pages())
    return [outcome async for window in windows for outcome in window]


def claims(path: Path, target: Target) -> Counter[Claim]:
    """What a journal says of the message ids in it."""
    ids = MessageIds()
    Journal.open(path, GROUP, target, ids, read_only=True).close()
    found = Counter({claim: ids.count(claim) for claim in (Claim.SENT, Claim.UNKNOWN)})
    ids.close()
    return found
