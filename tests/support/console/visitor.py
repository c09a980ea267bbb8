"""A visitor of the console, over brokers in one loop: no sockets, no browser."""

from __future__ import annotations

import html
import json
import re
import threading
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlencode, urlsplit

from aerobee.broker.v1.client_pb2 import HeartbeatRequest

from aerobee_broker.metadata.topics import TopicConfig
from aerobee_cli.doctor.checks import Finding
from aerobee_cli.doctor.cluster import Diagnosis
from aerobee_client import AsyncAdminClient
from aerobee_console.options import Options
from aerobee_console.reading.overview import Doctor
from aerobee_console.reading.source import Source
from aerobee_console.web.api import PREFIX
from aerobee_console.web.app import application
from aerobee_console.web.console import Console
from aerobee_console.web.security import TOKEN_HEADER
from aerobee_wire import rpcs
from support.broker.harness import BrokerHarness
from support.broker.in_process import InProcess

NAMESRV = "10.0.0.9:9876"
HOST = "127.0.0.1:8082"
NOW_MS = 1_800_000_000_000


@dataclass(frozen=True)
class Response:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()

    @property
    def words(self) -> str:
        """The text without tags, in one line."""
        text = self.text.replace("<wbr>", "")
        return html.unescape(" ".join(re.sub(r"<[^>]*>", " ", text).split()))


async def call(
    app: Any, method: str, address: str, headers: Mapping[str, str], *body: bytes
) -> Response:
    """One request to an ASGI application, with the parts of its body."""
    parts = urlsplit(address)
    scope = {
        "type": "http",
        "http_version": "1.1",
        "asgi": {"version": "3.0"},
        "method": method,
        "scheme": "http",
        "path": unquote(parts.path),
        "raw_path": parts.path.encode(),
        "query_string": parts.query.encode(),
        "root_path": "",
        "headers": [(name.lower().encode(), value.encode()) for name, value in headers.items()],
        "client": ("127.0.0.1", 4711),
        "server": ("127.0.0.1", 8082),
    }
    sent: list[Any] = []
    requests = [{"type": "http.request", "body": b"", "more_body": False}]
    requests += [{"type": "http.request", "body": each, "more_body": True} for each in body[::-1]]

    async def receive() -> Any:
        return requests.pop() if requests else {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    await app(scope, receive, send)
    start = sent[0]
    return Response(
        start["status"],
        {name.decode(): value.decode() for name, value in start["headers"]},
        b"".join(message.get("body", b"") for message in sent[1:]),
    )


class Visitor:
    """Begin with `await Visitor.begin(path)`: two brokers, "a" and "b"."""

    def __init__(self, brokers: Mapping[str, BrokerHarness], **options: Any) -> None:
        self.brokers = brokers
        self.transport = InProcess(brokers)
        self.now_ms = NOW_MS
        self.findings: list[Finding] = []
        self.checks_may_end = threading.Event()
        self.checks_may_end.set()
        self.stack = AsyncExitStack()
        self.admin = AsyncAdminClient(NAMESRV, transport=self.transport)
        settings = Options(namesrvs=(NAMESRV,), **options)
        source = Source(self.admin, (NAMESRV,), lambda: self.now_ms, settings.mask)
        doctor = Doctor((NAMESRV,), lambda: self.now_ms, self._diagnosed)
        self.console = Console(settings, source, doctor)
        self.app = application(self.console)

    @classmethod
    async def begin(cls, path: Path, *names: str, **options: Any) -> Visitor:
        brokers = {
            name: await BrokerHarness.begin(path / name, brokerName=name)
            for name in names or ("a", "b")
        }
        return cls(brokers, **options)

    async def end(self) -> None:
        await self.admin.close()
        for broker in self.brokers.values():
            await broker.end()
        assert not self.transport.defects

    def _diagnosed(self, _: Sequence[str]) -> Diagnosis:
        self.checks_may_end.wait(10)
        return Diagnosis(list(self.findings), ["2 masters (2 reached)"])

    # ---- the cluster ----

    def topic(self, name: str, *, queues: int = 1, message_type: str = "NORMAL") -> None:
        attributes = {"message.type": message_type}
        for broker in self.brokers.values():
            broker.tables.topics.put(TopicConfig(name, queues, queues, attributes=attributes))

    async def group(self, name: str, **fields: Any) -> None:
        for broker in self.brokers.values():
            await broker.group(name, **fields)

    async def member(self, group: str, *topics: str, client_id: str = "member") -> None:
        """Connect a member of a group that subscribes to these topics."""
        beat = HeartbeatRequest(client_id=client_id)
        consumer = beat.consumers.add(consumer_group=group)
        for topic in topics:
            consumer.subscriptions.add(topic=topic, expression="*")
        for name in self.brokers:
            await self.transport.call(name, rpcs.HEARTBEAT, beat, timeout_s=5)

    # ---- requests ----

    async def get(self, address: str, *, host: str = HOST, **headers: str) -> Response:
        return await call(self.app, "GET", address, {"host": host, **headers})

    async def post(
        self,
        address: str,
        fields: Mapping[str, str] | None = None,
        *,
        origin: str | None = f"http://{HOST}",
        token: str | None = None,
    ) -> Response:
        given = {"csrf_token": self.console.guard.token if token is None else token}
        headers = {"host": HOST, "content-type": "application/x-www-form-urlencoded"}
        if origin is not None:
            headers["origin"] = origin
        body = urlencode({**given, **(fields or {})}).encode()
        headers["content-length"] = str(len(body))
        return await call(self.app, "POST", address, headers, body)

    async def api(self, path: str, body: object, token: str | None = None) -> Response:
        """Make a change by the API."""
        headers = {
            "host": HOST,
            "origin": f"http://{HOST}",
            TOKEN_HEADER: self.console.guard.token if token is None else token,
        }
        return await call(self.app, "POST", PREFIX + path, headers, json.dumps(body).encode())


# ---- claims ----
#
# Find claims of a page that are unfounded while a broker does not answer.


_TILE = re.compile(
    r'<dt>([^<]*)</dt><dd class="value"[^>]*>(?:<a [^>]*>)?\s*(0|-1|none|empty)\s*</'
)
_EMPTY = re.compile(r'class="[^"]*\bsoft\b[^"]*">\s*(No [^<]*)<')


def unfounded(page: str) -> list[str]:
    """Return what a page may not claim while a broker is silent: zeros, green, and empty lists.

    An empty list must say whose it is, such as "No job at the brokers that answered.".
    """
    zeros = [f"{title}: {value}" for title, value in _TILE.findall(page)]
    empty = [text for text in map(html.unescape, _EMPTY.findall(page)) if " that " not in text]
    return [*zeros, *empty, *(["a green verdict"] if "state good" in page else [])]
