"""Requests that no client would send: made from the descriptors of an RPC, and then spoilt.

Most fields get a value that fits their name, so that a request passes the first checks. The others
get a value from a list of bad ones. The lists are finite: what a service stores by name is bounded.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from google.protobuf import message_factory
from google.protobuf.descriptor import FieldDescriptor, MethodDescriptor, ServiceDescriptor
from google.protobuf.message import Message

from support.proxy.fuzz import BODIES, INTEGERS, LONG_INTEGERS, TEXTS

F = FieldDescriptor

DEPTH = 5  # messages within messages; protobuf itself allows 100
FILLED = (0.2, 0.4, 0.7, 1.0)  # chances of a field to be set, one of which each request has
GOOD = 0.9  # chance of a set field to have a value that fits its name
RAW = 0.1  # chance of a request to be bytes, not a message
TOKENS = 0.3  # chance of a bad text to be a token, perhaps a damaged one
FLOATS = (0.0, -1.0, 0.5, 1e300, float("inf"), float("nan"))
NATURALS = tuple(each for each in LONG_INTEGERS if 0 <= each < 2**31)  # fit each unsigned field
UNENCODABLE = b"\x0a\x02\xff\xfe"  # field 1 is not UTF-8

# A request without them is rejected at once.
NEEDED = frozenset({"topic", "consumer_group", "group", "name", "body", "message_id", "username"})

# Part of a field's name → values that fit it. The first part that occurs counts.
FITTING: Mapping[str, Sequence[Any]] = {
    "namespace": ("",),
    "checksum": ("",),
    "expression": ("*", "a || b", "price > 1", "color IS NOT NULL AND price BETWEEN 1 AND 2"),
    "topic": ("orders", "fifo", "%RETRY%billing", "%DLQ%billing", "payments"),
    "group": ("billing", "orderly", "shipping"),
    "broker_name": ("broker-a",),
    "cluster": ("DefaultCluster",),
    "client_id": ("client-1", "client-2"),
    "address": ("127.0.0.1:10911",),
    "host": ("127.0.0.1",),
    "user": ("alice", "bob"),
    "subject": ("User:alice", "Client:*"),
    "resource": ("Topic:orders", "Group:billing", "*"),
    "tag": ("a", "b"),
    "key": ("k", "color", "message.type"),
    "value": ("1", "NORMAL", "true"),
    "action": ("Pub", "Sub", "All"),
    "decision": ("ALLOW", "DENY"),
    "message_id": ("01AB", "0A0000010A9F000000000000"),
    "queue_id": (0, 1),
    "queue_count": (1, 4),
    "permission": (6, 4, 2),
    "offset": (0, 1, 5),
    "duration_ms": (0, 10, 15_000),
    "timestamp_ms": (0, 1, 1_700_000_000_000),
    "max": (1, 16, 32),
    "size": (1, 16, 100),
}


class Requests:
    """Makes requests from random numbers. `tokens` are valid ones of the service, such as handles
    of receipts; `good` adds to FITTING, and counts first."""

    def __init__(
        self,
        seed: str,
        good: Mapping[str, Sequence[Any]] | None = None,
        tokens: Iterable[str] = (),
    ) -> None:
        names = random.Random(seed)
        self._fitting = {**(good or {}), **FITTING}
        self._filled = FILLED[0]
        self.tokens = list(tokens)
        self._texts = (*TEXTS, *(_any_text(names) for _ in range(32)))
        self._raw = tuple(names.randbytes(names.randrange(200)) for _ in range(32))

    def bytes_of(self, method: MethodDescriptor, chance: random.Random) -> bytes:
        """Return a request of this RPC, or bytes that are almost one."""
        encoded = self.message(method, chance).SerializeToString()
        return self._spoilt(encoded, chance) if chance.random() < RAW else encoded

    def raw(self, method: MethodDescriptor, chance: random.Random) -> bytes:
        """Return bytes in place of a request."""
        return self._spoilt(self.message(method, chance).SerializeToString(), chance)

    def message(self, method: MethodDescriptor, chance: random.Random) -> Message:
        request: Message = message_factory.GetMessageClass(method.input_type)()
        self._filled = chance.choice(FILLED)
        self._fill(request, chance, DEPTH, "")
        return request

    def _fill(self, message: Message, chance: random.Random, depth: int, within: str) -> None:
        """Fill a message in the field `within` of another."""
        for each in message.DESCRIPTOR.fields:
            field = cast("FieldDescriptor", each)
            if chance.random() < self._filled or field.name in NEEDED:
                self._set(message, field, chance, depth, within)

    def _set(
        self,
        message: Message,
        field: FieldDescriptor,
        chance: random.Random,
        depth: int,
        within: str,
    ) -> None:
        value: Any = getattr(message, field.name)
        if field.message_type is None:
            if field.is_repeated:
                count = chance.choice((1, 1, 2, 5))
                value.extend(self._scalar(field, chance, within) for _ in range(count))
            else:
                setattr(message, field.name, self._scalar(field, chance, within))
        elif depth == 0:
            return
        elif field.message_type.GetOptions().map_entry:
            self._fill_map(value, field.message_type, chance, depth)
        elif field.is_repeated:
            for _ in range(chance.choice((1, 1, 2, 3))):
                self._fill(value.add(), chance, depth - 1, field.name)
        else:
            value.SetInParent()
            self._fill(value, chance, depth - 1, field.name)

    def _fill_map(self, value: Any, entry: Any, chance: random.Random, depth: int) -> None:
        key, content = entry.fields_by_name["key"], entry.fields_by_name["value"]
        for _ in range(chance.choice((1, 2))):
            name = self._scalar(key, chance, "")
            if content.message_type is None:
                value[name] = self._scalar(content, chance, "")
            else:
                self._fill(value[name], chance, depth - 1, "")

    def _scalar(self, field: FieldDescriptor, chance: random.Random, within: str) -> Any:
        if field.enum_type is not None:
            numbers = [value.number for value in field.enum_type.values]
            return chance.choice(numbers) if chance.random() < GOOD else 99
        if chance.random() < GOOD:
            values = self._values_for(field, within)
            if values is not None:
                return chance.choice(values)
        return self._bad(field, chance)

    def _values_for(self, field: FieldDescriptor, within: str) -> Sequence[Any] | None:
        kind = str if field.cpp_type == F.CPPTYPE_STRING else int
        if field.type == F.TYPE_BYTES or field.cpp_type in (F.CPPTYPE_DOUBLE, F.CPPTYPE_FLOAT):
            return None
        name = within if field.name == "name" else field.name
        for part, values in self._fitting.items():
            if part in name and isinstance(values[0], kind):
                return values
        return None

    def _bad(self, field: FieldDescriptor, chance: random.Random) -> Any:
        if field.type == F.TYPE_BYTES:
            return chance.choice((*BODIES, *self._raw[:4]))
        if field.cpp_type == F.CPPTYPE_STRING and self.tokens and chance.random() < TOKENS:
            return self._token(chance)
        values: dict[int, Sequence[Any]] = {
            F.CPPTYPE_STRING: self._texts,
            F.CPPTYPE_BOOL: (False, True),
            F.CPPTYPE_DOUBLE: FLOATS,
            F.CPPTYPE_FLOAT: FLOATS,
            F.CPPTYPE_INT64: LONG_INTEGERS,
            F.CPPTYPE_INT32: INTEGERS,
        }
        return chance.choice(values.get(field.cpp_type, NATURALS))

    def _token(self, chance: random.Random) -> str:
        """Return a valid token, or one with a character or its end changed."""
        token = chance.choice(self.tokens)
        at = chance.randrange(len(token))
        return chance.choice(
            (token, token[:at], token + "A", token[:at] + "~" + token[at + 1 :], token.lower())
        )

    def _spoilt(self, data: bytes, chance: random.Random) -> bytes:
        at = chance.randrange(len(data) + 1)
        spoilt: Sequence[bytes] = (
            data[:at],
            data[:at] + chance.choice(self._raw) + data[at:],
            data + data,
            data[:at] + bytes([chance.randrange(256)]) + data[at + 1 :],
            chance.choice(self._raw),
            data + UNENCODABLE,
            b"\x0b" * chance.choice((1, 99, 10_000)) + data,  # groups within groups
        )
        return chance.choice(spoilt)


def _any_text(chance: random.Random) -> str:
    size = chance.choice((1, 5, 40, 130, 300))
    return "".join(chr(chance.choice((*range(1, 128), 0xDF, 0x2028, 0x1F600))) for _ in range(size))


@dataclass(frozen=True, slots=True)
class FuzzedRpc:
    """An RPC of a service. `codes` are the names of the codes that its contract lists."""

    descriptor: MethodDescriptor
    codes: frozenset[str]

    @property
    def path(self) -> str:
        return f"/{self.descriptor.containing_service.full_name}/{self.descriptor.name}"

    @property
    def name(self) -> str:
        return self.descriptor.name


def rpcs_of(
    services: Iterable[ServiceDescriptor], codes: Callable[[MethodDescriptor], Iterable[str]]
) -> Iterator[FuzzedRpc]:
    for service in services:
        for method in service.methods:
            yield FuzzedRpc(method, frozenset(codes(method)))
