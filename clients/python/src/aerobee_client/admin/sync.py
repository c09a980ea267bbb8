"""Looking after topics, groups, offsets and brokers, and looking at messages; for programs without
asyncio. What each method does and raises is said in `async_admin.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from types import TracebackType
from typing import Self

from aerobee_client.admin import descriptions as d
from aerobee_client.admin.client import (
    DEFAULT_QUEUES,
    DEFAULT_TIMEOUT,
    READ_WRITE,
    AsyncAdminClient,
)
from aerobee_client.loop_thread import LoopThread
from aerobee_client.message import ReceivedMessage
from aerobee_wire.status import MqError


class AdminClient:
    """`with AdminClient(...) as admin:`, or call `close()`. Any thread may use it.

    To be made after a fork, not before: its thread and its connections do not survive one.
    """

    def __init__(
        self,
        namesrv: str | Sequence[str] | None = None,
        *,
        timeout: timedelta = DEFAULT_TIMEOUT,
    ) -> None:
        self._loop = LoopThread("aerobee admin")
        self._loop.start()
        try:
            self._admin = self._loop.run(_make(namesrv, timeout))
        except BaseException:
            self._loop.stop()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        if self._loop.is_running():
            try:
                self._loop.run(self._admin.close())
            finally:
                self._loop.stop()

    # ---- topics ----

    def create_topic(
        self,
        topic: str,
        *,
        queues: int = DEFAULT_QUEUES,
        permission: int = READ_WRITE,
        message_type: str = "NORMAL",
        order: bool = False,
        attributes: Mapping[str, str] | None = None,
        cluster: str | None = None,
    ) -> list[d.Created]:
        return self._loop.run(
            self._admin.create_topic(
                topic,
                queues=queues,
                permission=permission,
                message_type=message_type,
                order=order,
                attributes=attributes,
                cluster=cluster,
            )
        )

    def list_topics(
        self,
        *,
        include_system: bool = False,
        include_derived: bool = False,
        silent: list[MqError] | None = None,
    ) -> list[d.TopicDescription]:
        return self._loop.run(
            self._admin.list_topics(
                include_system=include_system, include_derived=include_derived, silent=silent
            )
        )

    def topic_route(self, topic: str) -> d.RouteDescription:
        return self._loop.run(self._admin.topic_route(topic))

    def topic_status(self, topic: str) -> list[d.QueueStatus]:
        return self._loop.run(self._admin.topic_status(topic))

    def delete_topic(self, topic: str) -> bool:
        return self._loop.run(self._admin.delete_topic(topic))

    def search_offset(
        self,
        topic: str,
        broker_name: str,
        queue_id: int,
        timestamp_ms: int,
        *,
        upper: bool = False,
    ) -> int:
        return self._loop.run(
            self._admin.search_offset(topic, broker_name, queue_id, timestamp_ms, upper=upper)
        )

    # ---- groups ----

    def create_group(
        self,
        group: str,
        *,
        max_attempts: int | None = None,
        retry_delays: Sequence[timedelta] = (),
        fifo: bool = False,
        consume_enable: bool = True,
        attributes: Mapping[str, str] | None = None,
    ) -> list[d.Created]:
        return self._loop.run(
            self._admin.create_group(
                group,
                max_attempts=max_attempts,
                retry_delays=retry_delays,
                fifo=fifo,
                consume_enable=consume_enable,
                attributes=attributes,
            )
        )

    def get_group(self, group: str) -> d.GroupDescription:
        return self._loop.run(self._admin.get_group(group))

    def list_groups(self, *, include_system: bool = False) -> list[d.GroupDescription]:
        return self._loop.run(self._admin.list_groups(include_system=include_system))

    def delete_group(self, group: str, *, remove_offsets: bool = True) -> bool:
        return self._loop.run(self._admin.delete_group(group, remove_offsets=remove_offsets))

    def list_clients(self, group: str = "") -> list[d.ClientDescription]:
        return self._loop.run(self._admin.list_clients(group))

    def consume_progress(self, group: str, topic: str = "") -> list[d.QueueProgress]:
        return self._loop.run(self._admin.consume_progress(group, topic))

    def reset_offsets(
        self,
        group: str,
        topic: str,
        *,
        timestamp_ms: int | None = None,
        queue_offset: int | None = None,
    ) -> list[d.QueueOffset]:
        return self._loop.run(
            self._admin.reset_offsets(
                group, topic, timestamp_ms=timestamp_ms, queue_offset=queue_offset
            )
        )

    # ---- cluster ----

    def cluster(self) -> d.ClusterDescription:
        return self._loop.run(self._admin.cluster())

    def broker_status(self, broker: str) -> d.BrokerStatus:
        return self._loop.run(self._admin.broker_status(broker))

    # ---- messages ----

    def browse(
        self,
        topic: str,
        broker_name: str,
        queue_id: int,
        queue_offset: int,
        *,
        max_messages: int = 32,
        max_bytes: int = 0,
    ) -> d.Browsed:
        return self._loop.run(
            self._admin.browse(
                topic,
                broker_name,
                queue_id,
                queue_offset,
                max_messages=max_messages,
                max_bytes=max_bytes,
            )
        )

    def get_message(self, offset_message_id: str) -> ReceivedMessage:
        return self._loop.run(self._admin.get_message(offset_message_id))

    def query_messages(
        self,
        topic: str,
        *,
        key: str = "",
        unique_id: str = "",
        max_messages: int = 32,
        begin_timestamp_ms: int = 0,
        end_timestamp_ms: int = 0,
        damaged: list[MqError] | None = None,
    ) -> list[ReceivedMessage]:
        return self._loop.run(
            self._admin.query_messages(
                topic,
                key=key,
                unique_id=unique_id,
                max_messages=max_messages,
                begin_timestamp_ms=begin_timestamp_ms,
                end_timestamp_ms=end_timestamp_ms,
                damaged=damaged,
            )
        )


async def _make(namesrv: str | Sequence[str] | None, timeout: timedelta) -> AsyncAdminClient:
    return AsyncAdminClient(namesrv, timeout=timeout)
