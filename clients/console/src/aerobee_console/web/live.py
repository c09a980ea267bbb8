"""Live pages: an event stream for each open page, which the server reads for all its visitors.

A page that several visitors look at is read once. A stream has three events. "page" is the content
of the page, after it was read again and differs. "rates" has the rates of the topics and groups on
the page, once a second; it shows the browser too that the console still runs. "stale" replaces
"rates" while the page cannot be read, so that the browser says that the content is old.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote, urlsplit

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Match, Route

from aerobee_console.reading.rates import Subject, Watch
from aerobee_console.web.fields import BadField, Fields
from aerobee_console.web.render import number

READ_AGAIN_S = 5.0
BEAT_S = 1.0  # the longest time without an event
RETRY_MS = 2_000  # after which a browser connects again
MAX_ADDRESS = 4_096

Render = Callable[[str], Awaitable[bytes]]

log = logging.getLogger(__name__)

_CONTENT = re.compile(r'<main id="content".*</main>', re.DOTALL)
_SUBJECT = re.compile(r'data-rate="(topic|group) ([^" ]+) ')


@dataclass(eq=False, slots=True)
class _Page:
    """A page that some visitors look at.

    `content` is its latest content, and `version` counts the different ones. `subjects` are the
    topics and groups whose rates it shows. `stale` is True while a read fails.
    """

    visitors: int = 0
    version: int = 0
    content: str = ""
    subjects: frozenset[Subject] = frozenset()
    asked_at_ms: int = 0
    stale: bool = False
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None


class Live:
    """The pages that visitors look at.

    Args:
        watch: The shared stream of rates.
        now_ms: The clock, in milliseconds since the epoch.
    """

    def __init__(self, watch: Watch, now_ms: Callable[[], int]) -> None:
        self._watch = watch
        self._now_ms = now_ms
        self._pages: dict[str, _Page] = {}

    async def events(self, address: str, render: Render) -> AsyncGenerator[bytes, None]:
        """Yield the events of a page.

        Args:
            address: The path and query of the page.
            render: Returns the HTML of the page at an address.
        """
        async with self._watch.watching() as watcher:
            page = self._pages.get(address)
            if page is None:
                page = self._pages[address] = _Page()
                page.task = asyncio.create_task(self._read(page, address, render))
            page.visitors += 1
            try:
                yield f"retry: {RETRY_MS}\n\n".encode()
                version = 0
                while True:
                    if page.version > version:
                        version = page.version
                        watcher.subjects = page.subjects
                        yield _event("page", {"content": page.content})
                    if page.stale:
                        yield _event("stale", {})
                    else:
                        rates = self._rates(page)
                        yield _event("rates", {"asked": page.asked_at_ms, "rates": rates})
                    await self._next(page)
            finally:
                page.visitors -= 1
                if not page.visitors:
                    del self._pages[address]
                    if page.task is not None:
                        page.task.cancel()

    async def _next(self, page: _Page) -> None:
        """Wait for new content, for new rates, or for BEAT_S."""
        waits = [
            asyncio.ensure_future(page.changed.wait()),
            asyncio.ensure_future(self._watch.arrival()),
        ]
        try:
            await asyncio.wait(waits, timeout=BEAT_S, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in waits:
                each.cancel()

    async def _read(self, page: _Page, address: str, render: Render) -> None:
        """Read a page again and again, also after an error that its endpoint does not expect."""
        while True:
            try:
                await self._read_once(page, address, render)
                page.stale = False
            except Exception:
                if not page.stale:  # once, because each read may fail until the cause is gone
                    log.exception("the live page %s cannot be read", address)
                page.stale = True
            await asyncio.sleep(READ_AGAIN_S)

    async def _read_once(self, page: _Page, address: str, render: Render) -> None:
        asked_at_ms = self._now_ms()
        content = _content(await render(address))
        page.asked_at_ms = asked_at_ms
        if content and content != page.content:
            page.content = content
            page.version += 1
            page.subjects = frozenset(_SUBJECT.findall(content))
            page.changed.set()
            page.changed = asyncio.Event()

    def _rates(self, page: _Page) -> dict[str, Any]:
        return {
            f"{kind} {name} {figure}": number(value)
            for kind, name in page.subjects
            for figure, value in self._watch.rates.get((kind, name), {}).items()
        }


def _content(body: bytes) -> str:
    found = _CONTENT.search(body.decode())
    return found[0] if found else ""


def _event(name: str, data: Any) -> bytes:
    return f"event: {name}\ndata: {json.dumps(data)}\n\n".encode()


def stream(
    live_of: Callable[[Request], Live], routes: list[Route]
) -> Callable[[Request], Awaitable[Response]]:
    """Return the endpoint of the streams.

    A stream ends with its session: the browser then loads the page again, which is the login.

    Args:
        live_of: Returns the pages of the user of a request.
        routes: The routes of the pages.
    """

    async def endpoint(request: Request) -> Response:
        try:
            address = Fields(dict(request.query_params)).text("page", longest=MAX_ADDRESS)
        except BadField as error:
            raise HTTPException(400, str(error)) from None
        scope = _scope(request, address)
        route = next((each for each in routes if each.matches(scope)[0] is Match.FULL), None)
        if route is None:
            raise HTTPException(404)

        async def render(_: str) -> bytes:
            answer = await route.endpoint(Request({**scope, **route.matches(scope)[1]}))
            return bytes(answer.body)

        async def events() -> AsyncGenerator[bytes, None]:
            session = request.scope.get("session")
            async with aclosing(live_of(request).events(address, render)) as found:
                async for event in found:
                    if session is not None and not session.live:
                        yield _event("ended", {})
                        return
                    yield event

        return StreamingResponse(events(), media_type="text/event-stream")

    return endpoint


def _scope(request: Request, address: str) -> dict[str, Any]:
    parts = urlsplit(address)
    return {**request.scope, "path": unquote(parts.path), "query_string": parts.query.encode()}
