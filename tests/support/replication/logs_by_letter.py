"""Logs whose bytes say who wrote them: what a handshake agrees on is compared with the bytes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from aerobee_broker.errors import ReplicaRefused
from aerobee_broker.replication.identity import Replica
from aerobee_broker.replication.log import handshake
from aerobee_broker.replication.log.epochs import EpochHistory
from aerobee_broker.replication.log.handshake import Action, Agreement, LogDescription

FILE_SIZE = 4


class Byte(NamedTuple):
    """One byte of a log, which a master wrote in its epoch."""

    epoch: int
    master: int


@dataclass(frozen=True)
class LetterLog:
    """`lowest`: bytes before it have expired, and are kept here to be compared. `family`: who was
    the first master of this log; None: it has had none."""

    number: int
    data: tuple[Byte, ...] = ()
    history: EpochHistory = field(default_factory=EpochHistory)
    lowest: int = 0
    confirmed: int = 0
    family: int | None = None

    @property
    def end(self) -> int:
        return len(self.data)

    def describe(self, **changes: object) -> LogDescription:
        described = LogDescription(
            cluster="c",
            broker_name="b",
            replica=Replica(self.number, f"store-{self.number}"),
            history=self.history,
            epoch=self.history.highest,
            lowest=self.lowest,
            end=self.end,
            confirmed=self.confirmed,
            file_size=FILE_SIZE,
        )
        return replace(described, **changes)  # type: ignore[arg-type]

    def lead(self, epoch: int, count: int) -> LetterLog:
        """As master of a new epoch in which it writes so many bytes."""
        history = self.history.begin(epoch, f"store-{self.number}", self.end)
        family = self.number if self.family is None else self.family
        data = self.data + (Byte(epoch, self.number),) * count
        return replace(self, history=history, data=data, family=family)

    def follow(self, master: LetterLog) -> tuple[Agreement, LetterLog]:
        """Agrees with `master` and does what it says; copies nothing yet. Raises ReplicaRefused."""
        agreement = handshake.agree(self.describe(), master.describe())
        kept = self.data[: agreement.begin] if agreement.action is not Action.WIPE else ()
        lowest = self.lowest
        if agreement.action in (Action.COPY, Action.WIPE):
            kept, lowest = master.data[: agreement.begin], agreement.begin
        prepared = replace(
            self,
            data=kept,
            lowest=lowest,
            history=self.history.adopt(master.history.entries),
            confirmed=min(self.confirmed, len(kept)),
            family=master.family,
        )
        return agreement, prepared

    def copy(self, master: LetterLog, count: int) -> LetterLog:
        return replace(self, data=self.data + master.data[self.end : self.end + count])


def common_prefix(one: LetterLog, other: LetterLog) -> int:
    count = 0
    for a, b in zip(one.data, other.data, strict=False):
        if a != b:
            break
        count += 1
    return count


def followed(slave: LetterLog, master: LetterLog) -> Iterator[LetterLog]:
    """The slave as it was if it does not connect, then after each number of bytes that it may have
    copied."""
    yield slave
    try:
        _, prepared = slave.follow(master)
    except ReplicaRefused:
        return
    for count in range(master.end - prepared.end + 1):
        yield prepared.copy(master, count)
