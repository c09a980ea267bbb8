"""Append to the commit log, then wait until the append is flushed.

A flush timeout is not a failure: the append stands in the log, and storing the messages again would
deliver them twice. So a wait that must know the outcome is begun again, unless the append was
rolled back between the timeout and now.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import structlog

from aerobee_broker.commit.commit import Commit
from aerobee_broker.errors import FlushTimeout, TooMuchUnflushed
from aerobee_broker.store.message_store import MessageStore
from aerobee_broker.store.messages import Appended, AppendedBatch, NewBatch, NewMessage

# Senders wait for the disk, each with its messages in memory: above this limit they are refused,
# and so are pops and send-backs. Acknowledgements are accepted: they are small, and each is stored
# once.
MAX_UNFLUSHED_BYTES = 256 * 1024 * 1024

Flushed = Callable[[BaseException | None], None]


class DurableLog:
    """Combine the store and its commit.

    A caller with work between append and wait appends to `store`. Then it calls `sent`,
    `settled`, `flushed`, `visible` or `when_flushed`: each covers what was appended before.
    """

    def __init__(self, store: MessageStore, commit: Commit) -> None:
        self.store = store
        self._commit = commit
        # Call it before a send is stored. Raises TooFewReplicas.
        self.check_replicas = commit.check_sends

    # ---- append and wait ----

    async def put(self, messages: Sequence[NewMessage], *, wait: bool = True) -> list[Appended]:
        """Append messages of a client; they may be acknowledged when it returns.

        Without `wait` it returns at once, and the flush is only scheduled.

        Raises TooFewReplicas, TooMuchUnflushed, and the errors of MessageStore.append and
        Commit.sent.
        """
        self.check_sends()
        appended = self.store.append(messages)
        if wait:
            await self._commit.sent(self.store.end_offset)
        else:
            self._commit.schedule()
        return appended

    async def put_batch(self, batch: NewBatch) -> AppendedBatch:
        """Append messages of one topic and queue, as `put` does."""
        self.check_sends()
        appended = self.store.append_batch(batch)
        await self._commit.sent(self.store.end_offset)
        return appended

    async def put_accepted(self, messages: Sequence[NewMessage]) -> list[Appended]:
        """Append messages that were accepted before and move to another topic.

        Returns when they are on the disk, however long that takes. Raises MqError when they are not
        in the log.
        """
        appended = self.store.append(messages, reserve=True)
        end_offset = self.store.end_offset
        while True:
            try:
                await self._commit.flushed(end_offset)
            except FlushTimeout as error:
                structlog.get_logger().warning(
                    "flush_slow", end_offset=end_offset, reason=error.message
                )
                if self._is_rolled_back(end_offset):
                    raise
            else:
                return appended

    def check_sends(self) -> None:
        """Check that messages of clients may be stored. Raises TooFewReplicas, TooMuchUnflushed."""
        self.check_replicas()
        self.check_room()

    def check_room(self) -> None:
        """Check that clients may add to the log. Raises TooMuchUnflushed."""
        unflushed = self.store.end_offset - self.store.confirmed_offset
        if unflushed > MAX_UNFLUSHED_BYTES:
            raise TooMuchUnflushed(unflushed)

    # ---- wait for what was appended ----

    # These are not coroutines, because every pop and acknowledgement waits here.

    def sent(self) -> Coroutine[Any, Any, None]:
        """Return when it may be acknowledged as a send. Raises like Commit.sent."""
        return self._commit.sent(self.store.end_offset)

    def settled(self) -> Coroutine[Any, Any, None]:
        """Return when an append that is not a send may be acknowledged. Raises like `sent`."""
        return self._commit.settled(self.store.end_offset)

    def flushed(self, end_offset: int | None = None) -> Coroutine[Any, Any, None]:
        """Return when it is on the disk, whatever the flush type. Raises like Commit.flushed.

        With `end_offset` it covers only what is below.
        """
        return self._commit.flushed(self.store.end_offset if end_offset is None else end_offset)

    def visible(self, end_offset: int | None = None) -> Coroutine[Any, Any, None]:
        """Return when it is visible, and no failover takes it back. Raises like Commit.visible.

        With `end_offset` it covers only what is below.
        """
        return self._commit.visible(self.store.end_offset if end_offset is None else end_offset)

    def when_flushed(self, then: Flushed) -> asyncio.Future[None]:
        """Call `then(None)` when it is on the disk, or `then(error)` when it was rolled back.

        The latter is called before anything is appended again, so that `then` can roll back what is
        in memory.

        Returns the first wait, which may end with FlushTimeout. Await it with `asyncio.shield`:
        cancelling it would cancel the call of `then`.
        """
        return self._watch(self.store.end_offset, then)

    def _watch(self, end_offset: int, then: Flushed) -> asyncio.Future[None]:
        def ended(flushing: asyncio.Future[None]) -> None:
            error = flushing.exception()
            if isinstance(error, FlushTimeout) and not self._is_rolled_back(end_offset):
                self._watch(end_offset, then)
            else:
                then(error)

        flushing = self._commit.flushing(end_offset)
        flushing.add_done_callback(ended)
        return flushing

    def _is_rolled_back(self, end_offset: int) -> bool:
        """Return whether the append was rolled back.

        This is exact in the turn of the loop in which a wait has ended. Appends are blocked until
        then (Commit._fail), so no other append can have reached the offset.
        """
        return self.store.end_offset < end_offset

    def schedule_flush(self) -> None:
        """Schedule a flush after an append that no caller waits for."""
        self._commit.schedule()
