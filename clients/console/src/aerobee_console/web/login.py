"""The login and the logout, and the check that each other request has a session.

A cookie has the random id of the session. Scripts cannot read it, and other sites cannot send it.
Wrong users and wrong secret keys have the same answer. Failures are limited for each address and
for each user.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qsl, quote, urlsplit

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from aerobee_console.web.console import Console, status_of
from aerobee_console.web.fields import BadField, Fields, fields_of, joined
from aerobee_console.web.render import link
from aerobee_console.web.security import TOKEN_FIELD, Refused, visitor_address
from aerobee_console.web.sessions import NoLogins, Session, Sessions, WrongCredentials
from aerobee_wire.access.throttle import Throttle
from aerobee_wire.status import MqError

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
