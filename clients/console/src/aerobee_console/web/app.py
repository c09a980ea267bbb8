"""The web application: routes, errors, static files, and the life of the client behind them."""

from __future__ import annotations

import mimetypes
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from importlib import resources

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from aerobee_console.web import api
from aerobee_console.web.actions import ACTIONS, show
from aerobee_console.web.console import Console, status_of
from aerobee_console.web.fields import BadField
from aerobee_console.web.forms import Action
from aerobee_console.web.live import stream
from aerobee_console.web.login import Entrance, LoginMiddleware, console_of
from aerobee_console.web.pages import PAGES, Page
from aerobee_console.web.paths import BasePathMiddleware, pattern
from aerobee_console.web.security import HEADERS, Refused, SecurityMiddleware
from aerobee_wire.status import MqError

STATIC = {
    "console.css",
    "console.js",
    "icon.svg",
    "vendor/htmx.min.js",
    "vendor/idiomorph-ext.min.js",
    "vendor/uPlot.iife.min.js",
    "vendor/uPlot.min.css",
}


def application(console: Console, entrance: Entrance | None = None) -> Starlette:
    """Return the application. It closes its clients when it ends.

    Args:
        console: The console of all visitors; with a login, that of its page.
        entrance: The login; None for none.
    """

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        try:
            yield
        finally:
            if entrance is not None:
                await entrance.sessions.close()
            await console.close()

    async def static(request: Request) -> Response:
        return _static(request.path_params["path"])

    routes = [
        Route(pattern(path), _endpoint(_page_of(action)), methods=["GET", "POST"])
        for path, action in ACTIONS.items()
    ]
    pages = [Route(pattern(path), _endpoint(page)) for path, page in PAGES.items()]
    routes += pages
    routes.append(Route("/live", stream(lambda request: console_of(request).live, pages)))
    routes += _api_routes()
    if entrance is not None:
        routes += entrance.routes
    routes.append(Route("/static/{path:path}", static))
    return Starlette(
        routes=routes,
        lifespan=lifespan,
        middleware=[
            Middleware(SecurityMiddleware, options=console.options),
            Middleware(BasePathMiddleware, base=console.options.base_path),
            Middleware(LoginMiddleware, console=console, entrance=entrance),
        ],
        exception_handlers={HTTPException: _http_error, Exception: _failure(console)},
    )


def _api_routes() -> list[Route]:
    def reads(endpoint: api.Endpoint) -> Page:
        return lambda request, console: api.read(request, console, endpoint)

    def changes(action: Action) -> Page:
        return lambda request, console: api.change(request, console, action)

    both = ["GET", "POST"]
    calls = [(path, changes(action), both) for path, action in ACTIONS.items()]
    calls += [(path, reads(endpoint), ["GET"]) for path, endpoint in api.ENDPOINTS.items()]
    calls.append((f"/{api.FILE}", api.description, ["GET"]))
    return [
        Route(pattern(api.PREFIX + path), _api_endpoint(call), methods=methods)
        for path, call, methods in calls
    ]


def _api_endpoint(call: Page) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        try:
            return await call(request, console_of(request))
        except Exception as error:
            answer = api.problem(error)
            if answer is None:
                raise
            return answer

    return endpoint


def _page_of(action: Action) -> Page:
    async def page(request: Request, console: Console) -> Response:
        return await show(request, console, action)

    return page


def _endpoint(page: Page) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        console = console_of(request)
        try:
            return await page(request, console)
        except BadField as error:
            return console.problem(
                request, 400, f"{error.field}: {error.message}", title="Invalid value"
            )
        except Refused as error:
            return console.problem(request, 403, str(error), title="Refused")
        except MqError as error:
            status = status_of(error)
            title = {404: "Not found", 502: "No answer"}.get(status, "")
            return console.problem(request, status, error.message, title=title)

    return endpoint


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if request.url.path.startswith(f"{api.PREFIX}/"):
        answer = api.problem(error)
        assert answer is not None
        return answer
    text = {
        404: "There is no such page: use the menu.",
        405: "This page does not accept the method: use the menu.",
    }.get(error.status_code, str(error.detail))
    return console_of(request).problem(request, error.status_code, text)


def _failure(console: Console) -> Callable[[Request, Exception], Awaitable[Response]]:
    """Return the handler of defects. The server logs the error after the answer."""

    async def failure(request: Request, _: Exception) -> Response:
        text = "The console failed: its log has the error. Repeat the request, and report it."
        answer: Response = JSONResponse({"message": text, "field": ""}, 500)
        if not request.url.path.startswith(f"{api.PREFIX}/"):
            answer = console.problem(request, 500, text)
        answer.headers.update({**HEADERS, "cache-control": "no-store"})  # outside of the middleware
        return answer

    return failure


def _static(path: str) -> Response:
    """Return a file of the package. Its content is as fixed as the version of the console."""
    if path not in STATIC:
        raise HTTPException(404)
    content = resources.files("aerobee_console").joinpath("static", path).read_bytes()
    kind = mimetypes.guess_type(path)[0] or "application/octet-stream"
    return Response(content, media_type=kind, headers={"cache-control": "max-age=3600"})
