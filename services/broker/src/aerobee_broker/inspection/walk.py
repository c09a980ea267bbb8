"""Goes through a commit log from record to record and says what is wrong in it, as recovery would.

Decides nothing about it and changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator

from aerobee_broker.inspection.stopped_store import Problem, StoppedStore
from aerobee_broker.store.log.commit_log import BLANK_RESERVE
from aerobee_broker.store.recovery.scan import End, Records, Stop, find_record, scan_log


class Walk:
    """Iterate over it for (records, place behind them); then look at the other fields.

    `end`: where the records end. `tail`: what lies there and goes at the next start; empty when it
    is nothing. `lost_bytes`: of the log in front of `end` that are no records.
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
        place = self.end
        while log.start_at(place) in log.starts:
            file_end = log.start_at(place) + log.file_size
            if place + BLANK_RESERVE > file_end:
                place = file_end
                continue
            records, place, end = scan_log(log, place, check_crc=True)
            self.end = place
            yield records, place
            if end.stop is Stop.BLANK:
                place = file_end
            elif end.stop is not Stop.MORE:
                following = self._behind(place, end)
                if following is None:
                    break
                if end.damaged is not None:
                    yield end.damaged, place + len(end.damaged.data)
                place = following
            self.end = max(self.end, place)
        self._look_for_a_gap(place)

    def _behind(self, place: int, end: End) -> int | None:
        """Where the next whole record lies; None when the log ends at `place`."""
        checkpoint = self._store.checkpoint
        durable = checkpoint.flushed if checkpoint else None
        if durable is not None and place >= durable:
            self.tail = end.reason
            return None
        limit = self._store.end_of_files() if durable is None else durable
        behind = place + (len(end.damaged.data) if end.damaged else 1)
        following = find_record(self._log, behind, limit, check_crc=True)
        if following is None and durable is None:
            self.tail = end.reason
            return None
        reason = end.reason or "zeros in the place of a record"
        self._store.problems.append(Problem(self._log.path_of(place), reason, place))
        following = limit if following is None else following
        self.lost_bytes += following - place
        return following

    def _look_for_a_gap(self, place: int) -> None:
        """Acknowledged records that are not there at all."""
        checkpoint = self._store.checkpoint
        if checkpoint is not None and place < checkpoint.flushed:
            what = f"the log ends here, and it was durable up to {checkpoint.flushed}"
            self._store.problems.append(Problem(self._log.path_of(place), what, place))
