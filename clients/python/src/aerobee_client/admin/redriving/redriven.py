"""Turn a dead letter into a message to send. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from aerobee_client.admin.redriving import rules
from aerobee_client.admin.redriving.rules import Target
from aerobee_client.message import Message, ReceivedMessage
from aerobee_wire import properties as names
from aerobee_wire.compression import compression_bits
from aerobee_wire.status import Code, MqError
from aerobee_wire.topics import check_topic

_check_topic = lru_cache(maxsize=1024)(check_topic)


class OpenedLetter:
    """A dead letter and its ids.

    `handled` are the properties that `rules` use; `others` are the entries of all others.
    """

    __slots__ = ("handled", "letter", "message_id", "offset_message_id", "others")

    def __init__(self, letter: ReceivedMessage) -> None:
        self.letter = letter
        self.handled, self.others = names.split(letter.stored_properties, rules.LOOKED_AT)
        self.offset_message_id = letter.offset_message_id
        self.message_id = rules.message_id_of(self.handled, self.offset_message_id)

    @property
    def tag(self) -> str:
        return self.handled.get(names.TAGS, "")


class Redriven(Message):
    """The message that `rules` make of a dead letter of `consumer_group`.

    A compressed body stays compressed. Unless the target is the retry topic, the message goes to
    the queue of its message group, lite topic or priority. Raises MqError if it cannot be sent.
    """

    __slots__ = ("_encoded", "sys_flag")

    def __init__(
        self, opened: OpenedLetter, consumer_group: str, target: Target, now_ms: int
    ) -> None:
        letter, handled = opened.letter, opened.handled
        # Skip the constructor of Message, whose checks a stored message has already passed.
        self.topic = rules.topic_for(target, consumer_group, handled)
        _check_topic(self.topic)
        self.body = letter.stored_body
        if not self.body:
            raise MqError(Code.MESSAGE_ILLEGAL, "the body is empty")
        self.size = len(self.body)
        self.flag = letter.flag
        self.sys_flag = compression_bits(letter.sys_flag)
        sent = rules.properties_for(
            target, handled, offset_message_id=opened.offset_message_id, now_ms=now_ms
        )
        self._encoded = opened.others.encode() + names.encode(sent)
        self.tag, self.keys, self.encoded_settings = "", (), ""  # they are among the properties
        self.system_properties = {}
        self.message_group = self.lite_topic = ""
        self.priority = None
        if not target.is_retry:
            self.message_group = handled.get(names.SHARDING_KEY, "")
            self.lite_topic = handled.get(names.LITE_TOPIC, "")
            if names.PRIORITY in handled:
                self.priority = names.whole_number(handled[names.PRIORITY])
        self.delay_level, self.delay, self.deliver_at = 0, None, None
        self.wait_store_ok = True

    @property
    def properties(self) -> Mapping[str, str]:  # decoded on demand
        return names.decode(self._encoded)

    @properties.setter
    def properties(self, given: Mapping[str, str]) -> None:
        self._encoded = names.encode(given)

    def encoded_properties(self, message_id: str, added: str = "") -> bytes:
        """Return the properties string. It has its message id already and ignores `message_id`."""
        return self._encoded + added.encode() if added else self._encoded
