"""Read messages without a listener: the class for programs without asyncio."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator, Sequence
from datetime import timedelta
from functools import partial
from typing import Unpack

from aerobee_client.message import ReceivedMessage
from aerobee_client.message_queue import MessageQueue
from aerobee_client.options.pull_consumer import PullConsumerSettings
from aerobee_client.pull_consumer import READ_TIMEOUT, AsyncPullConsumer
from aerobee_client.pulling.lent import Lent
from aerobee_client.runtime.facade import StartedFacade, blocking, like, on_loop, settled
from aerobee_client.runtime.fork import PROCESS

# How long a loop continues with messages that it was lent (100 ms). Then it returns them, so that
# consumed messages make room for others.
LENT_S = 0.1


def _take_back(consumer: AsyncPullConsumer, _: object) -> None:
    """Return messages that an interrupt kept from the caller."""
    consumer.take_back()


class PullConsumer(StartedFacade[AsyncPullConsumer]):
    """Reads message queues by polls, for programs without asyncio.

    Arguments, results and errors are those of AsyncPullConsumer. Only one thread may poll at a
    time.

    Example:
        with PullConsumer("billing") as consumer:
            consumer.subscribe("orders")
            for message in consumer:
                print(message.body)
    """

    def __init__(
        self,
        consumer_group: str | None = None,
        *,
        namesrv: str | Sequence[str] | None = None,
        **settings: Unpack[PullConsumerSettings],
    ) -> None:
        client = AsyncPullConsumer(consumer_group, namesrv=namesrv, **settings)
        super().__init__(client, "aerobee pull consumer")

    @property
    def consumer_group(self) -> str | None:
        return self._client.consumer_group

    @property
    def queues(self) -> frozenset[MessageQueue]:
        """The queues that this consumer reads now."""
        return self._client.queues

    @property
    def paused(self) -> frozenset[MessageQueue]:
        """The paused queues, whose messages polls do not return."""
        return self._client.paused

    def __iter__(self) -> Iterator[ReceivedMessage]:
        """Yield messages until the consumer is closed. Each step is a poll."""
        return self._taken(self._client._lendings())

    @like(AsyncPullConsumer.read_to_end)
    def read_to_end(self, timeout: timedelta = READ_TIMEOUT) -> Iterator[ReceivedMessage]:
        return self._taken(self._client._lendings_to_end(timeout))

    def _taken(self, lendings: AsyncIterator[Lent]) -> Iterator[ReceivedMessage]:
        for lent in self._iterate(lendings, partial(_take_back, self._client)):
            since_s = time.monotonic()
            while (message := self._take(lent)) is not None:
                yield message
                PROCESS.check()
                if time.monotonic() - since_s > LENT_S:
                    break

    def _take(self, lent: Lent) -> ReceivedMessage | None:
        before = lent.taken
        try:
            return lent.take()
        except BaseException:  # an interrupt: the caller's loop does not get the message
            if lent.taken > before:
                self._loop.call(self._client.take_back)
            raise

    add_interceptor = on_loop(AsyncPullConsumer.add_interceptor)
    subscribe = settled(AsyncPullConsumer.subscribe)
    unsubscribe = on_loop(AsyncPullConsumer.unsubscribe)
    assign = on_loop(AsyncPullConsumer.assign)
    fetch_message_queues = blocking(AsyncPullConsumer.fetch_message_queues)
    statistics = on_loop(AsyncPullConsumer.statistics)
    take_back = on_loop(AsyncPullConsumer.take_back)
    poll = blocking(AsyncPullConsumer.poll, _take_back)
    seek = blocking(AsyncPullConsumer.seek)
    seek_to_begin = blocking(AsyncPullConsumer.seek_to_begin)
    seek_to_end = blocking(AsyncPullConsumer.seek_to_end)
    seek_to_time = blocking(AsyncPullConsumer.seek_to_time)
    pause = on_loop(AsyncPullConsumer.pause)
    resume = on_loop(AsyncPullConsumer.resume)
    position = blocking(AsyncPullConsumer.position)
    begin_offsets = blocking(AsyncPullConsumer.begin_offsets)
    end_offsets = blocking(AsyncPullConsumer.end_offsets)
    offsets_for_times = blocking(AsyncPullConsumer.offsets_for_times)
    lag = blocking(AsyncPullConsumer.lag)
    committed = blocking(AsyncPullConsumer.committed)
    reply = blocking(AsyncPullConsumer.reply)
    commit = blocking(AsyncPullConsumer.commit)
