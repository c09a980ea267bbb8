"""Ask all brokers for the administration port: what they have of topics, groups and messages.

An answer that lacks a broker would be a wrong number, so each call fails if a broker fails. This
module keeps no state.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from contextlib import aclosing
from typing import NamedTuple, TypeVar

from aerobee.broker.v1.admin_pb2 import DescribeGroupRequest, DescribeGroupResponse
from aerobee.broker.v1.client_pb2 import ClientInfo, ListClientsRequest
from aerobee.broker.v1.message_pb2 import StoredMessage
from aerobee.broker.v1.offset_pb2 import QueueConsumeStats
from aerobee.broker.v1.search_pb2 import QueueRange, SearchMessagesRequest
from google.protobuf.message import Message

from aerobee_proxy.cluster.broker_calls import BrokerCalls
from aerobee_proxy.cluster.route_cache import RouteCache
from aerobee_wire.rpcs import DESCRIBE_GROUP, LIST_CLIENTS, SEARCH_MESSAGES, Rpc
from aerobee_wire.status import Code, MqError

Q = TypeVar("Q", bound=Message)
R = TypeVar("R", bound=Message)

# Where a search continues: by broker, the parts of its queues. An empty sequence is all of them.
Left = Mapping[str, Sequence[QueueRange]]

SEARCH_BYTES = 3 * 1024 * 1024  # a client of gRPC accepts answers of 4 MiB, if it sets no option
SEARCH_SCANNED = 200_000  # messages that each broker examines for one call, some 2 s


class SearchPage(NamedTuple):
    """Messages that a search found, and where it continues; nothing is left if `left` is empty."""

    messages: list[StoredMessage]
    left: Left


class Administration:
    def __init__(self, calls: BrokerCalls, route_cache: RouteCache) -> None:
        self._calls = calls
        self._route_cache = route_cache

    async def brokers_of(self, topic: str) -> list[str]:
        """Return the names of the brokers of a topic, sorted. Raises MqError."""
        route = await self._route_cache.route(topic)
        return sorted({data.broker_name for data in route.queues})

    async def ask(
        self,
        brokers: Iterable[str],
        rpc: Rpc[Q, R],
        request: Q,
        absent: Code | None = None,
    ) -> dict[str, R]:
        """Call brokers at the same time. Return the answers by name of the broker.

        Args:
            brokers: The names of the brokers.
            rpc: The RPC.
            request: The request for each broker.
            absent: The code of brokers that do not have the topic or group. They are left out.

        Raises:
            MqError: The failure of a broker, or `absent` if all brokers answer with it.
        """
        names = list(brokers)
        found: dict[str, R] = {}
        missing: MqError | None = None
        answers = await asyncio.gather(
            *(self._calls.call(name, rpc, request) for name in names), return_exceptions=True
        )
        for name, answer in zip(names, answers, strict=True):
            if not isinstance(answer, BaseException):
                found[name] = answer
            elif isinstance(answer, MqError) and answer.code is absent:
                missing = answer
            else:
                raise answer
        if missing is not None and not found:
            raise missing
        return found

    async def ask_all(self, rpc: Rpc[Q, R], request: Q, absent: Code | None = None) -> dict[str, R]:
        """Call all brokers. See `ask`."""
        return await self.ask(sorted(await self._route_cache.brokers()), rpc, request, absent)

    async def group(self, group: str) -> dict[str, DescribeGroupResponse]:
        """Return a group with its progress on each broker that has it.

        Raises MqError with the code SUBSCRIPTION_GROUP_NOT_EXIST, or the failure of a broker.
        """
        request = DescribeGroupRequest(consumer_group=group)
        return await self.ask_all(DESCRIBE_GROUP, request, Code.SUBSCRIPTION_GROUP_NOT_EXIST)

    async def clients(self, group: str = "", topic: str = "") -> list[ClientInfo]:
        """Return the live clients of a group or topic, sorted by client id, each once.

        A client that several brokers know is described by the one that heard from it last.
        """
        answers = await self.ask_all(LIST_CLIENTS, ListClientsRequest(group=group, topic=topic))
        return latest(client for answer in answers.values() for client in answer.clients)

    async def search(self, request: SearchMessagesRequest, left: Left, most: int) -> SearchPage:
        """Search one broker after the other, in the order of their names.

        Args:
            request: The conditions.
            left: The parts to search.
            most: The number of messages at which the search stops.

        Raises:
            MqError: The failure of a broker.
        """
        found: list[StoredMessage] = []
        rest = dict(sorted(left.items()))
        for broker, ranges in list(rest.items()):
            if len(found) >= most:
                break
            part = SearchMessagesRequest(
                queues=ranges,
                max_messages=most - len(found),
                max_bytes=max(1, SEARCH_BYTES - sum(each.store_size for each in found)),
                max_scanned=SEARCH_SCANNED,
            )
            part.MergeFrom(request)
            del rest[broker]
            async with aclosing(self._calls.stream(broker, SEARCH_MESSAGES, part)) as responses:
                async for response in responses:
                    found += response.messages
                    remaining = [
                        QueueRange(
                            queue_id=each.queue_id,
                            begin_offset=each.begin_offset,
                            end_offset=each.end_offset,
                        )
                        for each in response.end.positions
                        if each.begin_offset < each.end_offset
                    ]
                    if remaining:
                        rest[broker] = remaining
            if broker in rest:
                break
        return SearchPage(found, rest)


def latest(clients: Iterable[ClientInfo]) -> list[ClientInfo]:
    """Return each client once, as described by the broker that heard from it last."""
    found: dict[str, ClientInfo] = {}
    for client in clients:
        known = found.get(client.client_id)
        if known is None or client.silent_ms < known.silent_ms:
            found[client.client_id] = client
    return [client for _, client in sorted(found.items())]


def lag_of(progress: QueueConsumeStats) -> int:
    """Return the number of messages in a queue that a group has not settled."""
    if progress.HasField("lag"):
        return progress.lag
    return max(0, progress.max_offset - max(progress.min_offset, progress.consumer_offset))
