"""Run the command line of the report.

    python -m aerobee_spark report --group G --out DIR

The result (a table, or JSON) goes to stdout, the progress to stderr. Exit codes: 0 complete;
1 failed, nothing written; 2 wrong arguments; 3 written, but some messages could not be read;
4 complete, but --fail-if-new was reached; 130 and 143 interrupted; 141 the reader of stdout closed
its pipe.
"""

from __future__ import annotations

import argparse
import io
import json
import logging
import re
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from aerobee_spark.errors import MqError
from aerobee_spark.landing import command as facts
from aerobee_spark.landing.command import checked, positive, reporter
from aerobee_spark.options import default_name_server
from aerobee_spark.reading.options import KINDS, parse_names, timestamp_ms
from aerobee_spark.report.data.buckets import parse_width
from aerobee_spark.report.formats import encodable
from aerobee_spark.report.request import AUTO, ENGINES, LOCAL_UP_TO, ReportRequest
from aerobee_spark.table.opening import parse as parse_table
from aerobee_wire import closed_pipe
from aerobee_wire.topics import check_group

FAILED = 1
USAGE = 2
INCOMPLETE = 3
TOO_MANY_NEW = 4
_AGO = re.compile(r"\d+[smhd]")


def main(arguments: Sequence[str] | None = None) -> int:
    signal.signal(signal.SIGTERM, _terminate)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # of a terminal without UTF-8, and paths
    given = _parser().parse_args(arguments)
    try:
        code = facts.run(given) if given.command == "facts" else _report(given)
        sys.stdout.flush()
        return code
    except MqError as error:
        print(f"error: {error.message}", file=sys.stderr)
        return FAILED
    except BrokenPipeError:
        return closed_pipe.discard_output()
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        print(f"error: {where}{error.strerror or error}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        print("interrupted: no report was written", file=sys.stderr)
        return 130


def _terminate(number: int, frame: object) -> NoReturn:
    """Handle SIGTERM like Ctrl-C: stop the engine and remove the unfinished report."""
    raise SystemExit(128 + number)


def _report(given: argparse.Namespace) -> int:
    request = _request(given)
    from aerobee_spark.jvm.session import keep_out_pandas

    keep_out_pandas()
    # The report lists unread messages among its problems, so the log does not repeat them.
    for package in ("aerobee_spark", "aerobee_client"):
        logging.getLogger(package).addHandler(logging.NullHandler())
    from aerobee_spark.report import every_group, job
    from aerobee_spark.report.view import tables

    run, show = (every_group.run, every_group.show) if given.all_groups else (job.run, tables.show)
    summary = run(request, reporter("report", given.quiet))
    print(json.dumps(summary, indent=2, ensure_ascii=False) if given.json else show(summary))
    if not given.json:
        print(f"\n{request.out / 'report.html'}")
    if not summary["complete"]:
        print("error: the report is incomplete: see its problems", file=sys.stderr)
        return INCOMPLETE
    new = summary["new_dead_letters"]
    if given.fail_if_new is not None and new is not None and new >= given.fail_if_new:
        print(
            f"error: {new} new dead letters reach the limit (--fail-if-new {given.fail_if_new})",
            file=sys.stderr,
        )
        return TOO_MANY_NEW
    return 0


# ---- arguments ----


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m aerobee_spark", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND", dest="command")
    facts.add_parser(commands)
    report = commands.add_parser(
        "report",
        prog="aerobee report",
        help="report the dead letters of a consumer group and the causes of their failures",
        description="Read the dead-letter and retry topics of a consumer group and write "
        "Parquet, summary.json, CSV and report.html. The command consumes nothing. The engine "
        "'spark' needs Java 17 or newer; the engine 'local' does not.",
        epilog="Example: aerobee report --group billing --out report. "
        "Exit codes: 0 complete, 1 failed, 2 wrong arguments, 3 incomplete, "
        "4 limit of --fail-if-new reached.",
    )
    _add_selection(report)
    _add_output(report)
    return parser


def _add_selection(report: argparse.ArgumentParser) -> None:
    """Add the command-line options that select the messages to read."""
    add = report.add_argument
    which = report.add_mutually_exclusive_group(required=True)
    which.add_argument("--group", type=checked(check_group), metavar="G", help="consumer group")
    which.add_argument(
        "--all-groups", action="store_true", help="report each group, and write an overview page"
    )
    add("--namesrv", metavar="H:P", help="name servers, separated by ; (default: NAMESRV_ADDR)")
    add("--kind", choices=KINDS, default="both", help="topics of the group to read (default: both)")
    add(
        "--since",
        type=checked(_time),
        metavar="TIME",
        help="read messages stored at or after this time: ISO 8601, ms since the epoch, or 24h",
    )
    add(
        "--until",
        type=checked(_time),
        metavar="TIME",
        help="read messages stored before this time",
    )
    add(
        "--facts",
        type=checked(parse_table),
        metavar="DIR",
        help="compute from this facts table (a path or URI) and contact no broker",
    )


def _add_output(report: argparse.ArgumentParser) -> None:
    """Add the command-line options for the output and the engine."""
    add = report.add_argument
    add("--out", required=True, type=checked(_folder), metavar="DIR", help="output folder")
    add(
        "--bucket",
        type=checked(parse_width),
        metavar="WIDTH",
        help="width of a bucket of the timeline, such as 5m, 1h or 1d",
    )
    add(
        "--top",
        type=checked(positive),
        default=20,
        metavar="N",
        help="rows of a ranking (default: 20)",
    )
    add(
        "--redact",
        type=checked(parse_names),
        default=(),
        metavar="NAME,...",
        help="replace the values of these properties and JSON fields by short hashes in every "
        "file, and with them texts of exceptions and, with KEYS, message groups; -NAME keeps one",
    )
    add("--no-bodies", action="store_true", help="leave message bodies out of every file")
    add("--engine", choices=ENGINES, default=AUTO, help="engine that reads and computes (auto)")
    add(
        "--local-up-to",
        type=checked(_count),
        default=LOCAL_UP_TO,
        metavar="N",
        help=f"with --engine auto: use local for up to N messages ({LOCAL_UP_TO})",
    )
    add(
        "--fail-if-new",
        type=checked(positive),
        metavar="N",
        help="exit with code 4 if N or more dead letters are newer than the report in DIR",
    )
    add("--extra-json", type=Path, metavar="FILE", help="JSON object of figures to add")
    add("--json", action="store_true", help="print summary.json instead of a table")
    add("--quiet", action="store_true", help="print no progress on stderr")


def _folder(text: str) -> Path:
    if not text:
        raise ValueError("empty path: use . for the current directory")
    return Path(text)


def _count(text: str) -> int:
    if not text.isdigit():
        raise ValueError("write a number, 0 or more")
    return int(text)


class _Age(int):
    """A time that is given as its age in milliseconds, such as the option `--since 1h`."""


def _time(text: str) -> int:
    return _Age(parse_width(text)) if _AGO.fullmatch(text) else timestamp_ms(text)


def _bounds(given: argparse.Namespace, name_server: str) -> tuple[int | None, int | None]:
    """Return the values of `--since` and `--until` in milliseconds since the epoch.

    Raises MqError if an age needs the brokers' clocks but no broker answers.
    """
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
    """Return the earliest time of all brokers' clocks, in milliseconds since the epoch.

    The brokers' clocks matter because store times come from them. Without a name server, return the
    time of this machine. Raises MqError if no name server or broker answers.
    """
    if not name_server:
        return round(time.time() * 1000)
    from aerobee_client import AdminClient

    with AdminClient(name_server) as admin:
        return min(admin.broker_times_ms().values())


def _request(given: argparse.Namespace) -> ReportRequest:
    name_server = given.namesrv or default_name_server()
    if not name_server and given.facts is None:
        _refuse("the name server is missing: use --namesrv H:P or set NAMESRV_ADDR")
    if given.all_groups and given.extra_json:
        _refuse("--extra-json requires --group: its figures belong to one group")
    if given.all_groups and given.facts:
        _refuse("--facts requires --group: a facts table holds one group")
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
        loaded = encodable(json.loads(path.read_text(encoding="utf-8")))
        json.dumps(loaded, allow_nan=False)  # Python's parser accepts NaN, which JSON does not have
    except (OSError, ValueError, RecursionError) as error:
        _refuse(f"cannot read the JSON file of --extra-json {path}: {error}")
    if not isinstance(loaded, dict):
        _refuse(f'--extra-json {path} must hold a JSON object, such as {{"sent": 3}}')
    return loaded


def _refuse(message: str) -> NoReturn:
    print(f"error: {message}", file=sys.stderr)
    raise SystemExit(USAGE)


if __name__ == "__main__":
    sys.exit(main())
