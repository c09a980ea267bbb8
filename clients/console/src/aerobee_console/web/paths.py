"""The paths of addresses: the base path of the console, and names as a part of a path."""

from __future__ import annotations

import re
from urllib.parse import quote, urlsplit

from starlette.convertors import Convertor, register_url_convertor
from starlette.datastructures import MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

# ---- base path ----
#
# Serve the console at a path below the root of its host, such as /aerobee.
#
# Inside, every address begins at the root of the console. The middleware removes the base path from
# each request, and adds it to each address of a page and to each redirect. So a new page does not
# handle it.


_BASE_PATH = re.compile(r"(/[A-Za-z0-9._~-]+)+")
# An attribute with an address of the console. Texts of users have no quotation marks, because the
# templates escape them.
_ADDRESS = re.compile(r'\b(href|src|action)="/')


class BadBasePath(ValueError):
    """A base path is not valid."""


def base_path(value: str) -> str:
    """Return a base path without a slash at its end; "" for the root. Raises BadBasePath."""
    path = value.rstrip("/")
    if path and (not _BASE_PATH.fullmatch(path) or {".", ".."} & set(path.split("/"))):
        raise BadBasePath(f"{value!r} is not a path: give one such as /aerobee")
    return path


def at_base(text: str, base: str) -> str:
    """Return a page with the base path before each address of the console."""
    return _ADDRESS.sub(rf'\1="{base}/', text) if base else text


class BasePathMiddleware:
    """Removes the base path from requests, and adds it to redirects.

    Other paths are answered with 404.
    """

    def __init__(self, app: ASGIApp, base: str) -> None:
        self._app = app
        self._base = base

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        base, path = self._base, scope["path"]
        if path != base and not path.startswith(f"{base}/"):
            answer = PlainTextResponse(f"The console is at {base}/\n", 404)
            await answer(scope, receive, send)
            return

        async def located(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                if location := headers.get("location"):
                    headers["location"] = self._located(location)
            await send(message)

        inner = {**scope, "path": path.removeprefix(base) or "/"}
        await self._app(inner, receive, located)

    def _located(self, location: str) -> str:
        """Return a redirect with the base path, and without a host: a proxy has another scheme."""
        parts = urlsplit(location)
        return f"{self._base}{parts._replace(scheme='', netloc='').geturl()}"


# ---- names ----
#
# Names of topics, groups, users and brokers as a part of the path of an address.
#
# Browsers remove the parts "." and ".." from a path, also if they are quoted. So a name of this
# kind gets a "~" in front of it. No name contains a slash.


_DOTS = re.compile(r"~*\.\.?")
_MARK = "~"
_KIND = "aerobee_name"


def part(value: str) -> str:
    """Return a name as a part of a path."""
    return quote(_marked(value), safe="")


def _marked(value: str) -> str:
    return f"{_MARK}{value}" if _DOTS.fullmatch(value) else value


class _Name(Convertor[str]):
    regex = "[^/]+"

    def convert(self, value: str) -> str:
        return value.removeprefix(_MARK) if _DOTS.fullmatch(value) else value

    def to_string(self, value: str) -> str:
        return _marked(value)


register_url_convertor(_KIND, _Name())


def pattern(path: str) -> str:
    """Return the pattern of a route, from a path such as "/topics/{topic}"."""
    return path.replace("}", f":{_KIND}}}")
