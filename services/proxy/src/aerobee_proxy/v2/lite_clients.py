"""Serve clients of lite topics: check their settings, notify them of losses, and remove them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from aerobee_foreign.apache.rocketmq.v2.definition_pb2 import ClientType, Code, Settings
from aerobee_foreign.apache.rocketmq.v2.service_pb2 import (
    NotifyUnsubscribeLiteCommand,
    TelemetryCommand,
)

from aerobee_chassis.background import Background
from aerobee_proxy.cluster.group_configs import GroupPolicy
from aerobee_proxy.cluster.leasing.lite_subscriptions import LiteSubscriptions
from aerobee_proxy.v2.resources import stored_name
from aerobee_proxy.v2.sessions import Session
from aerobee_proxy.v2.settings import LITE_CONSUMERS
from aerobee_proxy.v2.status import Refused, status

_REPEATED_AT_ONCE = 64
# The client types that consume whole topics and cannot consume lite topics.
_OTHERS = frozenset({ClientType.PUSH_CONSUMER, ClientType.SIMPLE_CONSUMER})


def is_lite(session: Session) -> bool:
    """Return whether the client's settings declare a consumer of lite topics."""
    return session.settings is not None and session.settings.client_type in LITE_CONSUMERS


def check_binding(settings: Settings, policy: GroupPolicy) -> None:
    """Raise Refused if the client's type does not fit its group.

    A group that is bound to a parent topic of lite topics rejects push and simple consumers, and
    subscriptions to any other topic. A group without a parent topic rejects lite clients.
    """
    lite, kind = policy.lite, settings.client_type
    group = settings.subscription.group.name
    if lite is None:
        if kind in LITE_CONSUMERS:
            raise Refused(
                Code.BAD_REQUEST,
                f"this is a {ClientType.Name(kind)}, and group {group} is not bound to a topic of "
                "the type LITE: set its attribute lite.bind.topic, or use another consumer",
            )
        return
    if kind in _OTHERS:
        raise Refused(
            Code.BAD_REQUEST,
            f"group {group} is bound to the lite topics of {lite.parent}: use a lite consumer, not "
            f"a {ClientType.Name(kind)}",
        )
    for entry in settings.subscription.subscriptions:
        if stored_name(entry.topic) != lite.parent:
            raise Refused(
                Code.BAD_REQUEST,
                f"the client subscribes to {entry.topic.name}, and group {group} is bound to "
                f"{lite.parent}: subscribe to that topic only",
            )


def notify_lost(session: Session, names: Sequence[str]) -> None:
    """Notify a client, on each of its streams, that another client took over these lite topics."""
    session.lite_topics.lost(names)
    for name in names:
        command = TelemetryCommand(
            status=status(),
            notify_unsubscribe_lite_command=NotifyUnsubscribeLiteCommand(lite_topic=name),
        )
        for stream in session.streams:
            stream.offer(command)


async def repeat_lite_topics(
    subscriptions: LiteSubscriptions, broker_name: str, sessions: Sequence[Session]
) -> None:
    """Send the lite topics of clients to a broker that may not know these clients.

    Used after the broker was unavailable, or after another replica became its master.
    """

    async def repeat(session: Session) -> None:
        notify_lost(session, await subscriptions.repeat(broker_name, session.lite_topics))

    for first in range(0, len(sessions), _REPEATED_AT_ONCE):
        await asyncio.gather(*map(repeat, sessions[first : first + _REPEATED_AT_ONCE]))


class LiteDepartures:
    """Removes lite clients that have ended from brokers, in the background.

    The lite topics of a client that connects again are sent to brokers at once. SDKs send them only
    every 30 s. If the client connects to another proxy, brokers restore them.
    """

    def __init__(self, subscriptions: LiteSubscriptions, background: Background) -> None:
        self._subscriptions = subscriptions
        self.background = background

    def left(self, session: Session, *, ended: bool = False) -> None:
        """Start to remove a lite client from brokers. Do nothing for any other client.

        If the client has not `ended`, it stays when it has another stream by then.
        """
        if is_lite(session):
            self.background.run(self._leave(session, ended=ended))

    def returned(self, session: Session) -> None:
        """Start to send the lite topics of a client that holds a stream again to brokers."""
        if is_lite(session):
            self.background.run(self._return(session))

    async def _leave(self, session: Session, *, ended: bool) -> None:
        async with session.lite_topics.turn:
            if session.streams and not ended:
                return
            session.lite_topics.is_away = True
            for parent in session.subscriptions:
                await self._subscriptions.leave(
                    session.consumer_group, parent, session.client_id, may_return=not ended
                )

    async def _return(self, session: Session) -> None:
        notify_lost(session, await self._subscriptions.restore(session.lite_topics))
