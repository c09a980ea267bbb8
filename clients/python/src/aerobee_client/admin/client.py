"""Administer topics, groups, offsets and brokers, and read messages; with and without asyncio.

Reading messages does not need a consumer group and does not commit offsets. Changes are sent to
every master of the cluster, because each broker has its own topics and groups.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any

from aerobee.broker.v1 import admin_pb2, message_pb2, search_pb2
from aerobee.namesrv.v1 import namesrv_pb2

from aerobee_client.admin import descriptions as d
from aerobee_client.admin.access import AccessAdmin
from aerobee_client.admin.audit import AuditAdmin
from aerobee_client.admin.brokers import DEFAULT_TIMEOUT, numbers_fit
from aerobee_client.admin.config import ConfigAdmin
from aerobee_client.admin.diverged import DivergedAdmin
from aerobee_client.admin.groups import GroupAdmin
from aerobee_client.admin.letters import LetterAdmin
from aerobee_client.admin.listing import ListingAdmin
from aerobee_client.admin.lite import LiteAdmin
from aerobee_client.admin.search import SearchAdmin
from aerobee_client.admin.stats import StatsAdmin, StatsSample
from aerobee_client.admin.topics import TopicAdmin
from aerobee_client.admin.waiting import WaitingAdmin
from aerobee_client.credentials import Credentials
from aerobee_client.errors import BrokerUnreachable, RequestTimeout
from aerobee_client.message import ReceivedMessage
from aerobee_client.runtime.facade import Facade, blocking, like
from aerobee_client.runtime.kinds import checked_class
from aerobee_client.tls import Tls
from aerobee_wire import rpcs
from aerobee_wire.message_id import parse_offset_message_id
from aerobee_wire.status import Code, MqError, invalid_parameter
from aerobee_wire.topics import group_of

# Topics that are searched for a message id at a time.
MAX_SEARCHES = 16
# The time limit of a track: a broker may read its whole lease journal.
TRACK_TIMEOUT_S = 60.0


@checked_class
class AsyncAdminClient(
    TopicAdmin,
    GroupAdmin,
    ListingAdmin,
    StatsAdmin,
    WaitingAdmin,
    LiteAdmin,
    LetterAdmin,
    SearchAdmin,
    DivergedAdmin,
    AccessAdmin,
    AuditAdmin,
    ConfigAdmin,
):
    """Administers a cluster, for asyncio. `async with AsyncAdminClient(...)` closes it.

    The client keeps its connections open until it is closed. Every method raises MqError:
    NamesrvUnreachable, BrokerUnreachable, RequestTimeout, or the refusal of a broker. The text of
    the error names the broker.

    Args:
        namesrv: The addresses of the name servers, "host:port;host:port" or a sequence. Default:
            NAMESRV_ADDR of the environment.
        timeout: The time limit of each call to a broker.
        tls: The certificates for TLS. Default: those of the environment, else plaintext.
        credentials: The user who signs the calls. Default: that of the environment, else none.
        transport: Replaces the transport in tests.

    Example:
        async with AsyncAdminClient("127.0.0.1:9876") as admin:
            await admin.create_topic("orders", queues=8)
    """

    # ---- cluster ----

    async def cluster(self) -> d.ClusterDescription:
        return d.ClusterDescription.of(await self._brokers.cluster_info())

    async def broker_status(
        self, broker: str, *, physical_offsets: Sequence[int] = ()
    ) -> d.BrokerStatus:
        """Return the state and counters of a broker.

        Args:
            broker: The name or address of the broker.
            physical_offsets: The physical offsets of at most 4,096 records whose expiry times to
                return.

        Returns:
            The status of the broker.
        """
        request = admin_pb2.GetBrokerStatusRequest(physical_offsets=physical_offsets)
        return d.BrokerStatus.of(
            await self._brokers.ask_named(broker, rpcs.GET_BROKER_STATUS, request)
        )

    async def broker_statuses(
        self, *, silent: list[MqError] | None = None
    ) -> dict[str, d.BrokerStatus]:
        """Return the state and counters of every master, by broker name.

        Args:
            silent: See `list_topics`.

        Returns:
            The statuses.
        """
        masters = await self._brokers.masters_to_ask(silent)
        request = admin_pb2.GetBrokerStatusRequest()
        answers = await self._brokers.ask_each(
            masters, rpcs.GET_BROKER_STATUS, request, silent=silent
        )
        return {name: d.BrokerStatus.of(answer) for name, answer in answers.items()}

    async def broker_times_ms(self) -> dict[str, int]:
        """Return the current time of each master by broker name, in milliseconds since the epoch.

        Brokers take store times from these clocks.
        """
        request = admin_pb2.GetBrokerStatusRequest()
        answers = await self._brokers.ask_masters(rpcs.GET_BROKER_STATUS, request)
        return {name: answer.now_timestamp_ms for name, answer in answers.items()}

    async def drain_broker(self, broker: str, *, draining: bool = True) -> bool:
        """Make a broker refuse messages of producers, until `draining` is set to False.

        The broker keeps the setting through restarts.

        Args:
            broker: The name or address of the broker.
            draining: False to accept messages again.

        Returns:
            True if the setting changed.
        """
        request = admin_pb2.SetDrainingRequest(draining=draining)
        answer = await self._brokers.ask_named(broker, rpcs.SET_DRAINING, request)
        return answer.changed

    async def broker_backlog(self, broker: str) -> d.BrokerBacklog:
        """Return the messages that must leave a broker before it can be removed.

        Args:
            broker: The name or address of the broker.

        Returns:
            The counts of these messages.
        """
        request = admin_pb2.GetBacklogRequest()
        return d.BrokerBacklog.of(
            broker, await self._brokers.ask_named(broker, rpcs.GET_BACKLOG, request)
        )

    async def broker_backlogs(
        self, *, silent: list[MqError] | None = None
    ) -> dict[str, d.BrokerBacklog]:
        """Return the messages that wait at every master, by broker name.

        Args:
            silent: See `list_topics`.

        Returns:
            The counts. They contain the lag of every group and the dead letters of every topic.
        """
        masters = await self._brokers.masters_to_ask(silent)
        request = admin_pb2.GetBacklogRequest()
        answers = await self._brokers.ask_each(masters, rpcs.GET_BACKLOG, request, silent=silent)
        return {name: d.BrokerBacklog.of(name, answer) for name, answer in answers.items()}

    # ---- messages ----

    async def browse(
        self,
        topic: str,
        broker_name: str,
        queue_id: int,
        queue_offset: int,
        *,
        max_messages: int = 32,
        max_bytes: int = 0,
        address: str | None = None,
    ) -> d.Browsed:
        """Read a queue without consuming its messages.

        Args:
            topic: The topic to read.
            broker_name: The broker of the queue.
            queue_id: The id of the queue.
            queue_offset: The offset of the first message.
            max_messages: The maximum number of messages.
            max_bytes: The maximum number of bytes; 0 for 256 KiB.
            address: The address of the broker, if it is known. Then no route is requested.

        Returns:
            The messages, and the offset of the next page.
        """
        with numbers_fit():
            request = message_pb2.PullRequest(
                topic=topic,
                queue_id=queue_id,
                queue_offset=queue_offset,
                max_messages=max_messages,
                max_bytes=max_bytes,
                browse=True,
            )
        if address is not None:
            answer = await self._brokers.ask(broker_name, address, rpcs.PULL, request)
        else:
            answer = await self._brokers.ask_broker_of(topic, broker_name, rpcs.PULL, request)
        return d.Browsed.of(broker_name, answer)

    async def get_message(
        self, message_id: str, *, silent: list[MqError] | None = None
    ) -> ReceivedMessage:
        """Return the message with an offset message id or a message id.

        An offset message id contains the address of a broker, which may be a former master. If no
        broker has registered this address, or if it does not answer, all brokers are asked for the
        record. A message id is searched in every topic, because brokers index it by topic. If
        several records have it, the record that the producer sent comes before retries and dead
        letters.

        Args:
            message_id: The `offset_message_id` or the `message_id` of a message.
            silent: Collects the errors of brokers that do not answer, which may have the message.
                Without it, such an error is raised.

        Returns:
            The message.

        Raises:
            MqError: QUERY_NOT_FOUND or MESSAGE_CORRUPTED.
        """
        found = await self._message_at(message_id, silent)
        if found is None:
            found = await self._message_of_unique_id(message_id, silent)
        if found is None:
            away: list[MqError] = []
            await self._brokers.readers_to_ask(away)
            raise _unknown(message_id, [*(silent or ()), *away])
        return found

    async def message_copies(
        self, message_id: str, *, silent: list[MqError] | None = None
    ) -> list[ReceivedMessage]:
        """Return all stored copies of a message, in the order of their storage.

        These are the message as it was sent, retries, dead letters, and copies that wait for a
        delay or the end of a transaction.

        Args:
            message_id: The `message_id` or the `offset_message_id` of a message.
            silent: Collects the errors of brokers that do not answer, and of records that may be a
                copy but cannot be read. Without it, the error of a broker is raised.

        Returns:
            The copies.

        Raises:
            MqError: QUERY_NOT_FOUND if there is none.
        """
        named = await self._message_at(message_id, silent)
        unique_id = named.message_id if named else message_id
        request = search_pb2.FindMessageRequest(unique_message_id=unique_id)
        brokers = await self._brokers.readers_to_ask(silent)
        answers = await self._brokers.ask_each(brokers, rpcs.FIND_MESSAGE, request, silent=silent)
        copies = [
            ReceivedMessage(stored, name)
            for name, answer in answers.items()
            for stored in answer.copies
        ]
        if silent is not None:
            silent += [
                MqError(Code.MESSAGE_CORRUPTED, f"{name}: {reason}")
                for name, answer in answers.items()
                for reason in answer.damaged
            ]
        if named and named.offset_message_id not in {each.offset_message_id for each in copies}:
            copies.append(named)
        if not copies:
            raise _unknown(message_id, silent)
        return sorted(copies, key=lambda message: message.store_timestamp_ms)

    async def track_message(
        self,
        message_id: str,
        *,
        groups: Sequence[str] = (),
        silent: list[MqError] | None = None,
    ) -> list[d.TrackedMessage]:
        """Return what became of a message in each consumer group.

        The brokers derive it from data that they keep anyway: leases and their journal, committed
        offsets and their history of 24 hours, retries and dead letters.

        Args:
            message_id: The `message_id` or the `offset_message_id` of a message.
            groups: The consumer groups. Default: all groups of the topic.
            silent: See `list_topics`.

        Returns:
            The message with its states; several if it was stored more than once.

        Raises:
            MqError: QUERY_NOT_FOUND if no broker that answers has the message.
        """
        named = await self._message_at(message_id, silent)
        unique_id = named.message_id if named else message_id
        request = search_pb2.TrackMessageRequest(
            unique_message_id=unique_id, consumer_groups=groups
        )
        masters = await self._brokers.masters_to_ask(silent)
        answers = await self._brokers.ask_each(
            masters, rpcs.TRACK_MESSAGE, request, silent=silent, timeout_s=TRACK_TIMEOUT_S
        )
        found = [
            d.TrackedMessage.of(name, tracked)
            for name, answer in answers.items()
            for tracked in answer.messages
        ]
        if not found:
            raise _unknown(message_id, silent)
        return found

    async def track_place(
        self,
        topic: str,
        broker_name: str,
        queue_id: int,
        queue_offset: int,
        *,
        groups: Sequence[str] = (),
    ) -> d.TrackedMessage:
        """Return what became of the message at a place, also if retention has deleted it.

        Args:
            topic: The topic of the message.
            broker_name: The broker that stores it.
            queue_id: The id of its queue.
            queue_offset: Its offset in the queue.
            groups: The consumer groups. Default: all groups of the topic.

        Returns:
            The message with its states.

        Raises:
            MqError: QUERY_NOT_FOUND if there was no message at the place yet.
        """
        with numbers_fit():
            place = search_pb2.MessagePlace(
                topic=topic, queue_id=queue_id, queue_offset=queue_offset
            )
        request = search_pb2.TrackMessageRequest(place=place, consumer_groups=groups)
        answer = await self._brokers.ask_named(
            broker_name, rpcs.TRACK_MESSAGE, request, timeout_s=TRACK_TIMEOUT_S
        )
        return d.TrackedMessage.of(broker_name, answer.messages[0])

    async def _message_at(
        self, message_id: str, silent: list[MqError] | None
    ) -> ReceivedMessage | None:
        """Return the message with an offset message id, or None if there is none."""
        try:
            address, _ = parse_offset_message_id(message_id)
        except MqError:  # SDKs of RocketMQ 5 make ids of 34 digits, and producers may make others
            return None
        brokers = (await self._brokers.cluster_info()).brokers
        name = next(
            (each.broker_name for each in brokers if address in each.addresses.values()), None
        )
        request = message_pb2.GetMessageRequest(offset_message_id=message_id)
        if name is not None:
            try:
                response = await self._brokers.ask(name, address, rpcs.GET_MESSAGE, request)
                return ReceivedMessage(response.message, name)
            except (BrokerUnreachable, RequestTimeout) as error:
                found = await self._message_of_host(address, request, brokers)
                if found is not None:
                    return found
                if silent is None:
                    raise error from None
                silent.append(error)
                return None
        return await self._message_of_host(address, request, brokers)

    async def _message_of_host(
        self,
        host: str,
        request: message_pb2.GetMessageRequest,
        brokers: Sequence[namesrv_pb2.BrokerData],
    ) -> ReceivedMessage | None:
        """Search all brokers for a record that `host` stored, which does not answer itself.

        Every log may have a record at the same offset, so the store host of a record must be
        `host`. Return None if no broker has the record.
        """
        others = {
            each.broker_name: each.addresses[min(each.addresses)]
            for each in brokers
            if each.addresses
        }
        absent = (Code.QUERY_NOT_FOUND, Code.BROKER_UNREACHABLE, Code.REQUEST_TIMEOUT)
        answers = await asyncio.gather(
            *(
                self._brokers.ask(name, at, rpcs.GET_MESSAGE, request)
                for name, at in others.items()
            ),
            return_exceptions=True,
        )
        for name, answer in zip(others, answers, strict=True):
            if isinstance(answer, message_pb2.GetMessageResponse):
                if answer.message.store_host == host:
                    return ReceivedMessage(answer.message, name)
            elif not (isinstance(answer, MqError) and answer.code in absent):
                raise answer
        return None

    async def _message_of_unique_id(
        self, unique_id: str, silent: list[MqError] | None
    ) -> ReceivedMessage | None:
        """Search all topics for a message id. Return None if no topic has it."""
        names = await self.topic_names(include_derived=True)
        free = asyncio.Semaphore(MAX_SEARCHES)

        async def search(topic: str) -> list[ReceivedMessage]:
            async with free:
                try:
                    return await self.query_messages(topic, unique_id=unique_id, silent=silent)
                except MqError as error:
                    known = silent is not None and error in silent
                    if not known and error.code is not Code.TOPIC_NOT_EXIST:  # deleted meanwhile
                        raise
                    return []

        for derived in (False, True):
            topics = [name for name in names if (group_of(name) is not None) is derived]
            found = [each for part in await asyncio.gather(*map(search, topics)) for each in part]
            if found:
                return max(found, key=lambda message: message.store_timestamp_ms)
        return None

    async def query_messages(
        self,
        topic: str,
        *,
        key: str = "",
        unique_id: str = "",
        max_messages: int = 32,
        begin_timestamp_ms: int = 0,
        end_timestamp_ms: int = 0,
        damaged: list[MqError] | None = None,
        silent: list[MqError] | None = None,
    ) -> list[ReceivedMessage]:
        """Return messages by key or by message id, newest first.

        Args:
            topic: The topic of the messages.
            key: One of the keys of a message. Give either `key` or `unique_id`.
            unique_id: The message id.
            max_messages: The maximum number of messages of each broker.
            begin_timestamp_ms: The earliest store time, in milliseconds since the epoch.
            end_timestamp_ms: The latest store time, in milliseconds since the epoch; 0 for no
                limit.
            damaged: Collects an error for each record that may match but cannot be read.
            silent: See `list_topics`.

        Returns:
            The messages.
        """
        if bool(key) == bool(unique_id):
            raise invalid_parameter("give either a key or a unique_id to look for")
        with numbers_fit():
            request = message_pb2.QueryMessagesRequest(
                topic=topic,
                key=key or unique_id,
                unique=bool(unique_id),
                max_messages=max_messages,
                begin_timestamp_ms=begin_timestamp_ms,
                end_timestamp_ms=end_timestamp_ms,
            )
        brokers = await self._brokers.of_topic(topic, reads=True, silent=silent)
        answers = await self._brokers.ask_each(brokers, rpcs.QUERY_MESSAGES, request, silent=silent)
        messages = [
            ReceivedMessage(stored, name)
            for name, answer in answers.items()
            for stored in answer.messages
        ]
        if damaged is not None:
            damaged += [
                MqError(Code.MESSAGE_CORRUPTED, f"{name}: {reason}")
                for name, answer in answers.items()
                for reason in answer.damaged
            ]
        return sorted(messages, key=lambda message: message.store_timestamp_ms, reverse=True)


def _unknown(message_id: str, silent: Sequence[MqError] | None = None) -> MqError:
    if silent:
        left_out = "; ".join(dict.fromkeys(error.message for error in silent))
        return MqError(
            Code.QUERY_NOT_FOUND,
            f"no broker that answers has a message with the id {message_id}: {left_out}",
            retryable=True,
        )
    return MqError(
        Code.QUERY_NOT_FOUND,
        f"no message has the id {message_id}: neither as its message id nor as its offset "
        "message id; retention may have deleted it",
    )


class AdminClient(Facade[AsyncAdminClient]):
    """Administers a cluster. Use `with AdminClient(...) as admin:`, or call `close()`.

    Any thread may use it. Arguments, results and errors are those of AsyncAdminClient. Make it
    after a fork, not before: its thread and connections do not survive a fork.

    Args:
        namesrv: The addresses of the name servers, "host:port;host:port" or a sequence. Default:
            NAMESRV_ADDR of the environment.
        timeout: The time limit of each call to a broker.
        tls: The certificates for TLS. Default: those of the environment, else plaintext.
        credentials: The user who signs the calls. Default: that of the environment, else none.

    Example:
        with AdminClient("127.0.0.1:9876") as admin:
            admin.create_topic("orders", queues=8)
    """

    def __init__(
        self,
        namesrv: str | Sequence[str] | None = None,
        *,
        timeout: timedelta = DEFAULT_TIMEOUT,
        tls: Tls | None = None,
        credentials: Credentials | None = None,
    ) -> None:
        client = AsyncAdminClient(namesrv, timeout=timeout, tls=tls, credentials=credentials)
        super().__init__(client, "aerobee admin")
        self._loop.start()

    create_topic = blocking(AsyncAdminClient.create_topic)
    update_topic = blocking(AsyncAdminClient.update_topic)
    get_topic = blocking(AsyncAdminClient.get_topic)
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
    client_page = blocking(AsyncAdminClient.client_page)
    consume_progress = blocking(AsyncAdminClient.consume_progress)
    blocked_message_groups = blocking(AsyncAdminClient.blocked_message_groups)
    skip_message = blocking(AsyncAdminClient.skip_message)

    preview_letter_job = blocking(AsyncAdminClient.preview_letter_job)
    start_letter_job = blocking(AsyncAdminClient.start_letter_job)
    letter_jobs = blocking(AsyncAdminClient.letter_jobs)
    cancel_letter_job = blocking(AsyncAdminClient.cancel_letter_job)
    letter_failures = blocking(AsyncAdminClient.letter_failures)
    letter_states = blocking(AsyncAdminClient.letter_states)
    commit_offsets = blocking(AsyncAdminClient.commit_offsets)
    forget_offsets = blocking(AsyncAdminClient.forget_offsets)
    clone_offsets = blocking(AsyncAdminClient.clone_offsets)
    reset_offsets = blocking(AsyncAdminClient.reset_offsets)

    topic_page = blocking(AsyncAdminClient.topic_page)
    group_page = blocking(AsyncAdminClient.group_page)
    describe_topic = blocking(AsyncAdminClient.describe_topic)
    describe_group = blocking(AsyncAdminClient.describe_group)
    get_stats = blocking(AsyncAdminClient.get_stats)

    list_leases = blocking(AsyncAdminClient.list_leases)
    release_lease = blocking(AsyncAdminClient.release_lease)
    list_transactions = blocking(AsyncAdminClient.list_transactions)
    end_transaction = blocking(AsyncAdminClient.end_transaction)
    list_delayed = blocking(AsyncAdminClient.list_delayed)

    @like(AsyncAdminClient.watch_stats)
    def watch_stats(self, **wanted: Any) -> Iterator[StatsSample]:
        return self._iterate(self._client.watch_stats(**wanted), until_closed=True)

    list_lite_topics = blocking(AsyncAdminClient.list_lite_topics)
    list_lite_clients = blocking(AsyncAdminClient.list_lite_clients)

    create_user = blocking(AsyncAdminClient.create_user)
    update_user = blocking(AsyncAdminClient.update_user)
    delete_user = blocking(AsyncAdminClient.delete_user)
    get_user = blocking(AsyncAdminClient.get_user)
    list_users = blocking(AsyncAdminClient.list_users)
    log_in = blocking(AsyncAdminClient.log_in)
    create_policies = blocking(AsyncAdminClient.create_policies)
    update_policies = blocking(AsyncAdminClient.update_policies)
    delete_policies = blocking(AsyncAdminClient.delete_policies)
    list_policies = blocking(AsyncAdminClient.list_policies)
    test_access = blocking(AsyncAdminClient.test_access)
    set_quota = blocking(AsyncAdminClient.set_quota)
    list_quotas = blocking(AsyncAdminClient.list_quotas)
    delete_quota = blocking(AsyncAdminClient.delete_quota)

    audit_page = blocking(AsyncAdminClient.audit_page)

    cluster = blocking(AsyncAdminClient.cluster)
    broker_status = blocking(AsyncAdminClient.broker_status)
    broker_statuses = blocking(AsyncAdminClient.broker_statuses)
    broker_times_ms = blocking(AsyncAdminClient.broker_times_ms)
    drain_broker = blocking(AsyncAdminClient.drain_broker)
    broker_backlog = blocking(AsyncAdminClient.broker_backlog)
    broker_backlogs = blocking(AsyncAdminClient.broker_backlogs)

    broker_config = blocking(AsyncAdminClient.broker_config)
    update_broker_config = blocking(AsyncAdminClient.update_broker_config)
    proxy_config = blocking(AsyncAdminClient.proxy_config)
    update_proxy_config = blocking(AsyncAdminClient.update_proxy_config)
    namesrv_config = blocking(AsyncAdminClient.namesrv_config)
    update_namesrv_config = blocking(AsyncAdminClient.update_namesrv_config)

    replicas = blocking(AsyncAdminClient.replicas)
    replica = blocking(AsyncAdminClient.replica)
    promote_replica = blocking(AsyncAdminClient.promote_replica)
    list_diverged = blocking(AsyncAdminClient.list_diverged)
    read_diverged = blocking(AsyncAdminClient.read_diverged)
    resend_diverged = blocking(AsyncAdminClient.resend_diverged)

    browse = blocking(AsyncAdminClient.browse)
    get_message = blocking(AsyncAdminClient.get_message)
    query_messages = blocking(AsyncAdminClient.query_messages)
    message_copies = blocking(AsyncAdminClient.message_copies)
    search_messages = blocking(AsyncAdminClient.search_messages)
    track_message = blocking(AsyncAdminClient.track_message)
    track_place = blocking(AsyncAdminClient.track_place)

    @like(AsyncAdminClient.follow_messages)
    def follow_messages(self, *args: Any, **kwargs: Any) -> Iterator[ReceivedMessage]:
        return self._iterate(self._client.follow_messages(*args, **kwargs))
