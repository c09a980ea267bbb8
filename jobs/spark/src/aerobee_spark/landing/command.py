"""Run the command line of `aerobee facts` and `aerobee facts compact`.

Exit codes:

    0           all messages are in the table
    1           the command failed; batches that were committed stay in the table
    2           the arguments are wrong
    3           a broker was unavailable, or messages were deleted before they were read
    130, 143    a signal interrupted the command
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from aerobee_spark.errors import MqError
from aerobee_spark.options import default_name_server
from aerobee_spark.reading.options import KINDS
from aerobee_spark.report.request import AUTO, ENGINES
from aerobee_spark.table import opening
from aerobee_spark.table.storage import Table
from aerobee_wire.topics import check_group, check_topic

if TYPE_CHECKING:
    from aerobee_spark.landing.request import LandResult

INCOMPLETE = 3
USAGE = 2
_WIDTH = re.compile(r"([1-9][0-9]*)([smhd])")
_UNIT_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "facts",
        prog="aerobee facts",
        help="write dead letters, retries or topics into a Parquet table, each message once",
        description="Write the messages of a consumer group's dead-letter and retry topics, or of "
        "other topics, into the table DIR. The next run continues where this one ends. "
        "The command consumes nothing. `aerobee facts compact --table DIR` joins the files of "
        "each day.",
        epilog="Example: aerobee facts --group billing --table facts. "
        "Exit codes: 0 complete, 1 failed, 2 wrong arguments, 3 some messages could not be read.",
    )
    add = parser.add_argument
    add(
        "action",
        nargs="?",
        choices=("land", "compact"),
        default="land",
        help="write messages into the table, or join its files (default: land)",
    )
    add(
        "--table",
        required=True,
        type=checked(opening.parse),
        metavar="DIR",
        help="the folder of the table, or a URI",
    )
    add("--group", type=checked(check_group), metavar="G", help="consumer group to read")
    add(
        "--topic",
        type=checked(_topics),
        metavar="T",
        help="topics to read instead of a group, separated by commas",
    )
    add("--kind", choices=KINDS, help="topics of the group to read (default: both)")
    add("--namesrv", metavar="H:P", help="name servers, separated by ; (default: NAMESRV_ADDR)")
    add(
        "--every",
        type=checked(_width),
        metavar="TIME",
        help="keep running, and start a batch every 30s, 1m, …",
    )
    add(
        "--batch-size",
        type=checked(positive),
        default=200_000,
        metavar="N",
        help="most messages of one batch (200000)",
    )
    add("--no-bodies", action="store_true", help="leave message bodies out of the table")
    add(
        "--engine",
        choices=ENGINES,
        default=AUTO,
        help="local needs no Java; auto: local for a path, spark for a URI (auto)",
    )
    add(
        "--keep",
        type=checked(_width),
        metavar="TIME",
        help="compact only: delete rows stored longer ago than this, such as 90d",
    )
    add("--json", action="store_true", help="print the result as JSON")
    add("--quiet", action="store_true", help="print no progress on stderr")


def run(given: argparse.Namespace) -> int:
    """Run `aerobee facts` or `aerobee facts compact` and return the exit code.

    Raise MqError if the command fails.
    """
    return _compact(given) if given.action == "compact" else _land(given)


def _land(given: argparse.Namespace) -> int:
    name_server = given.namesrv or default_name_server()
    if not name_server:
        return _refused("the name server is missing: use --namesrv H:P or set NAMESRV_ADDR")
    if bool(given.group) == bool(given.topic):
        return _refused("the messages to write are not selected: use either --group G or --topic T")
    if given.keep is not None:
        return _refused("--keep is only for aerobee facts compact: remove it")
    if given.kind and given.topic:
        return _refused("--kind requires --group: remove it, or select a group")
    from aerobee_spark.jvm.session import keep_out_pandas

    keep_out_pandas()
    from aerobee_spark.landing import job
    from aerobee_spark.landing.request import LandRequest

    request = LandRequest(
        name_server,
        given.table,
        consumer_group=given.group or "",
        kinds=KINDS[given.kind or "both"],
        topics=given.topic or (),
        every_ms=given.every or 0,
        batch_size=given.batch_size,
        include_bodies=not given.no_bodies,
        engine=given.engine,
    )
    result = job.land(request, reporter("facts", given.quiet))
    print(json.dumps(_as_json(result), indent=2) if given.json else _shown(result, given.table))
    for broker, problem in result.states_unknown.items():
        print(f"warning: {broker} did not return states of letters: {problem}", file=sys.stderr)
    for problem in result.away:
        print(f"error: {problem}", file=sys.stderr)
    if result.lost:
        print(f"error: {result.lost} messages were deleted before they were read", file=sys.stderr)
    return INCOMPLETE if result.away or result.lost else 0


def _compact(given: argparse.Namespace) -> int:
    for name in ("group", "topic", "kind", "every", "no_bodies"):
        if getattr(given, name):
            option = name.replace("_", "-")
            return _refused(f"--{option} is not for compact: use --table and --keep only")
    from aerobee_spark.landing.compaction import compact

    with opening.opened(given.table) as files:
        done = compact(files, keep_ms=given.keep)
    if given.json:
        print(json.dumps(asdict(done)))
    else:
        print(
            f"joined {done.files_before} files into {done.files_after}: {done.rows:,} rows, "
            f"{done.expired:,} expired rows deleted"
        )
    return 0


def _as_json(result: LandResult) -> dict[str, Any]:
    return {
        "rows": result.rows,
        "lost": result.lost,
        "batches": result.batches,
        "away": list(result.away),
        "states": dict(result.states),
        "states_unknown": dict(result.states_unknown),
        "queues": [
            {
                **span.queue._asdict(),
                "start": span.start,
                "end": span.end,
                "lost": span.lost,
                "upto_ms": span.upto_ms,
            }
            for span in result.queues
        ],
    }


def _shown(result: LandResult, table: Table) -> str:
    ends = [f"  {span.queue}: up to queue offset {span.end}" for span in result.queues]
    states = [f"  {count:,} {state}" for state, count in sorted(result.states.items())]
    return "\n".join([f"{result.rows:,} rows written to {table}", *ends, *states])


def reporter(command: str, quiet: bool) -> Callable[[str], None]:
    """Return a function that prints each step with the seconds since the start, unless `quiet`."""
    start = time.monotonic()

    def report(step: str) -> None:
        if not quiet:
            past_s = time.monotonic() - start
            print(f"{command + ':':7} {past_s:5.1f} s  {step}", file=sys.stderr, flush=True)

    return report


# ---- arguments ----


def checked(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """Wrap a parser for argparse, so that argparse prints the messages of its errors.

    If `parse` returns None, the value is the text itself.
    """

    def checked(text: str) -> Any:
        try:
            parsed = parse(text)
        except (ValueError, MqError) as error:
            raise argparse.ArgumentTypeError(str(error)) from None
        return text if parsed is None else parsed

    return checked


def _topics(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    for name in names:
        check_topic(name)
    if not names:
        raise ValueError("write the name of a topic")
    return names


def _width(text: str) -> int:
    found = _WIDTH.fullmatch(text)
    if found is None:
        raise ValueError("write a time such as 30s, 5m, 1h or 90d")
    return int(found[1]) * _UNIT_MS[found[2]]


def positive(text: str) -> int:
    if not text.isdigit() or not int(text):
        raise ValueError("write a number above 0")
    return int(text)


def _refused(message: str) -> int:
    print(f"error: {message}", file=sys.stderr)
    return USAGE
