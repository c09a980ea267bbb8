"""Administer topics, groups, offsets and brokers, and read messages; without asyncio."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from aerobee_client.admin.brokers import DEFAULT_TIMEOUT
from aerobee_client.admin.client import AsyncAdminClient
from aerobee_client.runtime.facade import Facade, blocking


class AdminClient(Facade[AsyncAdminClient]):
    """Administers a cluster. Use `with AdminClient(...) as admin:`, or call `close()`.

    Any thread may use it. Arguments, results and errors are those of AsyncAdminClient. Make it
    after a fork, not before: its thread and connections do not survive a fork.

    Args:
        namesrv: The addresses of the name servers, "host:port;host:port" or a sequence. Default:
            NAMESRV_ADDR of the environment.
        timeout: The time limit of each call to a broker.

    Example:
        with AdminClient("127.0.0.1:9876") as admin:
            admin.create_topic("orders", queues=8)
    """

    def __init__(
        self,
        namesrv: str | Sequence[str] | None = None,
        *,
        timeout: timedelta = DEFAULT_TIMEOUT,
    ) -> None:
        super().__init__(AsyncAdminClient(namesrv, timeout=timeout), "aerobee admin")
        self._loop.start()

    create_topic = blocking(AsyncAdminClient.create_topic)
    update_topic = blocking(AsyncAdminClient.update_topic)
    list_topics = blocking(AsyncAdminClient.list_topics)
    topic_names = blocking(AsyncAdminClient.topic_names)
    routed_topics = blocking(AsyncAdminClient.routed_topics)
    topic_route = blocking(AsyncAdminClient.topic_route)
    topic_status = blocking(AsyncAdminClient.topic_status)
    topic_bounds = blocking(AsyncAdminClient.topic_bounds)
    delete_topic = blocking(AsyncAdminClient.delete_topic)
    rebalance_topic = blocking(AsyncAdminClient.rebalance_topic)
    search_offset = blocking(AsyncAdminClient.search_offset)

    create_group = blocking(AsyncAdminClient.create_group)
    update_group = blocking(AsyncAdminClient.update_group)
    get_group = blocking(AsyncAdminClient.get_group)
    list_groups = blocking(AsyncAdminClient.list_groups)
    groups_of_brokers = blocking(AsyncAdminClient.groups_of_brokers)
    delete_group = blocking(AsyncAdminClient.delete_group)
    list_clients = blocking(AsyncAdminClient.list_clients)
    consume_progress = blocking(AsyncAdminClient.consume_progress)
    blocked_message_groups = blocking(AsyncAdminClient.blocked_message_groups)
    skip_message = blocking(AsyncAdminClient.skip_message)
    commit_offsets = blocking(AsyncAdminClient.commit_offsets)
    forget_offsets = blocking(AsyncAdminClient.forget_offsets)
    reset_offsets = blocking(AsyncAdminClient.reset_offsets)

    list_lite_topics = blocking(AsyncAdminClient.list_lite_topics)
    list_lite_clients = blocking(AsyncAdminClient.list_lite_clients)

    cluster = blocking(AsyncAdminClient.cluster)
    broker_status = blocking(AsyncAdminClient.broker_status)
    broker_times_ms = blocking(AsyncAdminClient.broker_times_ms)
    drain_broker = blocking(AsyncAdminClient.drain_broker)
    broker_backlog = blocking(AsyncAdminClient.broker_backlog)

    replicas = blocking(AsyncAdminClient.replicas)
    replica = blocking(AsyncAdminClient.replica)
    promote_replica = blocking(AsyncAdminClient.promote_replica)
    list_diverged = blocking(AsyncAdminClient.list_diverged)
    read_diverged = blocking(AsyncAdminClient.read_diverged)
    resend_diverged = blocking(AsyncAdminClient.resend_diverged)

    browse = blocking(AsyncAdminClient.browse)
    get_message = blocking(AsyncAdminClient.get_message)
    query_messages = blocking(AsyncAdminClient.query_messages)
