"""The access table: users, policies and quotas as records with versions, which servers merge.

Each server has a table of its own. A record is a user, one policy of one user, or a quota. Of two
records with the same key, the one with the newer version wins, on each server alike. So merging is
commutative, associative and idempotent, and all servers that exchange records end with the same
table. A deleted record stays as a tombstone for HORIZON_MS, so that an older copy cannot
restore it. The tombstone of a user stays, because a server that has lost its file may create the
first user again at any time. This module does no I/O, and does not read a clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass, replace
from typing import Any, NamedTuple, TypeAlias

from aerobee_wire.access.policies import Policy
from aerobee_wire.access.quotas import DEFAULT, Quota
from aerobee_wire.access.users import User
from aerobee_wire.status import illegal_operation, invalid_parameter

HORIZON_MS = 30 * 24 * 3_600_000  # a server that was away for longer replaces its table
# The end of the year 9999. The next change of a record has a later version: it must fit a message.
LAST_MS = 253_402_300_799_999
MAX_DELETED_USERS = 1_000  # older than HORIZON_MS; SUPER users are forgotten last

Key = tuple[str, ...]


class Version(NamedTuple):
    """The time and the process of a write. The greater version is the newer one."""

    time_ms: int
    node: str  # makes versions of the same millisecond differ

    @classmethod
    def checked(cls, time_ms: int, node: str) -> Version:
        """Return the version of another process or of a file.

        Raises MqError with the code INVALID_PARAMETER if its time is not one.
        """
        if not 0 <= time_ms <= LAST_MS:
            raise invalid_parameter(
                f"invalid time {time_ms} of a record's version: use 0 to {LAST_MS}", about="time_ms"
            )
        return cls(time_ms, node)


@dataclass(frozen=True, slots=True)
class UserPolicy:
    """One policy of one user. A user has at most one with the same resource, type and decision."""

    username: str
    policy: Policy

    @property
    def key(self) -> Key:
        policy = self.policy
        return ("policy", self.username, policy.type, policy.resource, policy.decision)

    @property
    def sort_key(self) -> tuple[Any, ...]:
        return sorted(self.policy.actions), [str(each) for each in self.policy.sources]


Item: TypeAlias = User | UserPolicy | Quota


@dataclass(frozen=True, slots=True)
class Record:
    """A user (without policies), a policy or a quota, with its version.

    A tombstone is `deleted`.
    """

    item: Item
    version: Version
    deleted: bool = False

    @property
    def key(self) -> Key:
        return key_of_item(self.item)

    @property
    def username(self) -> str:
        """Return the name of the user, or "" for a quota."""
        if isinstance(self.item, Quota):
            return ""
        return self.item.name if isinstance(self.item, User) else self.item.username

    def wins_over(self, other: Record | None) -> bool:
        """Return whether this record replaces `other`, which has the same key.

        Two writers that share a node name can write the same version. Then a tombstone wins, and
        then the content decides.
        """
        return other is None or self._order > other._order

    @property
    def _order(self) -> tuple[Any, ...]:
        item = self.item
        content: tuple[Any, ...]
        if isinstance(item, User):
            content = (not item.enabled, not item.super, item.secrets)
        elif isinstance(item, Quota):
            content = astuple(item.rates)
        else:
            content = item.sort_key
        return self.version, self.deleted, content


def key_of_item(item: Item) -> Key:
    if isinstance(item, User):
        return ("user", item.name)
    return ("quota", item.kind, item.name) if isinstance(item, Quota) else item.key


def tombstone(item: Item, version: Version) -> Record:
    """Return the record of a deleted item, without its secrets."""
    if isinstance(item, User):
        item = User(item.name, (), enabled=False, super=item.super)
    return Record(item, version, deleted=True)


class AccessTable:
    """Users and policies by name, and quotas. It changes only by `merge` and `purge`."""

    def __init__(self, records: Iterable[Record] = ()) -> None:
        self._records: dict[Key, Record] = {}
        self._keys_of: dict[str, set[Key]] = {}  # by username
        self._users: dict[str, User | None] = {}  # with policies; filled by `user`
        self._quotas: dict[tuple[str, str], Quota] = {}  # by kind and name
        self.quota_changes = 0  # how often quotas have changed
        self.merge(records)

    def __len__(self) -> int:
        return len(self._records)

    def records(self) -> list[Record]:
        """Return all records, with tombstones."""
        return list(self._records.values())

    def get(self, key: Key) -> Record | None:
        return self._records.get(key)

    def newer(self, records: Iterable[Record]) -> list[Record]:
        """Return the records that `merge` would take."""
        return [each for each in records if each.wins_over(self._records.get(each.key))]

    def merge(self, records: Iterable[Record]) -> list[Record]:
        """Take the records that are newer than those of this table, and return them."""
        taken: dict[Key, Record] = {}
        for record in records:
            if record.wins_over(self._records.get(record.key)):
                self._records[record.key] = taken[record.key] = record
                self._keys_of.setdefault(record.username, set()).add(record.key)
                self._users.pop(record.username, None)
                if isinstance(record.item, Quota):
                    self._take_quota(record, record.item)
        return list(taken.values())

    def _take_quota(self, record: Record, quota: Quota) -> None:
        self.quota_changes += 1
        if record.deleted:
            self._quotas.pop((quota.kind, quota.name), None)
        else:
            self._quotas[quota.kind, quota.name] = quota

    def replace(self, records: Iterable[Record]) -> None:
        """Forget all records, and take `records`."""
        self._records.clear()
        self._keys_of.clear()
        self._users.clear()
        self._quotas.clear()
        self.quota_changes += 1
        self.merge(records)

    def purge(self, now_ms: int) -> int:
        """Forget tombstones that are older than HORIZON_MS, and return their number.

        The tombstones of up to MAX_DELETED_USERS users remain.
        """
        old = [each for each in self._records.values() if is_expired(each, now_ms)]
        users = sorted(
            (each.item.super, each.version, each.key) for each in old if isinstance(each.item, User)
        )
        kept = {key for _, _, key in users[-MAX_DELETED_USERS:]}
        forgotten = [each for each in old if each.key not in kept]
        for record in forgotten:
            del self._records[record.key]
            keys = self._keys_of[record.username]
            keys.discard(record.key)
            if not keys:
                del self._keys_of[record.username]
        return len(forgotten)

    # ---- what the records say ----

    def user(self, name: str) -> User | None:
        """Return a user with all policies, or None if there is no such user."""
        try:
            return self._users[name]
        except KeyError:
            pass
        record = self._live(("user", name))
        if record is None:
            return None  # not kept: any caller can ask for any name
        assert isinstance(record.item, User)
        found = self._users[name] = replace(record.item, policies=tuple(self.policies(name)))
        return found

    def users(self) -> Iterator[User]:
        """Yield all users with their policies, by name."""
        for name in sorted(self._keys_of):
            if (user := self.user(name)) is not None:
                yield user

    def policies(self, username: str) -> list[Policy]:
        """Return the policies of a user, which may exist before the user."""
        live = (self._live(key) for key in sorted(self._keys_of.get(username, ())))
        return [
            record.item.policy
            for record in live
            if record is not None and isinstance(record.item, UserPolicy)
        ]

    def subjects(self) -> list[str]:
        """Return the names that have a user or policies."""
        return sorted(
            name
            for name, keys in self._keys_of.items()
            if name and any(self._live(key) is not None for key in keys)
        )

    @property
    def has_quotas(self) -> bool:
        return bool(self._quotas)

    def quotas(self) -> list[Quota]:
        """Return all quotas, by subject."""
        return sorted(self._quotas.values(), key=lambda quota: quota.subject)

    def quota_of(self, kind: str, name: str) -> Quota | None:
        """Return the quota of a subject, or the default of its kind, or None."""
        return self._quotas.get((kind, name)) or self._quotas.get((kind, DEFAULT))

    def _live(self, key: Key) -> Record | None:
        record = self._records.get(key)
        return None if record is None or record.deleted else record

    # ---- changes ----

    def changes(
        self,
        put: Sequence[Item] = (),
        delete: Sequence[Item] = (),
        *,
        now_ms: int,
        node: str,
    ) -> list[Record]:
        """Return the records of a change, for `merge`. The table is not changed yet.

        Raises MqError with the code ILLEGAL_OPERATION if the change leaves no enabled SUPER user,
        although there is one now.
        """
        records = [Record(_bare(item), self._next(item, now_ms, node)) for item in put]
        records += [tombstone(item, self._next(item, now_ms, node)) for item in delete]
        self._check_super(records)
        return records

    def _next(self, item: Item, now_ms: int, node: str) -> Version:
        """Return a version that is newer than that of the current record.

        The clock of the server that wrote the current record may be ahead.
        """
        current = self._records.get(key_of_item(item))
        return Version(max(now_ms, current.version.time_ms + 1 if current else 0), node)

    def _check_super(self, records: Iterable[Record]) -> None:
        changed = {each.key: each for each in records}
        present = (self._records.get(key) for key in changed)
        if not any(each is not None and is_super(each) for each in present):
            return  # looking at all users would take milliseconds
        if not any(is_super(each) for each in ({**self._records, **changed}).values()):
            raise illegal_operation(
                "this is the last enabled SUPER user: make another one first", about="username"
            )


def is_super(record: Record) -> bool:
    """Return whether the record is an enabled SUPER user."""
    item = record.item
    return not record.deleted and isinstance(item, User) and item.enabled and item.super


def is_expired(record: Record, now_ms: int) -> bool:
    """Return whether the record is a tombstone that is older than HORIZON_MS."""
    return record.deleted and record.version.time_ms < now_ms - HORIZON_MS


def _bare(item: Item) -> Item:
    return replace(item, policies=()) if isinstance(item, User) else item
