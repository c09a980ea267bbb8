"""Print the messages of a topic as they arrive, for `aerobee message consume`.

Without a group, messages are only read: no offset changes, and no other reader notices. With a
group, each message is acknowledged after it was printed.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Protocol

from aerobee_cli import output
from aerobee_cli.message_lines import Format, MessageLines

if TYPE_CHECKING:
    from aerobee_client import (
        AsyncPullConsumer,
        AsyncSimpleConsumer,
        LeasedMessage,
        ReceivedMessage,
    )

# The maximum wait of a receive, so that Ctrl-C ends it without losing messages on their way.
WAIT_S = 0.5
MAX_MESSAGES = 32  # per receive


@dataclass(frozen=True, slots=True)
class Request:
    """The arguments of the command line.

    `begin_ms` is the store time from which messages are read without a group: milliseconds since
    the epoch, 0 for the first message, and None for messages that arrive from now on. `count` is
    None for no limit, and so is `timeout_s`. With `leases`, the members of the group pop.
    """

    namesrv: str
    topic: str
    group: str = ""
    expression: str = "*"
    begin_ms: int | None = None
    count: int | None = None
    timeout_s: float | None = None
    leases: bool = False


class Source(Protocol):
    """Provides messages, and records that they were printed."""

    async def receive(self, max_messages: int, wait_s: float) -> Sequence[ReceivedMessage]:
        """Return messages; an empty list if none arrives within `wait_s`."""

    async def settle(self, messages: Sequence[ReceivedMessage]) -> None:
        """Record that messages were printed."""


class View:
    """The queues of a topic, read without a group."""

    def __init__(self, consumer: AsyncPullConsumer) -> None:
        self._consumer = consumer

    async def receive(self, max_messages: int, wait_s: float) -> Sequence[ReceivedMessage]:
        return await self._consumer.poll(max_messages, timedelta(seconds=wait_s))

    async def settle(self, messages: Sequence[ReceivedMessage]) -> None:
        """Do nothing: a view has no offsets."""


class Member(View):
    """A member of a group that reads its share of the queues, and commits."""

    async def settle(self, messages: Sequence[ReceivedMessage]) -> None:
        await self._consumer.commit()


class Lessee:
    """A member of a group that leases messages, and acknowledges each."""

    def __init__(self, consumer: AsyncSimpleConsumer) -> None:
        self._consumer = consumer
        self._leased: Sequence[LeasedMessage] = ()

    async def receive(self, max_messages: int, wait_s: float) -> Sequence[ReceivedMessage]:
        self._leased = await self._consumer.receive(max_messages, wait=timedelta(seconds=wait_s))
        return self._leased

    async def settle(self, messages: Sequence[ReceivedMessage]) -> None:
        await asyncio.gather(*map(self._consumer.ack, self._leased))


async def open_source(request: Request, stack: AsyncExitStack) -> Source:
    """Connect a consumer, which `stack` closes.

    Raises MqError if the topic or the group does not exist.
    """
    from aerobee_client import (
        AsyncAdminClient,
        AsyncPullConsumer,
        AsyncSimpleConsumer,
        ConsumeFromWhere,
    )

    output.silence_client()
    first = ConsumeFromWhere.FIRST_OFFSET  # of a queue in which the group has no offset
    if not request.group:
        consumer = await stack.enter_async_context(AsyncPullConsumer(namesrv=request.namesrv))
        queues = await consumer.fetch_message_queues(request.topic)
        consumer.assign(queues, request.expression)
        if request.begin_ms is None:
            await consumer.seek_to_end()
        elif request.begin_ms:
            await consumer.seek_to_time(datetime.fromtimestamp(request.begin_ms / 1_000, UTC))
        return View(consumer)
    async with AsyncAdminClient(request.namesrv) as admin:
        await admin.get_group(request.group)
        await admin.topic_route(request.topic)
        clients = await admin.list_clients(request.group)
    ways = {
        client.consumers[request.group].consume_type
        for client in clients
        if request.group in client.consumers
    }
    # Members that pull and members that pop keep separate records of what is consumed.
    if request.leases or "pop" in ways:
        lessee = AsyncSimpleConsumer(
            request.group, namesrv=request.namesrv, consume_from_where=first
        )
        await lessee.subscribe(request.topic, request.expression)
        return Lessee(await stack.enter_async_context(lessee))
    member = AsyncPullConsumer(request.group, namesrv=request.namesrv, consume_from_where=first)
    await member.subscribe(request.topic, request.expression)
    return Member(await stack.enter_async_context(member))


@dataclass(slots=True)
class Received:
    """The result of a run: the number of messages, and whether `--count` was not reached."""

    messages: int = 0
    seconds: float = 0.0
    is_short: bool = False


async def receive_all(
    source: Source,
    request: Request,
    show: Callable[[ReceivedMessage], None],
    stopping: asyncio.Event,
    now_s: Callable[[], float] = time.monotonic,
) -> Received:
    """Show and settle messages until the limits of the request are reached, or until a stop."""
    began_s = now_s()
    done = Received()

    def left() -> int:
        return MAX_MESSAGES if request.count is None else request.count - done.messages

    while left() and not stopping.is_set():
        wait_s = WAIT_S
        if request.timeout_s is not None:
            wait_s = min(wait_s, began_s + request.timeout_s - now_s())
            if wait_s <= 0:
                done.is_short = request.count is not None
                break
        messages = await source.receive(min(MAX_MESSAGES, left()), wait_s)
        for message in messages:
            show(message)
        if messages:
            sys.stdout.flush()
            await source.settle(messages)
        done.messages += len(messages)
    done.seconds = now_s() - began_s
    return done


async def run(request: Request, *, as_json: bool) -> Received:
    """Print what arrives, until a limit is reached or a signal stops this process."""
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopping.set)
    lines = MessageLines(Format.JSON if as_json else Format.TEXT)

    def show(message: ReceivedMessage) -> None:
        print(lines.of(message))

    async with AsyncExitStack() as stack:
        source = await open_source(request, stack)
        if not as_json and sys.stdout.isatty():
            output.note("waiting for messages; Ctrl-C ends")
        return await receive_all(source, request, show, stopping)
