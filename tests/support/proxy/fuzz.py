"""Hypothesis strategies for requests that nobody would send: good ones with a few fields spoilt."""

from __future__ import annotations

from typing import Any, TypeVar

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from hypothesis import strategies as st

M = TypeVar("M", bound=Message)
F = FieldDescriptor

TEXTS = (
    *("", " ", "orders", "fifo", "billing", "orderly", "broker-a", "nobody", "unknown_topic"),
    *("%RETRY%billing", "%DLQ%billing", "%RETRY%", "TBW102", "rmq_sys_x", "CID_RMQ_SYS_x"),
    *("a||b", "|", "*", "a" * 65, "a" * 128, "a" * 300, "\x00", "a\x01b\x02", "\x7f", "ß😀"),
    *("price > 1", "price >", "((((", "x IS NULL", "UNIQ_KEY", "TAGS", "__SHARDINGKEY"),
    *("127.0.0.1", "::1", "mq.test", "01AB", "None", "-1", "9" * 30),
)
INTEGERS = (0, 1, -1, 2, 15, 16, 33, 1_000, 86_400, 10**9, -(10**9), 2**31 - 1, -(2**31))
LONG_INTEGERS = (*INTEGERS, 2**53, 2**63 - 1, -(2**63), 253_402_300_800, 315_576_000_001)
BODIES = (b"", b"x", b"x" * 64, b"x" * 65, b"\x1f\x8b broken", b"\x78\x9c broken", bytes(300))
MOST = 4  # fields that one request has spoilt


def bytes_or_text() -> st.SearchStrategy[str]:
    return st.one_of(st.text(max_size=300), st.binary(max_size=150).map(bytes.hex))


def mutated(valid: M, handle: str) -> st.SearchStrategy[M]:
    """Requests like `valid`. `handle` stands for a good receipt handle and comes up often."""

    @st.composite
    def strategy(draw: st.DrawFn) -> M:
        request = type(valid)()
        request.CopyFrom(valid)
        for _ in range(draw(st.integers(0, MOST))):
            _spoil(draw, request, handle)
        return request

    return strategy()


def _spoil(draw: st.DrawFn, message: Message, handle: str) -> None:
    """One field, somewhere below."""
    field: Any = draw(st.sampled_from(list(message.DESCRIPTOR.fields)))
    value: Any = getattr(message, field.name)
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        key, entry = draw(st.sampled_from(TEXTS)), draw(st.sampled_from(TEXTS))
        value[key] = entry
    elif field.is_repeated:
        _spoil_list(draw, field, value, handle)
    elif field.message_type is None:
        if draw(st.integers(0, 5)):
            setattr(message, field.name, draw(_scalar(field, handle)))
        else:
            message.ClearField(field.name)
    elif draw(st.integers(0, 5)):
        value.SetInParent()
        _spoil(draw, value, handle)
    else:
        message.ClearField(field.name)


def _spoil_list(draw: st.DrawFn, field: FieldDescriptor, value: Any, handle: str) -> None:
    action = draw(st.sampled_from(["clear", "add", "spoil", "repeat"]))
    if action == "clear":
        del value[:]
    elif field.message_type is None:
        value.append(draw(_scalar(field, handle)))
    elif action == "repeat" and value:
        value.add().CopyFrom(value[0])
    elif action == "spoil" and value:
        _spoil(draw, value[draw(st.integers(0, len(value) - 1))], handle)
    else:
        _spoil(draw, value.add(), handle)


def _scalar(field: FieldDescriptor, handle: str) -> st.SearchStrategy[Any]:
    if field.type == F.TYPE_BYTES:
        return st.sampled_from(BODIES)
    if field.enum_type is not None:
        return st.sampled_from([*(value.number for value in field.enum_type.values), 99])
    by_type: dict[int, st.SearchStrategy[Any]] = {
        F.CPPTYPE_STRING: st.one_of(st.sampled_from((handle, *TEXTS)), st.text(max_size=20)),
        F.CPPTYPE_INT64: st.sampled_from(LONG_INTEGERS),
        F.CPPTYPE_INT32: st.sampled_from(INTEGERS),
        F.CPPTYPE_BOOL: st.booleans(),
        F.CPPTYPE_FLOAT: st.floats(width=32),
    }
    return by_type[field.cpp_type]
