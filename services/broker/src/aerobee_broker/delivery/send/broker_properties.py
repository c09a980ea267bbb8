"""What the broker adds to the properties of a sent message, and what their encoded form tells.

Encoded properties (name 0x01 value 0x02 …) are searched, all of a request at once, not decoded.
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
# Properties that ask for more than storing the message: a delay, a transaction, or to be removed.
_RULE_NAMES = (b"DELAY\x01", b"TRAN_MSG\x01", b"TIMER_", b"POP_CK\x01")


def asks_for_rules(encoded: bytes) -> bool:
    """Whether the properties, of one message or of many, may ask for more than storing it."""
    return any(name in encoded for name in _RULE_NAMES)


class BrokerProperties:
    """`added`: properties that every message gets, but for those of a batch."""

    def __init__(self, added: Mapping[str, str], unique_ids: UniqueIds, clock: Clock) -> None:
        self._added = dict(added)
        self._unique_ids = unique_ids
        self._clock = clock
        self.encoded = props.encode(added)
        others = (b"%b\x01" % name.encode() for name in (*added, props.WAIT))
        self._not_for_fast_path = (_NO_UNIQUE_KEY, *_RULE_NAMES, *others)

    def complete(self, properties: dict[str, str]) -> dict[str, str]:
        """Adds what the broker adds, to the same dict, and removes what is for the broker alone."""
        for name, value in self._added.items():
            properties.setdefault(name, value)
        properties.pop(props.POP_CHECK_POINT, None)
        if not properties.get(props.UNIQUE_KEY):
            properties[props.UNIQUE_KEY] = self._unique_ids.make(self._clock.now_ms())
        return properties

    def fit_fast_path(self, messages: Sequence[NewMessage]) -> bool:
        """Whether the messages need nothing but `encoded` behind their encoded properties: each
        begins with its unique key, and none asks for a rule, has a property that the broker adds or
        WAIT, or goes to a retry topic; and what a user may not set would show."""
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
        """Adds a unique key to the encoded properties that have none."""
        # Clients write it first: then there is nothing to search.
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
