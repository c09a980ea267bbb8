"""Reading without a listener: the class for programs without asyncio."""

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

# How long a loop goes on with messages that it was lent, so that what it has consumed makes room
# for others.
LENT_S = 0.1


def _take_back(consumer: AsyncPullConsumer, _: object) -> None:
    """An interrupt kept messages from the caller."""
    consumer.take_back()


class PullConsumer(StartedFacade[AsyncPullConsumer]):
    """AsyncPullConsumer for programs without asyncio. One thread polls at a time."""

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
        """The queues that are read now."""
        return self._client.queues

    @property
    def paused(self) -> frozenset[MessageQueue]:
        """The queues of which polls return nothing."""
        return self._client.paused

    def __iter__(self) -> Iterator[ReceivedMessage]:
        """Messages without end, each as by a poll of its own, until the consumer is closed."""
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
        except BaseException:  # an interrupt: the loop of the caller gets no message
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
