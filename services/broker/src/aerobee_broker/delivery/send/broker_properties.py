"""The properties that the broker adds to sent messages, and checks of encoded properties.

Encoded properties (name 0x01 value 0x02 …) are searched without decoding them, because that is
faster. The properties of all messages of a request are searched at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import repeat

from aerobee_broker.store.messages import NewMessage
from aerobee_chassis.clock import Clock
from aerobee_wire import properties as props
from aerobee_wire import topics as names
from aerobee_wire.message_id import UniqueIds

_UNIQUE_KEY_NAME = b"UNIQ_KEY\x01"
_NO_UNIQUE_KEY = b"UNIQ_KEY\x01\x02"
_VALUE_END = props.VALUE_END.encode()
# Properties that require more than storing the message: a delay, a transaction, or removal.
_RULE_NAMES = (b"DELAY\x01", b"TRAN_MSG\x01", b"TIMER_", b"POP_CK\x01")


def asks_for_rules(encoded: bytes) -> bool:
    """Return whether a message may need a delay, a transaction, or the removal of a property.

    `encoded` contains the encoded properties of one message or of several. True may be wrong.
    """
    return any(name in encoded for name in _RULE_NAMES)


class BrokerProperties:
    """Adds the broker's properties to messages that clients send.

    `added` contains the properties that each message gets unless it is part of a batch.
    """

    def __init__(self, added: Mapping[str, str], unique_ids: UniqueIds, clock: Clock) -> None:
        self._added = dict(added)
        self._unique_ids = unique_ids
        self._clock = clock
        self.encoded = props.encode(added)
        others = (b"%b\x01" % name.encode() for name in (*added, props.WAIT))
        self._not_for_fast_path = (_NO_UNIQUE_KEY, *_RULE_NAMES, *others)

    def complete(self, properties: dict[str, str]) -> dict[str, str]:
        """Add missing properties to the dict, remove reserved ones, and return the same dict.

        The added properties are the broker's own and a unique key.
        """
        for name, value in self._added.items():
            properties.setdefault(name, value)
        properties.pop(props.POP_CHECK_POINT, None)
        if not properties.get(props.UNIQUE_KEY):
            properties[props.UNIQUE_KEY] = self._unique_ids.make(self._clock.now_ms())
        return properties

    def fit_fast_path(self, messages: Sequence[NewMessage]) -> bool:
        """Return whether the messages can be stored with `encoded` appended to their properties.

        The properties of each message must begin with its unique key. No message may ask for a
        delay or a transaction, set WAIT or a property that the broker adds, or go to a retry topic.
        The properties must be valid UTF-8, and plain (`aerobee_wire.properties.is_plain`).
        """
        properties = [message.properties for message in messages]
        if not all(map(bytes.startswith, properties, repeat(_UNIQUE_KEY_NAME))):
            return False
        if not all(map(bytes.endswith, properties, repeat(_VALUE_END))):
            return False
        together = b"".join(properties)
        try:
            together.decode()
        except UnicodeDecodeError:
            return False
        if not props.is_plain(together):
            return False
        return not any(name in together for name in self._not_for_fast_path) and not any(
            map(names.is_retry, {message.topic for message in messages})
        )

    def with_unique_keys(self, properties: list[bytes]) -> list[bytes]:
        """Return the encoded properties of messages, with missing unique keys added."""
        # Clients write the unique key first, so usually no properties need to be searched.
        if all(map(bytes.startswith, properties, repeat(_UNIQUE_KEY_NAME))):
            return properties
        now_ms = self._clock.now_ms()
        return [
            encoded if _has_unique_key(encoded) else self._with_unique_key(encoded, now_ms)
            for encoded in properties
        ]

    def _with_unique_key(self, encoded: bytes, now_ms: int) -> bytes:
        return b"UNIQ_KEY\x01%b\x02%b" % (self._unique_ids.make(now_ms).encode(), encoded)


def _has_unique_key(encoded: bytes) -> bool:
    return encoded.startswith(_UNIQUE_KEY_NAME) or props.get(encoded, _UNIQUE_KEY_NAME) is not None
