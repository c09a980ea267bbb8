"""Selectors choose which of its topic's queues takes a message. RocketMQ has these three."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Sequence
from typing import Protocol

from aerobee_client.message import Message
from aerobee_client.message_queue import MessageQueue
from aerobee_wire.status import Code, MqError
from aerobee_wire.tags import java_hash


class Selector(Protocol):
    """Of a message, and of the queues that its topic can be written to, sorted: the one of these
    that takes the message."""

    def __call__(self, message: Message, queues: Sequence[MessageQueue], /) -> MessageQueue: ...


def check_selected(queue: object, message: Message) -> MessageQueue:
    """What a selector returned. Raises INVALID_PARAMETER for what is no queue of the topic."""
    if not isinstance(queue, MessageQueue) or queue.topic != message.topic:
        raise MqError(
            Code.INVALID_PARAMETER,
            f"the selector returned {queue!s} for a message of topic {message.topic}: return one "
            "of the queues that it is given",
            about="selector",
        )
    return queue


_ROOM_END = "@"


def first_key(message: Message) -> str:
    """Raises INVALID_PARAMETER when the message has no key."""
    if not message.keys:
        raise MqError(
            Code.INVALID_PARAMETER,
            f"{message!r} has no key to select a queue by: give it keys, or the selector a "
            "function of your own",
            about="keys",
        )
    return message.keys[0]


class SelectByHash:
    """Messages of one key go to one queue: RocketMQ's SelectMessageQueueByHash. `key`: of a
    message; its first of `keys` by default. Its text is hashed as Java does."""

    def __init__(self, key: Callable[[Message], object] = first_key) -> None:
        self._key = key

    def __call__(self, message: Message, queues: Sequence[MessageQueue]) -> MessageQueue:
        return queues[abs(java_hash(str(self._key(message)))) % len(queues)]


class SelectRandom:
    """Any queue: RocketMQ's SelectMessageQueueByRandom. `rng`: for tests."""

    def __init__(self, rng: random.Random | None = None) -> None:
        self._rng = rng or random.Random()

    def __call__(self, message: Message, queues: Sequence[MessageQueue]) -> MessageQueue:
        return self._rng.choice(queues)


class SelectMachineRoom:
    """Any queue of these machine rooms: those of brokers that are named "ROOM@…", as for RocketMQ's
    AllocateMessageQueueByMachineRoom. `rng`: for tests."""

    def __init__(self, rooms: Collection[str], rng: random.Random | None = None) -> None:
        self._rooms = frozenset((rooms,) if isinstance(rooms, str) else rooms)
        self._rng = rng or random.Random()

    def __call__(self, message: Message, queues: Sequence[MessageQueue]) -> MessageQueue:
        """Raises BROKER_NOT_EXIST when no queue is in one of the rooms."""
        own = [queue for queue in queues if self._is_in_room(queue.broker_name)]
        if not own:
            raise MqError(
                Code.BROKER_NOT_EXIST,
                f"no broker of the rooms {', '.join(sorted(self._rooms))} takes messages of "
                f"{message.topic}: name brokers ROOM{_ROOM_END}NAME, or select other rooms",
                retryable=True,
            )
        return self._rng.choice(own)

    def _is_in_room(self, broker_name: str) -> bool:
        room, end, _ = broker_name.partition(_ROOM_END)
        return bool(end) and room in self._rooms
