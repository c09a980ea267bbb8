"""The subscriptions of clients to lite topics.

They are only in memory, because clients repeat their subscriptions every 30 s.

A client *holds* the lite topics to which it is subscribed. Subscriptions belong to clients, and
offsets belong to groups. In a group with the model Shared, several clients may hold a lite topic.
With the model Exclusive, only the client that subscribed last holds it, and the client that lost it
is notified (`Change.evicted`).

Clients regularly send the complete set of their lite topics. A complete set does not take a lite
topic back from another client. If it contains a lost lite topic, the client is notified again. In a
wildcard group, clients subscribe with an empty complete set, and hold all lite topics of the
parent.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from aerobee_broker.store.lite.lite_queue import lite_code
from aerobee_wire.queues.lite import LiteGroup
from aerobee_wire.status import Code, MqError

MAX_SUBSCRIPTIONS = 100_000  # pairs of client and lite topic per broker; RocketMQ's default
QUOTA_SLACK = 300  # a complete set may be this much larger than the quota, as in RocketMQ
SILENCE_MS = 180_000  # after that, a client is removed


@dataclass(slots=True, eq=False)
class LiteClient:
    """A client of one group, with its subscription.

    `names` maps the code of each lite topic that the client holds to its name.
    """

    consumer_group: str
    client_id: str
    parent: str
    last_seen_ms: int
    wildcard: bool = False
    names: dict[int, str] = field(default_factory=dict)


class Eviction(NamedTuple):
    """A lite topic that a client has lost to another client."""

    client: LiteClient
    name: str


class Change(NamedTuple):
    """The effect of a client's request.

    `added` and `removed` are the codes of the lite topics that the client gained and gave up.
    `evicted` has the lite topics that clients have lost, and of which they must be notified.
    """

    client: LiteClient
    added: Sequence[int] = ()
    removed: Sequence[int] = ()
    evicted: Sequence[Eviction] = ()


class _Group:
    def __init__(self) -> None:
        self.clients: dict[str, LiteClient] = {}
        self.wildcards: dict[str, LiteClient] = {}
        # Code of a lite topic → the clients that hold it, in the order of their subscriptions.
        self.holders: dict[int, dict[str, LiteClient]] = {}


class Subscriptions:
    def __init__(self, limit: int = MAX_SUBSCRIPTIONS) -> None:
        self._groups: dict[str, _Group] = {}
        self._limit = limit
        self._count = 0

    def __len__(self) -> int:
        """Return the number of pairs of client and lite topic."""
        return self._count

    def __iter__(self) -> Iterator[LiteClient]:
        for group in self._groups.values():
            yield from group.clients.values()

    def get(self, consumer_group: str, client_id: str) -> LiteClient | None:
        group = self._groups.get(consumer_group)
        return group.clients.get(client_id) if group else None

    def groups_of(self, parent: str) -> list[str]:
        """Return the groups with a client that is subscribed to lite topics of a parent."""
        return [
            name
            for name, group in self._groups.items()
            if any(client.parent == parent for client in group.clients.values())
        ]

    def holders(self, consumer_group: str, code: int) -> Mapping[str, LiteClient]:
        """Return the clients of a group that hold a lite topic, by client id.

        The client that subscribed first is the first.
        """
        group = self._groups.get(consumer_group)
        if group is None:
            return {}
        return group.wildcards or group.holders.get(code) or {}

    # ---- requests of clients ----

    def add(
        self,
        consumer_group: str,
        client_id: str,
        settings: LiteGroup,
        names: Iterable[str],
        now_ms: int,
    ) -> Change:
        """Add lite topics to a client's subscription.

        In an exclusive group, other clients lose these lite topics. Raises MqError, without any
        change. The code is LITE_SUBSCRIPTION_QUOTA_EXCEEDED, ILLEGAL_OPERATION in a wildcard group,
        or INVALID_PARAMETER if two names have the same code.
        """
        new = self._check_addition(consumer_group, client_id, settings, names)
        client = self._touch(consumer_group, client_id, settings, now_ms)
        evicted = self._take(client, new, exclusive=settings.exclusive)
        # The client may add a lite topic again because it does not know that it has lost it.
        return Change(client, list(new), (), evicted)

    def keep(
        self,
        consumer_group: str,
        client_id: str,
        settings: LiteGroup,
        names: Iterable[str],
        now_ms: int,
    ) -> Change:
        """Add lite topics that a client already holds at another broker.

        In an exclusive group, lite topics that another client holds here are not added, because
        that client may have subscribed later. Raises the errors of `add`.
        """
        new = self._check_addition(consumer_group, client_id, settings, names)
        client = self._touch(consumer_group, client_id, settings, now_ms)
        added, taken = self._take_free(client, new, exclusive=settings.exclusive)
        return Change(client, list(added), (), taken)

    def remove(
        self,
        consumer_group: str,
        client_id: str,
        settings: LiteGroup,
        names: Iterable[str],
        now_ms: int,
    ) -> Change:
        """Remove lite topics from a client's subscription. Ignore names that it does not hold."""
        client = self._touch(consumer_group, client_id, settings, now_ms)
        removed = [
            code
            for code in map(_code, names)
            if code in client.names and self._drop(client, code) is not None
        ]
        return Change(client, (), removed)

    def replace(
        self,
        consumer_group: str,
        client_id: str,
        settings: LiteGroup,
        names: Iterable[str],
        now_ms: int,
    ) -> Change:
        """Replace a client's subscription by a complete set of lite topics.

        In an exclusive group, lite topics that other clients hold are not added. Raises MqError
        with the code LITE_SUBSCRIPTION_QUOTA_EXCEEDED or INVALID_PARAMETER, without any change.
        """
        known = self.get(consumer_group, client_id)
        held: Mapping[int, str] = known.names if known else {}
        wanted = _by_code(names, {})
        if settings.quota >= 0 and len(wanted) > settings.quota + QUOTA_SLACK:
            raise _exceeded(
                f"client {client_id} of group {consumer_group} wants {len(wanted)} lite topics: "
                f"{settings.quota} are allowed (lite.sub.client.quota)"
            )
        self._check_room(len(wanted) - len(held))
        client = self._touch(consumer_group, client_id, settings, now_ms)
        removed = [code for code in client.names if code not in wanted]
        for code in removed:
            self._drop(client, code)
        new = {code: name for code, name in wanted.items() if code not in client.names}
        added, taken = self._take_free(client, new, exclusive=settings.exclusive)
        return Change(client, list(added), removed, taken)

    def leave(self, consumer_group: str, client_id: str) -> LiteClient | None:
        """Remove a client and return it, or return None if it is unknown."""
        group = self._groups.get(consumer_group)
        client = group.clients.get(client_id) if group else None
        if group is None or client is None:
            return None
        for code in list(client.names):
            self._drop(client, code)
        del group.clients[client_id]
        group.wildcards.pop(client_id, None)
        if not group.clients:
            del self._groups[consumer_group]
        return client

    def expire(self, now_ms: int) -> list[LiteClient]:
        """Remove and return the clients that were silent for too long."""
        silent = [client for client in self if now_ms - client.last_seen_ms >= SILENCE_MS]
        for client in silent:
            self.leave(client.consumer_group, client.client_id)
        return silent

    def forget_group(self, consumer_group: str) -> list[LiteClient]:
        """Remove and return the clients of a group that was deleted or bound to another parent."""
        group = self._groups.get(consumer_group)
        clients = list(group.clients.values()) if group else []
        for client in clients:
            self.leave(consumer_group, client.client_id)
        return clients

    # ---- steps ----

    def _check_addition(
        self, consumer_group: str, client_id: str, settings: LiteGroup, names: Iterable[str]
    ) -> dict[int, str]:
        """Check a request to add lite topics, and return the ones that the client does not hold.

        The result maps the code of a lite topic to its name. Raises the errors of `add`.
        """
        if settings.wildcard:
            raise MqError(
                Code.ILLEGAL_OPERATION,
                f"group {consumer_group} gets every lite topic of {settings.parent} (wildcard): "
                "subscribe with an empty complete set",
            )
        known = self.get(consumer_group, client_id)
        held: Mapping[int, str] = known.names if known else {}
        wanted = _by_code(names, held)
        new = {code: name for code, name in wanted.items() if code not in held}
        quota = settings.quota
        if 0 <= quota < len(held) + len(new):
            raise _exceeded(
                f"client {client_id} of group {consumer_group} would hold {len(held) + len(new)} "
                f"lite topics: {quota} are allowed (lite.sub.client.quota)"
            )
        self._check_room(len(new))
        return new

    def _touch(
        self, consumer_group: str, client_id: str, settings: LiteGroup, now_ms: int
    ) -> LiteClient:
        known = self.get(consumer_group, client_id)
        if known is not None and known.parent != settings.parent:
            self.leave(consumer_group, client_id)  # the group was bound to another parent
        group = self._groups.setdefault(consumer_group, _Group())
        client = group.clients.get(client_id)
        if client is None:
            client = LiteClient(consumer_group, client_id, settings.parent, now_ms)
            group.clients[client_id] = client
        client.last_seen_ms, client.wildcard = now_ms, settings.wildcard
        if settings.wildcard:
            group.wildcards[client_id] = client
        else:
            group.wildcards.pop(client_id, None)
        return client

    def _take(
        self, client: LiteClient, names: Mapping[int, str], *, exclusive: bool
    ) -> list[Eviction]:
        evicted = []
        holders = self._groups[client.consumer_group].holders
        for code, name in names.items():
            if exclusive:
                for other in list(holders.get(code, {}).values()):
                    if other is not client:
                        self._drop(other, code)
                        evicted.append(Eviction(other, name))
            client.names[code] = name
            holders.setdefault(code, {})[client.client_id] = client
            self._count += 1
        return evicted

    def _take_free(
        self, client: LiteClient, names: Mapping[int, str], *, exclusive: bool
    ) -> tuple[dict[int, str], list[Eviction]]:
        """Add the lite topics that no other client holds exclusively.

        Returns these lite topics, and an eviction of the client for each of the others.
        """
        holders = self._groups[client.consumer_group].holders
        free = {code: name for code, name in names.items() if not (exclusive and holders.get(code))}
        self._take(client, free, exclusive=False)
        taken = [Eviction(client, name) for code, name in names.items() if code not in free]
        return free, taken

    def _drop(self, client: LiteClient, code: int) -> str | None:
        name = client.names.pop(code, None)
        if name is not None:
            holders = self._groups[client.consumer_group].holders
            holders[code].pop(client.client_id, None)
            if not holders[code]:
                del holders[code]
            self._count -= 1
        return name

    def _check_room(self, new: int) -> None:
        if self._count + new > self._limit:
            raise _exceeded(
                f"{self._count} subscriptions to lite topics are here, and {self._limit} are "
                "allowed at one broker"
            )


def _code(name: str) -> int:
    return lite_code(name.encode())


def _by_code(names: Iterable[str], held: Mapping[int, str]) -> dict[int, str]:
    """Return a mapping from the code of each lite topic to its name.

    Raises MqError if two names have the same code, because a client cannot hold both.
    """
    found: dict[int, str] = {}
    for name in names:
        code = _code(name)
        other = found.setdefault(code, held.get(code, name))
        if other != name:
            raise MqError(
                Code.INVALID_PARAMETER,
                f"the lite topics {name} and {other} have one code: rename one of them",
                about="lite_topic",
            )
    return found


def _exceeded(reason: str) -> MqError:
    return MqError(Code.LITE_SUBSCRIPTION_QUOTA_EXCEEDED, reason, about="lite_topic")
