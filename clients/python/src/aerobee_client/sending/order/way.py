"""Define how an ordered send travels, and decide whether a send is ordered."""

from __future__ import annotations

from typing import NamedTuple

from aerobee_client.message import Message
from aerobee_client.message_queue import MessageQueue
from aerobee_client.sending.order.selectors import Selector
from aerobee_wire.status import Code, MqError


class Way(NamedTuple):
    """The ordering options of a send.

    `selector` is None for a message group or lite topic. `block`: whether it waits for room. With
    `is_alone`, the send does not share its request.
    """

    selector: Selector | None = None
    block: bool = True
    is_one_way: bool = False
    is_alone: bool = False


class Choice(NamedTuple):
    """The arguments of a call that choose the queue."""

    queue: MessageQueue | None = None
    selector: Selector | None = None

    def way(
        self,
        message: Message,
        *,
        block: bool = True,
        is_one_way: bool = False,
        is_alone: bool = False,
    ) -> Way | None:
        """Return the ordering options of a message; None if it is not ordered.

        Raises INVALID_PARAMETER if more than one of queue, selector, and message group or lite
        topic is given.
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
        return Way(self.selector, block, is_one_way, is_alone)
