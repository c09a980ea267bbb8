"""A dead letter as a message to send. Pure."""

from __future__ import annotations

from aerobee_client.admin.redriving import rules
from aerobee_client.admin.redriving.rules import Target
from aerobee_client.message import Message, ReceivedMessage
from aerobee_wire import properties as names
from aerobee_wire.compression import compression_bits


class Redriven(Message):
    """What `rules` says of a dead letter of `consumer_group`; a compressed body stays compressed.
    Beside the retry topic it goes to the queue of its message group or lite topic, and of its
    priority.

    Raises MqError when it is none that can be sent.
    """

    __slots__ = ("sys_flag",)

    def __init__(
        self,
        dead_letter: ReceivedMessage,
        consumer_group: str,
        target: Target,
        now_ms: int,
        *,
        offset_message_id: str = "",
    ) -> None:
        """`offset_message_id`: that of the dead letter, where it is known already."""
        given = dead_letter.properties
        topic = rules.topic_for(target, consumer_group, given)
        super().__init__(topic, dead_letter.stored_body, flag=dead_letter.flag)
        self.sys_flag = compression_bits(dead_letter.sys_flag)
        self.properties = rules.properties_for(
            target,
            given,
            offset_message_id=offset_message_id or dead_letter.offset_message_id,
            now_ms=now_ms,
        )
        if not target.is_retry:
            self.message_group = given.get(names.SHARDING_KEY, "")
            self.lite_topic = given.get(names.LITE_TOPIC, "")
            if names.PRIORITY in given:
                self.priority = names.whole_number(given[names.PRIORITY])

    def encoded_properties(self, message_id: str, added: str = "") -> bytes:
        """The properties string, with the message id that it has already, not `message_id`."""
        return names.encode(self.properties) + added.encode()
