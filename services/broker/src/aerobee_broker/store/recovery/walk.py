"""Reads the records of the commit log, derives their units and keys, and judges bad records.

A start uses this module, and also a replica that derives records after they are confirmed.

A bad record is judged by its position. At or after the known durable end, it is the torn tail of a
crash: it was never acknowledged, and the log ends there. Before the durable end, it is damage: it
is reported with file and physical offset, and reading continues after it. If the durable end is
unknown, a bad record is damage if a whole record follows.

A replica stops deriving at damage until the damage is repaired from another replica, unless it must
lead.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from aerobee_broker.store.damage import DamagedRange, DamageRegister, EventListener
from aerobee_broker.store.log.commit_log import BLANK_RESERVE, CommitLog
from aerobee_broker.store.recovery.derive import Deriver
from aerobee_broker.store.recovery.scan import End, Stop, find_record, scan_log

NOWHERE = 1 << 62  # a physical offset after every log

OnProgress = Callable[[int], None]  # the physical offset up to which the log is read


class Walked(NamedTuple):
    """The physical offset at which a walk stopped, and whether it is the end of the log."""

    at: int
    ended: bool


@dataclass(slots=True, kw_only=True)
class Walk:
    """Read the records of the commit log one after the other, when a store is opened.

    - `durable` is the physical offset below which all bytes were on the disk before the broker
      started; None if it is unknown.
    - With `whole_crc`, each record after `durable` must have a CRC at its end.
    - With `over_damage`, the walk continues after a damaged record, and later records are added to
      consume queues and index.
    """

    log: CommitLog
    deriver: Deriver
    damage: DamageRegister
    on_event: EventListener
    durable: int | None
    check_crc: bool = True
    whole_crc: bool = True
    over_damage: bool = True

    def run(self, begin: int, limit: int, *, derive: bool, on_progress: OnProgress) -> Walked:
        """Read the records between two physical offsets.

        With `derive`, also add them to consume queues and index. Raises OSError.
        """
        log = self.log
        crc_from = self.durable if self.whole_crc and self.durable is not None else NOWHERE
        at = begin
        while at < limit and log.start_at(at) in log.starts:
            file_end = log.start_at(at) + log.file_size
            if at + BLANK_RESERVE > file_end:
                at = file_end
                continue
            records, stopped, end = scan_log(
                log, at, limit=limit, check_crc=self.check_crc, crc_from=crc_from
            )
            if derive:
                self.deriver.derive(records, stopped)
                if self.deriver.halted_at is not None:
                    return Walked(self.deriver.halted_at, False)
            if end.stop is Stop.MORE and stopped == at:
                return Walked(at, False)  # the limit is within a record
            at = stopped
            if end.stop is Stop.BLANK:
                at = file_end
            elif end.stop is not Stop.MORE:
                next_at = self._judge(at, end, limit, derive=derive and self.over_damage)
                if next_at is None:
                    return Walked(at, True)
                if derive and not self.over_damage:
                    return Walked(at, False)
                at = next_at
                if self.deriver.halted_at is not None:
                    return Walked(at, False)
            on_progress(at)
        return Walked(at, at < limit)

    def _judge(self, physical_offset: int, end: End, limit: int, *, derive: bool) -> int | None:
        """Return the physical offset at which to continue after a bad record.

        Return None if the log ends at the bad record.
        """
        durable = self.durable
        if durable is not None and physical_offset >= durable:
            self._report_torn_tail(physical_offset, end)
            return None
        known = self.log.starts[-1] + self.log.file_size if durable is None else durable
        known = min(known, limit)
        behind = physical_offset + (len(end.damaged.data) if end.damaged else 1)
        next_at = find_record(self.log, behind, known, check_crc=self.check_crc)
        if next_at is None:
            if durable is None:
                self._report_torn_tail(physical_offset, end)
                return None
            next_at = known
        reason = end.reason or "zeros in the place of a record"
        damaged = DamagedRange(physical_offset, next_at)
        self.damage.report_range(self.log.path_of(physical_offset), damaged, reason)
        if derive:
            self.deriver.add_lost_bytes(next_at - physical_offset)
            if end.damaged is not None and behind <= next_at:
                # Only its body is damaged, so its unit can be derived.
                self.deriver.derive(end.damaged, behind)
        return next_at

    def _report_torn_tail(self, physical_offset: int, end: End) -> None:
        if end.reason:
            self.on_event(
                "log_tail_truncated",
                {
                    "file": str(self.log.path_of(physical_offset)),
                    "physical_offset": physical_offset,
                    "reason": end.reason,
                },
            )
