"""The command line of the report: `python -m aerobee_spark report --group G --out DIR`.

The result (a table, or JSON) goes to stdout, the progress to stderr. Exit codes: 0 complete; 1
failed, nothing written; 2 wrong arguments; 3 written, but not everything could be read; 4 complete,
but --fail-if-new was reached; 130 and 143 interrupted.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from aerobee_spark import environment
from aerobee_spark.errors import MqError
from aerobee_spark.landing import command as facts
from aerobee_spark.reading.options import KINDS, parse_names, timestamp_ms
from aerobee_spark.report.data.buckets import parse_width
from aerobee_spark.report.request import AUTO, ENGINES, LOCAL_UP_TO, ReportRequest
from aerobee_spark.table.opening import parse as parse_table
from aerobee_wire.topics import check_group

FAILED = 1
USAGE = 2
INCOMPLETE = 3
TOO_MANY_NEW = 4
_AGO = re.compile(r"\d+[smhd]")


def main(arguments: Sequence[str] | None = None) -> int:
    signal.signal(signal.SIGTERM, _terminate)
    given = _parser().parse_args(arguments)
    try:
        code = facts.run(given) if given.command == "facts" else _report(given)
        sys.stdout.flush()
        return code
    except MqError as error:
        print(f"error: {error.message}", file=sys.stderr)
        return FAILED
    except BrokenPipeError:
        # The reader of the output is gone; without this, flushing stdout at exit would raise again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        print(f"error: {where}{error.strerror or error}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        print("interrupted: no report was written", file=sys.stderr)
        return 130


def _terminate(number: int, frame: object) -> NoReturn:
    """Ends like Ctrl-C: the engine is stopped and the unfinished report removed."""
    raise SystemExit(128 + number)


def _report(given: argparse.Namespace) -> int:
    request = _request(given)
    from aerobee_spark.jvm.no_pandas import keep_out_pandas

    keep_out_pandas()
    # What was not read stands in the problems of the report.
    logging.getLogger("aerobee_spark").addHandler(logging.NullHandler())
    from aerobee_spark.report import job
    from aerobee_spark.report.every_group import all_groups, groups_page
    from aerobee_spark.report.view import console

    run, show = (all_groups.run, groups_page.show) if given.all_groups else (job.run, console.show)
    summary = run(request, _reporter(given.quiet))
    print(json.dumps(summary, indent=2, ensure_ascii=False) if given.json else show(summary))
    if not given.json:
        print(f"\n{request.out / 'report.html'}")
    if not summary["complete"]:
        print("error: the report is not complete, see its problems", file=sys.stderr)
        return INCOMPLETE
    new = summary["new_dead_letters"]
    if given.fail_if_new is not None and new is not None and new >= given.fail_if_new:
        print(
            f"error: {new} dead letters are new (--fail-if-new {given.fail_if_new})",
            file=sys.stderr,
        )
        return TOO_MANY_NEW
    return 0


def _reporter(quiet: bool) -> Callable[[str], None]:
    """Prints steps with the seconds since the start, unless `quiet`."""
    start = time.monotonic()

    def report(step: str) -> None:
        if not quiet:
            print(f"report: {time.monotonic() - start:5.1f} s  {step}", file=sys.stderr, flush=True)

    return report


# ---- arguments ----


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m aerobee_spark", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND", dest="command")
    facts.add_parser(commands)
    report = commands.add_parser(
        "report",
        prog="aerobee report",
        help="the dead letters of a consumer group, and why they failed",
        description="Reads the dead-letter and retry topics of a consumer group and writes "
        "Parquet, summary.json, CSV and report.html. Consumes nothing. The engine spark needs "
        "Java 17 or newer, the engine local does not.",
        epilog="Exit codes: 0 complete, 1 failed, 2 wrong arguments, 3 not complete, "
        "4 --fail-if-new.",
    )
    add = report.add_argument
    which = report.add_mutually_exclusive_group(required=True)
    which.add_argument("--group", type=_checked(_group), metavar="G", help="the consumer group")
    which.add_argument("--all-groups", action="store_true", help="each, and a page above them")
    add("--out", required=True, type=_checked(_folder), metavar="DIR", help="where the report goes")
    add("--namesrv", metavar="H:P", help="name servers, ; between several (else NAMESRV_ADDR)")
    add("--kind", choices=KINDS, default="both", help="which topics of the group (both)")
    add("--since", type=_checked(_time), metavar="TIME", help="stored at or after; ISO, ms, or 24h")
    add("--until", type=_checked(_time), metavar="TIME", help="stored before")
    add("--bucket", type=_checked(parse_width), metavar="WIDTH", help="of the timeline: 5m, 1h, 1d")
    add("--top", type=_checked(_positive), default=20, metavar="N", help="rows of a ranking (20)")
    add(
        "--redact",
        type=_checked(parse_names),
        default=(),
        metavar="NAME,...",
        help="properties and JSON fields whose values become short hashes in every file",
    )
    add("--no-bodies", action="store_true", help="leave message bodies out of every file")
    add("--engine", choices=ENGINES, default=AUTO, help="what reads and computes (auto)")
    add(
        "--local-up-to",
        type=_checked(_count),
        default=LOCAL_UP_TO,
        metavar="N",
        help=f"with --engine auto: messages up to which it takes local ({LOCAL_UP_TO})",
    )
    add(
        "--fail-if-new",
        type=_checked(_positive),
        metavar="N",
        help="exit with 4 when N or more dead letters came since the report that DIR holds",
    )
    add(
        "--facts",
        type=_checked(parse_table),
        metavar="DIR",
        help="compute from this facts table (a path, or a URI), ask no broker",
    )
    add("--extra-json", type=Path, metavar="FILE", help="an object of figures to add")
    add("--json", action="store_true", help="print summary.json instead of a table")
    add("--quiet", action="store_true", help="no progress on stderr")
    return parser


def _checked(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """`parse`, but argparse prints the message of its error."""

    def checked(text: str) -> Any:
        try:
            return parse(text)
        except (ValueError, MqError) as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return checked


def _group(text: str) -> str:
    check_group(text)
    return text


def _folder(text: str) -> Path:
    if not text:
        raise ValueError("it is empty: write a folder, . is this one")
    return Path(text)


def _positive(text: str) -> int:
    if not text.isdigit() or not int(text):
        raise ValueError("write a number above 0")
    return int(text)


def _count(text: str) -> int:
    if not text.isdigit():
        raise ValueError("write a number")
    return int(text)


class _Age(int):
    """Milliseconds before now."""


def _time(text: str) -> int:
    return _Age(parse_width(text)) if _AGO.fullmatch(text) else timestamp_ms(text)


def _bounds(given: argparse.Namespace, name_server: str) -> tuple[int | None, int | None]:
    """`--since` and `--until`, milliseconds since the epoch. Raises MqError."""
    since, until = given.since, given.until
    ages = [isinstance(each, _Age) for each in (since, until)]
    if all(ages) and since < until:
        _refuse("--since is later than --until: no message was stored then")
    if any(ages):
        now_ms = _now_ms("" if given.facts else name_server)
        since, until = (
            now_ms - each if isinstance(each, _Age) else each for each in (since, until)
        )
    if since is not None and until is not None and since > until:
        _refuse("--since is later than --until: no message was stored then")
    return since, until


def _now_ms(name_server: str) -> int:
    """By the brokers' clocks, the earliest of them, because store times are by these. Without a
    name server, by the clock of this machine. Raises MqError."""
    if not name_server:
        return round(time.time() * 1000)
    from aerobee_client import AdminClient

    with AdminClient(name_server) as admin:
        return min(admin.broker_times_ms().values())


def _request(given: argparse.Namespace) -> ReportRequest:
    name_server = given.namesrv or environment.name_server()
    if not name_server and given.facts is None:
        _refuse("no name server is given: use --namesrv H:P or set NAMESRV_ADDR")
    if given.all_groups and given.extra_json:
        _refuse("--extra-json goes with --group: the figures are of one group")
    if given.all_groups and given.facts:
        _refuse("--facts goes with --group: a facts table is of one group")
    since_ms, until_ms = _bounds(given, name_server)
    return ReportRequest(
        name_server,
        given.group or "",
        given.out,
        kinds=KINDS[given.kind],
        include_bodies=not given.no_bodies,
        top=given.top,
        since_ms=since_ms,
        until_ms=until_ms,
        bucket_ms=given.bucket,
        redact=given.redact,
        engine=given.engine,
        local_up_to=given.local_up_to,
        table=given.facts,
        extra=_extra(given.extra_json) if given.extra_json else {},
    )


def _extra(path: Path) -> dict[str, Any]:
    try:
        loaded = json.loads(path.read_text(encoding="utf-8"))
        json.dumps(loaded, allow_nan=False)  # Python reads NaN, which no JSON has
    except (OSError, ValueError) as error:
        _refuse(f"--extra-json {path} cannot be read: {error}")
    if not isinstance(loaded, dict):
        _refuse(f"--extra-json {path} holds no JSON object")
    return loaded


def _refuse(message: str) -> NoReturn:
    print(f"error: {message}", file=sys.stderr)
    raise SystemExit(USAGE)


if __name__ == "__main__":
    sys.exit(main())
