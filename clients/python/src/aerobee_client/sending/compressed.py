"""Compress the bodies of messages before they are sent. Pure."""

from __future__ import annotations

from aerobee_client.message import Message
from aerobee_wire.compression import SYS_FLAGS, compress


class CompressedMessage(Message):
    """A message as it travels. Except for the body, it equals the message of its producer."""

    __slots__ = ("_given", "sys_flag")

    def __init__(self, given: Message, body: bytes, sys_flag: int) -> None:
        for name in Message.__slots__:
            setattr(self, name, getattr(given, name))
        self._given = given
        self.body = body
        self.sys_flag = sys_flag

    @property
    def given(self) -> Message:
        return self._given

    def encoded_properties(self, message_id: str, added: str = "") -> bytes:
        return self._given.encoded_properties(message_id, added)


class Compressor:
    """Compresses bodies of at least `over` bytes by `method`, a key of SYS_FLAGS."""

    def __init__(self, method: str, over: int, level: int) -> None:
        self._method = method
        self._over = over
        self._level = level

    def compressed(self, message: Message) -> Message:
        """Return the message with its body compressed.

        A message that is short, does not shrink, or is compressed already is returned unchanged.
        """
        body = message.body
        if len(body) < self._over or message.sys_flag:
            return message
        packed = compress(body, self._method, self._level)
        if len(packed) >= len(body):
            return message
        return CompressedMessage(message, packed, SYS_FLAGS[self._method])
