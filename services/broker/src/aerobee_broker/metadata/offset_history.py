"""The history of committed offsets: when a group's offset passed a message, and by which client.

The history covers 24 hours, and less if its samples do not fit into their limit of memory. A group
that commits all the time has one sample in 5 s for each queue. This module does no I/O:
`offset_history_file.py` keeps the history through restarts.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Iterator, Set
from heapq import heapify, heappop, heappush
from typing import NamedTuple

COMMIT, RESET, BEGIN = 0, 1, 2
INTERVAL_MS = 5_000  # of one sample
KEPT_MS = 24 * 3_600_000
MAX_BYTES = 32 * 1024 * 1024  # of samples and names
SLICE = 1_000  # samples or queues pruned before other work runs: a few milliseconds
_SLICE_BYTES = 100_000  # of samples encoded before other work runs
_ENTRY_BYTES = 250  # of a queue or a name, beside its samples and its text

_SAMPLE = struct.Struct(
    ">q"  # begin_ms     time of its first move, since the epoch
    "I"  # span_ms       time from its first to its last move
    "q"  # before        offset before the first move, -1 if there was none
    "q"  # offset        offset after the last move
    "B"  # kind          COMMIT, RESET or BEGIN
    "I"  # client        number of a name
    "I"  # expression    number of a name
)
assert _SAMPLE.size == 37
_TIMES = struct.Struct(">qI")  # the first two fields of a sample
_BLOCK = struct.Struct(">II")  # size and CRC-32 of the payload that follows


class Mover(NamedTuple):
    """The client that moved an offset, or the operator of a reset.

    The kind BEGIN is the first pull of a group without an offset. It passes all earlier messages.

    `expression` is the group's subscription at that time, as "TAG a || b" or "SQL92 …". It is empty
    if it is unknown.
    """

    client_id: str = ""
    kind: int = COMMIT
    expression: str = ""


class Passage(NamedTuple):
    """The move of an offset over a message. Times are in milliseconds since the epoch.

    The offset passed the message between `begin_ms` and `end_ms`.
    """

    begin_ms: int
    end_ms: int
    before: int
    mover: Mover


Key = tuple[str, str, int]  # consumer group, topic, queue id


class _Names:
    """Numbers for texts that many samples share. A text stays as long as a sample uses it."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.size = 0
        self._numbers: dict[str, int] = {}
        self._uses: list[int] = []  # of each number
        self._free: list[int] = []  # numbers without a text

    def number(self, text: str) -> int:
        """Return the number of a text, and count a use of it."""
        found = self._numbers.get(text)
        if found is None:
            found = self._new()
            self._numbers[text], self.texts[found] = found, text
            self.size += _name_size(text)
        self._uses[found] += 1
        return found

    def release(self, number: int) -> None:
        """End a use of a number. The last one frees it."""
        self._uses[number] -= 1
        if not self._uses[number]:
            text = self.texts[number]
            self.texts[number] = ""
            del self._numbers[text]
            self.size -= _name_size(text)
            self._free.append(number)

    def _new(self) -> int:
        if self._free:
            return self._free.pop()
        self.texts.append("")
        self._uses.append(0)
        return len(self.texts) - 1


class OffsetHistory:
    """Records the moves of committed offsets. `max_bytes` is the limit of its memory.

    Attributes:
        since_ms: The time from which the history is complete, since the epoch.
        has_forgotten: Whether `forget` removed samples that the file may still have.
    """

    def __init__(self, now_ms: int, *, max_bytes: int = MAX_BYTES, kept_ms: int = KEPT_MS) -> None:
        self.since_ms = now_ms
        self.has_forgotten = False
        self._max_bytes, self._kept_ms = max_bytes, kept_ms
        self._samples: dict[Key, bytearray] = {}
        self._names = _Names()
        self._size = 0  # of samples and keys
        # The queues with samples that `changes` has not returned, and the position of the first.
        self._changed: dict[Key, int] = {}

    @property
    def size(self) -> int:
        """Return the approximate memory of the history in bytes."""
        return self._size + self._names.size

    def begin(self, key: Key, offset: int, client_id: str, now_ms: int) -> None:
        """Record where a group without an offset begins to pull, unless the queue has samples."""
        if key not in self._samples:
            self.note(key, None, offset, Mover(client_id, BEGIN), now_ms)

    def note(self, key: Key, before: int | None, offset: int, mover: Mover, now_ms: int) -> None:
        """Record that a group's offset in a queue moves from `before` to `offset`.

        `before` is None if the group had no offset in the queue.
        """
        if before == offset:
            return
        samples = self._samples.get(key)
        if samples is None:
            samples = self._samples[key] = bytearray()
            self._size += _key_size(key)
        client = self._names.number(mover.client_id)
        expression = self._names.number(mover.expression)
        if samples:
            at = len(samples) - _SAMPLE.size
            begin_ms, _, first, last, *by = _SAMPLE.unpack_from(samples, at)
            if before is None and by[0] == BEGIN:
                before = last
            continues = last == before
            is_next = first >= 0 and continues and last < offset
            is_same = by == [mover.kind, client, expression] and mover.kind == COMMIT
            if is_next and is_same and 0 <= now_ms - begin_ms < INTERVAL_MS:
                span_ms = now_ms - begin_ms
                _SAMPLE.pack_into(samples, at, begin_ms, span_ms, first, offset, *by)
                self._names.release(client)
                self._names.release(expression)
                self._changed.setdefault(key, at)
                return
        self._changed.setdefault(key, len(samples))
        first = -1 if before is None else before
        samples += _SAMPLE.pack(now_ms, 0, first, offset, mover.kind, client, expression)
        self._size += _SAMPLE.size
        if self.size > self._max_bytes:
            self.prune(now_ms)

    def passage(self, key: Key, queue_offset: int) -> Passage | None:
        """Return the latest move of the offset that passed the message at `queue_offset`.

        Returns None if the history has no such move.
        """
        samples = self._samples.get(key, b"")
        texts = self._names.texts
        for at in range(len(samples) - _SAMPLE.size, -1, -_SAMPLE.size):
            begin_ms, span_ms, before, after, kind, client, expression = _SAMPLE.unpack_from(
                samples, at
            )
            if before <= queue_offset < after:
                mover = Mover(texts[client], kind, texts[expression])
                return Passage(begin_ms, begin_ms + span_ms, before, mover)
        return None

    def forget(self, pairs: Set[tuple[str, str]]) -> None:
        """Remove the samples of each pair of a group and a topic, one of which was deleted."""
        for key in [key for key in self._samples if key[:2] in pairs]:
            self._drop(key, len(self._samples[key]))
            self.has_forgotten = True

    def prune(self, now_ms: int) -> None:
        """Remove samples that are too old, and then the oldest ones until three quarters are left.

        This may take hundreds of milliseconds. `pruning` does the same in slices.
        """
        for _ in self.pruning(now_ms):
            pass

    def pruning(self, now_ms: int) -> Iterator[None]:
        """Prune in slices of a few milliseconds. Other calls may run between the slices."""
        time_ms = now_ms - self._kept_ms
        if time_ms > self.since_ms:
            self.since_ms = time_ms
            for number, key in enumerate(list(self._samples), 1):
                self._drop_before(key, time_ms)
                if number % SLICE == 0:
                    yield
        if self.size > self._max_bytes * 3 // 4:
            yield from self._shrink(self._max_bytes * 3 // 4)

    # ---- the file ----

    def changes(self) -> bytes:
        """Return a block with all samples since the last call; b"" if there are none."""
        changed, self._changed = self._changed, {}
        return self._block(changed.items()) if changed else b""

    def contents(self) -> Iterator[bytes]:
        """Return blocks with all samples, each made in a few milliseconds.

        Other calls may run between the blocks. `changes` then returns what the blocks lack.
        """
        self.has_forgotten = False
        part, size = list[Key](), 0
        for key in list(self._samples):
            part.append(key)
            size += len(self._samples.get(key, b"")) + _ENTRY_BYTES
            if size >= _SLICE_BYTES:
                yield self._whole_block(part)
                part, size = [], 0
        yield self._whole_block(part)  # also without samples: it has `since_ms`

    def load(self, data: bytes) -> bool:
        """Add the samples of consecutive blocks.

        A later block may repeat the last sample of an earlier one, with a later end. Returns False
        if the data ends with an incomplete or damaged block, which is ignored.
        """
        at = 0
        while at + _BLOCK.size <= len(data):
            size, crc = _BLOCK.unpack_from(data, at)
            payload = data[at + _BLOCK.size : at + _BLOCK.size + size]
            if len(payload) != size or zlib.crc32(payload) != crc:
                return False
            self._load_block(payload)
            at += _BLOCK.size + size
        return at == len(data)

    def _whole_block(self, keys: list[Key]) -> bytes:
        for key in keys:
            self._changed.pop(key, None)
        return self._block([(key, 0) for key in keys])

    def _block(self, parts: Iterable[tuple[Key, int]]) -> bytes:
        own = _Names()
        encoded = []
        for (group, topic, queue_id), first in parts:
            samples = self._samples.get((group, topic, queue_id), b"")
            written = bytearray()
            for at in range(min(first, len(samples)), len(samples), _SAMPLE.size):
                *values, client, expression = _SAMPLE.unpack_from(samples, at)
                numbers = [own.number(self._names.texts[each]) for each in (client, expression)]
                written += _SAMPLE.pack(*values, *numbers)
            head = struct.pack(
                ">IIII", own.number(group), own.number(topic), queue_id, len(written)
            )
            encoded.append(head + written)
        names = b"".join(struct.pack(">I", len(text)) + text for text in map(str.encode, own.texts))
        payload = struct.pack(">qI", self.since_ms, len(own.texts)) + names + b"".join(encoded)
        return _BLOCK.pack(len(payload), zlib.crc32(payload)) + payload

    def _load_block(self, payload: bytes) -> None:
        self.since_ms, count = struct.unpack_from(">qI", payload)
        at, texts = 12, []
        for _ in range(count):
            (length,) = struct.unpack_from(">I", payload, at)
            texts.append(payload[at + 4 : at + 4 + length].decode())
            at += 4 + length
        while at < len(payload):
            group, topic, queue_id, size = struct.unpack_from(">IIII", payload, at)
            at += 16
            key = (texts[group], texts[topic], queue_id)
            for place in range(at, at + size, _SAMPLE.size):
                *values, client, expression = _SAMPLE.unpack_from(payload, place)
                numbers = self._names.number(texts[client]), self._names.number(texts[expression])
                self._load_sample(key, _SAMPLE.pack(*values, *numbers))
            at += size

    def _load_sample(self, key: Key, sample: bytes) -> None:
        samples = self._samples.get(key)
        if samples is None:
            samples = self._samples[key] = bytearray()
            self._size += _key_size(key)
        begin_ms, _, before, *_ = _SAMPLE.unpack(sample)
        if samples:
            last_ms, _, last_before, *_ = _SAMPLE.unpack_from(samples, len(samples) - _SAMPLE.size)
            if (begin_ms, before) == (last_ms, last_before):
                *_, client, expression = _SAMPLE.unpack_from(samples, len(samples) - _SAMPLE.size)
                self._names.release(client)
                self._names.release(expression)
                samples[-_SAMPLE.size :] = sample
                return
        samples += sample
        self._size += _SAMPLE.size

    # ---- removal ----

    def _drop_before(self, key: Key, time_ms: int) -> None:
        """Remove the first samples of a queue that end before a time."""
        samples = self._samples.get(key, b"")
        keep = 0
        while keep < len(samples) and _end_ms(samples, keep) < time_ms:
            keep += _SAMPLE.size
        if keep:
            self._drop(key, keep)

    def _shrink(self, size: int) -> Iterator[None]:
        """Remove the samples that end first until at most `size` bytes are left, in slices."""
        ends = list[tuple[int, Key]]()
        for number, key in enumerate(list(self._samples), 1):
            if key in self._samples:
                ends.append((_end_ms(self._samples[key], 0), key))
            if number % SLICE == 0:
                yield
        heapify(ends)
        number = 0
        while ends and self.size > size:
            _, key = heappop(ends)
            if key in self._samples:
                self.since_ms = max(self.since_ms, _end_ms(self._samples[key], 0) + 1)
                self._drop(key, _SAMPLE.size)
            if key in self._samples:
                heappush(ends, (_end_ms(self._samples[key], 0), key))
            number += 1
            if number % SLICE == 0:
                yield

    def _drop(self, key: Key, size: int) -> None:
        """Remove the first `size` bytes of the samples of a queue."""
        samples = self._samples[key]
        for at in range(0, size, _SAMPLE.size):
            *_, client, expression = _SAMPLE.unpack_from(samples, at)
            self._names.release(client)
            self._names.release(expression)
        self._size -= size
        del samples[:size]
        if not samples:
            del self._samples[key]
            self._size -= _key_size(key)
            self._changed.pop(key, None)
        elif key in self._changed:
            self._changed[key] = max(0, self._changed[key] - size)


def _end_ms(samples: bytes | bytearray, at: int) -> int:
    begin_ms, span_ms = _TIMES.unpack_from(samples, at)
    return int(begin_ms + span_ms)


def _name_size(text: str) -> int:
    return len(text.encode()) + _ENTRY_BYTES


def _key_size(key: Key) -> int:
    return len(key[0].encode()) + len(key[1].encode()) + _ENTRY_BYTES
