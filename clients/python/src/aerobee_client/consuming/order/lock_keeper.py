"""Keep the queue locks of one member of a consumer group: acquire, renew and release them.

A lock is requested only while the link to its broker is up. The broker frees the locks of a client
when its link ends. Otherwise the end of an old link could free a new lock.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable
from contextlib import suppress

from aerobee.broker.v1 import client_pb2

from aerobee_client.cluster.client_instance import ClientInstance
from aerobee_client.message_queue import MessageQueue
from aerobee_client.runtime.clock import Clock
from aerobee_wire import rpcs
from aerobee_wire.status import Code, MqError

log = logging.getLogger(__name__)

RENEW_INTERVAL_S = 20.0
RETRY_S = 1.0  # after a broker did not answer
CALL_TIMEOUT_S = 3.0
TRUST_MS = 30_000  # the broker keeps a lock for 60 s


class QueueLock:
    """The lock of one queue.

    Any thread may call `is_trusted`. All other methods run on the event loop.
    """

    def __init__(self, clock: Clock) -> None:
        # The epoch of the lock, and the address of its broker; 0 and "" before the first grant.
        self.epoch = 0
        self.address = ""
        # The group's retryMaxTimes at this broker.
        self.max_reconsume_times = 0
        self._clock = clock
        self._trusted_until_ms = 0
        self._waiting: list[Callable[[], None]] = []

    def is_trusted(self) -> bool:
        """Return whether a listener may start because no other member can have the lock yet."""
        return self._clock.monotonic_ms() < self._trusted_until_ms

    def renew(self, address: str, asked_ms: int, epoch: int, max_reconsume_times: int) -> None:
        """Extend the trust in this lock after the broker granted it.

        `asked_ms` is the monotonic time when the request was sent. `epoch` and
        `max_reconsume_times` come from the broker.
        """
        self.address = address
        self.epoch = epoch
        self.max_reconsume_times = max_reconsume_times
        self._trusted_until_ms = asked_ms + TRUST_MS
        waiting, self._waiting = self._waiting, []
        for renewed in waiting:
            renewed()

    def distrust(self) -> None:
        """Stop trusting this lock, because the link to its broker broke and freed the lock."""
        self._trusted_until_ms = 0

    def when_renewed(self, renewed: Callable[[], None]) -> None:
        """Call `renewed` once, after the next renewal."""
        self._waiting.append(renewed)


class LockKeeper:
    """Keeps the queue locks of one member.

    `on_lost` is called with a queue whose lock another member has. `on_regained` is awaited with a
    queue whose lock was free for a while, because another member may have had it. While
    `on_regained` raises MqError, the lock is not trusted, and the next renewal calls it again.
    """

    def __init__(
        self,
        instance: ClientInstance,
        consumer_group: str,
        *,
        on_lost: Callable[[MessageQueue], None],
        on_regained: Callable[[MessageQueue], Awaitable[None]],
    ) -> None:
        self._instance = instance
        self._consumer_group = consumer_group
        self._on_lost = on_lost
        self._on_regained = on_regained
        self._locks: dict[MessageQueue, QueueLock] = {}
        # Queues that may be locked at their broker because the broker's answer was lost.
        self._unsure: set[MessageQueue] = set()
        # Addresses of brokers to which the link is up, and the number of breaks of each link.
        self._up: set[str] = set()
        self._breaks: Counter[str] = Counter()
        # One request at a time to a broker: otherwise a renewal could lock a queue again after its
        # unlock.
        self._calls: dict[str, asyncio.Lock] = {}  # by broker name
        self._renew_now = asyncio.Event()
        self._renewing: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start the periodic renewal of locks.

        Raises MqError with the code REQUEST_CODE_NOT_SUPPORTED if a broker does not support queue
        locks.
        """
        addresses = self._instance.routes.master_addresses()
        await asyncio.gather(*map(self._check_supported, addresses))
        self._renewing = asyncio.create_task(self._renew_forever(), name="renew queue locks")

    async def close(self) -> None:
        """Stop the renewal. The brokers free the locks when the client is unregistered."""
        if self._renewing is not None:
            self._renewing.cancel()
            await asyncio.gather(self._renewing, return_exceptions=True)

    def queues(self) -> frozenset[MessageQueue]:
        """Return the queues that this member has locked or may have locked."""
        return frozenset(self._locks.keys() | self._unsure)

    def lock_of(self, queue: MessageQueue) -> QueueLock:
        """Return the lock of a queue that `lock` has locked.

        If the lock was lost in the meantime, return a lock that is not trusted.
        """
        return self._locks.get(queue) or QueueLock(self._instance.clock)

    def on_link(self, address: str, up: bool) -> None:
        """Record that the link to a broker is up or broke. Distrust its locks after a break."""
        if up:
            self._up.add(address)
            self._renew_now.set()
            return
        self._up.discard(address)
        self._breaks[address] += 1
        for lock in self._locks.values():
            if lock.address == address:
                lock.distrust()

    def on_pull_failed(self, _: MessageQueue, error: MqError) -> None:
        """Renew the locks at once if a pull failed because the broker no longer has the lock."""
        if error.code is Code.QUEUE_LOCK_NOT_HELD:
            self._renew_now.set()

    async def lock(self, queues: Collection[MessageQueue]) -> set[MessageQueue]:
        """Request the locks of `queues`. Return the queues whose lock this member has now.

        If a broker does not answer, its queues count as not locked.
        """
        answers = await asyncio.gather(
            *(self._ask(name, chosen) for name, chosen in _by_broker(queues).items())
        )
        return {queue for granted in answers for queue in granted or ()}

    async def unlock(self, queues: Collection[MessageQueue]) -> None:
        held = [queue for queue in queues if queue in self._locks or queue in self._unsure]
        await asyncio.gather(
            *(self._unlock(name, chosen) for name, chosen in _by_broker(held).items())
        )

    # ---- one broker ----

    async def _check_supported(self, address: str) -> None:
        try:
            await self._call(address, [])
        except MqError as error:
            if error.code is not Code.REQUEST_CODE_NOT_SUPPORTED:
                return  # it may be unavailable; locks are requested later
            raise MqError(
                Code.REQUEST_CODE_NOT_SUPPORTED,
                f"the broker at {address} does not lock queues, so nothing can be consumed in "
                "order there: upgrade it, or consume without orderly=True",
            ) from None

    async def _ask(
        self, broker_name: str, queues: Collection[MessageQueue], *, renew: bool = False
    ) -> list[MessageQueue] | None:
        """Request locks at one broker. Return the queues whose lock this member has now.

        Return None if the broker did not answer or the link to it is not up. With `renew`, skip
        queues that were unlocked in the meantime.
        """
        async with self._calls.setdefault(broker_name, asyncio.Lock()):
            address = self._address_of(broker_name)
            if address is None or address not in self._up:
                return None
            if renew:
                queues = [queue for queue in queues if queue in self._locks]
            clock = self._instance.clock
            asked_ms, breaks = clock.monotonic_ms(), self._breaks[address]
            try:
                response = await self._call(address, queues)
            except MqError as error:
                log.warning("queues not locked at broker %s: %s", broker_name, error)
                self._unsure.update(queue for queue in queues if queue not in self._locks)
                return None
            self._unsure.difference_update(queues)
            granted = []
            for queue, answer in zip(queues, response.locks, strict=True):
                if not answer.epoch:
                    self._refused(queue, answer.client_id)
                    continue
                lock = self._locks.get(queue)
                if lock is None:
                    lock = self._locks[queue] = QueueLock(clock)
                elif not await self._is_continued(queue, lock, answer.epoch):
                    return None
                if self._breaks[address] != breaks:
                    return None  # it was freed since
                lock.renew(address, asked_ms, answer.epoch, response.max_reconsume_times)
                granted.append(queue)
            return granted

    async def _is_continued(self, queue: MessageQueue, lock: QueueLock, epoch: int) -> bool:
        """Return whether the member may continue with `queue`, whose lock it had before.

        Return False if `on_regained` failed after the lock was free for a while.
        """
        if lock.epoch != epoch:
            log.warning("the lock of %s was free for a while", queue)
            try:
                await self._on_regained(queue)
            except MqError as error:
                log.warning("%s stays suspended: %s", queue, error)
                return False
        return True

    def _refused(self, queue: MessageQueue, holder: str) -> None:
        lock = self._locks.pop(queue, None)
        if lock is None:
            log.debug("%s has the lock of %s", holder or "nobody", queue)
            return
        log.warning("the lock of %s is lost: %s has it", queue, holder or "nobody")
        lock.distrust()
        self._on_lost(queue)

    async def _unlock(self, broker_name: str, queues: Collection[MessageQueue]) -> None:
        async with self._calls.setdefault(broker_name, asyncio.Lock()):
            for queue in queues:
                lock = self._locks.pop(queue, None)
                if lock is not None:
                    lock.distrust()
            request = client_pb2.UnlockQueuesRequest(
                consumer_group=self._consumer_group,
                client_id=self._instance.client_id,
                queues=map(_to_proto, queues),
            )
            try:
                await self._instance.call_broker(
                    broker_name, rpcs.UNLOCK_QUEUES, request, timeout_s=CALL_TIMEOUT_S
                )
            except MqError as error:
                log.info("queues not unlocked at broker %s: %s", broker_name, error)
                self._unsure.update(queues)
            else:
                self._unsure.difference_update(queues)

    async def _call(
        self, address: str, queues: Collection[MessageQueue]
    ) -> client_pb2.LockQueuesResponse:
        request = client_pb2.LockQueuesRequest(
            consumer_group=self._consumer_group,
            client_id=self._instance.client_id,
            queues=map(_to_proto, queues),
        )
        return await self._instance.transport.call(
            address, rpcs.LOCK_QUEUES, request, timeout_s=CALL_TIMEOUT_S
        )

    def _address_of(self, broker_name: str) -> str | None:
        try:
            return self._instance.routes.address_of(broker_name)
        except MqError:
            return None

    # ---- renewal ----

    async def _renew_forever(self) -> None:
        wait_s = RENEW_INTERVAL_S
        while True:
            # Not wait_for: in Python 3.11 it may swallow a cancellation.
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._renew_now.wait()
            self._renew_now.clear()
            try:
                renewed = await self._renew()
                wait_s = RENEW_INTERVAL_S if renewed else RETRY_S
            except Exception:
                log.exception("queue locks of %s not renewed", self._consumer_group)
                wait_s = RETRY_S

    async def _renew(self) -> bool:
        """Renew all locks. Return False if a broker did not answer."""
        answers = await asyncio.gather(
            *(
                self._ask(name, chosen, renew=True)
                for name, chosen in _by_broker(self._locks).items()
            )
        )
        return None not in answers


def _by_broker(queues: Iterable[MessageQueue]) -> dict[str, list[MessageQueue]]:
    found: dict[str, list[MessageQueue]] = {}
    for queue in queues:
        found.setdefault(queue.broker_name, []).append(queue)
    return found


def _to_proto(queue: MessageQueue) -> client_pb2.LockedQueue:
    return client_pb2.LockedQueue(topic=queue.topic, queue_id=queue.queue_id)
