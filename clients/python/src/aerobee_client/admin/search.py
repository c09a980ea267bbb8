"""Search messages on all brokers of a topic: part of AsyncAdminClient. Nothing is consumed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from typing import NamedTuple

from aerobee.broker.v1 import message_pb2, search_pb2

from aerobee_client.admin import descriptions as d
from aerobee_client.admin.brokers import BrokerAdmin, numbers_fit
from aerobee_client.errors import BrokerUnreachable, RequestTimeout
from aerobee_client.message import ReceivedMessage
from aerobee_client.options.consumer import Sql
from aerobee_client.runtime.kinds import checked_class
from aerobee_wire import rpcs
from aerobee_wire.status import MqError, invalid_parameter

_Request = search_pb2.SearchMessagesRequest
_Response = search_pb2.SearchMessagesResponse
DEFAULT_MESSAGES = 100


class _Part(NamedTuple):
    """The answer of one broker to a search."""

    messages: list[ReceivedMessage]
    progress: search_pb2.SearchProgress
    end: search_pb2.SearchEnd


@checked_class
class SearchAdmin(BrokerAdmin):
    async def search_messages(
        self,
        topic: str,
        *,
        expression: str | Sql = "*",
        key: str = "",
        text: str = "",
        begin_timestamp_ms: int = 0,
        end_timestamp_ms: int = 0,
        ranges: Sequence[d.QueueRange] = (),
        newest_first: bool = False,
        max_messages: int = DEFAULT_MESSAGES,
        max_scanned: int = 0,
    ) -> d.SearchResult:
        """Return the messages of a topic that meet all conditions, in the order of their storage.

        The brokers read in short slices, so a search does not delay other calls. A key is found by
        an index; all other searches read the messages in the given bounds.

        Args:
            topic: The topic to search.
            expression: The tags, such as "a || b", or an `Sql` condition.
            key: One of the keys of a message, or its message id.
            text: Text that the body contains. Compressed bodies are decompressed.
            begin_timestamp_ms: The earliest store time, in milliseconds since the epoch.
            end_timestamp_ms: The latest store time, in milliseconds since the epoch; 0 for no
                limit.
            ranges: Search only these parts of queues, for example `SearchResult.left` of a search
                that stopped at a limit.
            newest_first: Return the latest messages first.
            max_messages: The maximum number of messages, 1 to 10,000.
            max_scanned: The maximum number of messages that each broker examines; 0 for no limit.

        Returns:
            The messages, where the search stopped on each broker, and the brokers that did not
            answer.

        Raises:
            MqError: TOPIC_NOT_EXIST, SUBSCRIPTION_PARSE_FAILED or INVALID_PARAMETER, or the error
                of a broker if no broker answers.
        """
        if max_messages < 1:
            raise invalid_parameter(f"max_messages is {max_messages}: give 1 to 10000")
        with numbers_fit():
            request = _Request(
                topic=topic,
                subscription=_subscription(expression),
                key=key,
                text=text,
                begin_timestamp_ms=begin_timestamp_ms,
                end_timestamp_ms=end_timestamp_ms,
                newest_first=newest_first,
                max_messages=max_messages,
                max_scanned=max_scanned,
            )
        brokers, silent = await self._searched(topic, ranges)
        requests = {name: _ranged(request, name, ranges) for name in brokers}
        answers = await asyncio.gather(
            *(self._part(name, address, requests[name]) for name, address in brokers.items()),
            return_exceptions=True,
        )
        parts: dict[str, _Part] = {}
        failed: MqError | None = None
        for name, answer in zip(brokers, answers, strict=True):
            if isinstance(answer, _Part):
                parts[name] = answer
            elif isinstance(answer, (BrokerUnreachable, RequestTimeout)):
                answer.at_broker(name)
                answer.add_context(f"broker {name}")
                silent[name] = failed = answer
            elif isinstance(answer, BaseException):
                raise answer
        if failed is not None and not parts:
            raise failed
        return _merged(parts, silent, max_messages, newest_first=newest_first)

    async def follow_messages(
        self,
        topic: str,
        *,
        expression: str | Sql = "*",
        key: str = "",
        text: str = "",
        ranges: Sequence[d.QueueRange] = (),
        on_error: Callable[[MqError], object] | None = None,
    ) -> AsyncGenerator[ReceivedMessage, None]:
        """Yield the messages of a topic that meet all conditions as they are stored, without end.

        Messages of one broker come in the order of their storage.

        Args:
            topic: The topic to follow.
            expression: The tags, such as "a || b", or an `Sql` condition.
            key: One of the keys of a message, or its message id.
            text: Text that the body contains.
            ranges: Where to begin in each queue; their ends are ignored. Queues that are left out
                are not followed. Without ranges, all queues are followed from their ends.
            on_error: Is called with the error of each broker that stops answering, as soon as it
                does. The others are followed further. Without it, such an error is raised. The
                plain class calls it on its own thread.

        Yields:
            The messages.

        Raises:
            MqError: As for `search_messages`; the error of the last broker if none answers.
        """
        if not ranges:
            result = await self.search_messages(topic, newest_first=True, max_messages=1)
            ranges = result.ends
            if on_error is not None:
                for error in result.silent.values():
                    on_error(error)
        request = _Request(
            topic=topic, subscription=_subscription(expression), key=key, text=text, follow=True
        )
        open_ended = [
            d.QueueRange(each.broker_name, each.queue_id, each.begin_offset) for each in ranges
        ]
        brokers, away = await self._searched(topic, open_ended)
        if on_error is not None:
            for error in away.values():
                on_error(error)
        arrived: asyncio.Queue[ReceivedMessage | MqError] = asyncio.Queue(maxsize=1_000)

        async def follow(name: str, address: str) -> None:
            try:
                await self._follow(name, address, _ranged(request, name, open_ended), arrived)
            except MqError as error:
                await arrived.put(error)

        tasks = [asyncio.create_task(follow(*broker)) for broker in brokers.items()]
        running = len(tasks)
        try:
            while running:
                item = await arrived.get()
                if isinstance(item, ReceivedMessage):
                    yield item
                    continue
                running -= 1
                if on_error is None or not running:
                    raise item
                on_error(item)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    # ---- steps ----

    async def _searched(
        self, topic: str, ranges: Sequence[d.QueueRange]
    ) -> tuple[dict[str, str], dict[str, MqError]]:
        """Return the brokers to search, and the errors of brokers that are known to be away."""
        # A broker that leaves between the two looks is in `brokers`, and will not answer.
        brokers = await self._brokers.of_topic(topic, reads=True)
        away = await self._brokers.away_from_topic(topic, brokers)
        wanted = {each.broker_name for each in ranges}
        if wanted:
            away = {name: error for name, error in away.items() if name in wanted}
            unknown = sorted(wanted - brokers.keys() - away.keys())
            if unknown:
                raise invalid_parameter(
                    f"the topic {topic} is not on the broker {unknown[0]}: it is on "
                    f"{', '.join(brokers)}"
                )
            brokers = {name: at for name, at in brokers.items() if name in wanted}
            if not brokers:
                raise next(iter(away.values()))
        return brokers, away

    async def _part(self, name: str, address: str, request: _Request) -> _Part:
        messages: list[ReceivedMessage] = []
        async for response in self._responses(name, address, request):
            messages += [ReceivedMessage(stored, name) for stored in response.messages]
            if response.HasField("end"):
                return _Part(messages, response.progress, response.end)
        raise BrokerUnreachable(address, "it ended the search early")

    async def _follow(
        self,
        name: str,
        address: str,
        request: _Request,
        arrived: asyncio.Queue[ReceivedMessage | MqError],
    ) -> None:
        stream = self._instance.transport.stream(address, rpcs.SEARCH_MESSAGES, request)
        async with aclosing(stream) as responses:
            async for response in responses:
                for stored in response.messages:
                    await arrived.put(ReceivedMessage(stored, name))
        raise BrokerUnreachable(address, "it stops, and ended the search")

    async def _responses(
        self, name: str, address: str, request: _Request
    ) -> AsyncGenerator[_Response, None]:
        """Yield the responses of a broker, of which none may be later than the time limit.

        A broker reports its progress each second. The text of an error names the broker.
        """
        timeout_s = self._brokers.timeout_s
        stream = self._instance.transport.stream(address, rpcs.SEARCH_MESSAGES, request)
        try:
            async with aclosing(stream) as responses:
                while True:
                    try:
                        async with asyncio.timeout(timeout_s):
                            response = await anext(responses, None)
                    except TimeoutError:
                        raise RequestTimeout(address, timeout_s) from None
                    if response is None:
                        return
                    yield response
        except MqError as error:
            if not isinstance(error, BrokerUnreachable):
                error.add_context(f"broker {name}")
            raise


def _subscription(expression: str | Sql) -> message_pb2.Subscription:
    kinds = message_pb2.Subscription
    if isinstance(expression, Sql):
        return kinds(expression=expression.expression, expression_type=kinds.SQL92)
    return kinds(expression=expression)


def _ranged(request: _Request, broker_name: str, ranges: Sequence[d.QueueRange]) -> _Request:
    """Return the request with the ranges of one broker."""
    result = _Request()
    result.CopyFrom(request)
    with numbers_fit():
        for each in ranges:
            if each.broker_name == broker_name:
                result.queues.add(
                    queue_id=each.queue_id,
                    begin_offset=each.begin_offset,
                    end_offset=each.end_offset,
                )
    return result


def _merged(
    parts: Mapping[str, _Part],
    silent: dict[str, MqError],
    max_messages: int,
    *,
    newest_first: bool,
) -> d.SearchResult:
    """Merge the answers of brokers by store time. Messages over the limit count as not examined."""
    messages = [message for part in parts.values() for message in part.messages]
    messages.sort(key=lambda message: message.store_timestamp_ms, reverse=newest_first)
    cut: dict[str, list[ReceivedMessage]] = {}
    for message in messages[max_messages:]:
        cut.setdefault(message.broker_name, []).append(message)
    stops = {
        name: "MESSAGE_LIMIT" if name in cut else search_pb2.SearchEnd.Reason.Name(part.end.reason)
        for name, part in parts.items()
    }
    return d.SearchResult(
        messages=tuple(messages[:max_messages]),
        stops=stops,
        left=tuple(
            each
            for name, part in parts.items()
            for each in _left(name, part.end, cut.get(name, ()), newest_first=newest_first)
        ),
        ends=tuple(
            d.QueueRange(name, each.queue_id, each.queue_end)
            for name, part in parts.items()
            for each in part.end.positions
        ),
        scanned=sum(part.progress.scanned for part in parts.values()),
        unreadable=sum(part.progress.unreadable for part in parts.values()),
        silent=silent,
    )


def _left(
    broker_name: str,
    end: search_pb2.SearchEnd,
    cut: Sequence[ReceivedMessage],
    *,
    newest_first: bool,
) -> Iterator[d.QueueRange]:
    """Yield the ranges of a broker that are not examined, including its messages in `cut`."""
    for each in end.positions:
        offsets = [message.queue_offset for message in cut if message.queue_id == each.queue_id]
        begin, stop = each.begin_offset, each.end_offset
        if offsets and newest_first:
            stop = max(stop, *(offset + 1 for offset in offsets))
        elif offsets:
            begin = min(begin, *offsets)
        # An empty range is kept: a list without this queue would search none or all of it.
        yield d.QueueRange(broker_name, each.queue_id, begin, stop)
