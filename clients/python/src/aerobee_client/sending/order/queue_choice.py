"""Choose the queue of a topic that stores a message, and decide whether its send is ordered.

The selectors correspond to the three selectors of RocketMQ.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple, Protocol

from aerobee_client.message import Message
from aerobee_client.message_queue import MessageQueue
from aerobee_client.runtime.kinds import checked_class
from aerobee_wire.status import Code, MqError
from aerobee_wire.tags import java_hash


class Selector(Protocol):
    """A function that selects the queue for a message.

    Its arguments are the message and the queues of its topic that accept messages, sorted. The
    function returns one of these queues.

    Example:
        producer.send(message, selector=lambda message, queues: queues[message.flag % len(queues)])
    """

    def __call__(self, message: Message, queues: Sequence[MessageQueue], /) -> MessageQueue: ...


def check_selected(queue: object, message: Message) -> MessageQueue:
    """Return the queue that a selector returned after a check.

    Raises MqError with the code INVALID_PARAMETER unless it is a queue of the topic.
    """
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
    """Return the first key of a message.

    Raises MqError with the code INVALID_PARAMETER if it has none.
    """
    if not message.keys:
        raise MqError(
            Code.INVALID_PARAMETER,
            f"{message!r} has no key to select a queue by: give it keys, or the selector a "
            "function of your own",
            about="keys",
        )
    return message.keys[0]


@checked_class
class SelectByHash:
    """Selects the same queue for messages with the same key, as SelectMessageQueueByHash does.

    This selector hashes the text of the key as Java does, so it is compatible with RocketMQ.

    Args:
        key: A function that returns the key of a message. The default is the first of its `keys`.
    """

    def __init__(self, key: Callable[[Message], object] = first_key) -> None:
        self._key = key

    def __call__(self, message: Message, queues: Sequence[MessageQueue]) -> MessageQueue:
        return queues[abs(java_hash(str(self._key(message)))) % len(queues)]


@checked_class
class SelectRandom:
    """Selects a random queue, as RocketMQ's SelectMessageQueueByRandom does.

    Args:
        rng: A source of random numbers, for tests.
    """

    def __init__(self, rng: random.Random | None = None) -> None:
        self._rng = rng or random.Random()

    def __call__(self, message: Message, queues: Sequence[MessageQueue]) -> MessageQueue:
        return self._rng.choice(queues)


@checked_class
class SelectMachineRoom:
    """Selects a random queue of the brokers in machine rooms. Brokers are named "ROOM@NAME".

    A broker is in a room if its name is "ROOM@NAME". RocketMQ's AllocateMessageQueueByMachineRoom
    uses the same names.

    Args:
        rooms: The names of the rooms, or the name of one.
        rng: A source of random numbers, for tests.
    """

    def __init__(self, rooms: str | Collection[str], rng: random.Random | None = None) -> None:
        self._rooms = frozenset((rooms,) if isinstance(rooms, str) else rooms)
        self._rng = rng or random.Random()

    def __call__(self, message: Message, queues: Sequence[MessageQueue]) -> MessageQueue:
        """Select a queue.

        Args:
            message: The message to send.
            queues: The queues of its topic that accept messages.

        Returns:
            A random queue of a broker in one of these machine rooms.

        Raises:
            MqError: With the code BROKER_NOT_EXIST if no queue has a broker in these machine rooms.
        """
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


class SendOrdering(NamedTuple):
    """The ordering options of a send.

    `selector` is None for a message group or lite topic. If `block` is true, the send waits while
    the budget is full. With `is_alone`, the send does not share its request.
    """

    selector: Selector | None = None
    block: bool = True
    is_one_way: bool = False
    is_alone: bool = False


class QueueChoice(NamedTuple):
    """The arguments of a call that choose the queue."""

    queue: MessageQueue | None = None
    selector: Selector | None = None

    def ordering(
        self,
        message: Message,
        *,
        block: bool = True,
        is_one_way: bool = False,
        is_alone: bool = False,
    ) -> SendOrdering | None:
        """Return the ordering options of a message, or None if it is not ordered.

        Raises MqError with the code INVALID_PARAMETER if more than one argument determines the
        queue: a queue, a selector, or a message group or lite topic.
        """
        if self.selector is None and not message.order_key:
            return None
        if self.queue is not None or (self.selector is not None and message.order_key):
            raise MqError(
                Code.INVALID_PARAMETER,
                "message_group, lite_topic, queue and selector each choose the queue: give one of "
                "them",
                about="queue" if self.queue is not None else "selector",
            )
        return SendOrdering(self.selector, block, is_one_way, is_alone)
