"""Appends to the commit log, and waits until the append is flushed.

After a flush timeout, the append is still in the log, so storing the messages again would deliver
them twice. A wait that must know the outcome is therefore repeated after a timeout, unless the
append was rolled back.
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

# Messages of senders that wait for the disk take memory. Above this limit of bytes, the broker
# refuses sends, pops and send-backs. It accepts acknowledgements, because they are small, and each
# is stored once.
MAX_UNFLUSHED_BYTES = 256 * 1024 * 1024

Flushed = Callable[[BaseException | None], None]


class DurableLog:
    """Combines the store and its commit.

    A caller with work between append and wait appends to `store`. Then it calls `sent`,
    `settled`, `flushed`, `visible` or `when_flushed`. Each of these covers all earlier appends.
    """

    def __init__(self, store: MessageStore, commit: Commit) -> None:
        self.store = store
        self._commit = commit
        # Call it before storing a send. Raises TooFewReplicas.
        self.check_replicas = commit.check_sends

    # ---- append and wait ----

    async def put(self, messages: Sequence[NewMessage], *, wait: bool = True) -> list[Appended]:
        """Append messages of a client, and wait until they may be acknowledged.

        Without `wait`, only schedule the flush and return at once.

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
        """Append messages of one topic and queue, and wait until they may be acknowledged.

        Raises like `put`.
        """
        self.check_sends()
        appended = self.store.append_batch(batch)
        await self._commit.sent(self.store.end_offset)
        return appended

    async def put_accepted(self, messages: Sequence[NewMessage]) -> list[Appended]:
        """Append messages that were accepted earlier and move to another topic.

        Wait until they are on the disk, without a time limit. Raises MqError if they are not in the
        log.
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
        """Check that the broker may store messages of clients.

        Raises TooFewReplicas, TooMuchUnflushed.
        """
        self.check_replicas()
        self.check_room()

    def check_room(self) -> None:
        """Check that the log does not have too many unflushed bytes. Raises TooMuchUnflushed."""
        unflushed = self.store.end_offset - self.store.confirmed_offset
        if unflushed > MAX_UNFLUSHED_BYTES:
            raise TooMuchUnflushed(unflushed)

    # ---- wait for earlier appends ----

    # These are not coroutines, because every pop and acknowledgement waits here.

    def sent(self) -> Coroutine[Any, Any, None]:
        """Wait until all earlier sends may be acknowledged. Raises like Commit.sent."""
        return self._commit.sent(self.store.end_offset)

    def settled(self) -> Coroutine[Any, Any, None]:
        """Wait until earlier appends other than sends may be acknowledged. Raises like `sent`."""
        return self._commit.settled(self.store.end_offset)

    def flushed(self, end_offset: int | None = None) -> Coroutine[Any, Any, None]:
        """Wait until earlier appends are on the disk, whatever the flush type is.

        With `end_offset`, wait only for the log below this physical offset. Raises like
        Commit.flushed.
        """
        return self._commit.flushed(self.store.end_offset if end_offset is None else end_offset)

    def visible(self, end_offset: int | None = None) -> Coroutine[Any, Any, None]:
        """Wait until earlier appends are visible, so that no failover removes them.

        With `end_offset`, wait only for the log below this physical offset. Raises like
        Commit.visible.
        """
        return self._commit.visible(self.store.end_offset if end_offset is None else end_offset)

    def when_flushed(self, then: Flushed) -> asyncio.Future[None]:
        """Call `then(None)` when earlier appends are on the disk, or `then(error)` on a rollback.

        After a rollback, `then` is called before the next append, so that it can roll back changes
        in memory.

        Return a future of the first wait, which may end with FlushTimeout. Await the future with
        `asyncio.shield`, because its cancellation would cancel the call of `then`.
        """
        return self._watch(self.store.end_offset, then)

    def when_rolled_back(self, end_offset: int, then: Callable[[], None]) -> None:
        """Call `then` if the log rolls back the append that ends at this physical offset.

        Call this in the event loop iteration in which the caller's wait for the append ended, by
        FlushTimeout or a cancellation.
        """

        def ended(error: BaseException | None) -> None:
            if error is not None:
                then()

        if self._is_rolled_back(end_offset):
            then()
        else:
            self._watch(end_offset, ended)

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
        """Return whether the append that ends at this physical offset was rolled back.

        The result is exact only in the event loop iteration in which a wait for the append ended.
        Appends are blocked during that iteration (Commit._fail), so the log cannot have grown to
        the offset again.
        """
        return self.store.end_offset < end_offset

    def schedule_flush(self) -> None:
        """Schedule a flush. Call it after an append without a wait."""
        self._commit.schedule()
