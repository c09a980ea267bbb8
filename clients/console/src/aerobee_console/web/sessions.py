"""Sessions of the users who have logged in. They are in memory, and end with the process.

All sessions of a user with the same secret key share a console of that user, whose client signs its
calls. So the brokers decide, and a live page is read once for the user, and never for another one.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass, field

from aerobee_client import Credentials
from aerobee_console.web.console import Console
from aerobee_wire.access.signature import AUTHORIZATION_KEY
from aerobee_wire.status import Code, MqError

IDLE_S = 30 * 60.0
MAX_SESSIONS = 1_000
CHANGES = frozenset({"All", "Any", "Pub", "Create", "Update", "Delete"})


@dataclass(frozen=True, slots=True)
class Rights:
    """The rights of a user, for the pages. The brokers decide about each call.

    `changes` is False if no policy allows a change, and `audit` if audit logs may not be read.
    """

    changes: bool = True
    audit: bool = True


# Make the console of a user.
Opening = Callable[[Credentials, Rights], Console]


class WrongCredentials(Exception):
    """There is no such user, it is disabled, or the secret key is another one."""


class NoLogins(MqError):
    """Name servers do not check users, so no login is possible."""


@dataclass(eq=False, slots=True)
class Account:
    """A user with at least one session."""

    credentials: Credentials
    console: Console
    sessions: set[str] = field(default_factory=set)


@dataclass(eq=False, slots=True)
class Session:
    """A login. `used_s` is when its browser asked for something last, by the clock `now_s`."""

    id: str
    account: Account
    used_s: float
    now_s: Callable[[], float]
    ended: bool = False

    @property
    def live(self) -> bool:
        return not self.ended and self.now_s() - self.used_s < IDLE_S


class Sessions:
    """The running sessions.

    Args:
        opening: Makes the console of a user.
        now_s: A clock that never goes back, in seconds.
    """

    def __init__(self, opening: Opening, now_s: Callable[[], float]) -> None:
        self._opening = opening
        self._now_s = now_s
        self._sessions: dict[str, Session] = {}
        self._accounts: dict[Credentials, Account] = {}

    async def begin(self, access_key: str, secret_key: str, visitor: str) -> Session:
        """Begin a session of a user, after a name server has accepted a call that the user signed.

        The name server writes the login to its audit log, with the address of the visitor.

        Raises:
            WrongCredentials: The name server does not accept the signature.
            NoLogins: The name servers do not check users.
            MqError: The name servers do not answer.
        """
        credentials = await self._checked(access_key, secret_key, visitor)
        await self._end_old_ones()
        account = self._accounts.get(credentials)
        if account is None:
            rights = await self._rights(credentials)
            made = Account(credentials, self._opening(credentials, rights))
            account = self._accounts.setdefault(credentials, made)
            if account is not made:  # another login of the user was faster
                await made.console.close()
        session = Session(secrets.token_urlsafe(32), account, self._now_s(), self._now_s)
        self._sessions[session.id] = session
        account.sessions.add(session.id)
        return session

    async def find(self, session_id: str, *, use: bool) -> Session | None:
        """Return a session, or None if it has ended.

        Args:
            session_id: The value of the cookie.
            use: Whether the visitor asks for something. A stream that an open page opens again does
                not keep its session alive.
        """
        await self._end_old_ones()
        session = self._sessions.get(session_id)
        if session is not None and use:
            session.used_s = self._now_s()
        return session

    async def end(self, session: Session) -> None:
        """End a session, and close the client of the user with its last one."""
        session.ended = True
        self._sessions.pop(session.id, None)
        account = session.account
        account.sessions.discard(session.id)
        if not account.sessions and self._accounts.get(account.credentials) is account:
            del self._accounts[account.credentials]
            await account.console.close()

    async def close(self) -> None:
        for session in list(self._sessions.values()):
            await self.end(session)

    async def _end_old_ones(self) -> None:
        """End sessions that are idle, and the idlest ones above MAX_SESSIONS."""
        by_use = sorted(self._sessions.values(), key=lambda each: each.used_s)
        surplus = len(by_use) - MAX_SESSIONS + 1
        for number, session in enumerate(by_use):
            if number < surplus or not session.live:
                await self.end(session)

    async def _checked(self, access_key: str, secret_key: str, visitor: str) -> Credentials:
        try:
            credentials = Credentials(access_key, secret_key)
        except MqError:
            raise WrongCredentials from None
        console = self._opening(credentials, Rights())
        try:
            user = await console.source.admin.log_in(visitor=visitor)
        except MqError as error:
            if error.code is Code.NO_PERMISSION and error.about == AUTHORIZATION_KEY:
                raise WrongCredentials(error.message) from None
            raise
        finally:
            await console.close()
        if user != access_key:
            raise NoLogins(
                Code.SERVICE_NOT_AVAILABLE,
                "the name server does not check users, so no login is possible: start name servers "
                "and brokers with authenticationEnabled=true",
            )
        return credentials

    async def _rights(self, credentials: Credentials) -> Rights:
        """Return the rights of a user. A right that is unknown is offered."""
        console = self._opening(credentials, Rights())
        name = credentials.access_key
        try:
            if (await console.source.admin.get_user(name)).super:
                return Rights()
            policies = (await console.source.admin.list_policies(name))[name]
        except MqError as error:  # the brokers refuse what the user may not do
            # Reading a user needs the same right as reading an audit log.
            return Rights(
                changes=error.code is not Code.QUERY_NOT_FOUND,
                audit=error.code is not Code.NO_PERMISSION,
            )
        finally:
            await console.close()
        return Rights(
            changes=any(
                each.decision == "ALLOW" and CHANGES.intersection(each.actions) for each in policies
            )
        )


def reads_only_text(user: str) -> str:
    """Return why the console of a user without a right to change anything refuses changes."""
    return f"the policies of {user} allow no change: if they differ by now, log in again"
