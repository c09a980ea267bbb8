"""Verifies a store: records and their CRCs, consume queues, index entries and JSON files.

The check derives consume queues and index again from the log, in a temporary directory, and
compares them with the files of the store. It reports a torn tail, and files that the next start
rebuilds, only as notes. They are not problems, because they do not lose acknowledged messages.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from aerobee_broker.disk import Disk, read_file
from aerobee_broker.errors import ConfigFileDamaged
from aerobee_broker.inspection.derived import Comparison
from aerobee_broker.inspection.stopped_store import Problem, StoppedStore, Walk
from aerobee_broker.replication.log.diverged import DivergedFiles
from aerobee_broker.replication.log.epochs import EpochFile
from aerobee_broker.replication.role.unfinished import UnfinishedFile
from aerobee_broker.store.derived.dispatch import Dispatch
from aerobee_broker.store.derived.topic_encoding import TagsCode
from aerobee_broker.store.log.open_files import OpenFiles
from aerobee_broker.store.options import StoreOptions
from aerobee_broker.store.recovery.derive import Deriver
from aerobee_broker.store.recovery.scan import Records
from aerobee_wire.checked_json import decode

Progress = Callable[[int, int], None]  # bytes read, bytes of all log files

_PROGRESS_BYTES = 256 << 20
_SCRATCH_FILES = 256


@dataclass(slots=True)
class Report:
    """The result of a check.

    `notes` has findings that are not problems, because the next start recovers from them.
    """

    path: Path
    format: dict[str, Any] | None = None  # from config/format.json, if the file exists
    log_files: int = 0
    records: int = 0
    begin_offset: int = 0
    end_offset: int = 0
    queues: int = 0
    units: int = 0
    index_entries: int = 0
    epochs: dict[int, int] = field(default_factory=dict)  # epoch → physical offset of its begin
    unconfirmed_bytes: int = 0
    notes: list[str] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Return the report as values for `json.dumps` with `default=str`."""
        return {"path": self.path, "ok": not self.problems, **asdict(self)}


def check(
    store: StoppedStore,
    options: StoreOptions,
    *,
    tags_code_of: dict[str, TagsCode],
    progress: Progress,
) -> Report:
    """Read and check all files of the store.

    `tags_code_of` must be the same as for `MessageStore`.
    """
    found = None if store.format is None else store.format.to_json()
    report = Report(store.path, found, len(store.log.starts), problems=store.problems)
    with tempfile.TemporaryDirectory(prefix="aerobee-check-") as scratch:
        rebuilt = Rebuilt(store, options, Path(scratch), tags_code_of)
        walk = Walk(store)
        report.begin_offset = reported = walk.end
        for records, end in walk:
            report.records += len(records)
            rebuilt.add(records, end, walk.lost_bytes)
            if end - reported >= _PROGRESS_BYTES:
                reported = end
                progress(end - report.begin_offset, store.end_of_files() - report.begin_offset)
        report.end_offset = walk.end
        _note_state(store, walk, report)
        _note_replica(store, walk.end, report)
        rebuilt.finish()
        comparison = Comparison(store, options)
        report.queues, report.units = comparison.queues(rebuilt.queues)
        if rebuilt.index is not None:
            report.index_entries = comparison.index(rebuilt.index)
        report.notes += comparison.notes
        rebuilt.close()
    check_json(store.disk, store.path / "config", store.problems)
    return report


class Rebuilt:
    """Derives consume queues and index again from the log, in a temporary directory."""

    def __init__(
        self,
        store: StoppedStore,
        options: StoreOptions,
        scratch: Path,
        tags_code_of: dict[str, TagsCode],
    ) -> None:
        self._files = OpenFiles(store.disk, _SCRATCH_FILES)
        dispatch = Dispatch.of_store(store.disk, scratch, options, self._files, tags_code_of)
        self.queues = dispatch.queues
        self.index = dispatch.index
        self._lost_bytes = 0
        self._deriver = Deriver(
            log=store.log,
            dispatch=dispatch,
            on_damage=lambda file, offset, reason: store.problems.append(
                Problem(file, reason, offset)
            ),
            on_deletion=lambda topic, below: store.problems.append(
                Problem(
                    store.path / "config" / "deletedTopics.json",
                    f"it lacks a deletion of {topic}; the records of that topic below physical "
                    f"offset {below} are deleted",
                    below,
                )
            ),
            deleted_topics=store.deleted_topics,
            queues_from=0,
            index_from=0,
        )

    def add(self, records: Records, end: int, lost_bytes: int) -> None:
        """Add records that end at the physical offset `end`.

        `lost_bytes` is the total number of damaged bytes before them.
        """
        self._deriver.add_lost_bytes(lost_bytes - self._lost_bytes)
        self._lost_bytes = lost_bytes
        self._deriver.derive(records, end)

    def finish(self) -> None:
        if self.index is not None:
            self.index.write()

    def close(self) -> None:
        self._files.close()


def _note_state(store: StoppedStore, walk: Walk, report: Report) -> None:
    if not store.clean:
        report.notes.append("the broker did not stop in order: its next start recovers")
    if walk.tail:
        report.notes.append(
            f"a torn tail at physical offset {walk.end} will be cut off: {walk.tail}"
        )
    if store.checkpoint is None and store.log.starts:
        report.notes.append("there is no checkpoint: consume queues and index will be rebuilt")


def _note_replica(store: StoppedStore, end: int, report: Report) -> None:
    """Report the state that only replicas have. `end` is the end of the log.

    This state consists of epochs, unconfirmed bytes, an unfinished copy, and cut bytes.
    """
    config = store.path / "config"
    epochs, unfinished = (
        EpochFile(store.disk, config / "epochs.json"),
        UnfinishedFile(store.disk, config / "unfinished.json"),
    )
    try:
        history = epochs.load()
        unfinished.load()
    except ConfigFileDamaged:  # `check_json` reports what is wrong with the file
        return
    if not history.entries:
        return
    report.epochs = {entry.epoch: entry.start for entry in history.entries}
    confirmed = store.checkpoint.confirmed if store.checkpoint is not None else 0
    report.unconfirmed_bytes = max(0, end - max(confirmed, report.begin_offset))
    if report.unconfirmed_bytes:
        report.notes.append(
            f"the last {report.unconfirmed_bytes:,} bytes, from physical offset "
            f"{end - report.unconfirmed_bytes} on, are not known to be on every replica in sync: "
            "they are in no queue yet, and another master may have this replica cut them off"
        )
    if unfinished.is_due(end):
        report.notes.append("it has not taken all of its master's log and tables yet")
    kept = DivergedFiles(store.disk, store.path / "diverged").files()
    if kept:
        size = sum(file.size for file in kept)
        report.notes.append(
            f"{size:,} bytes that were cut off its log are kept in {len(kept)} files under diverged"
        )


def check_json(disk: Disk, folder: Path, problems: list[Problem]) -> None:
    """Check that every JSON file in this folder can be read. Add failures to `problems`."""
    known = {problem.file for problem in problems}
    for name in disk.list(folder):
        if name.endswith(".json") and folder / name not in known:
            try:
                decode(read_file(disk, folder / name))
            except ValueError as error:
                backup = disk.exists(folder / f"{name}.bak")
                hint = "; its .bak is used instead" if backup else ""
                problems.append(Problem(folder / name, f"invalid JSON: {error}{hint}"))
    for name in disk.list(folder):
        table = folder / f"{name.partition('.')[0]}.json"
        found = disk.exists(table) or disk.exists(table.with_name(f"{table.name}.bak"))
        if name.endswith((".changes", ".changes.bak")) and not found:
            problems.append(Problem(table, f"it is missing, and {name} continues it"))
