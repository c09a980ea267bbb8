"""The properties that the broker adds to sent messages, and checks of encoded properties.

Encoded properties (name 0x01 value 0x02 …) are not decoded, but searched, those of a request
together.
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
    """Return whether the properties, of one message or of many, may require more than storing."""
    return any(name in encoded for name in _RULE_NAMES)


class BrokerProperties:
    """Completes properties. `added`: set on every message except those of a batch."""

    def __init__(self, added: Mapping[str, str], unique_ids: UniqueIds, clock: Clock) -> None:
        self._added = dict(added)
        self._unique_ids = unique_ids
        self._clock = clock
        self.encoded = props.encode(added)
        others = (b"%b\x01" % name.encode() for name in (*added, props.WAIT))
        self._not_for_fast_path = (_NO_UNIQUE_KEY, *_RULE_NAMES, *others)

    def complete(self, properties: dict[str, str]) -> dict[str, str]:
        """Add the broker's properties to the dict, and remove those reserved for the broker."""
        for name, value in self._added.items():
            properties.setdefault(name, value)
        properties.pop(props.POP_CHECK_POINT, None)
        if not properties.get(props.UNIQUE_KEY):
            properties[props.UNIQUE_KEY] = self._unique_ids.make(self._clock.now_ms())
        return properties

    def fit_fast_path(self, messages: Sequence[NewMessage]) -> bool:
        """Return whether the messages only need `encoded` appended to their properties.

        Each must begin with its unique key. None may request a rule, have WAIT or a property that
        the broker adds, or go to a retry topic. The properties must be valid UTF-8, and plain
        (`aerobee_wire.properties.is_plain`).
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
        """Add a unique key to the encoded properties without one."""
        # Clients write it first, so usually nothing needs to be searched.
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
