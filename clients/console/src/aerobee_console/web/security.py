"""Protect the console from other pages in the same browser.

* The header Host must name loopback or a configured name. Otherwise a page of a foreign name that
  resolves to 127.0.0.1 could read the console (DNS rebinding).
* A change needs an Origin equal to the console's own address, and the token of this process, which
  is in every form. Other pages can neither set the one nor read the other (CSRF).
* Headers forbid foreign and inline scripts and styles, frames, and guesses of content types.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Mapping, Sequence
from ipaddress import IPv4Network, IPv6Network, ip_address
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from aerobee_console.options import Options

MAX_REQUEST_BYTES = 5 * 1024 * 1024
TOO_LARGE = f"The request is too large: send at most {MAX_REQUEST_BYTES:,} bytes."
HSTS_S = 180 * 86_400
TOKEN_FIELD = "csrf_token"
TOKEN_HEADER = "x-csrf-token"

HEADERS = {
    "content-security-policy": (
        "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; "
        "object-src 'none'"
    ),
    "x-frame-options": "DENY",
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


class Refused(Exception):
    """A change that is refused. The message says why and what to do."""


class Guard:
    """Decides which requests may make changes. The token lives as long as the process."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self.token = secrets.token_urlsafe(32)

    def check_origin(self, headers: Mapping[str, str]) -> None:
        """Raise Refused if a request with these headers may make no changes.

        Args:
            headers: The headers of the request, with names in lower case.
        """
        if self._options.read_only:
            raise Refused(self._options.read_only_reason)
        self.check_source(headers)

    def check_source(self, headers: Mapping[str, str]) -> None:
        """Raise Refused unless a request comes from a page of the console."""
        scheme = "https" if self._options.secure else "http"
        origin, host = headers.get("origin", ""), headers.get("host", "")
        if urlsplit(origin).netloc != host or not origin.startswith(("http://", "https://")):
            raise Refused(
                f"a change must come from the console itself: the header Origin is {origin!r} and "
                f"must be {scheme}://{host}"
            )

    def check_token(self, token: str) -> None:
        """Raise Refused unless `token` is the token of this process."""
        if not hmac.compare_digest(token.encode(), self.token.encode()):
            raise Refused(
                "the form is from an earlier run of the console: open the page again and repeat"
            )


def host_of(value: str) -> str:
    """Return the name in a header Host without its port, in lower case."""
    if value.startswith("["):
        return value.partition("]")[0].removeprefix("[").lower()
    return value.partition(":")[0].lower()


def visitor_address(scope: Scope, options: Options) -> str:
    """Return the address of a visitor: behind proxies, the last one that is not a proxy."""
    address = scope["client"][0] if scope.get("client") else ""
    if options.trusted_proxies:
        hops = Headers(scope=scope).get("x-forwarded-for", "").split(",")
        for hop in reversed([each.strip() for each in hops]):
            if not _is_in(address, options.trusted_proxies) or not hop:
                break
            address = hop
    return address


def _is_in(address: str, networks: Sequence[IPv4Network | IPv6Network]) -> bool:
    try:
        found = ip_address(address)
    except ValueError:
        return False
    return any(found in each for each in networks)


class SecurityMiddleware:
    """Refuses requests for foreign hosts and too large ones, and adds the security headers.

    Behind reverse proxies, it refuses requests of other callers, and of browsers without TLS.
    """

    def __init__(self, app: ASGIApp, options: Options) -> None:
        self._app = app
        self._names = options.names
        self._proxies = options.trusted_proxies
        self._secure = options.secure

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def protected(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                if self._secure:
                    headers["strict-transport-security"] = f"max-age={HSTS_S}"
                if "cache-control" not in headers:
                    headers["cache-control"] = "no-store"
            await send(message)

        received = 0

        async def limited() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > MAX_REQUEST_BYTES:  # of a body without a Content-Length
                raise HTTPException(413, TOO_LARGE)
            return message

        refusal = self._refusal(scope, Headers(scope=scope))
        await (refusal or self._app)(scope, limited, protected)

    def _refusal(self, scope: Scope, headers: Headers) -> PlainTextResponse | None:
        peer = scope["client"][0] if scope.get("client") else ""
        if self._proxies and not _is_in(peer, self._proxies):
            return PlainTextResponse(
                f"The console answers only its reverse proxies: {peer} is not in a network of "
                "--trusted-proxy.\n",
                403,
            )
        if self._proxies and headers.get("x-forwarded-proto", "") != "https":
            return PlainTextResponse(
                "Open the console with https. The reverse proxy must send the header "
                "X-Forwarded-Proto with the scheme that the browser uses.\n",
                403,
            )
        host = headers.get("host", "")
        if host_of(host) not in self._names:
            return PlainTextResponse(
                f"The console does not answer for the host {host!r}. Open it as "
                "http://127.0.0.1, or start it with --host-name NAME.\n",
                421,
            )
        length = headers.get("content-length", "0")
        if not length.isdecimal() or int(length) > MAX_REQUEST_BYTES:
            return PlainTextResponse(f"{TOO_LARGE}\n", 413)
        return None
