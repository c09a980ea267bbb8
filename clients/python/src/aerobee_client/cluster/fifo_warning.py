"""Warn of a group that consumes a topic of the type FIFO without order."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from aerobee_client.cluster.client_instance import ClientInstance
from aerobee_client.message_queue import MessageQueue
from aerobee_wire.status import MqError

log = logging.getLogger(__name__)

MESSAGE_TYPE, FIFO = "message.type", "FIFO"


class FifoWarning:
    """Logs one warning per topic. Call it with the queues that a concurrent consumer acquired."""

    def __init__(self, instance: ClientInstance, consumer_group: str) -> None:
        self._instance = instance
        self._consumer_group = consumer_group
        self._known: set[str] = set()

    async def __call__(self, queues: Iterable[MessageQueue]) -> None:
        for topic in sorted({queue.topic for queue in queues} - self._known):
            self._known.add(topic)
            try:
                route = await self._instance.routes.route(topic)
            except MqError:
                continue  # it was deleted
            if any(data.attributes.get(MESSAGE_TYPE) == FIFO for data in route.queues):
                log.warning(
                    "%s consumes topic %s concurrently, whose messages are meant to be consumed in "
                    "order (type FIFO): give the consumer orderly=True",
                    self._consumer_group,
                    topic,
                )
