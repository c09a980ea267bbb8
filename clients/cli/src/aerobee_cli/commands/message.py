"""Define `aerobee message`: send, consume, recall, show and find messages."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import click

from aerobee_cli import output
from aerobee_cli.command_line import Argument, CommandGroup, Option
from aerobee_cli.errors import FAILED, INCOMPLETE, INTERRUPTED
from aerobee_cli.message_lines import Format
from aerobee_cli.options import (
    BadOption,
    ClusterOptions,
    ListingOptions,
    NamesrvOptions,
    Topic,
    pairs_of,
)
from aerobee_cli.options import end as end_with
from aerobee_cli.progress import Progress
from aerobee_cli.table import Column, number
from aerobee_cli.times import parse_duration, parse_moment
from aerobee_client.admin.export import full, summary
from aerobee_wire.status import MqError

if TYPE_CHECKING:
    from aerobee_client import Message, Producer, ReceivedMessage
    from aerobee_client.admin.descriptions import SearchResult

app = CommandGroup("message", help="Single messages.")

STDIN = Path("-")
MAX_RATE = 1_000_000_000  # excludes infinity
MAX_QUERIED = 64  # a broker returns no more
MAX_SEARCHED = 10_000  # a search returns no more
DEFAULT_SEARCHED = 32
DEFAULT_TAIL = 10

Tag = Annotated[str, Option(metavar="EXPR", help="Only these tags, such as 'a || b'.")]
SqlText = Annotated[
    str, Option("--sql", metavar="EXPR", help="Only messages for which this SQL92 condition holds.")
]
KeyText = Annotated[str, Option(metavar="KEY", help="Only messages with this key or message id.")]
BodyText = Annotated[
    str, Option("--text", metavar="TEXT", help="Only messages whose body contains this text.")
]
Begin = Annotated[
    str | None,
    Option("--from", metavar="TIME", help="Stored at or after this time: ISO 8601, or 1h ago."),
]
End = Annotated[str | None, Option("--to", metavar="TIME", help="Stored at or before this time.")]
BrokerName = Annotated[str, Option("--broker", metavar="NAME", help="Only on this broker.")]
QueueId = Annotated[int | None, Option("--queue", min=0, metavar="N", help="Only in this queue.")]
FirstOffset = Annotated[
    int | None, Option(min=0, metavar="N", help="In one queue: the first offset.")
]
LastOffset = Annotated[
    int | None, Option(min=0, metavar="N", help="In one queue: the last offset.")
]
Limit = Annotated[
    int, Option(min=1, max=MAX_SEARCHED, metavar="N", help="The maximum number of messages.")
]
Oldest = Annotated[bool, Option("--oldest", help="The oldest messages first, not the latest.")]
Form = Annotated[Format, Option("--format", help="One line, one JSON object a line, or hex.")]
SearchJson = Annotated[
    bool, Option("--json", help="Print one JSON object: messages, and where the search stopped.")
]
EARLIEST, LATEST = "earliest", "latest"
MESSAGE_COLUMNS = (
    Column("message id", "message_id"),
    Column("stored", "store_timestamp_ms"),
    Column("keys", "keys", text=True),
    number("bytes", "body_size"),
    Column("tag", "tag", extra=True),
    Column("offset message id", "offset_message_id", extra=True),
    Column("topic", "topic", extra=True),
    number("reconsume times", "reconsume_times", extra=True),
    Column("born", "born_timestamp_ms", extra=True),
    Column("broker", "broker_name", extra=True),
    number("queue id", "queue_id", extra=True),
    number("queue offset", "queue_offset", extra=True),
)


@app.add(epilog="Example: aerobee message send orders '{\"id\": 7}' --tag paid --key order-7")
def send(
    *,
    topic: Topic,
    body: Annotated[str | None, Argument(metavar="[BODY]", help="Its text.")] = None,
    file: Annotated[
        Path | None, Option(metavar="FILE", help="Take the body from a file; - is stdin.")
    ] = None,
    tag: Annotated[str, Option(help="What consumers filter by.")] = "",
    key: Annotated[list[str] | None, Option(help="A key to find it by. May be repeated.")] = None,
    properties: Annotated[
        list[str] | None,
        Option("--property", metavar="NAME=VALUE", help="May be repeated."),
    ] = None,
    lite_topic: Annotated[
        str, Option(metavar="NAME", help="Its lite topic, under a topic of the type LITE.")
    ] = "",
    delay_level: Annotated[
        int, Option(min=0, max=18, metavar="N", help="Delay it: 1 = 1 s … 18 = 2 h.")
    ] = 0,
    delay: Annotated[
        str | None,
        Option(metavar="TIME", help="Deliver it after 90s, 1h, …, 3d at most."),
    ] = None,
    message_group: Annotated[
        str, Option(metavar="NAME", help="Its message group, which keeps the order of its sends.")
    ] = "",
    priority: Annotated[
        int | None,
        Option(min=0, metavar="N", help="Its priority, in a topic of the type PRIORITY; 0 lowest."),
    ] = None,
    count: Annotated[
        int | None, Option(min=1, metavar="N", help="Send it N times, and print a summary.")
    ] = None,
    rate: Annotated[
        float | None,
        Option(min=0.001, max=MAX_RATE, metavar="N", help="With --count: at most N a second."),
    ] = None,
    options: ClusterOptions,
) -> None:
    """Send a message, and wait until it is stored.

    With --count, exit code 1 means that a send failed. Ctrl-C then ends the sends, and the summary
    counts those before.
    """
    if delay is not None and delay_level:
        raise BadOption("give --delay or --delay-level, not both")
    if rate is not None and count is None:
        raise BadOption("--rate: needs --count")
    from aerobee_client import Message

    message = Message(
        topic,
        body_of(body, file),
        tag=tag,
        keys=key or (),
        properties=properties_of(properties or ()),
        lite_topic=lite_topic,
        delay_level=delay_level,
        delay=delay_of(delay),  # counted by the broker's clock
        message_group=message_group,
        priority=priority,
    )
    if count is not None:
        with options.producer() as sender:
            _send_many(sender, message, count, rate, json=options.json)
        return
    with options.producer() as sender:
        sent = sender.send(message)
    item = {
        "message_id": sent.message_id,
        "offset_message_id": sent.offset_message_id,
        **sent.queue._asdict(),
        "queue_offset": sent.queue_offset,
    }
    if sent.recall_handle:
        item["recall_handle"] = sent.recall_handle
    output.show_one(item, as_json=options.json)
    if sent.queue.broker_name == topic:
        output.note(f"{topic} is the topic of the broker's own name (brokerTopicEnable)")


def _send_many(
    sender: Producer, message: Message, count: int, rate: float | None, *, json: bool
) -> None:
    from aerobee_cli.sending import ManySends

    progress = Progress(sys.stderr, what="messages")
    try:
        done = ManySends(sender, message, count=count, rate=rate).run(progress)
    finally:
        progress.close()
    output.show_one(
        {
            "topic": message.topic,
            "sent": done.sent,
            "failed": done.failed,
            "seconds": round(done.seconds, 3),
            "rate": round(done.sent / done.seconds, 1) if done.seconds else 0.0,
        },
        as_json=json,
    )
    if done.error is not None:
        output.note(f"error: {done.error.message}")
    if done.is_interrupted:
        raise click.exceptions.Exit(INTERRUPTED)
    if done.failed:
        raise click.exceptions.Exit(FAILED)


@app.add(epilog="Example: aerobee message consume orders --from 1h --json")
def consume(
    *,
    topic: Topic,
    group: Annotated[
        str, Option(metavar="GROUP", help="Consume as a member of this group, and acknowledge.")
    ] = "",
    begin: Annotated[
        str,
        Option(
            "--from",
            metavar="earliest|latest|TIME",
            help="Without --group: the first message to read, such as earliest, 1h for an hour "
            "ago, or 2025-06-01T00:00:00Z.",
        ),
    ] = LATEST,
    tag: Annotated[str, Option(metavar="EXPR", help="Only these tags, such as 'a || b'.")] = "*",
    count: Annotated[
        int | None, Option(min=1, metavar="N", help="End after N messages. Default: no limit.")
    ] = None,
    timeout: Annotated[
        str | None, Option(metavar="TIME", help="End after 500ms, 10s, 1h, … Default: no limit.")
    ] = None,
    lease: Annotated[
        bool,
        Option("--lease", help="With --group: lease messages, as the official SDKs do."),
    ] = False,
    options: NamesrvOptions,
    json: Annotated[bool, Option("--json", help="Print one JSON object per line.")] = False,
) -> None:
    """Print the messages of a topic as they arrive, until Ctrl-C.

    Without --group, the command only reads: it changes no offset, and no consumer notices. With
    --group, it takes messages away from the other members of the group. Each message is
    acknowledged after it was printed. If members of the group lease messages, the command does so
    too.

    Exit code 0: --count was reached, Ctrl-C, or the end of --timeout without --count. 3: --timeout
    ended before --count messages arrived.
    """
    from aerobee_cli.receiving import Request, run

    if group and begin != LATEST:
        raise BadOption("--from: reads without --group; a group has 'aerobee group reset-offset'")
    if lease and not group:
        raise BadOption("--lease: needs --group")
    request = Request(
        namesrv=options.address,
        topic=topic,
        group=group,
        expression=tag,
        begin_ms=begin_of(begin),
        count=count,
        timeout_s=seconds_of("--timeout", timeout),
        leases=lease,
    )
    done = asyncio.run(run(request, as_json=json))
    output.note(f"{output.counted(done.messages, 'message')} in {done.seconds:.1f} s")
    if done.is_short:
        raise click.exceptions.Exit(INCOMPLETE)


def begin_of(text: str) -> int | None:
    """Parse `--from` to a store time in milliseconds since the epoch; None is now.

    Raises BadOption if it is invalid.
    """
    if text == LATEST:
        return None
    if text == EARLIEST:
        return 0
    try:
        return parse_moment(text).at(round(time.time() * 1_000))
    except ValueError as error:
        raise BadOption(f"--from: {error}, or earliest or latest") from None


def seconds_of(option: str, text: str | None) -> float | None:
    """Parse the duration of an option. Raises BadOption if it is invalid."""
    if text is None:
        return None
    try:
        return parse_duration(text).total_seconds()
    except ValueError as error:
        raise BadOption(f"{option}: {error}") from None


@app.add(epilog="Example: aerobee message recall orders djEgb3JkZXJz…")
def recall(
    *,
    topic: Topic,
    handle: Annotated[str, Argument(metavar="RECALL_HANDLE", help="As send --delay shows it.")],
    options: ClusterOptions,
) -> None:
    """Recall a message that was sent with --delay, before it is delivered."""
    with options.producer() as sender:
        message_id = sender.recall(topic, handle)
    output.show_one({"message_id": message_id, "topic": topic}, as_json=options.json)


@app.add(epilog="Example: aerobee message get 7F00000100002A9F0000000000000000")
def get(
    *,
    message_id: Annotated[
        str,
        Argument(metavar="MESSAGE_ID", help="Its message id or offset message id, as send shows."),
    ],
    options: ClusterOptions,
) -> None:
    """Show one message with its body. The message is not consumed."""
    with options.admin() as admin:
        message = admin.get_message(message_id)
    output.show_one(full(message), as_json=options.json)


@app.add(epilog="Example: aerobee message query orders --key order-7")
def query(
    *,
    topic: Topic,
    key: Annotated[str, Option(help="One of its keys.")] = "",
    unique_id: Annotated[str, Option("--id", help="Its message id.")] = "",
    limit: Annotated[
        int, Option(min=1, max=MAX_QUERIED, metavar="N", help="At most N, the newest.")
    ] = 32,
    options: ListingOptions,
) -> None:
    """Find messages by key or id, newest first.

    Exit code 3: a broker did not answer, or a message that may match is damaged.
    """
    if bool(key) == bool(unique_id):
        raise BadOption("give either --key or --id")
    table = options.listing(MESSAGE_COLUMNS)
    with options.admin() as admin:
        damaged: list[MqError] = []
        silent: list[MqError] = []
        found = admin.query_messages(
            topic,
            key=key,
            unique_id=unique_id,
            max_messages=min(limit + 1, MAX_QUERIED),  # of each broker
            damaged=damaged,
            silent=silent,
        )
    shown = map(summary, found[:limit])
    table.show(shown, as_json=options.json, empty=f"{topic} has no such message")
    if limit < min(len(found), MAX_QUERIED):
        output.note(f"the newest {limit} are shown, and there are more: give a higher --limit")
    elif len(found) >= MAX_QUERIED:
        output.note(f"the newest {limit} are shown, and there may be more")
    end_with(
        [
            *(f"warning: messages of a broker are left out: {error.message}" for error in silent),
            *(
                f"warning: a message that may match is left out: {error.message}"
                for error in damaged
            ),
        ]
    )


@app.add(epilog="Example: aerobee message browse orders --from 1h --tag paid")
def browse(
    *,
    topic: Topic,
    tag: Tag = "*",
    sql: SqlText = "",
    begin: Begin = None,
    end: End = None,
    broker: BrokerName = "",
    queue: QueueId = None,
    from_offset: FirstOffset = None,
    to_offset: LastOffset = None,
    oldest: Oldest = False,
    limit: Limit = DEFAULT_SEARCHED,
    form: Form = Format.TEXT,
    options: NamesrvOptions,
    json: SearchJson = False,
) -> None:
    """Print stored messages of a topic, the latest first. Nothing is consumed.

    Exit code 3: a broker did not answer, or a message cannot be read.
    """
    from aerobee_cli.searching import Wanted

    wanted = Wanted(
        topic=topic,
        tag=tag,
        sql=sql,
        begin=begin,
        end=end,
        broker=broker,
        queue=queue,
        first_offset=from_offset,
        last_offset=to_offset,
    )
    with options.admin() as admin:
        result = wanted.search(admin, newest_first=not oldest, limit=limit)
    _show_result(result, form, json=json)


@app.add(epilog="Example: aerobee message search orders --key order-7")
def search(
    *,
    topic: Topic,
    key: KeyText = "",
    text: BodyText = "",
    tag: Tag = "*",
    sql: SqlText = "",
    begin: Begin = None,
    end: End = None,
    broker: BrokerName = "",
    queue: QueueId = None,
    from_offset: FirstOffset = None,
    to_offset: LastOffset = None,
    oldest: Oldest = False,
    limit: Limit = DEFAULT_SEARCHED,
    max_scanned: Annotated[
        int, Option(min=0, metavar="N", help="Messages to examine on each broker; 0: no limit.")
    ] = 0,
    form: Form = Format.TEXT,
    options: NamesrvOptions,
    json: SearchJson = False,
) -> None:
    """Find messages by key, text, tag, SQL92 condition and time, the latest first.

    A key is looked up in an index. All other searches read the messages between --from and --to,
    in short slices that do not delay other calls.

    Exit code 3: a broker did not answer, a message cannot be read, or --max-scanned was reached.
    """
    from aerobee_cli.searching import Wanted

    if not (key or text or sql or tag != "*"):
        raise BadOption("give --key, --text, --tag or --sql; 'aerobee message browse' needs none")
    wanted = Wanted(
        topic=topic,
        tag=tag,
        sql=sql,
        key=key,
        text=text,
        begin=begin,
        end=end,
        broker=broker,
        queue=queue,
        first_offset=from_offset,
        last_offset=to_offset,
    )
    with options.admin() as admin:
        result = wanted.search(admin, newest_first=not oldest, limit=limit, max_scanned=max_scanned)
    _show_result(result, form, json=json)


@app.add(epilog="Example: aerobee message tail orders --tag paid")
def tail(
    *,
    topic: Topic,
    key: KeyText = "",
    text: BodyText = "",
    tag: Tag = "*",
    sql: SqlText = "",
    broker: BrokerName = "",
    queue: QueueId = None,
    limit: Annotated[
        int,
        Option(
            "--lines", "-n", min=1, max=MAX_SEARCHED, metavar="N", help="First print the last N."
        ),
    ] = DEFAULT_TAIL,
    no_follow: Annotated[
        bool, Option("--no-follow", help="End after the messages that are stored now.")
    ] = False,
    form: Form = Format.TEXT,
    options: NamesrvOptions,
    json: Annotated[bool, Option("--json", help="Print one JSON object per line.")] = False,
) -> None:
    """Print the last messages of a topic, and then each new one until Ctrl-C.

    Exit code 3, also after Ctrl-C: a broker did not answer, or a message cannot be read.
    """
    from aerobee_cli.searching import Wanted, follow, problems, show

    wanted = Wanted(topic=topic, tag=tag, sql=sql, key=key, text=text, broker=broker, queue=queue)
    form = Format.JSON if json else form
    with options.admin() as admin:
        result = wanted.search(admin, newest_first=True, limit=limit)
        show(result.reversed(), form, as_json=False)
        notes = problems(result)
        if no_follow:
            end_with(notes)
            return
        for note in notes:
            output.note(note)
        silent = follow(admin, wanted, result, form)
    if notes or silent:
        raise click.exceptions.Exit(INCOMPLETE)


def _show_result(result: SearchResult, form: Format, *, json: bool) -> None:
    from aerobee_cli.searching import problems, show, truncation

    show(result, form, as_json=json)
    if not result.messages and not json:
        output.note("no message matches")
    if note := truncation(result):
        output.note(note)
    end_with(problems(result))


@app.add("show", epilog="Example: aerobee message show 7F00000100002A9F0000000000000000")
def show_copies(
    *,
    message_id: Annotated[
        str, Argument(metavar="MESSAGE_ID", help="Its message id or offset message id.")
    ],
    options: ClusterOptions,
) -> None:
    """Show where a message is stored, with all properties: in its topic, as retry, as dead letter.

    Exit code 3: a broker did not answer, so a copy may be missing.
    """
    with options.asking() as (admin, silent):
        copies = admin.message_copies(message_id, silent=silent)
    output.show_each([placed(message) for message in copies], as_json=options.json)
    end_with(f"warning: a copy on a broker may be missing: {error.message}" for error in silent)


@app.add(epilog="Example: aerobee message track --topic orders --key order-7")
def track(
    *,
    message_id: Annotated[
        str | None,
        Argument(metavar="[MESSAGE_ID]", help="Its message id or offset message id."),
    ] = None,
    topic: Annotated[str, Option(metavar="TOPIC", help="The topic of --key or of a place.")] = "",
    key: Annotated[
        str, Option(metavar="KEY", help="Track the latest messages with this key.")
    ] = "",
    broker: Annotated[str, Option(metavar="NAME", help="The broker of a place.")] = "",
    queue: Annotated[int | None, Option(min=0, metavar="N", help="The queue of a place.")] = None,
    offset: Annotated[int | None, Option(min=0, metavar="N", help="The offset of a place.")] = None,
    group: Annotated[
        list[str] | None, Option(metavar="GROUP", help="Only this group. May be repeated.")
    ] = None,
    limit: Annotated[
        int, Option(min=1, max=100, metavar="N", help="With --key: at most N messages.")
    ] = 5,
    options: ClusterOptions,
) -> None:
    """Show what became of a message in each consumer group: who has or consumed it, and when.

    Give a message id, or --topic with --key, or --topic with --broker, --queue and --offset. A
    place also works for a message that retention has deleted.

    Exit code 3: a broker did not answer, so messages or groups may be missing.
    """
    from aerobee_cli.tracking import Wanted, show

    wanted = Wanted(
        message_id=message_id or "",
        topic=topic,
        key=key,
        broker=broker,
        queue=queue,
        offset=offset,
        groups=tuple(group or ()),
        limit=limit,
    )
    with options.asking() as (admin, silent):
        found = wanted.track(admin, silent)
    show(found, as_json=options.json)
    end_with(f"warning: messages of a broker are left out: {error.message}" for error in silent)


def placed(message: ReceivedMessage) -> output.Item:
    """Return all fields of a stored message, with its place in the log, as a JSON object."""
    return {
        **full(message),
        "physical_offset": message.physical_offset,
        "store_size": message.store_size,
        "store_host": message.store_host,
        "born_host": message.born_host,
        "flag": message.flag,
        "sys_flag": message.sys_flag,
    }


def delay_of(text: str | None) -> timedelta | None:
    """Parse the value of `--delay`. Raises BadOption if it is invalid."""
    if text is None:
        return None
    try:
        return parse_duration(text)
    except ValueError as error:
        raise BadOption(f"--delay: {error}") from None


def body_of(text: str | None, file: Path | None) -> bytes:
    """Return the body from text or a file. Raises BadOption unless exactly one is given."""
    if (text is None) == (file is None):
        raise BadOption("give the body, or --file FILE")
    if text is not None:
        return text.encode("utf-8", "surrogateescape")
    assert file is not None
    try:
        return sys.stdin.buffer.read() if file == STDIN else file.read_bytes()
    except OSError as error:
        raise BadOption(f"cannot read {file}: {error.strerror}") from None


def properties_of(options: Sequence[str]) -> dict[str, str]:
    """Return the values of the options `--property` by name. Raises BadOption if one is invalid."""
    return pairs_of("--property", options, example="NAME=VALUE")
