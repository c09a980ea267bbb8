"""List and describe topics, groups and clients: part of AsyncAdminClient.

Each method asks each master once, whatever the number of topics, groups or clients. For an
order by a figure, several masters are asked twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isnan
from typing import Any, Generic, TypeVar

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
GROUP_ORDERS = (
    "name",
    "lag",
    "messages_out_rate",
    "members",
    "retries",
    "dead_letters",
    "in_flight",
)
CONSUME_TYPES = ("pull", "push", "pop")

A = TypeVar(
    "A",
    admin_pb2.ListTopicsResponse,
    admin_pb2.ListGroupsResponse,
    client_pb2.ListClientsResponse,
)
B = TypeVar("B", admin_pb2.DescribeTopicResponse, admin_pb2.DescribeGroupResponse)
R = TypeVar("R", s.TopicRow, s.GroupRow, d.ClientDescription)


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
        """Return a page of topics with their statistics. Asks each broker once, or twice.

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
        listed = await self._listed(rpcs.LIST_TOPICS, request)
        answers, unanswered = listed.answers, listed.errors
        found: dict[str, dict[str, tuple[Any, Any]]] = {}
        for name, (_, answer) in answers.items():
            for config, statistics in zip(answer.topics, answer.statistics, strict=True):
                found.setdefault(config.topic, {})[name] = config, statistics

        def row(topic: str) -> s.TopicRow:
            there = {
                name: (
                    d.TopicOnBroker.of(name, answers[name][0], config),
                    s.TopicStatistics.of(statistics),
                )
                for name, (config, statistics) in found[topic].items()
            }
            return _topic_row(topic, there, complete=not unanswered)

        return listed.page(found, row)

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
        """Return a page of groups with their statistics. Asks each broker once, or twice.

        If a broker does not answer, `Page.unanswered` has the reason.

        Args:
            name_part: A part of the name, in upper or lower case.
            consume_types: Only groups with a member that consumes like this: "pull", "push" or
                "pop".
            include_system: Whether to include groups of the system.
            sort: "name", "lag", "messages_out_rate", "members", "retries", "dead_letters" or
                "in_flight".
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
        listed = await self._listed(rpcs.LIST_GROUPS, request)
        answers, unanswered = listed.answers, listed.errors
        found: dict[str, dict[str, tuple[Any, Any]]] = {}
        for name, (_, answer) in answers.items():
            for config, statistics in zip(answer.groups, answer.statistics, strict=True):
                found.setdefault(config.consumer_group, {})[name] = config, statistics

        def row(group: str) -> s.GroupRow:
            there = {
                name: (config, s.GroupStatistics.of(statistics))
                for name, (config, statistics) in found[group].items()
            }
            return _group_row(group, there, complete=not unanswered)

        return listed.page(found, row)

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
        listed = await self._listed(rpcs.LIST_CLIENTS, request)
        rows = d.merged_clients({name: each.clients for name, (_, each) in listed.answers.items()})
        found = {each.client_id: each for each in rows}
        return listed.page(found, found.__getitem__)

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
        members: dict[str, d.ClientDescription] = {}
        for name, (_, answer) in answers.items():
            for info in answer.members:
                client = d.ClientDescription.of(name, info)
                known = members.get(client.client_id)
                members[client.client_id] = known.merged(client) if known else client
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
            members=tuple(members[client_id] for client_id in sorted(members)),
            unanswered=_reasons(unanswered),
            **sums,
        )

    async def _listed(self, rpc: Rpc[Any, A], request: Any) -> _Listed[A]:
        """Ask all masters for the rows of a page.

        With one broker, its answer is the page. With several, a page by name is among the first
        `offset + limit` names of each. The order of another page depends on the sums over the
        brokers: they are asked for the values of all rows, and then for the rows of the page.
        """
        masters, errors = await self._brokers.masters_and_missing()
        if request.offset < 0 or request.limit < 0:
            raise invalid_parameter("offset and limit are 0 or more")
        if len(masters) == 1:
            answers = await self._pages(masters, rpc, request, errors)
            return _Listed(answers, errors, None, next(iter(answers.values()))[1].total)
        sent = type(request).FromString(request.SerializeToString())
        order = getattr(request, "order", 0)  # clients are sorted by their id
        sent.with_names = True
        sent.offset = sent.limit = 0
        if order:
            sent.with_values = True
        elif request.limit:
            sent.limit = request.offset + request.limit
        answers = await self._pages(masters, rpc, sent, errors)
        names = sorted({name for _, answer in answers.values() for name in answer.names})
        end = request.offset + request.limit if request.limit else None
        if not order:
            if getattr(request, "descending", False):
                names.reverse()
            return _Listed(answers, errors, names[request.offset : end], len(names))
        # The order of both kinds of lists: `members` is the only figure without a sum.
        is_most = isinstance(request, admin_pb2.ListGroupsRequest) and (
            order == admin_pb2.GROUP_ORDER_MEMBERS
        )
        names.sort(key=_sort_key(answers, most=is_most, descending=request.descending))
        shown = names[request.offset : end]
        if not shown:
            return _Listed({}, errors, shown, len(names))
        sent.ClearField("order")
        sent.with_names = sent.with_values = False
        sent.only.extend(shown)
        there = {name: address for name, (address, _) in answers.items()}
        return _Listed(await self._pages(there, rpc, sent, errors), errors, shown, len(names))

    async def _pages(
        self, masters: Mapping[str, str], rpc: Rpc[Any, A], sent: Any, errors: dict[str, MqError]
    ) -> dict[str, tuple[str, A]]:
        """Return the address and answer of each broker. Add the errors of the others to `errors`.

        Raises the error of a broker if none answers.
        """
        answers: dict[str, Any]
        answers, silent = await self._brokers.ask_answering(masters, rpc, sent)
        errors |= silent
        for name, answer in list(answers.items()):
            asked = getattr(sent, "with_values", False)
            has_values = not asked or len(answer.values) == len(answer.names)
            if not (answer.HasField("total") and has_values):
                del answers[name]
                errors[name] = MqError(
                    Code.REQUEST_CODE_NOT_SUPPORTED,
                    f"broker {name} runs a version without statistics: upgrade it",
                )
        if not answers:
            raise next(iter(errors.values()))
        return {name: (masters[name], answer) for name, answer in answers.items()}

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


def _sort_key(
    answers: Mapping[str, tuple[str, Any]], *, most: bool, descending: bool
) -> Callable[[str], tuple[bool, float]]:
    """Return a key that sorts names by the value of the cluster, unknown values last.

    If a broker did not answer, the values of the others decide.

    Args:
        answers: The answers of the brokers, with names and values.
        most: Whether the highest value of a broker is that of the cluster. Else it is the sum.
        descending: Whether to sort from high to low.
    """
    values: dict[str, float] = {}
    for _, answer in answers.values():
        for name, value in zip(answer.names, answer.values, strict=True):
            if not isnan(value):
                known = values.get(name)
                if known is not None:
                    value = max(known, value) if most else known + value  # noqa: PLW2901
                values[name] = value

    def key(name: str) -> tuple[bool, float]:
        value = values.get(name)
        if value is None:
            return True, 0.0
        return False, -value if descending else value

    return key


@dataclass(frozen=True, slots=True)
class _Listed(Generic[A]):
    """The rows that brokers listed for a page.

    Attributes:
        answers: The address and answer of each broker, by name.
        errors: The errors of the others.
        shown: The names of the rows of the page. None for those of the only broker.
        total: The number of rows of all pages.
    """

    answers: Mapping[str, tuple[str, A]]
    errors: Mapping[str, MqError]
    shown: Sequence[str] | None
    total: int

    def page(self, found: Mapping[str, object], row: Callable[[str], R]) -> s.Page[R]:
        """Return the page. `found` has the rows of the answers, which `row` returns by name."""
        shown = found if self.shown is None else [name for name in self.shown if name in found]
        return s.Page(
            rows=tuple(map(row, shown)),
            total=None if self.errors else self.total,
            unanswered=_reasons(self.errors),
        )
