"""The login and the logout, and the check that each other request has a session.

A cookie has the random id of the session. Scripts cannot read it, and other sites cannot send it.
Wrong users and wrong secret keys have the same answer. Failures are limited for each address and
for each user.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qsl, quote, urlsplit

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from aerobee_client import Credentials
from aerobee_console.web.console import Console, status_of
from aerobee_console.web.fields import BadField, Fields, fields_of, joined
from aerobee_console.web.render import link
from aerobee_console.web.security import TOKEN_FIELD, Refused, visitor_address
from aerobee_wire.access.signature import AUTHORIZATION_KEY
from aerobee_wire.access.throttle import Throttle
from aerobee_wire.status import Code, MqError

# ---- sessions ----
#
# Sessions of the users who have logged in. They are in memory, and end with the process.
#
# All sessions of a user with the same secret key share a console of that user, whose client signs
# its calls. So the brokers decide, and a live page is read once for the user, and never for another
# one.


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


LOGIN, LOGOUT, STREAM = "/login", "/logout", "/live"
OPEN = ("/static/",)  # style and scripts of the login page
API = "/api/"
# __Host- demands the root as path, and __Secure- is for a console at a path of its own.
COOKIE, SECURE_COOKIE = "aerobee_session", "__Host-aerobee_session"
SECURE_COOKIE_OF_PATH = "__Secure-aerobee_session"
WINDOW_S = 60.0
FAILURES_OF_ADDRESS, FAILURES_OF_USER = 30, 10
WRONG = "the user or the secret key is not valid"
# An error may name addresses and files, which a visitor without a session must not see.
UNCHECKED = "the login could not be checked: the log of the console has the reason"
UNSENT = "the session ended before the form was sent: log in, and fill in the form again"
NO_SESSION = "there is no session: log in at /login"

# Log an event with its fields.
Log = Callable[..., None]


def console_of(request: Request) -> Console:
    """Return the console of the user of a request, or the only one if there is no login."""
    console: Console = request.scope["console"]
    return console


class Entrance:
    """The pages of the login.

    Args:
        console: Renders the page of the login. It asks no server.
        sessions: The sessions.
        now_s: A clock that never goes back, in seconds.
        log: Logs an event.
    """

    def __init__(
        self, console: Console, sessions: Sessions, now_s: Callable[[], float], log: Log
    ) -> None:
        self.console = console
        self.sessions = sessions
        self._log = log
        self._of_address = Throttle(FAILURES_OF_ADDRESS, WINDOW_S, now_s)
        self._of_user = Throttle(FAILURES_OF_USER, WINDOW_S, now_s)

    @property
    def routes(self) -> list[Route]:
        return [
            Route(LOGIN, self._show, methods=["GET"]),
            Route(LOGIN, self._log_in, methods=["POST"]),
            Route(LOGOUT, self._log_out, methods=["POST"]),
        ]

    @property
    def cookie(self) -> str:
        options = self.console.options
        if not options.secure:
            return COOKIE
        return SECURE_COOKIE_OF_PATH if options.base_path else SECURE_COOKIE

    async def session_of(self, headers: Headers, *, use: bool) -> Session | None:
        try:
            found = SimpleCookie(headers.get("cookie", "")).get(self.cookie)
        except CookieError:
            return None
        return None if found is None else await self.sessions.find(found.value, use=use)

    async def _show(self, request: Request) -> Response:
        try:
            address = local(fields_of(request).text("next", longest=4_096))
        except BadField:
            address = "/"
        if await self.session_of(request.headers, use=True) is not None:
            return RedirectResponse(address, 303)
        message = UNSENT if fields_of(request).given("unsent") else ""
        return self._page(request, 200, message, address)

    async def _log_in(self, request: Request) -> Response:
        address, user = "/", ""
        try:
            fields = await _sent(request, self.console)
            user = fields.text("user")
            address = local(fields.text("next", longest=4_096))
            session = await self._begin(request, user, fields.given("secret"))
        except _TooMany as error:
            return self._page(request, 429, str(error), address, user, retry_s=error.wait_s)
        except WrongCredentials:
            return self._page(request, 403, WRONG, address, user)
        except BadField as error:
            return self._page(request, 400, str(error), address, user)
        except Refused as error:
            return self._page(request, 403, str(error), address, user)
        except MqError as error:
            message = error.message if isinstance(error, NoLogins) else UNCHECKED
            return self._page(request, status_of(error), message, address, user)
        former = await self.session_of(request.headers, use=False)
        if former is not None:
            await self.sessions.end(former)
        answer = RedirectResponse(address, 303)
        options = self.console.options
        answer.set_cookie(
            self.cookie, session.id, path=options.base_path or "/", httponly=True,
            samesite="strict", secure=options.secure,
        )  # fmt: skip
        return answer

    async def _begin(self, request: Request, user: str, secret: str) -> Session:
        place = visitor_address(request.scope, self.console.options)
        wait_s = max(self._of_address.wait_s(place), self._of_user.wait_s(user))
        if wait_s:
            self._log("login_throttled", level="warning", user=user, address=place)
            raise _TooMany(math.ceil(wait_s))
        # Counted before the answer, so that attempts at the same time count as well.
        self._of_address.add(place)
        self._of_user.add(user)
        try:
            session = await self.sessions.begin(user, secret, place)
        except WrongCredentials as error:
            self._log("login_failed", level="warning", user=user, address=place, reason=str(error))
            raise
        except MqError as error:
            self._forgive(place, user)
            self._log(
                "login_unchecked", level="error", user=user, address=place, reason=error.message
            )
            raise
        self._forgive(place, user)
        self._log("login", user=user, address=place)
        return session

    def _forgive(self, place: str, user: str) -> None:
        self._of_address.forgive(place)
        self._of_user.forgive(user)

    async def _log_out(self, request: Request) -> Response:
        try:
            await _sent(request, console_of(request))
        except (BadField, Refused) as error:
            return console_of(request).problem(request, 403, str(error), title="Refused")
        await self.sessions.end(request.scope["session"])
        answer = RedirectResponse(LOGIN, 303)
        options = self.console.options
        answer.delete_cookie(
            self.cookie, path=options.base_path or "/", httponly=True, samesite="strict",
            secure=options.secure,
        )  # fmt: skip
        return answer

    def _page(
        self,
        request: Request,
        status: int,
        message: str,
        address: str,
        user: str = "",
        *,
        retry_s: int = 0,
    ) -> Response:
        answer = self.console.page(
            request, "login.html.j2", status=status, tab="", page=None, message=message,
            values={"next": address, "user": user},
        )  # fmt: skip
        if retry_s:
            answer.headers["retry-after"] = str(retry_s)
        return answer


class _TooMany(Exception):
    """There were too many failures."""

    def __init__(self, wait_s: int) -> None:
        super().__init__(f"too many logins have failed: retry in {wait_s} s")
        self.wait_s = wait_s


def local(address: str) -> str:
    """Return an address of the console, and "/" in place of one that leads elsewhere."""
    parts = urlsplit(address)
    is_local = address.startswith("/") and not address.startswith("//") and not parts.netloc
    is_plain = address.isascii() and address.isprintable() and "\\" not in address
    return address if is_local and is_plain and parts.path not in (LOGIN, LOGOUT) else "/"


async def _sent(request: Request, console: Console) -> Fields:
    """Return the fields of a form of this console. Raises Refused for a form of another page."""
    console.guard.check_source(request.headers)
    try:
        values = joined(parse_qsl((await request.body()).decode(), keep_blank_values=True))
    except ValueError:
        raise BadField("body", "it is not a form in UTF-8: use the form of the console") from None
    console.guard.check_token(values.pop(TOKEN_FIELD, ""))
    return Fields(values)


class LoginMiddleware:
    """Gives each request the console of its user, and refuses requests without a session.

    Without an entrance, all requests have the same console.
    """

    def __init__(self, app: ASGIApp, console: Console, entrance: Entrance | None) -> None:
        self._app = app
        self._console = console
        self._entrance = entrance

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        scope["console"] = self._console
        path = scope["path"]
        if self._entrance is not None and path != LOGIN and not path.startswith(OPEN):
            session = await self._entrance.session_of(Headers(scope=scope), use=path != STREAM)
            if session is None:
                await _refusal(scope)(scope, receive, send)
                return
            scope["session"] = session
            scope["console"] = session.account.console
        await self._app(scope, receive, send)


def _refusal(scope: Scope) -> Callable[[Scope, Receive, Send], Awaitable[Any]]:
    path = scope["path"]
    if path.startswith(API) or path == STREAM:
        return JSONResponse({"message": NO_SESSION, "field": ""}, 401)
    query = scope["query_string"].decode("ascii", "replace")
    address = f"{quote(path)}?{query}" if query else quote(path)
    # A change has its form at its own address.
    was_sent = scope["method"] == "POST" and path != LOGOUT
    there = "" if address == "/" or path == LOGOUT else address
    return RedirectResponse(link(LOGIN, next=there, unsent=was_sent), 303)
