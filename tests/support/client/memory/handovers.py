"""Which client has which queue of a group, until it releases it or is gone."""

from __future__ import annotations

from collections.abc import Container
from typing import Any


class MemoryHandovers:
    def __init__(self) -> None:
        self._owners: dict[tuple[str, str, int], str] = {}

    def take(self, request: Any, clients: Container[str], response: Any) -> None:
        """As a broker answers QueryConsumerOffsets."""
        if request.client_id not in clients:
            return
        for queue_id in request.queue_ids:
            key = request.consumer_group, request.topic, queue_id
            owner = self._owners.get(key, request.client_id)
            if owner != request.client_id and owner in clients:
                response.held.add(queue_id=queue_id, client_id=owner)
            else:
                self._owners[key] = request.client_id

    def release(self, request: Any) -> None:
        """As a broker serves UpdateConsumerOffsets."""
        for queue in request.released:
            key = request.consumer_group, queue.topic, queue.queue_id
            if self._owners.get(key) == request.client_id:
                del self._owners[key]
