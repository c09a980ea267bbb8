"""Control a cluster in one test: create topics and groups, read messages, cause faults, move time.

No connection stays open after a call, so that a test may use any event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar
from uuid import uuid4

from aerobee.suite.v1 import suite_pb2
from google.protobuf.message import Message

from aerobee_client.admin.client import AsyncAdminClient
from aerobee_client.admin.descriptions import QueueStatus
from aerobee_client.admin.groups import GroupAdmin
from aerobee_client.admin.topics import TopicAdmin
from aerobee_client.cluster.transport import GrpcTransport
from aerobee_client.errors import BrokerUnreachable
from aerobee_client.message import ReceivedMessage
from aerobee_client.runtime.facade import AsyncClient, Facade, blocking, on_loop
from aerobee_client.runtime.kinds import checked_class
from aerobee_wire import rpcs
from aerobee_wire.rpcs import Rpc
from aerobee_wire.status import Code, MqError
from aerobee_wire.topics import dead_letter_topic, retry_topic

Q = TypeVar("Q", bound=Message)
R = TypeVar("R", bound=Message)

SETTLE_TIMEOUT = timedelta(seconds=10)
RECONNECT_TIMEOUT_S = 10.0
POLL_S = 0.02
# Longer than the waits of the suite, so that the suite's own error, which names the cause, arrives.
CONTROL_TIMEOUT_S = 600.0
PAGE_MESSAGES = 1_024
PAGE_BYTES = 4 * 1024 * 1024
_ABSENT = frozenset({Code.TOPIC_NOT_EXIST, Code.SUBSCRIPTION_GROUP_NOT_EXIST})


@checked_class
class AsyncRocketMq(AsyncClient):
    """The cluster of the fixture `async_rocketmq`. Every method may raise MqError.

    Args:
        namesrv: The address of the name server, "host:port".
        proxy: The address of the proxy, "host:port"; "" without a proxy.
    """

    def __init__(self, namesrv: str, proxy: str = "") -> None:
        self.namesrv = namesrv
        self.proxy = proxy
        self._topics: list[str] = []
        self._groups: list[str] = []
        self._refused: set[str] = set()
        self._broker_is_down = False

    # ---- names of its own, deleted after the test ----

    async def topic(self, name: str = "topic", /, **settings: Any) -> str:
        """Create a topic with a unique name. It is deleted after the test.

        Args:
            name: The prefix of the name.
            settings: The arguments of AdminClient.create_topic, such as `queues=1`.

        Returns:
            The name, with a suffix that is unique to this test.
        """
        topic = unique(name)
        self._topics.append(topic)
        async with self._admin() as admin:
            await TopicAdmin.create_topic(admin, topic, **settings)
        return topic

    async def group(self, name: str = "group", /, **settings: Any) -> str:
        """Create a consumer group with a unique name. It is deleted after the test.

        Args:
            name: The prefix of the name.
            settings: The arguments of AdminClient.create_group, such as `max_attempts=3`.

        Returns:
            The name, with a suffix that is unique to this test.
        """
        group = unique(name)
        self._groups.append(group)
        async with self._admin() as admin:
            await GroupAdmin.create_group(admin, group, **settings)
        return group

    def unused_topic(self, name: str = "topic") -> str:
        """Return a unique topic name, for a test in which a send creates the topic."""
        topic = unique(name)
        self._topics.append(topic)
        return topic

    # ---- peeks: they consume nothing ----

    async def messages(self, topic: str) -> list[ReceivedMessage]:
        """Return every stored message of a topic, sorted by store time.

        Raises:
            MqError: TOPIC_NOT_EXIST, unless `unused_topic` returned the name.
        """
        async with self._admin() as admin:
            return await _stored(admin, topic, may_be_missing=topic in self._topics)

    async def retries(self, group: str) -> list[ReceivedMessage]:
        """Return every message that was delivered to the retry topic of a group so far.

        Each message has `reconsume_times`, `failure_reason` and `failure_description`.

        Raises:
            MqError: SUBSCRIPTION_GROUP_NOT_EXIST.
        """
        return await self._stored_of_group(group, retry_topic(group))

    async def dead_letters(self, group: str) -> list[ReceivedMessage]:
        """Return the dead letters of a group, with `failure_reason` and `failure_description`.

        Raises:
            MqError: SUBSCRIPTION_GROUP_NOT_EXIST.
        """
        return await self._stored_of_group(group, dead_letter_topic(group))

    async def _stored_of_group(self, group: str, topic: str) -> list[ReceivedMessage]:
        """Return every message of a topic that the first retry or dead letter creates."""
        async with self._admin() as admin:
            await admin.get_group(group)
            return await _stored(admin, topic, may_be_missing=True)

    async def lag(self, group: str) -> int:
        """Return the number of messages, including retries, that a group has not committed yet."""
        async with self._admin() as admin:
            progress = await admin.consume_progress(group)
        return sum(queue.lag for queue in progress)

    async def wait_consumed(self, group: str, timeout: timedelta = SETTLE_TIMEOUT) -> None:
        """Wait until a group has consumed all visible messages, including stored retries.

        Raises:
            MqError: REQUEST_TIMEOUT if messages are left after `timeout`.
        """
        loop = asyncio.get_running_loop()
        end = loop.time() + timeout.total_seconds()
        await self._settle(group, timeout)
        while lag := await self.lag(group):
            if loop.time() >= end:
                raise MqError(
                    Code.REQUEST_TIMEOUT,
                    f"{group} has {lag} messages left after {timeout.total_seconds():g} s: does a "
                    "consumer of it run, and is its listener done?",
                    about=group,
                )
            await asyncio.sleep(POLL_S)

    async def _settle(self, group: str, timeout: timedelta) -> None:
        """Make consumers commit their offsets at once instead of every 5 s.

        Does nothing if the cluster does not have the test control.
        """
        request = suite_pb2.SettleRequest(consumer_group=group, timeout_ms=_milliseconds(timeout))
        try:
            await _call_control(self.namesrv, rpcs.SETTLE, request)
        except MqError as error:
            if error.code is not Code.REQUEST_CODE_NOT_SUPPORTED:
                raise

    # ---- time ----

    async def advance(
        self,
        *,
        days: float = 0,
        hours: float = 0,
        minutes: float = 0,
        seconds: float = 0,
        settle: bool = True,
        settle_timeout: timedelta = SETTLE_TIMEOUT,
    ) -> None:
        """Move the time of broker and proxy forward. The time of the test does not change.

        Delays, retries, leases, transaction checks and retention that become due happen in order.
        After each of them, the call waits until every live consumer group has settled the messages
        that became visible. Heartbeats, registration, connections and timers of clients keep real
        time.

        Args:
            days: Days to add.
            hours: Hours to add.
            minutes: Minutes to add.
            seconds: Seconds to add.
            settle: False to return without waiting for consumer groups.
            settle_timeout: The maximum time to wait for a consumer group.

        Raises:
            MqError: REQUEST_TIMEOUT, which names a group that has not settled within
                `settle_timeout`. The time is then not moved further.
        """
        duration = timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)
        request = suite_pb2.AdvanceRequest(
            duration_ms=_milliseconds(duration),
            without_settling=not settle,
            settle_timeout_ms=_milliseconds(settle_timeout),
        )
        await _call_control(self.namesrv, rpcs.ADVANCE, request)

    async def now(self) -> datetime:
        """Return the time of broker and proxy, in UTC.

        Use this time to compute `deliver_at` of a message after `advance`.
        """
        suite = await _call_control(self.namesrv, rpcs.GET_SUITE, suite_pb2.GetSuiteRequest())
        return datetime.fromtimestamp(suite.now_timestamp_ms / 1_000, UTC)

    # ---- faults ----

    async def kill_broker(self) -> None:
        """Kill the broker as kill -9 does: connections break, and unacknowledged data may be lost.

        The broker is started again after the test.
        """
        await _call_control(self.namesrv, rpcs.KILL_BROKER, suite_pb2.KillBrokerRequest())
        self._broker_is_down = True

    async def restart_broker(self) -> None:
        """Restart the broker on the same port and data.

        A running broker is stopped gracefully first. The call returns when this process can reach
        the broker again, because a channel pauses between attempts to connect.
        """
        await _call_control(self.namesrv, rpcs.RESTART_BROKER, suite_pb2.RestartBrokerRequest())
        self._broker_is_down = False
        suite = await _call_control(self.namesrv, rpcs.GET_SUITE, suite_pb2.GetSuiteRequest())
        loop = asyncio.get_running_loop()
        end = loop.time() + RECONNECT_TIMEOUT_S
        async with self._admin() as admin:
            while True:
                try:
                    await admin.broker_status(suite.broker)
                except BrokerUnreachable:
                    if loop.time() >= end:
                        raise
                    await asyncio.sleep(POLL_S)
                else:
                    return

    async def refuse(self, rpc: str, code: Code, times: int = 1) -> None:
        """Make the next calls of an RPC of the name server or broker fail.

        Args:
            rpc: The name of the RPC, such as "Send", "Pull" or "GetTopicRoute".
            code: The code of the error.
            times: The number of calls that fail; 0 to end the refusals.
        """
        request = suite_pb2.RefuseRequest(rpc=rpc, code=code, times=times)
        await _call_control(self.namesrv, rpcs.REFUSE, request)
        self._refused.add(rpc)

    # ---- after the test ----

    async def close(self) -> None:
        """End all faults, and delete topics and groups."""
        for rpc in self._refused:
            await self.refuse(rpc, Code.SYSTEM_BUSY, times=0)
        if self._broker_is_down:
            await self.restart_broker()
        async with self._admin() as admin:
            for topic in self._topics:
                await _absent_is_fine(admin.delete_topic(topic))
            for group in self._groups:
                await _absent_is_fine(admin.delete_group(group))
                for derived in (retry_topic(group), dead_letter_topic(group)):
                    await _absent_is_fine(admin.delete_topic(derived))
        self._topics.clear()
        self._groups.clear()

    def _admin(self) -> AsyncAdminClient:
        return AsyncAdminClient(self.namesrv)


class RocketMq(Facade[AsyncRocketMq]):
    """The cluster of the fixture `rocketmq`, for tests without asyncio.

    Arguments and errors are those of AsyncRocketMq.
    """

    def __init__(self, namesrv: str, proxy: str = "") -> None:
        super().__init__(AsyncRocketMq(namesrv, proxy), "rocketmq fixture")
        self._loop.start()

    @property
    def namesrv(self) -> str:
        return self._client.namesrv

    @property
    def proxy(self) -> str:
        return self._client.proxy

    @property
    def asynchronous(self) -> AsyncRocketMq:
        """The same cluster for coroutines. Closing this object deletes what it creates."""
        return self._client

    topic = blocking(AsyncRocketMq.topic)
    group = blocking(AsyncRocketMq.group)
    unused_topic = on_loop(AsyncRocketMq.unused_topic)

    messages = blocking(AsyncRocketMq.messages)
    retries = blocking(AsyncRocketMq.retries)
    dead_letters = blocking(AsyncRocketMq.dead_letters)
    lag = blocking(AsyncRocketMq.lag)
    wait_consumed = blocking(AsyncRocketMq.wait_consumed)

    advance = blocking(AsyncRocketMq.advance)
    now = blocking(AsyncRocketMq.now)

    kill_broker = blocking(AsyncRocketMq.kill_broker)
    restart_broker = blocking(AsyncRocketMq.restart_broker)
    refuse = blocking(AsyncRocketMq.refuse)


def proxy_of(namesrv: str) -> str:
    """Return the proxy address of a test cluster with this name server; "" for another cluster.

    The call blocks. Raises MqError.
    """
    request = suite_pb2.GetSuiteRequest()
    try:
        return asyncio.run(_call_control(namesrv, rpcs.GET_SUITE, request)).proxy
    except MqError as error:
        if error.code is not Code.REQUEST_CODE_NOT_SUPPORTED:
            raise
        return ""


def unique(name: str) -> str:
    """Return `name` with a suffix that is unique, even among processes."""
    return f"{name}-{uuid4().hex[:10]}"


def _milliseconds(duration: timedelta) -> int:
    return round(duration / timedelta(milliseconds=1))


async def _absent_is_fine(deletion: Any) -> None:
    try:
        await deletion
    except MqError as error:
        if error.code not in _ABSENT:
            raise


async def _call_control(namesrv: str, rpc: Rpc[Q, R], request: Q) -> R:
    """Call the test control of a cluster on a separate connection.

    Raises MqError, with the code REQUEST_CODE_NOT_SUPPORTED if the cluster has no test control.
    """
    transport = GrpcTransport()
    try:
        return await transport.call(namesrv, rpc, request, timeout_s=CONTROL_TIMEOUT_S)
    except MqError as error:
        if error.code is not Code.REQUEST_CODE_NOT_SUPPORTED:
            raise
        raise MqError(
            error.code,
            f"the cluster of {namesrv} does not accept {rpc.method}: use one that `python -m "
            "aerobee_suite --test-control` runs, such as the plugin's (without "
            "--rocketmq-namesrv) or RocketMqContainer's",
        ) from None
    finally:
        await transport.close()


async def _stored(
    admin: AsyncAdminClient, topic: str, *, may_be_missing: bool
) -> list[ReceivedMessage]:
    """Return every message of a topic, by store time; [] if the topic may be missing and is."""
    try:
        queues = await admin.topic_status(topic)
    except MqError as error:
        if not may_be_missing or error.code is not Code.TOPIC_NOT_EXIST:
            raise
        return []
    found = [message for queue in queues async for message in _stored_in(admin, queue, topic)]
    return sorted(found, key=lambda message: message.store_timestamp_ms)


async def _stored_in(
    admin: AsyncAdminClient, queue: QueueStatus, topic: str
) -> AsyncIterator[ReceivedMessage]:
    place = (topic, queue.broker_name, queue.queue_id)
    begin = queue.min_offset
    while begin < queue.max_offset:
        page = await admin.browse(*place, begin, max_messages=PAGE_MESSAGES, max_bytes=PAGE_BYTES)
        for message in page.messages():
            yield message
        if page.next_begin_offset <= begin:
            return
        begin = page.next_begin_offset
