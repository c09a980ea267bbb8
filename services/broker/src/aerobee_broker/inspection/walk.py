"""Walks a commit log from record to record, and reports the damage that recovery would report.

Changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator

from aerobee_broker.inspection.stopped_store import Problem, StoppedStore
from aerobee_broker.store.log.commit_log import BLANK_RESERVE
from aerobee_broker.store.recovery.scan import End, Records, Stop, find_record, scan_log


class Walk:
    """Iterate over it for (records, physical offset after them), then read its fields.

    `end`: the physical offset at which the records end. `tail`: the damage of the torn tail there,
    which the next start truncates; empty without a torn tail. `lost_bytes`: bytes of the log before
    `end` that do not belong to a record.
    """

    def __init__(self, store: StoppedStore, begin: int | None = None) -> None:
        self._store = store
        self._log = store.log
        first = store.log.starts[0] if store.log.starts else 0
        self.end = first if begin is None else max(begin, first)
        self.tail = ""
        self.lost_bytes = 0

    def __iter__(self) -> Iterator[tuple[Records, int]]:
        log = self._log
        at = self.end
        while log.start_at(at) in log.starts:
            file_end = log.start_at(at) + log.file_size
            if at + BLANK_RESERVE > file_end:
                at = file_end
                continue
            records, at, end = scan_log(log, at, check_crc=True)
            self.end = at
            yield records, at
            if end.stop is Stop.BLANK:
                at = file_end
            elif end.stop is not Stop.MORE:
                next_at = self._behind(at, end)
                if next_at is None:
                    break
                if end.damaged is not None:
                    yield end.damaged, at + len(end.damaged.data)
                at = next_at
            self.end = max(self.end, at)
        self._check_durable_end(at)

    def _behind(self, physical_offset: int, end: End) -> int | None:
        """Return where the next whole record after a bad one begins; None: the log ends there."""
        checkpoint = self._store.checkpoint
        durable = checkpoint.flushed if checkpoint else None
        if durable is not None and physical_offset >= durable:
            self.tail = end.reason
            return None
        limit = self._store.end_of_files() if durable is None else durable
        behind = physical_offset + (len(end.damaged.data) if end.damaged else 1)
        next_at = find_record(self._log, behind, limit, check_crc=True)
        if next_at is None and durable is None:
            self.tail = end.reason
            return None
        reason = end.reason or "zeros in the place of a record"
        path = self._log.path_of(physical_offset)
        self._store.problems.append(Problem(path, reason, physical_offset))
        next_at = limit if next_at is None else next_at
        self.lost_bytes += next_at - physical_offset
        return next_at

    def _check_durable_end(self, end: int) -> None:
        """Check that the log reaches the durable end."""
        checkpoint = self._store.checkpoint
        if checkpoint is not None and end < checkpoint.flushed:
            what = f"the log ends here, and it was durable up to {checkpoint.flushed}"
            self._store.problems.append(Problem(self._log.path_of(end), what, end))
