"""The command line of `python -m aerobee_broker.inspection`, which `aerobee store` runs.

The exit code is 0 without problems, 2 for an invalid command line, and 141 if the reader of stdout
closed its pipe. It is 1 if problems were found, or if the store cannot be read, for example because
a later version of Aerobee wrote it.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

from aerobee_broker.config import BrokerOptions
from aerobee_broker.delivery.lite.lines import parents_on_disk
from aerobee_broker.disk import RealDisk
from aerobee_broker.errors import ConfigFileDamaged, StoreOpenError
from aerobee_broker.inspection import check, dump
from aerobee_broker.inspection.stopped_store import (
    Problem,
    StoppedStore,
    directory_of,
    open_stopped,
)
from aerobee_broker.shard_stores import shards_in, store_of
from aerobee_broker.store.derived.topic_encoding import TagsCode
from aerobee_broker.store.format import THIS_BUILD, Build, Format, FormatFile, newest
from aerobee_broker.wiring.store import codes_of, store_options, unit_codes
from aerobee_chassis.config import load
from aerobee_chassis.errors import ConfigError, StartError
from aerobee_wire import closed_pipe
from aerobee_wire.record import Record

CHECK_EXAMPLE = """\
  aerobee store check data                         # everything, every CRC; changes nothing
"""
VERSION_EXAMPLE = """\
  aerobee store version data                       # which Aerobee opens it; a broker may run
"""
DUMP_EXAMPLES = """\
  aerobee store dump data --topic orders --json    # the records of a topic, without bodies
  aerobee store dump data --from 1073741824 --limit 10
"""
EXIT_WRONG, EXIT_BAD_OPTIONS = 1, 2


def main(arguments: list[str] | None = None) -> int:
    given = _parser().parse_args(arguments)
    try:
        options = load(BrokerOptions, file=given.config, sets=given.sets)
        match given.verb:
            case "check":
                code = _check(given, options)
            case "dump":
                code = _dump(given)
            case _:
                code = _version(given)
        sys.stdout.flush()
        return code
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_BAD_OPTIONS
    except StartError as error:
        print(f"error: {error}", file=sys.stderr)
    except BrokenPipeError:
        return closed_pipe.discard_output()
    except OSError as error:
        print(f"error: {error.filename or given.directory}: {error.strerror}", file=sys.stderr)
    return EXIT_WRONG


def _version(given: argparse.Namespace) -> int:
    path = directory_of(given.directory)
    file = FormatFile(RealDisk(), path)
    problem = ""
    try:
        file.load()
    except StoreOpenError as error:
        problem = error.message
    found = file.current
    if given.json:
        content = None if found is None else {**found.to_json(), "needs": found.needs}
        report = {"path": str(path), "format": content, "build": file.build.version}
        print(json.dumps({**report, "opens": not problem, "problem": problem}, indent=2))
    else:
        print(path)
        for line in _format_lines(found, file.build, opens=not problem):
            print(f"  {line}")
        print(f"  WRONG {problem}" if problem else f"  {file.build} opens it")
    return EXIT_WRONG if problem else 0


def _format_lines(found: Format | None, build: Build, *, opens: bool) -> list[str]:
    if found is None:
        return ["format: there is no config/format.json; the next start of a broker adds it"]
    # Before a release, its features are in a build that still has the version before it.
    is_ahead = opens and newest([found.needs, build.version]) != build.version
    return [
        f"format: {found.version}, needs Aerobee {found.needs} or later"
        + (", or this build of its source" if is_ahead else ""),
        f"last written by: Aerobee {found.written_by}",
        *(f"uses: {name} (Aerobee {since})" for name, since in sorted(found.required.items())),
    ]


def _check(given: argparse.Namespace, options: BrokerOptions) -> int:
    disk = RealDisk()
    store = open_stopped(given.directory, disk)
    for shard in shards_in(disk, store.path):
        path = store_of(store.path, shard)
        print(f"{path} is a store of its own: check it too", file=sys.stderr)
    try:
        report = check.check(
            store,
            store_options(options),
            tags_code_of=_unit_codes(store, options),
            progress=_print_progress,
        )
    finally:
        store.close()
    if given.json:
        print(json.dumps(report.to_json(), indent=2, default=str))
    else:
        _print_report(report, _format_lines(store.format, THIS_BUILD, opens=True))
    return EXIT_WRONG if report.problems else 0


def _unit_codes(store: StoppedStore, options: BrokerOptions) -> dict[str, TagsCode]:
    try:
        return unit_codes(store.disk, store.path, options)
    except ConfigFileDamaged:  # the report has this problem; each parent also has a folder
        return codes_of(options, parents_on_disk(store.disk, store.path / "lite") or ())


def _print_progress(done: int, total: int) -> None:
    print(f"  {done / 1e6:,.0f} of at most {total / 1e6:,.0f} MB read", file=sys.stderr)


def _print_report(report: check.Report, format_lines: list[str]) -> None:
    print(f"{report.path}")
    print(f"  {format_lines[0]}")
    print(
        f"  commit log: {report.records:,} records in {report.log_files:,} files, physical offsets "
        f"{report.begin_offset} to {report.end_offset}"
    )
    print(f"  consume queues: {report.units:,} units of {report.queues:,} queues compared")
    print(f"  index: {report.index_entries:,} entries compared")
    if report.epochs:
        begins = ", ".join(f"{epoch} from {start} on" for epoch, start in report.epochs.items())
        print(f"  epochs: {begins}")
    for note in report.notes:
        print(f"  note: {note}")
    for problem in report.problems:
        print(f"  WRONG {problem}")
    print("  nothing is wrong" if not report.problems else f"  {len(report.problems)} problems")


def _dump(given: argparse.Namespace) -> int:
    store = open_stopped(given.directory, RealDisk())
    try:
        records = dump.dump(store, topic=given.topic, begin=given.begin)
        limited = islice(records, given.limit or None)
        for text in _as_array(limited) if given.json else map(dump.to_line, limited):
            print(text)
    finally:
        store.close()
    return _print_problems(store.problems)


def _as_array(records: Iterable[Record]) -> Iterator[str]:
    """Yield the lines of a JSON array, one line for each record.

    The memory holds only one record at a time.
    """
    opening = "["
    for record in records:
        yield opening + json.dumps(dump.to_json(record), ensure_ascii=False)
        opening = ","
    yield "[]" if opening == "[" else "]"


def _print_problems(problems: list[Problem]) -> int:
    for problem in problems:
        print(f"WRONG {problem}", file=sys.stderr)
    return EXIT_WRONG if problems else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="aerobee store",
        description="Looks into the store of a broker. Changes nothing.",
        epilog=f"examples:\n{CHECK_EXAMPLE}{DUMP_EXAMPLES}{VERSION_EXAMPLE}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    stopped = ", of a stopped broker"
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    checking, dumping, naming = (
        verbs.add_parser(
            name,
            help=does,
            description=f"{does[0].upper()}{does[1:]}{of}. Changes nothing.",
            epilog=f"examples:\n{examples}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        for name, does, of, examples in (
            ("check", "verify every record and everything derived", stopped, CHECK_EXAMPLE),
            ("dump", "show records in the order of the log", stopped, DUMP_EXAMPLES),
            ("version", "show which versions of Aerobee open the store", "", VERSION_EXAMPLE),
        )
    )
    for verb in (checking, dumping, naming):
        verb.add_argument("directory", type=Path, metavar="DIR", help="--data of the broker")
        verb.add_argument("--json", action="store_true", help="print JSON")
        verb.add_argument("--config", type=Path, metavar="FILE", help="the broker's options")
        verb.add_argument("--set", action="append", default=[], dest="sets", metavar="KEY=VALUE")
    dumping.add_argument("--topic", metavar="NAME", help="only its records")
    dumping.add_argument(
        "--from", type=int, default=0, dest="begin", metavar="OFFSET", help="a physical offset"
    )
    dumping.add_argument("--limit", type=int, default=0, metavar="N", help="print at most N")
    return parser


if __name__ == "__main__":
    sys.exit(main())
