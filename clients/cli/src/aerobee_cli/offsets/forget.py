"""Describe what is lost when a group's offsets in a topic are deleted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from aerobee_cli.output import counted
from aerobee_wire.status import Code, MqError

if TYPE_CHECKING:
    from aerobee_client import AdminClient
    from aerobee_client.admin.descriptions import QueueOffset


def loss(admin: AdminClient, group: str, offsets: Sequence[QueueOffset]) -> str:
    """Describe what is lost when a group loses these offsets of one topic."""
    topic = offsets[0].topic
    held = {(each.broker_name, each.queue_id) for each in offsets}
    text = f"the offsets of {group} in {counted(len(held), 'queue')} of {topic}"
    lag = _lag(admin, group, topic)
    if lag is None:
        return f"{text}, which does not exist any more"
    return f"{text}, with {counted(lag, 'message')} not consumed"


def _lag(admin: AdminClient, group: str, topic: str) -> int | None:
    """Return the lag of a group in a topic; None if the topic does not exist."""
    try:
        return sum(queue.lag for queue in admin.consume_progress(group, topic))
    except MqError as error:
        if error.code is not Code.TOPIC_NOT_EXIST:
            raise
        return None
