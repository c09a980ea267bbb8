"""What a server holds for calls: when a request is read, refused, and when there is room."""

from __future__ import annotations

import asyncio
import random

import pytest

from aerobee_chassis.rpc.in_flight import (
    LOOKAHEAD_BYTES,
    MAX_MESSAGE_BYTES,
    RATE_S,
    RESERVED_BYTES,
    SMALL_ANSWER_BYTES,
    WAIT_S,
    InFlight,
    TooMuchInFlight,
)

LIMIT = 8 * RESERVED_BYTES
AT_ONCE = 7  # reads of a kind that may have large requests: one more is for others
MIB = 1024 * 1024


class Call:
    """`decided` gets the call when it reads or is refused."""

    def __init__(self, kind: str, decided: list[Call]) -> None:
        self.kind = kind
        self.reserved: int | None = None
        self.refused = False
        self.error = ""
        self.decided = decided

    def read(self, reserved: int) -> None:
        self.reserved = reserved
        self.decided.append(self)

    def refuse(self, error: TooMuchInFlight) -> None:
        self.refused = True
        self.error = str(error)
        self.decided.append(self)

    def reads(self) -> bool:
        return self.reserved is not None

    def is_refused(self) -> bool:
        return self.refused


def arrive(bounds: InFlight, call: Call, size: int) -> None:
    assert call.reserved is not None
    bounds.arrived(call, call.reserved, size)


def admit(
    bounds: InFlight,
    count: int,
    kind: str = "send",
    now_s: float = 0.0,
    decided: list[Call] | None = None,
) -> list[Call]:
    decided = [] if decided is None else decided
    calls = [Call(kind, decided) for _ in range(count)]
    for call in calls:
        bounds.admit(call, now_s)
    return calls


def test_requests_are_read_while_a_large_one_has_room() -> None:
    bounds = InFlight(LIMIT)
    calls = admit(bounds, 20)
    assert [call.reads() for call in calls] == [True] * AT_ONCE + [False] * 13
    assert bounds.requests == bounds.peak == AT_ONCE * RESERVED_BYTES


def test_small_requests_do_not_wait_for_each_other() -> None:
    bounds = InFlight(LIMIT)
    for _ in range(1_000):
        (call,) = admit(bounds, 1)
        arrive(bounds, call, 1_000)
    assert bounds.requests == 1_000_000


def test_the_end_of_a_call_lets_the_next_one_read() -> None:
    bounds = InFlight(LIMIT)
    calls = admit(bounds, 10)
    for call in calls[:AT_ONCE]:
        arrive(bounds, call, RESERVED_BYTES)
    assert not calls[AT_ONCE].reads()
    bounds.done(RESERVED_BYTES)
    assert calls[AT_ONCE].reads() and not calls[AT_ONCE + 1].reads()


def test_calls_with_small_requests_do_not_wait_for_large_ones() -> None:
    bounds = InFlight(LIMIT)
    for kind, size in (("ack", 100), ("send", 4 * MIB)):
        (call,) = admit(bounds, 1, kind)
        arrive(bounds, call, size)
        bounds.done(size)
    sends = admit(bounds, 20)
    assert sum(call.reads() for call in sends) == AT_ONCE
    (ack, second) = admit(bounds, 2, "ack")
    assert ack.reads() and not second.reads()
    arrive(bounds, ack, 100)
    bounds.done(100)
    assert second.reads()  # before the sends that came earlier
    assert sum(call.reads() for call in sends) == AT_ONCE


def test_a_request_that_waits_too_long_is_refused() -> None:
    bounds = InFlight(LIMIT)
    last = admit(bounds, AT_ONCE + 1, now_s=5.0)[-1]
    bounds.expire(5.0 + WAIT_S - 0.1)
    assert not last.is_refused()
    bounds.expire(5.0 + WAIT_S)
    assert last.is_refused() and bounds.refused == 1
    assert bounds.waiting == 0


def test_waiting_calls_hold_a_quarter_of_the_limit_at_most() -> None:
    bounds = InFlight(LIMIT)
    (large,) = admit(bounds, 1)
    arrive(bounds, large, 4 * MIB)
    bounds.done(4 * MIB)
    calls = admit(bounds, 1_000)
    assert bounds.waiting * LOOKAHEAD_BYTES <= LIMIT // 4
    assert (
        sum(call.is_refused() for call in calls)
        == bounds.refused
        == 1_000 - AT_ONCE - bounds.waiting
    )


def test_many_small_requests_may_wait() -> None:
    bounds = InFlight(LIMIT)
    (small,) = admit(bounds, 1)
    arrive(bounds, small, 100)
    assert not any(call.is_refused() for call in admit(bounds, 10_000))


def test_calls_of_a_method_wait_until_its_first_request_has_arrived() -> None:
    bounds = InFlight(LIMIT)
    calls = admit(bounds, 2_000)
    assert bounds.large_waiting == 2_000 - AT_ONCE
    arrive(bounds, calls[0], 100)
    assert bounds.large_waiting == 0
    for call in calls[1:]:
        arrive(bounds, call, 100)
    assert bounds.refused == bounds.waiting == 0


def test_a_burst_continues_after_its_first_request_has_arrived() -> None:
    bounds = InFlight(LIMIT)
    first = admit(bounds, 1_000, now_s=50.0)
    arrive(bounds, first[0], 100)
    later = admit(bounds, 1_000, now_s=50.0 + RATE_S / 2)
    assert bounds.refused == 0 and not any(call.is_refused() for call in (*first, *later))


def test_first_request_that_is_large_refuses_the_surplus_of_its_method() -> None:
    bounds = InFlight(LIMIT)
    others = admit(bounds, 3, "other")
    sends = admit(bounds, 1_000)
    arrive(bounds, sends[0], 4 * MIB)
    assert bounds.waiting * LOOKAHEAD_BYTES <= LIMIT // 4
    assert [call.is_refused() for call in sends] == [
        number >= 1_000 - bounds.refused for number in range(1_000)
    ]
    assert not any(call.is_refused() for call in others)


def test_waiting_calls_are_refused_when_their_method_turns_out_to_have_large_requests() -> None:
    bounds = InFlight(LIMIT)
    (small,) = admit(bounds, 1)
    arrive(bounds, small, 100)
    calls = admit(bounds, 1_000)
    assert bounds.small_waiting == 1_000 - AT_ONCE
    arrive(bounds, calls[0], 4 * MIB)
    assert bounds.small_waiting == 0
    assert bounds.large_waiting * LOOKAHEAD_BYTES <= LIMIT // 4
    assert bounds.refused == 1_000 - AT_ONCE - bounds.large_waiting


def test_a_method_counts_as_small_again_after_small_requests() -> None:
    bounds = InFlight(LIMIT)
    for size in (4 * MIB, *[1_000] * 100):
        (call,) = admit(bounds, 1)
        arrive(bounds, call, size)
        bounds.done(size)
    calls = admit(bounds, 2_000)
    assert not any(call.is_refused() for call in calls)
    assert bounds.small_waiting == 2_000 - AT_ONCE - 1  # it leaves no space for other methods


def test_calls_that_wait_for_a_large_method_move_when_it_counts_as_small_again() -> None:
    bounds = InFlight(LIMIT)
    (large,) = admit(bounds, 1)
    arrive(bounds, large, 4 * MIB)
    bounds.done(4 * MIB)
    calls = admit(bounds, AT_ONCE + 10)
    assert bounds.large_waiting == 10
    for number in range(50):
        arrive(bounds, calls[number], 1_000)
        bounds.done(1_000)
        calls += admit(bounds, 1)
    assert bounds.large_waiting == bounds.refused == 0 < bounds.small_waiting


def test_waiting_calls_of_a_small_method_fit_into_a_quarter_of_the_limit() -> None:
    bounds = InFlight(LIMIT)
    size = LOOKAHEAD_BYTES // 4
    (small,) = admit(bounds, 1)
    arrive(bounds, small, size)
    bounds.done(size)
    admit(bounds, 1_000)
    assert bounds.refused
    assert LIMIT // 4 - size < bounds.waiting * size <= LIMIT // 4


def test_one_larger_request_does_not_make_a_burst_of_small_ones_too_many() -> None:
    bounds = InFlight(LIMIT)
    for size in (*[1_000] * 10, LOOKAHEAD_BYTES // 4):
        (call,) = admit(bounds, 1)
        arrive(bounds, call, size)
        bounds.done(size)
    assert not any(call.is_refused() for call in admit(bounds, 900))


@pytest.mark.parametrize("is_known", [True, False])
def test_few_calls_wait_while_the_requests_that_are_read_stay_incomplete(is_known: bool) -> None:
    bounds = InFlight(LIMIT)
    if is_known:
        (small,) = admit(bounds, 1)
        arrive(bounds, small, 100)
    places = LIMIT // 4 // LOOKAHEAD_BYTES
    admit(bounds, 2 * AT_ONCE, now_s=5.0)
    assert not any(call.is_refused() for call in admit(bounds, 1_000, now_s=5.0 + RATE_S / 2))
    assert all(call.is_refused() for call in admit(bounds, 1_000, now_s=5.0 + RATE_S))
    bounds.expire(5.0 + RATE_S / 2 + WAIT_S)
    admit(bounds, 1_000, now_s=5.0 + 2 * WAIT_S)
    # The wait of the queue began anew, because no call waited.
    assert bounds.waiting == 1_000
    later = admit(bounds, 1_000, now_s=5.0 + 2 * WAIT_S + RATE_S)
    assert all(call.is_refused() for call in later)
    assert places < 1_000


def test_as_many_calls_wait_as_are_read_in_time() -> None:
    bounds = InFlight(LIMIT)
    (first,) = admit(bounds, 1)
    arrive(bounds, first, 100)
    calls = admit(bounds, 200)
    for call in calls[:100]:
        arrive(bounds, call, 100)
        bounds.done(100)
    admit(bounds, 10_000, now_s=RATE_S)
    assert bounds.waiting == LIMIT // 4 // LOOKAHEAD_BYTES + 100 * WAIT_S / RATE_S


def test_a_burst_of_small_requests_waits_while_large_ones_stay_incomplete() -> None:
    bounds = InFlight(LIMIT)
    for kind, size in (("ack", 100), ("send", 4 * MIB)):
        (call,) = admit(bounds, 1, kind)
        arrive(bounds, call, size)
        bounds.done(size)
    admit(bounds, AT_ONCE + 1)
    assert bounds.large_waiting == 1
    acks = admit(bounds, 2_000, "ack", now_s=2 * RATE_S)
    assert bounds.small_waiting == 1_999 and not any(call.is_refused() for call in acks)


def test_a_call_keeps_the_end_of_its_wait_when_its_size_becomes_known() -> None:
    bounds = InFlight(LIMIT)
    (large,) = admit(bounds, 1, "large")
    arrive(bounds, large, 4 * MIB)
    bounds.done(4 * MIB)
    reading = admit(bounds, AT_ONCE, "send", now_s=1.0)
    (first,) = admit(bounds, 1, "send", now_s=2.0)
    (second,) = admit(bounds, 1, "large", now_s=1.0)
    arrive(bounds, reading[0], 4 * MIB)
    assert bounds.large_waiting == 2
    bounds.expire(1.0 + WAIT_S)
    assert second.is_refused() and not first.is_refused()
    bounds.expire(2.0 + WAIT_S)
    assert first.is_refused()


def test_an_error_states_what_is_exhausted() -> None:
    bounds = InFlight(LIMIT)
    first = admit(bounds, 1_000)
    arrive(bounds, first[0], 4 * MIB)
    assert f"{bounds.large_waiting} calls already wait" in first[-1].error
    bounds.expire(WAIT_S)
    assert f"within {WAIT_S:g} s" in first[AT_ONCE].error
    assert all(str(LIMIT) in call.error for call in first if call.is_refused())


@pytest.mark.parametrize("seed", range(20))
def test_each_call_reads_or_is_refused_within_the_limits(seed: int) -> None:
    choice = random.Random(seed)
    bounds = InFlight(LIMIT)
    sizes = {"ack": (1, 200), "send": (1, 4 * MIB), "batch": (LOOKAHEAD_BYTES, 8 * MIB)}
    waiting: list[Call] = []
    decided: list[Call] = []
    reading: list[Call] = []
    running: list[int] = []
    now_s = 0.0

    def settle() -> None:
        """Move the calls that the bounds have decided about, which have waited longest."""
        reading.extend(call for call in decided if call.reads())
        for call in decided:
            waiting.remove(call)
        decided.clear()

    for step in range(3_000):
        if step < 2_000:
            kind = choice.choice(list(sizes))
            waiting += admit(bounds, choice.choice((0, 1, 40)), kind, now_s, decided)
            settle()
        if waiting and choice.random() < 0.1:
            forgotten = waiting.pop(choice.randrange(len(waiting)))
            bounds.forget(forgotten)
            settle()
        for _ in range(min(len(reading), choice.choice((0, 1, 30)))):
            call = reading.pop(choice.randrange(len(reading)))
            size = choice.randint(*sizes[call.kind])
            arrive(bounds, call, size)
            running.append(size)
        for _ in range(min(len(running), choice.choice((0, 1, 30)))):
            bounds.done(running.pop(choice.randrange(len(running))))
        now_s += 0.01
        bounds.expire(now_s)
        settle()
        assert bounds.requests == sum(running) + sum(call.reserved or 0 for call in reading)
        assert bounds.waiting == len(waiting)
    for call in reading:
        arrive(bounds, call, 0)
    for size in running:
        bounds.done(size)
    bounds.expire(now_s + WAIT_S)
    assert bounds.waiting == 0


def test_a_forgotten_call_does_not_read() -> None:
    bounds = InFlight(LIMIT)
    calls = admit(bounds, AT_ONCE + 2)
    bounds.forget(calls[-2])
    arrive(bounds, calls[0], 0)
    assert not calls[-2].reads() and calls[-1].reads()


def test_fewer_are_read_at_a_time_where_requests_are_larger_than_usual() -> None:
    bounds = InFlight(LIMIT)
    batch = admit(bounds, 2)[0]
    arrive(bounds, batch, 2 * RESERVED_BYTES)  # while the other is on its way
    bounds.done(2 * RESERVED_BYTES)
    sends = [call for call in admit(bounds, 20) if call.reads()]
    assert len(sends) == 3


def test_as_many_as_usual_are_read_once_the_large_ones_are_over() -> None:
    bounds = InFlight(LIMIT)
    batch, other = admit(bounds, 2)
    arrive(bounds, batch, 2 * RESERVED_BYTES)
    bounds.done(2 * RESERVED_BYTES)
    arrive(bounds, other, 0)
    assert sum(call.reads() for call in admit(bounds, 20)) == AT_ONCE


@pytest.mark.parametrize(
    ("limit", "largest"), [(32 * MIB, 8 * MIB), (256 * MIB, MAX_MESSAGE_BYTES)]
)
def test_a_request_has_a_quarter_of_the_limit_at_most(limit: int, largest: int) -> None:
    assert InFlight(limit).largest_request == largest


def test_answers_take_half_of_the_limit_at_most() -> None:
    bounds = InFlight(LIMIT)
    for _ in range(4):
        bounds.check_room(RESERVED_BYTES)
        bounds.answering(RESERVED_BYTES)
    with pytest.raises(TooMuchInFlight):
        bounds.check_room(RESERVED_BYTES)
    bounds.check_room(SMALL_ANSWER_BYTES)  # which may say why
    assert sum(call.reads() for call in admit(bounds, 20)) == 3


def test_answers_and_requests_together_stay_within_the_limit() -> None:
    bounds = InFlight(LIMIT)
    assert sum(call.reads() for call in admit(bounds, 20)) == AT_ONCE
    bounds.answering(SMALL_ANSWER_BYTES)
    with pytest.raises(TooMuchInFlight):
        bounds.check_room(RESERVED_BYTES)


def test_one_answer_has_room_whatever_its_size() -> None:
    InFlight(LIMIT).check_room(LIMIT)


async def test_room_is_waited_for() -> None:
    bounds = InFlight(LIMIT)
    bounds.answering(LIMIT // 2)
    waiting = asyncio.create_task(bounds.room(10))
    await asyncio.sleep(1)
    assert not waiting.done()
    bounds.answered(RESERVED_BYTES)
    await waiting


async def test_room_passes_to_the_next_call_when_the_first_one_is_cancelled() -> None:
    bounds = InFlight(LIMIT)
    bounds.answering(LIMIT // 2)
    first, second = (asyncio.create_task(bounds.room(10)) for _ in range(2))
    await asyncio.sleep(1)
    bounds.answered(RESERVED_BYTES)
    first.cancel()
    await asyncio.wait_for(second, 1)


async def test_a_wait_for_room_ends_with_a_refusal() -> None:
    bounds = InFlight(LIMIT)
    bounds.answering(LIMIT // 2)
    with pytest.raises(TooMuchInFlight):
        await bounds.room(2)
    assert bounds.refused == 1 and not bounds._for_room
    bounds.answered(LIMIT // 2)
    await bounds.room(0.1)
