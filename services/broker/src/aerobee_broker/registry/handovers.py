"""Hand over message queues between the members of a consumer group.

The next member reads the group's offset only after the previous member has committed it. So the
next member does not receive messages a second time.

The last member that pulled from a queue owns the queue until it releases the queue or leaves the
group. Pulls are not refused. A member may pull from a queue of another member, for example after a
crash that no broker noticed.
"""

from __future__ import annotations

from collections.abc import Iterable

from aerobee_broker.registry.clients import Clients

# Topic and queue id.
Queue = tuple[str, int]


class Handovers:
    def __init__(self, clients: Clients) -> None:
        self._clients = clients
        # By consumer group: queues that another member owns, and the clients that asked for them.
        self._awaited: dict[str, dict[Queue, set[str]]] = {}
        clients.on_leave(self._left)

    def take(
        self, consumer_group: str, client_id: str, topic: str, queue_ids: Iterable[int]
    ) -> dict[int, str]:
        """Give a member queues of a topic. Return the other owners of queues that it does not get.

        The result maps queue id to owner. `client_id` is notified when the owner releases a queue.
        A client that is not a member gets no queues and is not notified.
        """
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
        """Release the queues that `client_id` owns, and notify the members that wait for them."""
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
        """Forget the queues that a leaving member waits for.

        All other members are notified separately when a member leaves.
        """
        awaited = self._awaited.get(consumer_group, {})
        for queue in list(awaited):
            awaited[queue].discard(client_id)
            if not awaited[queue]:
                del awaited[queue]
        if not awaited:
            self._awaited.pop(consumer_group, None)
