"""Define `aerobee message`: send, recall, show and find messages."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Annotated

import click

from aerobee_cli import output
from aerobee_cli.command_line import Argument, CommandGroup, Option
from aerobee_cli.options import (
    BadOption,
    Columns,
    Json,
    Namesrv,
    Topic,
    Wide,
    admin_client,
    end,
    listing,
    pairs_of,
    producer,
)
from aerobee_cli.table import Column, number
from aerobee_cli.times import parse_duration
from aerobee_client.admin.export import full, summary
from aerobee_wire.status import MqError

app = CommandGroup("message", help="Single messages.")

STDIN = Path("-")
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
    context: click.Context,
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
    namesrv: Namesrv = None,
    json: Json = False,
) -> None:
    """Send one message, and wait until it is stored."""
    if delay is not None and delay_level:
        raise BadOption("give --delay or --delay-level, not both")
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
    )
    with producer(context, namesrv) as sender:
        sent = sender.send(message)
    item = {
        "message_id": sent.message_id,
        "offset_message_id": sent.offset_message_id,
        **sent.queue._asdict(),
        "queue_offset": sent.queue_offset,
    }
    if sent.recall_handle:
        item["recall_handle"] = sent.recall_handle
    output.show_one(item, as_json=json)
    if sent.queue.broker_name == topic:
        output.note(f"{topic} is the topic of the broker's own name (brokerTopicEnable)")


@app.add(epilog="Example: aerobee message recall orders djEgb3JkZXJz…")
def recall(
    context: click.Context,
    *,
    topic: Topic,
    handle: Annotated[str, Argument(metavar="RECALL_HANDLE", help="As send --delay shows it.")],
    namesrv: Namesrv = None,
    json: Json = False,
) -> None:
    """Recall a message that was sent with --delay, before it is delivered."""
    with producer(context, namesrv) as sender:
        message_id = sender.recall(topic, handle)
    output.show_one({"message_id": message_id, "topic": topic}, as_json=json)


@app.add(epilog="Example: aerobee message get 7F00000100002A9F0000000000000000")
def get(
    context: click.Context,
    *,
    offset_message_id: Annotated[
        str, Argument(metavar="OFFSET_MESSAGE_ID", help="As send, query and dlq show it.")
    ],
    namesrv: Namesrv = None,
    json: Json = False,
) -> None:
    """Show one message with its body. The message is not consumed."""
    with admin_client(context, namesrv) as admin:
        message = admin.get_message(offset_message_id)
    output.show_one(full(message), as_json=json)


@app.add(epilog="Example: aerobee message query orders --key order-7")
def query(
    context: click.Context,
    *,
    topic: Topic,
    key: Annotated[str, Option(help="One of its keys.")] = "",
    unique_id: Annotated[str, Option("--id", help="Its message id.")] = "",
    limit: Annotated[int, Option(min=1, max=64, metavar="N", help="At most N.")] = 32,
    wide: Wide = False,
    columns: Columns = "",
    namesrv: Namesrv = None,
    json: Json = False,
) -> None:
    """Find messages by key or id, newest first.

    Exit code 3: a message that may match is damaged.
    """
    if bool(key) == bool(unique_id):
        raise BadOption("give either --key or --id")
    table = listing(MESSAGE_COLUMNS, wide=wide, chosen=columns)
    with admin_client(context, namesrv) as admin:
        damaged: list[MqError] = []
        found = admin.query_messages(
            topic, key=key, unique_id=unique_id, max_messages=limit, damaged=damaged
        )
    table.show(map(summary, found), as_json=json, empty=f"{topic} has no such message")
    end(f"warning: a message that may match is left out: {error.message}" for error in damaged)


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
