"""How a send travels that keeps an order, and whether it keeps one."""

from __future__ import annotations

from typing import NamedTuple

from aerobee_client.message import Message
from aerobee_client.message_queue import MessageQueue
from aerobee_client.sending.order.selectors import Selector
from aerobee_wire.status import Code, MqError


class Way(NamedTuple):
    """`selector`: None for a message group or lite topic. `block`: whether it waits for room.
    `is_alone`: it shares its request with none."""

    selector: Selector | None = None
    block: bool = True
    is_one_way: bool = False
    is_alone: bool = False


class Choice(NamedTuple):
    """What a call says about the queue."""

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
        """How a message travels that has a message group, lite topic or selector; None: it has
        none. Raises INVALID_PARAMETER when two of message group or lite topic, queue and selector
        are given."""
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
