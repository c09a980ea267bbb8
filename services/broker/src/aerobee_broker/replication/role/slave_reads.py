"""Serve the reads that a slave may answer from its own store.

These are lookups by offset message id and, with `slaveReadEnable`, pulls, queries, searches
and queue offsets. None of them writes. The master serves all other calls.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from aerobee.broker.v1 import message_pb2, offset_pb2, search_pb2

from aerobee_broker.config import BrokerOptions
from aerobee_broker.delivery.pull.access import ReadAccess
from aerobee_broker.delivery.pull.long_polls import LongPolls
from aerobee_broker.delivery.pull.offsets import QueueQueries
from aerobee_broker.delivery.pull.pull import SlavePull
from aerobee_broker.delivery.pull.reading import QueueReading, SlowReaders
from aerobee_broker.delivery.search.copies import Copies
from aerobee_broker.delivery.search.pace import Pace
from aerobee_broker.delivery.search.search import Searches
from aerobee_broker.errors import NotServed, TopicNotExist
from aerobee_broker.registry.broker_permission import BrokerPermission
from aerobee_broker.registry.groups import GroupRegistry
from aerobee_broker.registry.topics import TopicRegistry
from aerobee_broker.replication.role.replica_store import ReplicaStore
from aerobee_broker.rpc.reads import LookupRpcs, QueueRpcs, ReadRpcs
from aerobee_broker.rpc.search import SearchRpcs
from aerobee_broker.store.messages import Arrival
from aerobee_broker.wiring.consuming import slow_reader_bytes
from aerobee_chassis.rpc.call import Call, Handler
from aerobee_chassis.rpc.services import Method, Service, bind_part

_MESSAGES = message_pb2.DESCRIPTOR.services_by_name["MessageService"]
_OFFSETS = offset_pb2.DESCRIPTOR.services_by_name["OffsetService"]
_SEARCHES = search_pb2.DESCRIPTOR.services_by_name["SearchService"]


class SlaveReads:
    """Serve reads of one store, from its opening until it is closed.

    `broker_id` is the id of this slave at the name servers. `is_readable` returns False while the
    store is cut or copied. `refuse` returns an error that names the master.
    """

    def __init__(
        self,
        own: ReplicaStore,
        broker_id: int,
        *,
        is_readable: Callable[[], bool],
        is_following: Callable[[], bool],
        refuse: Callable[[], NotServed],
    ) -> None:
        self._is_readable = is_readable
        self._refuse = refuse
        self._polls = LongPolls()
        self._reading: QueueReading | None = None
        store = own.store
        self._services = [bind_part(_MESSAGES, LookupRpcs(store))]
        if own.environment.options.slave_read_enable:
            topics = _known_topics(own)
            access = _access(own, topics)
            pull = self._pull(own, access, broker_id, is_following)
            queries = QueueQueries(store=store, topics=topics)
            pace = Pace()
            searches = Searches(
                store=store, queries=queries, access=access, polls=self._polls, pace=pace
            )
            copies = Copies(store=store, topics=own.tables.topics, pace=pace)
            self._services += [
                bind_part(_MESSAGES, ReadRpcs(pull, store)),
                bind_part(_OFFSETS, QueueRpcs(queries)),
                bind_part(_SEARCHES, SearchRpcs(searches, copies)),
            ]

    def _pull(
        self,
        own: ReplicaStore,
        access: ReadAccess,
        broker_id: int,
        is_following: Callable[[], bool],
    ) -> SlavePull:
        options, tables, store = own.environment.options, own.tables, own.store
        reading = self._reading = QueueReading(store, self._polls, options)
        return SlavePull(
            reading=reading,
            slow_readers=SlowReaders(store, lambda _: (broker_id,), slow_reader_bytes(options)),
            access=access,
            groups=tables.groups,
            metrics=own.environment.metrics,
            check=self._check,
            refuse=self._refuse,
            has_master=is_following,
        )

    def use(self, options: BrokerOptions) -> None:
        """Use the limits of `options`."""
        if self._reading is not None:
            self._reading.use(options)

    def services(self) -> list[Service]:
        return [
            replace(service, methods=tuple(map(self._guarded, service.methods)))
            for service in self._services
        ]

    def arrived(self, arrivals: Sequence[Arrival]) -> None:
        self._polls.arrived(arrivals)

    def close(self) -> None:
        """End all waiting pulls; they return no messages."""
        self._polls.close()

    def _check(self) -> None:
        if not self._is_readable():
            raise self._refuse()

    def _guarded(self, method: Method) -> Method:
        handler: Handler = method.handler

        async def handle(request: Any, call: Call) -> Any:
            self._check()
            try:
                return await handler(request, call)
            except TopicNotExist:  # its master may have the topic by now
                raise self._refuse() from None

        return replace(method, handler=handle)


def _access(own: ReplicaStore, topics: TopicRegistry) -> ReadAccess:
    options, tables = own.environment.options, own.tables
    groups = GroupRegistry(tables.groups, tables.saved_groups, topics, options)
    permission = BrokerPermission(options.broker_permission, tables.drain)
    return ReadAccess(topics, groups, permission, options, own.environment.in_flight)


def _known_topics(own: ReplicaStore) -> TopicRegistry:
    """Return a topic registry for queries only, because a slave creates no topics."""

    async def announce() -> list[str]:
        raise AssertionError("a slave creates no topic")

    async def spread(_: object) -> None:
        raise AssertionError("a slave creates no topic")

    tables, options = own.tables, own.environment.options
    return TopicRegistry(
        tables.topics,
        tables.saved_topics,
        options,
        announce=announce,
        spread=spread,
        now_ms=own.environment.clock.now_ms,
    )
