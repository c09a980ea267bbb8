"""List and describe topics, groups and clients: part of AsyncAdminClient.

Each method asks each master once, whatever the number of topics, groups or clients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from aerobee.broker.v1 import admin_pb2, client_pb2

from aerobee_client.admin import descriptions as d
from aerobee_client.admin import statistics as s
from aerobee_client.admin.brokers import BrokerAdmin, numbers_fit
from aerobee_client.runtime.kinds import checked_class
from aerobee_wire import rpcs
from aerobee_wire.rpcs import Rpc
from aerobee_wire.status import Code, MqError, invalid_parameter

NAME = "name"
TOPIC_ORDERS = ("name", "stored_messages", "messages_in_rate", "messages_out_rate", "lag")
GROUP_ORDERS = ("name", "lag", "messages_out_rate", "members", "retries", "dead_letters")
CONSUME_TYPES = ("pull", "push", "pop")

A = TypeVar(
    "A",
    admin_pb2.ListTopicsResponse,
    admin_pb2.ListGroupsResponse,
    client_pb2.ListClientsResponse,
)
B = TypeVar("B", admin_pb2.DescribeTopicResponse, admin_pb2.DescribeGroupResponse)
R = TypeVar("R", s.TopicRow, s.GroupRow, d.ClientDescription)


class Order(NamedTuple):
    """The order of the rows of a page."""

    sort: str
    descending: bool = False


@checked_class
class ListingAdmin(BrokerAdmin):
    async def topic_page(
        self,
        *,
        name_part: str = "",
        message_types: Sequence[str] = (),
        include_system: bool = False,
        include_derived: bool = False,
        sort: str = NAME,
        descending: bool = False,
        offset: int = 0,
        limit: int = 100,
    ) -> s.Page[s.TopicRow]:
        """Return a page of topics with their statistics. Asks each broker once.

        If a broker does not answer, `Page.unanswered` has the reason.

        Args:
            name_part: A part of the name, in upper or lower case.
            message_types: Only topics of these types: NORMAL, FIFO, DELAY, TRANSACTION, PRIORITY,
                LITE or MIXED.
            include_system: Whether to include topics of the system.
            include_derived: Whether to include retry and dead-letter topics.
            sort: "name", "stored_messages", "messages_in_rate", "messages_out_rate" or "lag".
            descending: Whether to sort from high to low. Unknown values are last.
            offset: The number of topics before the page.
            limit: The highest number of topics of the page; 0 for all.

        Returns:
            The page.

        Raises:
            MqError: INVALID_PARAMETER, or the failure of a broker if no broker answers.
        """
        _check_choice("sort", sort, TOPIC_ORDERS)
        with numbers_fit():
            request = admin_pb2.ListTopicsRequest(
                include_system=include_system,
                name_part=name_part,
                message_types=message_types,
                exclude_derived=not include_derived,
                with_statistics=True,
                order=f"TOPIC_ORDER_{sort.upper()}",
                descending=descending,
                offset=offset,
                limit=limit,
            )
        answers, unanswered, is_page = await self._listed(
            rpcs.LIST_TOPICS, request, by_name=sort == NAME
        )
        found: dict[str, dict[str, tuple[d.TopicOnBroker, s.TopicStatistics]]] = {}
        for name, (address, answer) in answers.items():
            for config, statistics in zip(answer.topics, answer.statistics, strict=True):
                found.setdefault(config.topic, {})[name] = (
                    d.TopicOnBroker.of(name, address, config),
                    s.TopicStatistics.of(statistics),
                )
        rows = [_topic_row(topic, on, complete=not unanswered) for topic, on in found.items()]
        return _page(
            rows,
            request,
            answers,
            unanswered,
            order=Order(sort, descending),
            is_page=is_page,
        )

    async def group_page(
        self,
        *,
        name_part: str = "",
        consume_types: Sequence[str] = (),
        include_system: bool = False,
        sort: str = NAME,
        descending: bool = False,
        offset: int = 0,
        limit: int = 100,
    ) -> s.Page[s.GroupRow]:
        """Return a page of consumer groups with their statistics. Asks each broker once.

        If a broker does not answer, `Page.unanswered` has the reason.

        Args:
            name_part: A part of the name, in upper or lower case.
            consume_types: Only groups with a member that consumes like this: "pull", "push" or
                "pop".
            include_system: Whether to include groups of the system.
            sort: "name", "lag", "messages_out_rate", "members", "retries" or "dead_letters".
            descending: Whether to sort from high to low. Unknown values are last.
            offset: The number of groups before the page.
            limit: The highest number of groups of the page; 0 for all.

        Returns:
            The page.

        Raises:
            MqError: INVALID_PARAMETER, or the failure of a broker if no broker answers.
        """
        _check_choice("sort", sort, GROUP_ORDERS)
        for consume_type in consume_types:
            _check_choice("consume_types", consume_type, CONSUME_TYPES)
        with numbers_fit():
            request = admin_pb2.ListGroupsRequest(
                include_system=include_system,
                name_part=name_part,
                consume_types=[each.upper() for each in consume_types],
                with_statistics=True,
                order=f"GROUP_ORDER_{sort.upper()}",
                descending=descending,
                offset=offset,
                limit=limit,
            )
        answers, unanswered, is_page = await self._listed(
            rpcs.LIST_GROUPS, request, by_name=sort == NAME
        )
        found: dict[str, dict[str, tuple[admin_pb2.GroupConfig, s.GroupStatistics]]] = {}
        for name, (_, answer) in answers.items():
            for config, statistics in zip(answer.groups, answer.statistics, strict=True):
                entry = config, s.GroupStatistics.of(statistics)
                found.setdefault(config.consumer_group, {})[name] = entry
        rows = [_group_row(group, on, complete=not unanswered) for group, on in found.items()]
        return _page(
            rows,
            request,
            answers,
            unanswered,
            order=Order(sort, descending),
            is_page=is_page,
        )

    async def client_page(
        self,
        *,
        text: str = "",
        group: str = "",
        topic: str = "",
        user: str = "",
        proxy: str = "",
        offset: int = 0,
        limit: int = 100,
    ) -> s.Page[d.ClientDescription]:
        """Return a page of the connected clients, sorted by client id. Asks each broker once.

        These are classic clients, and the clients of official SDKs that proxies announce. If a
        broker does not answer, `Page.unanswered` has the reason.

        Args:
            text: A part of the client id, address, proxy, user, language or version, in upper or
                lower case.
            group: Only producers and consumers of this group.
            topic: Only clients that subscribe or publish to this topic.
            user: Only clients whose calls this user signs.
            proxy: Only clients of this proxy, as "host:port".
            offset: The number of clients before the page.
            limit: The highest number of clients of the page; 0 for all.

        Returns:
            The page.

        Raises:
            MqError: INVALID_PARAMETER, or the failure of a broker if no broker answers.
        """
        with numbers_fit():
            request = client_pb2.ListClientsRequest(
                text=text,
                group=group,
                topic=topic,
                user=user,
                proxy=proxy,
                offset=offset,
                limit=limit,
            )
        answers, unanswered, is_page = await self._listed(rpcs.LIST_CLIENTS, request, by_name=True)
        rows = d.merged_clients({name: a.clients for name, (_, a) in answers.items()})
        return _page(rows, request, answers, unanswered, order=Order(NAME), is_page=is_page)

    async def describe_topic(self, topic: str) -> s.TopicDetails:
        """Return a topic with its statistics, its queues and the groups that read it.

        Args:
            topic: The name of the topic.

        Returns:
            The topic. `unanswered` names the brokers that did not answer.

        Raises:
            MqError: TOPIC_NOT_EXIST if no broker has the topic, or the failure of a broker if a
                broker that may have the topic does not answer.
        """
        request = admin_pb2.DescribeTopicRequest(topic=topic)
        answers, unanswered = await self._described(
            rpcs.DESCRIBE_TOPIC, request, absent=Code.TOPIC_NOT_EXIST
        )
        found = {
            name: (
                d.TopicOnBroker.of(name, address, answer.topic),
                s.TopicStatistics.of(answer.statistics),
            )
            for name, (address, answer) in answers.items()
        }
        row = _topic_row(topic, found, complete=not unanswered)
        return s.TopicDetails(
            topic=topic,
            settings=row.settings,
            statistics=row.statistics,
            by_broker=row.by_broker,
            queues=tuple(
                d.QueueStatus.of(topic, name, queue)
                for name, (_, answer) in answers.items()
                for queue in answer.queues
            ),
            groups=_reading_groups(
                [group for _, answer in answers.values() for group in answer.groups],
                complete=not unanswered,
            ),
            producers=tuple(
                sorted({each for _, answer in answers.values() for each in answer.producers})
            ),
            unanswered=_reasons(unanswered),
        )

    async def describe_group(self, group: str) -> s.GroupDetails:
        """Return a consumer group with its statistics, its progress and its members.

        Args:
            group: The name of the group.

        Returns:
            The group. `unanswered` names the brokers that did not answer.

        Raises:
            MqError: SUBSCRIPTION_GROUP_NOT_EXIST if no broker has the group, or the failure of a
                broker if a broker that may have the group does not answer.
        """
        request = admin_pb2.DescribeGroupRequest(consumer_group=group)
        answers, unanswered = await self._described(
            rpcs.DESCRIBE_GROUP, request, absent=Code.SUBSCRIPTION_GROUP_NOT_EXIST
        )
        found = {
            name: (answer.group, s.GroupStatistics.of(answer.statistics))
            for name, (_, answer) in answers.items()
        }
        row = _group_row(group, found, complete=not unanswered)
        members = d.merged_clients({name: a.members for name, (_, a) in answers.items()})
        queues = [
            s.GroupQueue(
                progress=d.QueueProgress.of(name, queue.progress),
                oldest_timestamp_ms=_optional(queue, "oldest_timestamp_ms"),
            )
            for name, (_, answer) in answers.items()
            for queue in answer.queues
        ]
        sums = {
            name: None if unanswered else sum(getattr(each, name) for _, each in answers.values())
            for name in ("leased", "waiting", "blocked_message_groups")
        }
        return s.GroupDetails(
            consumer_group=group,
            settings=row.settings,
            statistics=row.statistics,
            by_broker=row.by_broker,
            queues=tuple(
                sorted(
                    queues,
                    key=lambda each: (
                        each.progress.topic,
                        each.progress.broker_name,
                        each.progress.queue_id,
                    ),
                )
            ),
            members=tuple(members),
            unanswered=_reasons(unanswered),
            **sums,
        )

    async def _listed(
        self, rpc: Rpc[Any, A], request: Any, *, by_name: bool
    ) -> tuple[dict[str, tuple[str, A]], dict[str, MqError], bool]:
        """Ask all masters for the rows that a page may have.

        With one broker, that is the page. With several, a page by name has only rows of the first
        `offset + limit` names of each. Another page may have any row, because its order depends on
        the sum over the brokers.

        Returns the address and answer of each broker, the errors of the others, and whether the
        answer is the page.
        """
        masters, errors = await self._brokers.masters_and_missing()
        alone = len(masters) == 1
        if request.offset < 0 or request.limit < 0:
            raise invalid_parameter("offset and limit are 0 or more")
        if not alone:
            sent = type(request).FromString(request.SerializeToString())
            cut = by_name and request.limit
            sent.offset, sent.limit = 0, request.offset + request.limit if cut else 0
            sent.with_names = True
        else:
            sent = request
        answers, silent = await self._brokers.ask_answering(masters, rpc, sent)
        errors |= silent
        for name in [name for name, answer in answers.items() if not answer.HasField("total")]:
            del answers[name]
            errors[name] = MqError(
                Code.REQUEST_CODE_NOT_SUPPORTED,
                f"broker {name} runs a version without statistics: upgrade it",
            )
        if not answers:
            raise next(iter(errors.values()))
        found = {name: (masters[name], answer) for name, answer in answers.items()}
        return found, errors, alone

    async def _described(
        self, rpc: Rpc[Any, B], request: Any, *, absent: Code
    ) -> tuple[dict[str, tuple[str, B]], dict[str, MqError]]:
        """Ask all masters for a topic or group.

        Returns the address and answer of each broker that has it, and the errors of the brokers
        that did not answer. If no broker has it, raises an error of the second kind, if any, or
        the error with the code `absent`.
        """
        masters, missing = await self._brokers.masters_and_missing()
        answers: dict[str, B]
        refused: dict[str, MqError]
        answers, refused = await self._brokers.ask_answering(masters, rpc, request)
        silent = {name: error for name, error in refused.items() if error.code is not absent}
        errors: dict[str, MqError] = missing | silent
        if not answers:
            raise [*errors.values(), *refused.values()][0]
        return {name: (masters[name], answer) for name, answer in answers.items()}, errors


def _check_choice(name: str, value: str, choices: Sequence[str]) -> None:
    if value not in choices:
        raise invalid_parameter(
            f"invalid {name} {value!r}: choose one of {', '.join(choices)}", about=name
        )


def _reasons(errors: Mapping[str, MqError]) -> dict[str, str]:
    return {name: errors[name].message for name in sorted(errors)}


def _optional(message: Any, name: str) -> Any:
    return getattr(message, name) if message.HasField(name) else None


def _topic_row(
    topic: str,
    found: Mapping[str, tuple[d.TopicOnBroker, s.TopicStatistics]],
    *,
    complete: bool,
) -> s.TopicRow:
    by_broker = {name: statistics for name, (_, statistics) in sorted(found.items())}
    return s.TopicRow(
        topic=topic,
        settings=d.TopicDescription.of(topic, [found[name][0] for name in by_broker]),
        statistics=s.TopicStatistics.merged(list(by_broker.values()), complete=complete),
        by_broker=by_broker,
    )


def _group_row(
    group: str,
    found: Mapping[str, tuple[admin_pb2.GroupConfig, s.GroupStatistics]],
    *,
    complete: bool,
) -> s.GroupRow:
    by_broker = {name: statistics for name, (_, statistics) in sorted(found.items())}
    first = found[next(iter(by_broker))][0]
    return s.GroupRow(
        consumer_group=group,
        settings=d.GroupDescription.of(first, list(by_broker)),
        statistics=s.GroupStatistics.merged(list(by_broker.values()), complete=complete),
        by_broker=by_broker,
    )


def _reading_groups(
    groups: Iterable[admin_pb2.DescribeTopicResponse.Group], *, complete: bool
) -> tuple[s.ReadingGroup, ...]:
    """Merge the groups of each name."""
    found: dict[str, list[admin_pb2.DescribeTopicResponse.Group]] = {}
    for group in groups:
        found.setdefault(group.consumer_group, []).append(group)
    return tuple(_reading_group(name, found[name], complete=complete) for name in sorted(found))


def _reading_group(
    name: str, parts: Sequence[admin_pb2.DescribeTopicResponse.Group], *, complete: bool
) -> s.ReadingGroup:
    lags = [_optional(part, "lag") for part in parts]
    oldest = [part.oldest_timestamp_ms for part in parts if part.HasField("oldest_timestamp_ms")]
    if not complete:
        return s.ReadingGroup(
            consumer_group=name, lag=None, oldest_timestamp_ms=None, members=None, messages_out=None
        )
    return s.ReadingGroup(
        consumer_group=name,
        lag=None if None in lags else sum(lags),
        oldest_timestamp_ms=min(oldest, default=None),
        members=max(part.members for part in parts),
        messages_out=sum(part.messages_out for part in parts),
    )


def _page(
    rows: list[R],
    request: Any,
    answers: Mapping[str, tuple[str, Any]],
    unanswered: Mapping[str, MqError],
    *,
    order: Order,
    is_page: bool,
) -> s.Page[R]:
    """Sort merged rows and cut the page out of them. If they are the page, keep their order."""
    total = None
    if is_page:
        shown = rows
        total = next(iter(answers.values()))[1].total
    else:
        rows.sort(key=_name_of)
        if order.sort == NAME and order.descending:
            rows.reverse()
        elif order.sort != NAME:
            rows.sort(key=_sort_key(order))
        end = request.offset + request.limit if request.limit else None
        shown = rows[request.offset : end]
        total = len({name for _, answer in answers.values() for name in answer.names})
    return s.Page(
        rows=tuple(shown),
        total=None if unanswered else total,
        unanswered=_reasons(unanswered),
    )


def _name_of(row: s.TopicRow | s.GroupRow | d.ClientDescription) -> str:
    match row:
        case s.TopicRow():
            return row.topic
        case s.GroupRow():
            return row.consumer_group
    return row.client_id


def _sort_key(order: Order) -> Callable[[Any], tuple[bool, float]]:
    """Return a key that sorts by the value of the cluster, unknown values last.

    If a broker did not answer, the values of the others decide.
    """

    def key(row: s.TopicRow | s.GroupRow) -> tuple[bool, float]:
        values = [getattr(each, order.sort) for each in row.by_broker.values()]
        known = [value for value in values if value is not None]
        if not known:
            return True, 0.0
        value = max(known) if order.sort == "members" else sum(known)
        return False, -value if order.descending else value

    return key
