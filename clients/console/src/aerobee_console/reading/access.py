"""The access table: users, their policies and quotas, and what the policies decide.

One name server answers. All processes have the same table, apart from changes of the last seconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from aerobee_client.admin.descriptions import (
    AccessDecision,
    PolicyDescription,
    QuotaDescription,
    UserDescription,
)
from aerobee_console.reading.clients import client_list
from aerobee_console.reading.configuration import configuration
from aerobee_console.reading.effects import Effects, digest
from aerobee_console.reading.source import Answer, Listing, Silent, Source, page_of
from aerobee_wire.status import Code, MqError

CHECKS_USERS = "authenticationEnabled"
OF_USER = "User:"  # before the name of a user, in the subject of a quota
DEFAULT_OF_USERS = "User:*"
DISABLED = "if you disable the user, their calls are rejected, and their streams end"


@dataclass(frozen=True, slots=True)
class UserRow:
    """A name in the access table. `user` is None if only policies have the name."""

    username: str
    user: UserDescription | None
    policies: int


@dataclass(frozen=True, slots=True, kw_only=True)
class UserList(Listing):
    """A page of users. `unchecked` are the name servers that do not check users."""

    rows: tuple[UserRow, ...]
    unchecked: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class UserPage(Answer):
    """A user. `policies` are in the order in which they decide.

    `clients` counts the clients whose calls the user signs; None if that is unknown. `quota` is the
    one that counts for the user: its own, or that of all users.
    """

    username: str
    user: UserDescription | None
    policies: tuple[PolicyDescription, ...]
    quota: QuotaDescription | None
    clients: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaList(Listing):
    """A page of quotas."""

    rows: tuple[QuotaDescription, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Right(Answer):
    """A decision of the policies about a call; None if nothing was asked."""

    decision: AccessDecision | None


async def user_list(source: Source, *, name: str = "", page: int = 1) -> UserList:
    """Return a page of users by name. Raises MqError if no name server answers.

    Args:
        source: The cluster.
        name: Only users whose name contains this text.
        page: The number of the page, from 1 on.
    """
    at_ms, admin = source.now_ms(), source.admin
    users = {each.username: each for each in await admin.list_users()}
    policies = await admin.list_policies()
    unchecked, silent = await _unchecked(source)
    found = [
        UserRow(each, users.get(each), len(policies.get(each, ())))
        for each in sorted(users.keys() | policies.keys())
        if name.casefold() in each.casefold()
    ]
    rows, page, pages = page_of(found, page)
    return UserList(
        rows=tuple(rows),
        unchecked=unchecked,
        page=page,
        pages=pages,
        total=len(found),
        silent=silent,
        asked_at_ms=at_ms,
    )


async def _unchecked(source: Source) -> tuple[tuple[str, ...], tuple[Silent, ...]]:
    """Return the name servers that do not check users, and those that did not answer."""
    found = await configuration(source, None, key=CHECKS_USERS)
    option = found.option(CHECKS_USERS)
    values = option.values if option else ()
    return tuple(each.address for each in values if each.value != "true"), found.silent


async def user_page(source: Source, username: str) -> UserPage:
    """Return a user. Raises MqError with the code QUERY_NOT_FOUND if nothing has the name."""
    admin = source.admin
    user: UserDescription | None = None
    missing: MqError | None = None
    try:
        user = await admin.get_user(username)
    except MqError as error:
        if error.code is not Code.QUERY_NOT_FOUND:
            raise
        missing = error
    policies = await policies_of(source, username)
    if missing is not None and not policies:
        raise missing
    quotas = {each.subject: each for each in await admin.list_quotas()}
    clients = await client_list(source, user=username)
    return UserPage(
        username=username,
        user=user,
        policies=policies,
        quota=quotas.get(OF_USER + username, quotas.get(DEFAULT_OF_USERS)),
        clients=clients.total,
        silent=clients.silent,
        asked_at_ms=clients.asked_at_ms,
    )


async def policies_of(source: Source, username: str) -> tuple[PolicyDescription, ...]:
    """Return the policies of a user in the order in which they decide; none if it has none."""
    try:
        return tuple((await source.admin.list_policies(username))[username])
    except MqError as error:
        if error.code is not Code.QUERY_NOT_FOUND:
            raise
        return ()


async def quota_list(source: Source, *, subject: str = "", page: int = 1) -> QuotaList:
    """Return a page of quotas by subject. Raises MqError if no name server answers.

    Args:
        source: The cluster.
        subject: Only quotas whose subject contains this text.
        page: The number of the page, from 1 on.
    """
    at_ms = source.now_ms()
    found = [
        each
        for each in await source.admin.list_quotas()
        if subject.casefold() in each.subject.casefold()
    ]
    rows, page, pages = page_of(found, page)
    return QuotaList(
        rows=tuple(rows), page=page, pages=pages, total=len(found), silent=(), asked_at_ms=at_ms
    )


async def quota_of(source: Source, subject: str) -> QuotaDescription:
    """Return the quota of a subject. Raises MqError with the code QUERY_NOT_FOUND."""
    for each in await source.admin.list_quotas():
        if each.subject == subject:
            return each
    raise MqError(
        Code.QUERY_NOT_FOUND, f"{subject} has no quota: see the list of quotas", about="subject"
    )


async def right(
    source: Source, username: str, resource: str, action: str, source_ip: str = ""
) -> Right:
    """Return whether a user may do something, and which policy decides.

    Raises MqError like `AsyncAdminClient.test_access`. Without a user, nothing is asked.
    """
    at_ms = source.now_ms()
    decision = None
    if username:
        decision = await source.admin.test_access(username, resource, action, source_ip=source_ip)
    return Right(decision=decision, silent=(), asked_at_ms=at_ms)


# ---- consequences ----


def _clients(page: UserPage) -> str:
    """Return how many clients sign as a user at the moment."""
    known = page.clients is not None and (page.clients or not page.silent)
    number = f"{page.clients:,}" if known else "unknown"
    least = "at least " if known and page.silent else ""
    return f"clients that sign as {page.username} now: {least}{number}"


def _effects(page: UserPage, texts: Iterable[str], *facts: object) -> Effects:
    return Effects(
        texts=tuple(texts),
        seen=digest(*facts),
        silent=page.silent,
        asked_at_ms=page.asked_at_ms,
    )


def _state(user: UserDescription | None) -> Sequence[object]:
    return () if user is None else (user.username, user.enabled, user.super, user.secrets)


async def user_change(source: Source, username: str) -> tuple[UserPage, Effects]:
    """Return a user and the effects of disabling it."""
    page = await user_page(source, username)
    return page, _effects(page, [_clients(page), DISABLED], _state(page.user))


async def user_deletion(source: Source, username: str) -> Effects:
    """Return the effects of deleting a user. Raises MqError like `user_page`."""
    page = await user_page(source, username)
    texts = [_clients(page), *(f"the policy {each} is deleted" for each in page.policies)]
    if page.quota is not None and page.quota.subject == OF_USER + username:
        texts.append(f"the quota of {page.quota.subject} stays")
    return _effects(page, texts, _state(page.user), sorted(map(str, page.policies)))


async def rotation_end(source: Source, username: str) -> tuple[UserPage, Effects]:
    """Return a user and the effects of ending the rotation of its secret key."""
    page = await user_page(source, username)
    former = "calls with the former secret key are rejected; brokers do not report who uses it"
    return page, _effects(page, [_clients(page), former], _state(page.user))


async def policy_deletion(
    source: Source, username: str, resource: str, policy_type: str
) -> Effects:
    """Return the policies that a deletion concerns, and what is left.

    Raises MqError with the code QUERY_NOT_FOUND if there is none.
    """
    at_ms = source.now_ms()
    policies = await policies_of(source, username)
    gone = [
        each for each in policies if (each.resource, each.policy_type) == (resource, policy_type)
    ]
    if not gone:
        raise MqError(
            Code.QUERY_NOT_FOUND,
            f"user {username} has no policy of type {policy_type} for {resource}: see its page",
            about="resource",
        )
    left = len(policies) - len(gone)
    many = "policy is" if left == 1 else "policies are"
    return Effects(
        texts=(*(f"the policy {each} is deleted" for each in gone), f"{left} {many} left"),
        seen=digest(sorted(map(str, gone))),
        silent=(),
        asked_at_ms=at_ms,
    )


def quota_effects(source: Source, quota: QuotaDescription, rates: Mapping[str, str]) -> Effects:
    """Return the effects of deleting a quota."""
    limits = [f"{rates[name]}: {value:,} a second" for name, value in limits_of(quota).items()]
    return Effects(
        texts=(f"{quota.subject} has no limits of its own any more", *limits),
        seen=digest(quota.subject, sorted(limits_of(quota).items())),
        silent=(),
        asked_at_ms=source.now_ms(),
    )


def limits_of(quota: QuotaDescription) -> dict[str, int]:
    """Return the limits of a quota by name, without those that are 0."""
    names = ("calls", "messages_in", "bytes_in", "messages_out", "bytes_out")
    return {name: value for name in names if (value := getattr(quota, name))}
