"""The command line of `aerobee facts`: landing, and `facts compact`.

Exit codes: 0 landed; 1 failed, what was committed stays; 2 wrong arguments; 3 landed, but a broker
was away or messages were lost before they were landed; 130 and 143 interrupted.
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

from aerobee_spark import environment
from aerobee_spark.errors import MqError
from aerobee_spark.reading.options import KINDS
from aerobee_spark.table import opening
from aerobee_spark.table.storage import Table
from aerobee_wire.topics import check_group, check_topic

if TYPE_CHECKING:
    from aerobee_spark.landing.job import LandResult

INCOMPLETE = 3
USAGE = 2
_WIDTH = re.compile(r"([1-9][0-9]*)([smhd])")
_UNIT_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "facts",
        prog="aerobee facts",
        help="dead letters, retries or a topic as a table of Parquet files, each message once",
        description="Lands the messages of a consumer group's dead-letter and retry topics, or of "
        "topics, in DIR with Spark, and goes on there the next time. Consumes nothing. "
        "`aerobee facts compact --table DIR` joins its files by day.",
        epilog="Exit codes: 0 landed, 1 failed, 2 wrong arguments, 3 not everything could be read.",
    )
    add = parser.add_argument
    add("action", nargs="?", choices=("land", "compact"), default="land", help="(land)")
    add(
        "--table",
        required=True,
        type=_checked(opening.parse),
        metavar="DIR",
        help="the folder of the table, or a URI",
    )
    add("--group", type=_checked(check_group), metavar="G", help="the consumer group")
    add("--topic", type=_checked(_topics), metavar="T", help="topics instead, separated by commas")
    add("--kind", choices=KINDS, help="which topics of the group (both)")
    add("--namesrv", metavar="H:P", help="name servers, ; between several (else NAMESRV_ADDR)")
    add("--every", type=_checked(_width), metavar="TIME", help="go on, and look every 30s, 1m, …")
    add(
        "--batch-size",
        type=_checked(_positive),
        default=200_000,
        metavar="N",
        help="messages of a batch, at most (200000)",
    )
    add("--no-bodies", action="store_true", help="leave message bodies out")
    add(
        "--keep",
        type=_checked(_width),
        metavar="TIME",
        help="of compact: leave out what is older, by store time: 90d",
    )
    add("--json", action="store_true", help="print the result as JSON")
    add("--quiet", action="store_true", help="no progress on stderr")


def run(given: argparse.Namespace) -> int:
    """Raises MqError."""
    return _compact(given) if given.action == "compact" else _land(given)


def _land(given: argparse.Namespace) -> int:
    name_server = given.namesrv or environment.name_server()
    if not name_server:
        return _refused("no name server is given: use --namesrv H:P or set NAMESRV_ADDR")
    if bool(given.group) == bool(given.topic):
        return _refused("give either --group G or --topic T: it says what to land")
    if given.keep is not None:
        return _refused("--keep is of aerobee facts compact")
    if given.kind and given.topic:
        return _refused("--kind goes with --group")
    from aerobee_spark.jvm.no_pandas import keep_out_pandas

    keep_out_pandas()
    from aerobee_spark.landing import job

    request = job.LandRequest(
        name_server,
        given.table,
        consumer_group=given.group or "",
        kinds=KINDS[given.kind or "both"],
        topics=given.topic or (),
        every_ms=given.every or 0,
        batch_size=given.batch_size,
        include_bodies=not given.no_bodies,
    )
    result = job.land(request, _reporter(given.quiet))
    print(json.dumps(_as_json(result), indent=2) if given.json else _shown(result, given.table))
    for problem in result.away:
        print(f"error: {problem}", file=sys.stderr)
    if result.lost:
        print(f"error: {result.lost} messages were gone before they were landed", file=sys.stderr)
    return INCOMPLETE if result.away or result.lost else 0


def _compact(given: argparse.Namespace) -> int:
    for name in ("group", "topic", "kind", "every", "no_bodies"):
        if getattr(given, name):
            option = name.replace("_", "-")
            return _refused(f"--{option} is of a landing: compact takes --table and --keep")
    from aerobee_spark.landing.compaction import compact

    with opening.opened(given.table) as files:
        done = compact(files, keep_ms=given.keep)
    if given.json:
        print(json.dumps(asdict(done)))
    else:
        print(
            f"{done.files_before} files were joined into {done.files_after}: {done.rows:,} rows, "
            f"{done.expired:,} left out as too old"
        )
    return 0


def _as_json(result: LandResult) -> dict[str, Any]:
    return {
        "rows": result.rows,
        "lost": result.lost,
        "batches": result.batches,
        "away": list(result.away),
        "queues": [
            {
                "topic": span.queue.topic,
                "broker_name": span.queue.broker_name,
                "queue_id": span.queue.queue_id,
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
    return "\n".join([f"{result.rows:,} rows landed in {table}", *ends])


def _reporter(quiet: bool) -> Callable[[str], None]:
    """Prints steps with the seconds since the start, unless `quiet`."""
    start = time.monotonic()

    def report(step: str) -> None:
        if not quiet:
            print(f"facts: {time.monotonic() - start:6.1f} s  {step}", file=sys.stderr, flush=True)

    return report


# ---- arguments ----


def _checked(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """`parse`, but argparse prints the message of its error; what returns nothing checks alone."""

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
        raise ValueError("give the name of a topic")
    return names


def _width(text: str) -> int:
    found = _WIDTH.fullmatch(text)
    if found is None:
        raise ValueError("write a time such as 30s, 5m, 1h or 90d")
    return int(found[1]) * _UNIT_MS[found[2]]


def _positive(text: str) -> int:
    if not text.isdigit() or not int(text):
        raise ValueError("write a number above 0")
    return int(text)


def _refused(message: str) -> int:
    print(f"error: {message}", file=sys.stderr)
    return USAGE
