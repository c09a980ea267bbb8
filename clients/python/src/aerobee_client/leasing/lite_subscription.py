"""Report the lite topics to which one client subscribes to every broker of their parent topic.

Each broker gets all names, because it may store messages of any lite topic. Brokers keep the names
in memory. A broker gets them again after its link was broken, after it has moved, and every 30 s.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Sequence
from contextlib import suppress
from typing import Any

from aerobee.broker.v1 import lite_pb2

from aerobee_client.cluster.client_instance import ClientInstance
from aerobee_client.cluster.route_cache import readable_queues
from aerobee_client.leasing.lease_calls import LeaseCalls
from aerobee_client.options.lease_consumer import OffsetOption, OnEvicted
from aerobee_wire import rpcs
from aerobee_wire.queues.lite import check_name
from aerobee_wire.status import Code, MqError

log = logging.getLogger(__name__)

SYNC_INTERVAL_S = 30.0  # a broker forgets a client that is silent for 180 s
SYNC_TIMEOUT_S = 3.0


class LiteSubscription:
    """The lite topics to which one client subscribes.

    `changes` counts the changes that added lite topics. `on_evicted` is called with lite topics
    that another client has taken over.
    """

    def __init__(
        self,
        instance: ClientInstance,
        calls: LeaseCalls,
        consumer_group: str,
        parent: str,
        on_evicted: OnEvicted,
    ) -> None:
        self.parent = parent
        self.changes = 0
        self._instance = instance
        self._calls = calls
        self._consumer_group = consumer_group
        self._on_evicted = on_evicted
        self._names: dict[str, int] = {}  # the change that added each name
        self._synced: set[str] = set()  # addresses of brokers that know the names
        self._changing = asyncio.Lock()
        self._sync_now = asyncio.Event()
        self._syncing: asyncio.Task[None] | None = None

    @property
    def names(self) -> frozenset[str]:
        return frozenset(self._names)

    async def start(self) -> None:
        """Start to report the names.

        Raises MqError if the parent does not exist, or if every broker refuses.
        """
        async with self._changing:
            failures = await self._sync(await self._brokers())
        refused = [failure for failure in failures if failure is not None]
        if len(refused) == len(failures) and not all(one.retryable for one in refused):
            raise refused[0]
        self._syncing = asyncio.create_task(self._sync_forever(), name="lite topics")

    async def close(self) -> None:
        """Stop to report. Brokers forget the subscriptions when the client unregisters."""
        if self._syncing is not None:
            self._syncing.cancel()
            await asyncio.gather(self._syncing, return_exceptions=True)

    async def add(self, names: Collection[str], option: OffsetOption) -> None:
        """Add lite topics. If it raises MqError, brokers that had applied the change revert it."""
        for name in names:
            check_name(name)
        begin = {option.begin: option.value} if option.begin else {}
        async with self._changing:
            self.changes += 1
            await self._send_change(self._request(lite_pb2.LITE_SYNC_ADD, names, **begin))
            self._names |= dict.fromkeys(names, self.changes)

    async def remove(self, names: Collection[str]) -> None:
        """Unsubscribe from lite topics.

        Brokers that did not answer get the change with the next report.
        """
        async with self._changing:
            for name in names:
                self._names.pop(name, None)
            await self._send_change(self._request(lite_pb2.LITE_SYNC_REMOVE, names))

    # ---- brokers that do not know ----

    async def ensure(self, broker_name: str) -> None:
        """Report all names to a broker if it does not have them. Raises MqError."""
        if self._address(broker_name) not in self._synced:
            await self.report(broker_name)

    async def report(self, broker_name: str) -> None:
        """Report the names of all subscribed lite topics to a broker. Raises MqError."""
        async with self._changing:
            [failure] = await self._sync([broker_name])
        if failure is not None:
            raise failure

    def doubt(self, broker_name: str) -> None:
        """Record that a call to a broker failed, because the broker may have restarted.

        The names are reported to that broker again.
        """
        with suppress(MqError):
            self._synced.discard(self._address(broker_name))

    def on_link(self, address: str, is_up: bool) -> None:
        """Record that a link broke or is up. A broker forgets the client when the link breaks."""
        self._synced.discard(address)
        if is_up:
            self._sync_now.set()

    def lost(self, names: Sequence[str], since: int) -> None:
        """Remove lite topics that another client has taken over.

        A broker reported the names in the answer to a call. `since` is the value of `changes` at
        the start of that call. If this client has subscribed to some of the names again after that,
        these names are kept and reported to the brokers again.
        """
        held = [name for name in names if name in self._names]
        gone = [name for name in held if self._names[name] <= since]
        if len(gone) < len(held):
            self._sync_now.set()
        if not gone:
            return
        for name in gone:
            del self._names[name]
        try:
            self._on_evicted(gone)
        except Exception:
            log.exception("on_evicted of %s failed", self._consumer_group)

    # ---- steps ----

    async def _sync_forever(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(SYNC_INTERVAL_S):
                    await self._sync_now.wait()
            self._sync_now.clear()
            try:
                async with self._changing:
                    await self._sync(await self._brokers())
            except Exception as error:
                log.warning("cannot report the lite topics of %s: %s", self._consumer_group, error)

    async def _sync(self, broker_names: Sequence[str]) -> list[MqError | None]:
        """Report all names to these brokers. Return the error of each broker, or None."""
        request = self._request(lite_pb2.LITE_SYNC_REPLACE, list(self._names))

        async def sync(broker_name: str) -> MqError | None:
            since = self.changes
            try:
                address = self._address(broker_name)
                self._synced.discard(address)
                answer = await self._instance.call_broker(
                    broker_name, rpcs.SYNC_LITE_TOPICS, request, timeout_s=SYNC_TIMEOUT_S
                )
            except MqError as error:
                log.warning("broker %s does not know the lite topics: %s", broker_name, error)
                return error
            self._synced.add(address)
            self.lost(answer.lost, since)
            return None

        return await asyncio.gather(*map(sync, broker_names))

    async def _send_change(self, request: lite_pb2.SyncLiteTopicsRequest) -> None:
        """Send a change to all brokers, and retry at brokers that are unavailable.

        Raises the first MqError.
        """
        since = self.changes
        try:
            answers = await asyncio.gather(
                *(
                    self._calls.call(name, self.parent, rpcs.SYNC_LITE_TOPICS, request)
                    for name in await self._brokers()
                ),
                return_exceptions=True,
            )
            failure: BaseException | None = None
            for answer in answers:
                if isinstance(answer, BaseException):
                    failure = failure or answer
                else:
                    self.lost(answer.response.lost, since)
            if failure is not None:
                raise failure
        except BaseException:  # also a cancelled call: some brokers may have applied the change
            self._synced.clear()
            self._sync_now.set()
            raise

    def _request(
        self, action: lite_pb2.LiteSync, names: Collection[str], **begin: Any
    ) -> lite_pb2.SyncLiteTopicsRequest:
        return lite_pb2.SyncLiteTopicsRequest(
            consumer_group=self._consumer_group,
            parent=self.parent,
            client_id=self._instance.client_id,
            action=action,
            lite_topics=names,
            **begin,
        )

    async def _brokers(self) -> list[str]:
        """Return the brokers of the parent topic. Raises MqError if there are none."""
        route = await self._instance.routes.route(self.parent)
        found = dict.fromkeys(each.broker_name for each in readable_queues(self.parent, route))
        if not found:
            raise MqError(
                Code.NO_PERMISSION,
                f"no broker lets topic {self.parent} be read now",
                retryable=True,
            )
        return list(found)

    def _address(self, broker_name: str) -> str:
        return self._instance.routes.address_of(broker_name)
