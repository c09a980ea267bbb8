"""Pull on a slave: reads only messages that are confirmed and derived here.

It does not create groups, accept offsets or check locks: the master does. A slave may lag, so it
does not decide what it cannot know. For an offset outside its queue, it returns "nothing new". For
an unknown topic or group, it refers the client to the master.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from aerobee_broker.delivery.pull.access import ReadAccess
from aerobee_broker.delivery.pull.reading import PullRequest, QueueReading, SlowReaders
from aerobee_broker.errors import NoPermission, SubscriptionNotExist
from aerobee_broker.filter.filter import Filter
from aerobee_broker.metadata.subscription_groups import SubscriptionGroup, SubscriptionGroups
from aerobee_broker.metrics import BrokerMetrics
from aerobee_broker.store.messages import ReadResult, ReadStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class SlavePull:
    """Serves pulls on a slave.

    `check` raises NotServed while this slave does not serve reads. `refuse` returns that error for
    requests that the master must answer. `has_master`: whether this slave follows a master. If so,
    a pull that finds no messages does not wait here, because the master may have them.
    """

    reading: QueueReading
    slow_readers: SlowReaders
    access: ReadAccess
    groups: SubscriptionGroups
    metrics: BrokerMetrics
    check: Callable[[], None]
    refuse: Callable[[], Exception]
    has_master: Callable[[], bool]

    async def pull(self, request: PullRequest) -> tuple[ReadResult, int]:
        """Read like `Pull.pull`.

        Raises NotServed, NoPermission, InvalidParameter, SubscriptionNotExist, MqError
        SUBSCRIPTION_PARSE_FAILED, and the errors of the store.
        """
        self.check()
        if request.locked:  # only the master knows whether the caller holds the lock
            raise self.refuse()
        self.access.check_broker()
        group = None if request.browse else self._group(request.consumer_group)
        wanted = self._wanted(request)
        await self.access.room()
        result = self._read(request, wanted)
        if (
            result.status is ReadStatus.NO_NEW
            and not self.has_master()
            and self.reading.suspends(request)
        ):
            await self.reading.park(request, wanted)
            await self.access.room()
            self.check()
            result = self._read(request, wanted)
        if result.message_count and group is not None:
            self.metrics.delivered(
                request.topic, request.consumer_group, result.message_count, len(result.records)
            )
        return result, self.slow_readers.suggested(request, result, group)

    def _group(self, consumer_group: str) -> SubscriptionGroup:
        group = self.groups.get(consumer_group)
        if group is None:
            raise self.refuse()
        if not group.consume_enable:
            raise NoPermission(f"group {consumer_group} may not consume (consumeEnable is off)")
        return group

    def _wanted(self, request: PullRequest) -> Filter:
        topic = self.access.topic(request.topic, request.queue_id)
        if request.filter is None and not request.browse:
            raise SubscriptionNotExist(
                "a slave takes no heartbeats, so it knows no subscriptions: give one with the pull"
            )
        wanted = request.filter or Filter("TAG", "*")
        self.access.check_filter(wanted)
        return self.access.filter_in(topic, wanted)

    def _read(self, request: PullRequest, wanted: Filter) -> ReadResult:
        result = self.reading.read(request, wanted)
        moved = result.status in (ReadStatus.OFFSET_TOO_SMALL, ReadStatus.OFFSET_TOO_LARGE)
        # The master may have the messages that are damaged here.
        if moved or result.corrupted_count:
            return replace(
                result,
                status=ReadStatus.NO_NEW,
                next_begin_offset=request.queue_offset,
                records=b"",
                message_count=0,
                corrupted_count=0,
            )
        return result
