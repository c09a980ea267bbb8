"""Handovers of message queues between the members of a consumer group: the next member reads the
group's offset after the one before has committed it, so that it gets no message a second time.

The member that pulled a queue last has it until it releases the queue or leaves the group. Nothing
is refused: a member may pull a queue that another one has, as after a crash that no broker noticed.
"""

from __future__ import annotations

from collections.abc import Iterable

from aerobee_broker.registry.clients import Clients

# Topic and queue id.
Queue = tuple[str, int]


class Handovers:
    def __init__(self, clients: Clients) -> None:
        self._clients = clients
        # By consumer group: queues that another member has, and who asked for them.
        self._awaited: dict[str, dict[Queue, set[str]]] = {}
        clients.on_leave(self._left)

    def take(
        self, consumer_group: str, client_id: str, topic: str, queue_ids: Iterable[int]
    ) -> dict[int, str]:
        """Give a member queues of a topic. Return those that another member still has, with its
        client id: `client_id` is notified when that one releases them. A client that is not a
        member takes nothing and waits for nothing."""
        if not self._clients.is_member(consumer_group, client_id):
            return {}
        owners = self._clients.owners(consumer_group)
        held: dict[int, str] = {}
        for queue_id in queue_ids:
            owner = owners.get((topic, queue_id), client_id)
            if owner == client_id:
                self._clients.note_pull(client_id, consumer_group, topic, queue_id)
            else:
                held[queue_id] = owner
                awaited = self._awaited.setdefault(consumer_group, {})
                awaited.setdefault((topic, queue_id), set()).add(client_id)
        return held

    def release(self, consumer_group: str, client_id: str, queues: Iterable[Queue]) -> None:
        """End what `client_id` has of these queues, and notify the members that wait for them."""
        awaited = self._awaited.get(consumer_group, {})
        waiting: set[str] = set()
        for queue in queues:
            self._clients.forget_pulls(client_id, consumer_group, *queue)
            waiting |= awaited.pop(queue, set())
        if not awaited:
            self._awaited.pop(consumer_group, None)
        for each in waiting:
            self._clients.notify_member(consumer_group, each)

    def _left(self, consumer_group: str, client_id: str) -> None:
        """All members are notified of that by themselves."""
        awaited = self._awaited.get(consumer_group, {})
        for queue in list(awaited):
            awaited[queue].discard(client_id)
            if not awaited[queue]:
                del awaited[queue]
        if not awaited:
            self._awaited.pop(consumer_group, None)
