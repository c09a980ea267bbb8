"""Keep the consumer groups of this broker.

A group has a retry topic from its creation on.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

import structlog

from aerobee_broker.config import BrokerOptions
from aerobee_broker.errors import (
    GroupNotExist,
    InvalidParameter,
    NoPermission,
    TooManyNames,
    TopicNotExist,
)
from aerobee_broker.metadata.config_table import updated
from aerobee_broker.metadata.persistent_table import PersistentTable
from aerobee_broker.metadata.subscription_groups import (
    PREDEFINED_GROUPS,
    SubscriptionGroup,
    SubscriptionGroups,
)
from aerobee_broker.registry.creations import Creations
from aerobee_broker.registry.topics import TopicRegistry
from aerobee_wire import topics as names
from aerobee_wire.queues import lite
from aerobee_wire.status import Code, MqError

MAX_RETRY_DELAYS = 64
MAX_RETRY_DELAY_MS = 40 * 86_400_000  # a longer delay than any retention is a mistake
MAX_RETRY_TIMES = 10_000
MAX_MULTIPLIER = 100
# The percentage of receives that get the highest priority first.
PRIORITY_ATTRIBUTE = "priority.factor"
ALWAYS_FIRST = "100"
GROUP_ATTRIBUTES = lite.GROUP_ATTRIBUTES | {PRIORITY_ATTRIBUTE}
# Fields of a SubscriptionGroup that updates cannot change.
_NO_SETTINGS = ("consumer_group", "group_sys_flag")


class GroupRegistry:
    def __init__(
        self,
        table: SubscriptionGroups,
        saved: PersistentTable,
        topics: TopicRegistry,
        options: BrokerOptions,
        creations: Creations,
    ) -> None:
        self._creations = creations
        self.table = table
        self._saved = saved
        self._topics = topics
        self._options = options
        # Groups created or changed and not durable yet, with the revision of the table that must be
        # saved. If the save fails, the next use of the group retries it.
        self._unsaved: dict[str, int] = {}

    def use(self, options: BrokerOptions) -> None:
        """Use other options for new groups."""
        self._options = options

    def is_system(self, consumer_group: str) -> bool:
        return consumer_group in PREDEFINED_GROUPS or names.is_system_group(consumer_group)

    def get(self, consumer_group: str) -> SubscriptionGroup:
        group = self.table.get(consumer_group)
        if group is None:
            raise GroupNotExist(consumer_group)
        return group

    def ready(self, consumer_group: str) -> SubscriptionGroup | None:
        """Return the group if it exists and is saved durably, or None."""
        return None if consumer_group in self._unsaved else self.table.get(consumer_group)

    async def for_client(self, consumer_group: str, creator: str = "") -> SubscriptionGroup:
        """Return the group after it is saved. Create it if it is new and auto-creation is enabled.

        On a full disk, a group with the default settings is returned before it is saved. Consumers
        free space, and after a crash the next client creates the same group.

        `creator` is that of `Creations.check`. Raises GroupNotExist, InvalidParameter,
        TooManyNames, TooManyCreations. Raises MqError with the code SYSTEM_ERROR if the group
        cannot be saved.
        """
        group = self.ready(consumer_group)
        if group is not None:
            return group
        if self.table.get(consumer_group) is None:
            names.check_group(consumer_group)
            if not self._options.auto_create_subscription_group:
                raise GroupNotExist(consumer_group)
            self._check_count()
            self._creations.check(creator)
            self._put(SubscriptionGroup(consumer_group))
            structlog.get_logger().info("group_created", group=consumer_group, by="client")
        try:
            await self._ensure_saved(consumer_group)
        except MqError as error:
            is_default = self.table.get(consumer_group) == SubscriptionGroup(consumer_group)
            if error.code is not Code.DISK_FULL or not is_default:
                raise
            self._unsaved.pop(consumer_group, None)  # the periodic save retries
            structlog.get_logger().warning(
                "group_not_saved", group=consumer_group, reason=error.message
            )
        return self.get(consumer_group)  # it may have been changed or deleted meanwhile

    async def put(self, group: SubscriptionGroup, *, only_new: bool = False) -> bool:
        """Create or change a group, and return whether it was created.

        With `only_new`, an existing group stays unchanged. Raises InvalidParameter, TooManyNames.
        """
        self._check(group)
        known = self.table.get(group.consumer_group)
        if known is None:
            self._check_count()
        elif only_new:
            group = known
        created = self._put(group)
        if known != group:
            structlog.get_logger().info(
                "group_created" if created else "group_changed",
                group=group.consumer_group,
                by="admin",
            )
        await self._ensure_saved(group.consumer_group)
        await self.ensure_retry_topic(group)
        return created

    async def update(
        self,
        given: SubscriptionGroup,
        named: Collection[str],
        *,
        dry_run: bool,
        allow_missing: bool = False,
    ) -> tuple[SubscriptionGroup | None, SubscriptionGroup]:
        """Change the settings in `named` to the values in `given`.

        With `dry_run`, the group stays unchanged. With `allow_missing` too, a group that does not
        exist is checked as a new one. Raises GroupNotExist, InvalidParameter, TopicNotExist.

        Returns:
            The group before and after the change. It is None before if it does not exist.
        """
        if dry_run and allow_missing and self.table.get(given.consumer_group) is None:
            self._check(given)
            return None, given
        before = self.get(given.consumer_group)
        after = updated(before, given, named, fixed=_NO_SETTINGS)
        self._check(after)
        if not dry_run:
            await self.put(after)
        return before, after

    def remove(self, consumer_group: str, forget: Callable[[], None]) -> bool:
        """Delete a group. Return False if it does not exist. Call `save` afterwards.

        `forget` removes the data of the group in other tables; if it raises, nothing is deleted.
        Raises NoPermission for a system group.
        """
        if self.is_system(consumer_group):
            raise NoPermission(f"{consumer_group} is a system group: it cannot be deleted")
        if self.table.get(consumer_group) is None:
            return False
        forget()
        self.table.remove(consumer_group)
        self._unsaved.pop(consumer_group, None)
        structlog.get_logger().info("group_deleted", group=consumer_group)
        return True

    async def save(self) -> None:
        await self._saved.save()

    async def ensure_retry_topic(self, group: SubscriptionGroup) -> None:
        """Create the group's retry topic, unless the group has no retries."""
        if group.retry_queue_count > 0:
            topic = names.retry_topic(group.consumer_group)
            await self._topics.for_group(topic, group.retry_queue_count)

    def _put(self, group: SubscriptionGroup) -> bool:
        before = self.table.revision
        created = self.table.put(group)
        if self.table.revision != before:
            self._unsaved[group.consumer_group] = self.table.revision
        return created

    async def _ensure_saved(self, consumer_group: str) -> None:
        revision = self._unsaved.get(consumer_group)
        await self._saved.save()
        if self._unsaved.get(consumer_group) == revision:  # not changed again meanwhile
            self._unsaved.pop(consumer_group, None)

    def _check_count(self) -> None:
        """Check that one more group may be created. Raises TooManyNames."""
        limit = self._options.max_groups
        if len(self.table) >= limit:
            remedy = "delete groups that are not used ('aerobee group delete NAME')"
            raise TooManyNames("groups", limit, "maxGroups", remedy)

    def create_predefined(self) -> None:
        for name in PREDEFINED_GROUPS:
            if self.table.get(name) is None:
                self.table.put(SubscriptionGroup(name))

    def _check(self, group: SubscriptionGroup) -> None:
        names.check_group(group.consumer_group)
        if not 0 <= group.retry_max_times <= MAX_RETRY_TIMES:
            raise InvalidParameter(
                f"retryMaxTimes is 0 (one attempt) to {MAX_RETRY_TIMES}, "
                f"not {group.retry_max_times}"
            )
        if not 0 <= group.retry_queue_count <= 1024:
            raise InvalidParameter(
                f"a group has 0 (no retries) to 1024 retry queues, not {group.retry_queue_count}"
            )
        _check_delays(group)
        _check_attributes(group)
        if group.attributes:
            self._check_parent(group)

    def _check_parent(self, group: SubscriptionGroup) -> None:
        """Check the topic that the group is bound to. Raises InvalidParameter, TopicNotExist."""
        settings = lite.group_of(group.attributes)
        if settings is None:
            return
        name = settings.parent
        parent = self._topics.table.get(name)
        if parent is None:
            raise TopicNotExist(name, f"create it (aerobee topic create {name} --type lite)")
        if parent.message_type != lite.LITE:
            raise InvalidParameter(
                f"topic {name} is of the type {parent.message_type or 'NORMAL'}: bind "
                "the group to one of the type LITE",
                about=lite.BIND_ATTRIBUTE,
            )


def _check_attributes(group: SubscriptionGroup) -> None:
    """Check that each attribute is known. `lite.group_of` checks the values of its attributes."""
    for name, value in group.attributes.items():
        if name in lite.GROUP_ATTRIBUTES or (name, value) == (PRIORITY_ATTRIBUTE, ALWAYS_FIRST):
            continue
        if name == PRIORITY_ATTRIBUTE:
            raise InvalidParameter(
                f"attribute {name}={value} is not supported: consumers of a priority topic always "
                f"get the highest priority first; remove the attribute, or write {ALWAYS_FIRST}",
                about=name,
            )
        raise InvalidParameter(
            f"unknown attribute {name}={value} of a group: use one of "
            f"{', '.join(sorted(GROUP_ATTRIBUTES))}",
            about=name,
        )


def _check_delays(group: SubscriptionGroup) -> None:
    delays = group.retry_delays_ms
    if len(delays) > MAX_RETRY_DELAYS:
        raise InvalidParameter(
            f"a group has at most {MAX_RETRY_DELAYS} retry delays, not {len(delays)}: "
            "further attempts use the last one"
        )
    if not all(0 <= delay <= MAX_RETRY_DELAY_MS for delay in delays):
        raise InvalidParameter(
            f"a retry delay is 0 to {MAX_RETRY_DELAY_MS} ms (40 days): {list(delays)}"
        )
    retry = group.exponential_retry
    if retry is None:
        return
    if delays:
        raise InvalidParameter("a group has retry delays or an exponential retry, not both")
    if not 1 <= retry.initial_ms <= retry.max_ms <= MAX_RETRY_DELAY_MS:
        raise InvalidParameter(
            f"an exponential retry begins with 1 ms at least and ends with {MAX_RETRY_DELAY_MS} ms "
            f"(40 days) at most, not {retry.initial_ms} to {retry.max_ms}"
        )
    if not 1 <= retry.multiplier <= MAX_MULTIPLIER:
        raise InvalidParameter(
            f"the multiplier of an exponential retry is 1 to {MAX_MULTIPLIER}, "
            f"not {retry.multiplier}"
        )
