"""What must hold of a run over consumer groups, whatever was killed. Pure.

Each check raises AssertionError with an example. What at-least-once and a lost lock allow is told
by its cause, of the broker, the member and the queue concerned, and by nothing else.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from fault.group_agent import STEPS, content
from fault.groups.leases import check_settled, in_doubt, settlements
from fault.groups.record import (
    KINDS,
    PRODUCERS,
    History,
    Member,
    Place,
    Queue,
    Report,
    Span,
    place_of,
    touch,
)
from support.client.orderly_member import Call, gaps, overlaps

# A member trusts a lock for so long, from when it asked; the broker keeps it for longer.
TRUST_S = 30.0
# A member commits every 5 s; a busy machine may take its time.
UNCOMMITTED_S = 20.0


def lost(history: History, kind: str) -> set[str]:
    """Keys that were acknowledged to a producer, and not consumed by the group of this kind, but
    for those that are away with a broker."""
    consumed = history.consumed(kind)
    if kind == "simple":
        doubted = in_doubt(member.reported for member in history.of(kind))
        consumed |= {reported["key"] for reported in doubted}
    gone = history.lost_for_good()
    return {
        key
        for producer in PRODUCERS
        for key, place in history.acknowledged(producer).items()
        if key not in consumed and place[1] not in gone
    }


def away(history: History, kind: str) -> set[str]:
    """Keys that are not consumed because their broker is gone for good."""
    consumed, gone = history.consumed(kind), history.lost_for_good()
    return {
        key
        for producer in PRODUCERS
        for key, place in history.acknowledged(producer).items()
        if key not in consumed and place[1] in gone
    }


def check(history: History) -> None:
    for kind in KINDS:
        missing = lost(history, kind)
        assert not missing, f"{len(missing)} are lost of {kind}, such as {min(missing)}"
    check_contents(history)
    check_stored_order(history)
    for kind in ("orderly", "pull"):
        for queue, found in history.calls(kind).items():
            early = gaps(found)
            assert not early, f"{kind}, {queue}: before its turn came {early[0]}"
    for kind in ("concurrent", "orderly", "pull"):
        wrong = [again for again in repeats(history, kind) if again.cause == ""]
        assert not wrong, f"{kind}: {len(wrong)} came again for no reason, such as {wrong[0]}"
    unexcused = [pair for pair in overlapping(history) if not excuse(history, *pair)]
    assert not unexcused, f"{len(unexcused)} overlap, such as {unexcused[0]}"
    check_settled(reported for member in history.of("simple") for reported in member.reported)
    check_leased_order(history)


def check_contents(history: History) -> None:
    """Each message has the body of its key, and at each place there is one message."""
    keys: dict[Place, str] = {}
    for kind in (*PRODUCERS, *KINDS):
        for reported in (reported for member in history.of(kind) for reported in member.reported):
            if "key" not in reported:
                continue
            key = reported["key"]
            if "body" in reported:
                assert reported["body"] == content(history.seed, key), (
                    f"{reported} has another's body"
                )
            if "place" in reported:
                known = keys.setdefault(place_of(reported), key)
                assert known == key, f"{place_of(reported)} has {key} and {known}"


def check_stored_order(history: History) -> None:
    """In each queue the messages of a message group are stored in order, and none of them is
    missing in all queues. A group that is sent again after a lost answer is stored twice."""
    numbers: defaultdict[tuple[str, Queue], dict[int, int]] = defaultdict(dict)
    for reported in (
        reported for kind in KINDS for member in history.of(kind) for reported in member.reported
    ):
        if reported.get("place", [""])[0] == STEPS:
            place = place_of(reported)
            number = int(reported["key"].rpartition("/")[2])
            numbers[group_of(reported), place[:3]][place[3]] = number
    found: defaultdict[str, list[list[int]]] = defaultdict(list)
    for (group, queue), by_offset in numbers.items():
        first_of_each = list(dict.fromkeys(by_offset[offset] for offset in sorted(by_offset)))
        assert first_of_each == sorted(first_of_each), f"{group} in {queue} is out of order"
        found[group].append(first_of_each)
    for group, parts in found.items():
        if history.lost_for_good():
            continue  # what is away leaves gaps
        seen = {number for part in parts for number in part}
        assert seen == set(range(len(seen))), f"{group} has gaps"
        # A broker that stays away loses its message groups after a minute.
        if not any(end - begin > 50 for spans in history.deaths.values() for begin, end in spans):
            assert len(parts) == 1, f"{group} lies in {len(parts)} queues"


# ---- two listeners at once ----


def overlapping(history: History) -> list[tuple[Queue, Call, Call]]:
    """Calls of orderly listeners of one queue, the second of which began while the first ran."""
    killed = {member.name: member.killed for member in history.of("orderly") if member.killed}
    return [
        (queue, before, call)
        for queue, found in history.calls("orderly").items()
        for before, call in overlaps(found, killed)
    ]


def excuse(history: History, queue: Queue, before: Call, call: Call) -> str:
    """Why the first one had lost its lock while it ran; "": it had not."""
    if any(before.began <= killed <= call.began for killed, _ in history.deaths.get(queue[1], ())):
        return "broker killed"
    for stopped, _ in history.member(before.member).frozen:
        # It may have asked for the lock until it was frozen.
        if before.began <= stopped <= call.began - TRUST_S:
            return "member frozen"
    return ""


# ---- what came again ----


class Repeat:
    """A message that a call had ended for, and that another one began with. `cause`: what explains
    it; "": nothing."""

    def __init__(self, queue: Queue, first: Call, second: Call, cause: str) -> None:
        self.queue = queue
        self.first = first
        self.second = second
        self.cause = cause

    def __repr__(self) -> str:
        return f"{self.queue}: {self.first}, {self.second}"


def repeats(history: History, kind: str) -> Iterator[Repeat]:
    """Of a group of push or pull consumers. A message that a concurrent listener failed on is sent
    back, so that it comes as a message of the retry topic: here again only by a repetition."""
    for queue, found in history_calls(history, kind).items():
        last: dict[int, Call] = {}
        for call in found:
            first = last.get(call.offset)
            if first is not None:
                yield Repeat(queue, first, call, cause_of(history, kind, queue, first, call))
            if call.consumed or (kind == "concurrent" and call.ended is not None):
                last[call.offset] = call


def history_calls(history: History, kind: str) -> dict[Queue, list[Call]]:
    """As `History.calls`, also of a member that calls listeners of a queue side by side. It may be
    at one message in two calls, when it lost the queue and got it back meanwhile: the one that
    began first is then taken to end first."""
    if kind != "concurrent":
        return history.calls(kind)
    found: defaultdict[Queue, list[Call]] = defaultdict(list)
    for member in history.of(kind):
        begun: defaultdict[Place, list[float]] = defaultdict(list)
        for reported in member.reported:
            if reported["event"] == "begin":
                begun[place_of(reported)].append(reported["at"])
            elif reported["event"] in ("end", "failed"):
                place = place_of(reported)
                consumed = reported["event"] == "end"
                call = Call(place[3], member.name, begun[place].pop(0), reported["at"], consumed)
                found[place[:3]].append(call)
        for place, times in begun.items():
            found[place[:3]] += (Call(place[3], member.name, at, None) for at in times)
    return {queue: sorted(each, key=lambda call: call.began) for queue, each in found.items()}


def cause_of(history: History, kind: str, queue: Queue, first: Call, second: Call) -> str:
    """What allowed a message to come again: of a queue in order only a lost offset or a lost lock;
    else also that the queue went to another member, which begins where it was committed last."""
    span = first.began, second.began
    member = history.member(first.member)
    if history.died(queue[1], span):
        return "broker killed"
    in_order = kind == "orderly"
    killed, ended = member.killed, first.ended or first.began
    if killed is not None and killed <= second.began:
        # What was consumed long before had been committed.
        return "member killed" if not in_order or killed - ended < UNCOMMITTED_S else ""
    if any(
        touch(frozen, span) and second.began - frozen[0] >= in_order * TRUST_S
        for frozen in member.frozen
    ):
        return "member frozen"
    if in_order:
        return ""
    # A broker frees the queues of a member that does not answer for 30 s. Thawed, it goes on where
    # it was.
    if any(touch(frozen, span) for frozen in history.member(second.member).frozen):
        return "member frozen"
    moved = first.member != second.member or released(member, queue, span)
    return "rebalance" if moved else ""


def released(member: Member, queue: Queue, span: Span) -> bool:
    """Whether a rebalance took the queue away from it in that time."""
    return any(
        reported["event"] == "rebalanced"
        and list(queue) in reported["released"]
        and span[0] <= reported["at"] <= span[1]
        for reported in member.reported
    )


# ---- leases ----


def check_leased_order(history: History) -> None:
    """Of a message group none is received before those before it in its queue are settled: as the
    consumer was told, or may have been done when it was killed or its answer was lost."""
    unsettled: defaultdict[tuple[str, Queue], set[int]] = defaultdict(set)
    for reported in (
        reported for kind in KINDS for member in history.of(kind) for reported in member.reported
    ):
        if reported.get("place", [""])[0] == STEPS:
            place = place_of(reported)
            unsettled[group_of(reported), place[:3]].add(place[3])
    first = {each: min(offsets) for each, offsets in unsettled.items()}
    for _, event, reported in sorted(receipts_and_settlements(history), key=lambda each: each[:2]):
        place = place_of(reported)
        line = group_of(reported), place[:3]
        if event == "received":
            assert place[3] <= first[line], f"{reported} came before {first[line]} was settled"
        elif place[3] in unsettled[line]:
            unsettled[line].discard(place[3])
            first[line] = min(unsettled[line], default=place[3] + 1)


def receipts_and_settlements(history: History) -> Iterator[tuple[float, str, Report]]:
    """Of STEPS: when, "received" or "settled", and what. A settlement counts from its begin: it is
    done at some time before the consumer knows."""
    for member in history.of("simple"):
        reported = [one for one in member.reported if one.get("place", [""])[0] == STEPS]
        for one in reported:
            if one["event"] == "received":
                yield one["at"], "received", one
        for began, _ in settlements(reported):
            yield began["at"], "settled", began


def group_of(reported: Report) -> str:
    return str(reported["key"]).rpartition("/")[0]
