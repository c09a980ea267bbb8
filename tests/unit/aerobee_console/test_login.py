"""The login: who gets a session, how it ends, and what requests without one get."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import replace
from ipaddress import ip_network
from typing import Any
from urllib.parse import urlencode

import pytest
from aerobee.access.v1 import access_pb2

from aerobee_client import AsyncAdminClient, Credentials
from aerobee_console.reading.source import Source
from aerobee_console.web.app import application
from aerobee_console.web.console import Console
from aerobee_console.web.live import Live, stream
from aerobee_console.web.login import (
    COOKIE,
    FAILURES_OF_ADDRESS,
    FAILURES_OF_USER,
    IDLE_S,
    MAX_SESSIONS,
    SECURE_COOKIE,
    SECURE_COOKIE_OF_PATH,
    UNSENT,
    WINDOW_S,
    WRONG,
    Entrance,
    Rights,
    Sessions,
    local,
    reads_only_text,
)
from aerobee_console.web.render import link
from aerobee_wire.access.signature import NotAuthenticated
from aerobee_wire.rpcs import Rpc
from aerobee_wire.status import Code, MqError
from support.console.visitor import HOST, NAMESRV, Response, Visitor, call

SECRET = "a secret key"
USERS = {"ops": ("All",), "eve": ("Get", "List"), "app": ("Pub",)}
OF_CLUSTER = {"GetUser", "GetAcl", "ListAuditLines"}  # RPCs that need Get on the cluster


class Signed:
    """The transport of one user, of whom a name server knows the secret key."""

    def __init__(self, house: House, credentials: Credentials | None) -> None:
        self._house = house
        self._credentials = credentials
        self.closed = False

    async def call(
        self, address: str, rpc: Rpc[Any, Any], request: Any, *, timeout_s: float
    ) -> Any:
        given = self._credentials
        assert given is not None, "a call without a user"
        self._house.calls.append((given.access_key, rpc.method))
        known = given.access_key in USERS and given.secret_key == SECRET
        if self._house.checks_users and not known:
            raise NotAuthenticated("the user or the signature is not valid")
        if rpc.method == "LogIn" and "LogIn" not in self._house.visitor.transport.answers:
            self._house.visitors.append(request.visitor)
            username = given.access_key if self._house.checks_users else ""
            return access_pb2.LogInResponse(username=username)
        if rpc.method in OF_CLUSTER and not {"All", "Get"} & set(USERS[given.access_key]):
            raise MqError(Code.NO_PERMISSION, f"{given.access_key} may not call {rpc.method}")
        if rpc.method == "GetUser":
            user = access_pb2.UserInfo(username=given.access_key, enabled=True, secrets=1)
            return access_pb2.GetUserResponse(user=user)
        if rpc.method == "GetAcl":
            policy = access_pb2.Policy(resource="*", actions=USERS[given.access_key])
            return access_pb2.GetAclResponse(policies=[policy])
        return await self._house.visitor.transport.call(address, rpc, request, timeout_s=timeout_s)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._house.visitor.transport, name)

    async def close(self) -> None:
        self.closed = True


class House:
    """A console with a login over the brokers of a visitor."""

    def __init__(self, visitor: Visitor, **options: Any) -> None:
        self.visitor = visitor
        self.options = replace(visitor.console.options, login=True, **options)
        self.calls: list[tuple[str, str]] = []
        self.visitors: list[str] = []  # of logins that the name server has written
        self.checks_users = True
        self.now_s = 0.0
        self.log: list[dict[str, str]] = []
        self.sessions = Sessions(self._opened, lambda: self.now_s)
        self.entrance = Entrance(
            self._opened(None, Rights()),
            self.sessions,
            lambda: self.now_s,
            lambda event, **fields: self.log.append({"event": event, **fields}),
        )
        self.app = application(self.entrance.console, self.entrance)

    def _opened(self, credentials: Credentials | None, rights: Rights) -> Console:
        options = replace(self.options, audit=rights.audit)
        if not rights.changes and credentials:
            reason = reads_only_text(credentials.access_key)
            options = replace(options, read_only=True, read_only_reason=reason)
        admin = AsyncAdminClient(NAMESRV, transport=Signed(self, credentials))
        source = Source(admin, (NAMESRV,), lambda: self.visitor.now_ms, options.mask)
        return Console(options, source, self.visitor.console.doctor, credentials)

    @property
    def cookie_name(self) -> str:
        return self.entrance.cookie

    async def get(self, address: str, session: str = "", **headers: str) -> Response:
        given = {"host": HOST, **headers}
        if session:
            given["cookie"] = f"{self.cookie_name}={session}"
        return await call(self.app, "GET", address, given)

    async def post(
        self,
        address: str,
        fields: dict[str, str],
        session: str = "",
        token: str | None = None,
        **headers: str,
    ) -> Response:
        scheme = "https" if self.options.secure else "http"
        given = {"host": HOST, "origin": f"{scheme}://{HOST}", **headers}
        if session:
            given["cookie"] = f"{self.cookie_name}={session}"
        sent = {"csrf_token": self.entrance.console.guard.token if token is None else token}
        return await call(self.app, "POST", address, given, urlencode(sent | fields).encode())

    async def log_in(self, user: str = "ops", secret: str = SECRET, **fields: str) -> Response:
        return await self.post("/login", {"user": user, "secret": secret, **fields})

    async def session(self, user: str = "ops") -> str:
        """Log in, and return the value of the cookie."""
        answer = await self.log_in(user)
        assert answer.status == 303, answer.words
        return answer.headers["set-cookie"].partition("=")[2].partition(";")[0]

    async def token(self, session: str) -> str:
        answer = await self.get("/api/v1/session", session)
        return str(json.loads(answer.text)["csrf_token"])


@pytest.fixture
async def house(visitor: Visitor) -> AsyncIterator[House]:
    house = House(visitor)
    yield house
    await house.sessions.close()


# ---- without a session ----


@pytest.mark.parametrize("address", ["/", "/topics", "/topics/orders?period=1m", "/keys", "/none"])
async def test_a_page_without_a_session_is_the_login(address: str, house: House) -> None:
    answer = await house.get(address)
    assert answer.status == 303 and answer.headers["location"].startswith("/login")
    assert "orders" not in answer.text and not house.calls


@pytest.mark.parametrize("address", ["/api/v1/topics", "/api/v1/session", "/live?page=/topics"])
@pytest.mark.parametrize("session", ["", "x", "\xe4"])
async def test_the_api_without_a_session_is_an_error(
    session: str, address: str, house: House
) -> None:
    answer = await house.get(address, session)
    assert answer.status == 401 and "/login" in json.loads(answer.text)["message"]


async def test_no_change_is_made_without_a_session(house: House) -> None:
    answer = await house.post("/new-topic", {"topic": "invoices"})
    assert answer.status == 303 and not house.calls
    answer = await house.post("/api/v1/new-topic", {})
    assert answer.status == 401 and not house.calls


async def test_a_form_that_was_sent_too_late_is_opened_again_after_the_login(house: House) -> None:
    late = await house.post("/topics/orders/send", {"body": "x"})
    page = await house.get(late.headers["location"])
    assert UNSENT in page.words
    (address,) = re.findall(r'name="next" value="([^"]+)"', page.text)
    assert (await house.log_in(next=address)).headers["location"] == "/topics/orders/send"
    late = await house.post("/logout", {})
    assert "next" not in late.headers["location"]


async def test_the_login_page_shows_nothing_of_the_cluster(house: House) -> None:
    answer = await house.get("/login?next=/topics")
    assert answer.status == 200 and NAMESRV not in answer.text and "/brokers" not in answer.text
    assert (await house.get("/static/console.css")).status == 200


# ---- the login ----


async def test_calls_are_signed_by_the_user_who_logged_in(house: House) -> None:
    answer = await house.log_in(next="/topics?sort=lag")
    assert answer.status == 303 and answer.headers["location"] == "/topics?sort=lag"
    cookie = answer.headers["set-cookie"].lower()
    assert cookie.startswith(f"{COOKIE}=") and "path=/" in cookie
    assert "httponly" in cookie and "samesite=strict" in cookie and "secure" not in cookie
    session = answer.headers["set-cookie"].partition("=")[2].partition(";")[0]
    house.calls.clear()
    page = await house.get("/topics", session)
    assert page.status == 200 and "orders" in page.text and "ops" in page.words
    assert {user for user, _ in house.calls} == {"ops"}
    assert json.loads((await house.get("/api/v1/session", session)).text)["user"] == "ops"
    assert house.log[-1] == {"event": "login", "user": "ops", "address": "127.0.0.1"}
    assert house.visitors == ["127.0.0.1"]


@pytest.mark.parametrize(
    ("user", "secret"), [("ops", "wrong"), ("nobody", SECRET), ("a b", SECRET), ("", ""), ("x", "")]
)
async def test_a_wrong_user_and_a_wrong_secret_have_one_answer(
    user: str, secret: str, house: House
) -> None:
    answer = await house.log_in(user, secret)
    assert answer.status == 403 and WRONG in answer.words and "set-cookie" not in answer.headers
    assert secret not in answer.text or not secret
    assert house.log[-1]["event"] == "login_failed"


async def test_a_name_server_that_does_not_check_users_is_no_login(house: House) -> None:
    house.checks_users = False
    answer = await house.log_in("ops", "wrong")
    assert answer.status == 502 and "authenticationEnabled=true" in answer.words
    assert "set-cookie" not in answer.headers


async def test_a_login_needs_a_form_of_the_console(house: House) -> None:
    fields = {"user": "ops", "secret": SECRET}
    for answer in (
        await house.post("/login", fields, origin="http://evil.example"),
        await house.post("/login", fields, token="wrong"),
    ):
        assert answer.status == 403 and "set-cookie" not in answer.headers
    assert not house.calls


@pytest.mark.parametrize(
    "address",
    ["//evil.example", "https://evil.example", "/\\evil.example", "evil", "/login", "/a\nb", ""],
)
def test_a_login_leads_to_no_other_site(address: str) -> None:
    assert local(address) == "/"


async def test_a_new_login_ends_the_former_session_of_the_browser(house: House) -> None:
    former = await house.session()
    fields = {"user": "ops", "secret": SECRET}
    assert (await house.post("/login", fields, session=former)).status == 303
    assert (await house.get("/topics", former)).status == 303


# ---- too many logins ----


async def test_failures_of_a_user_are_limited(house: House) -> None:
    for _ in range(FAILURES_OF_USER):
        assert (await house.log_in("ops", "wrong")).status == 403
    house.calls.clear()
    answer = await house.log_in()
    assert answer.status == 429 and answer.headers["retry-after"] == str(int(WINDOW_S))
    assert not house.calls
    assert (await house.log_in("eve")).status == 303
    house.now_s += WINDOW_S
    assert (await house.log_in()).status == 303


async def test_failures_of_an_address_are_limited(house: House) -> None:
    for number in range(FAILURES_OF_ADDRESS):
        assert (await house.log_in(f"user-{number}", "wrong")).status == 403
    assert (await house.log_in()).status == 429


async def test_logins_that_succeed_are_not_limited(house: House) -> None:
    for _ in range(2 * FAILURES_OF_ADDRESS):
        assert (await house.log_in()).status == 303


# ---- the end of a session ----


async def test_a_session_ends_when_it_is_idle(house: House) -> None:
    session = await house.session()
    house.now_s += IDLE_S - 1
    assert (await house.get("/keys", session)).status == 200
    house.now_s += IDLE_S - 1
    assert (await house.get("/keys", session)).status == 200
    house.now_s += IDLE_S
    assert (await house.get("/keys", session)).status == 303


async def test_a_stream_does_not_keep_a_session(house: House) -> None:
    session = await house.session()
    house.now_s += IDLE_S - 1
    assert (await house.get("/live?page=/none", session)).status == 404
    house.now_s += 1
    assert (await house.get("/keys", session)).status == 303


async def test_a_logout_ends_the_session_and_closes_the_client(house: House) -> None:
    session = await house.session()
    found = await house.sessions.find(session, use=True)
    assert found is not None
    refused = await house.post("/logout", {}, session, token="wrong")
    assert refused.status == 403 and (await house.get("/keys", session)).status == 200
    answer = await house.post("/logout", {}, session, token=await house.token(session))
    assert answer.status == 303 and "max-age=0" in answer.headers["set-cookie"].lower()
    assert (await house.get("/keys", session)).status == 303 and not found.live


async def test_there_is_a_limit_of_sessions(house: House) -> None:
    first = await house.session()
    house.now_s += 1
    for _ in range(MAX_SESSIONS):
        await house.sessions.begin("ops", SECRET, "")
    assert (await house.get("/keys", first)).status == 303


# ---- users beside each other ----


async def test_users_share_no_console_and_sessions_of_a_user_do(house: House) -> None:
    tokens = [await house.token(await house.session(user)) for user in ("ops", "ops", "eve")]
    assert tokens[0] == tokens[1] != tokens[2]
    one, two = (
        await house.sessions.begin("ops", SECRET, ""),
        await house.sessions.begin("eve", SECRET, ""),
    )
    assert one.account.console.live is not two.account.console.live
    answer = await house.post("/new-topic", {"topic": "x"}, one.id, token=tokens[2])
    assert answer.status == 403


async def test_a_user_who_may_only_read_sees_no_buttons(house: House) -> None:
    session = await house.session("eve")
    page = await house.get("/topics", session)
    assert page.status == 200 and "/new-topic" not in page.text and "read-only" in page.words
    token = await house.token(session)
    answer = await house.post("/new-topic", {"topic": "x"}, session, token=token)
    assert answer.status == 403 and "policies of eve" in answer.words
    assert "/new-topic" in (await house.get("/topics", await house.session())).text


async def test_a_user_without_the_right_has_no_page_and_no_link_of_audit_logs(house: House) -> None:
    session = await house.session("app")
    for address in ("/", "/rights"):
        page = await house.get(address, session)
        assert page.status == 200 and "/audit" not in page.text
    assert "Recent changes" not in (await house.get("/", session)).words
    for address in ("/audit", "/api/v1/audit"):
        answer = await house.get(address, session)
        assert answer.status == 403 and "policies of app do not allow" in answer.text
    assert ("app", "ListAuditLines") not in house.calls
    reader = await house.session("eve")
    assert "/audit" in (await house.get("/", reader)).text
    assert (await house.get("/audit", reader)).status == 200


@pytest.mark.parametrize("path", ["/topics/%25DEAD", "/users/%C3%A9", "/users/~.."])
async def test_a_login_leads_back_to_a_name_with_any_character(path: str, house: House) -> None:
    address = (await house.get(path)).headers["location"]
    assert address == link("/login", next=path)
    assert (await house.log_in(next=path)).headers["location"] == path


async def test_the_stream_of_a_page_ends_with_its_session(house: House) -> None:
    session = await house.sessions.begin("ops", SECRET, "")
    live: Callable[[Any], Live] = lambda _: session.account.console.live  # noqa: E731
    from starlette.requests import Request
    from starlette.responses import HTMLResponse
    from starlette.routing import Route

    async def page(_: Request) -> HTMLResponse:
        return HTMLResponse('<main id="content"></main>')

    scope = {"type": "http", "method": "GET", "path": "/live", "query_string": b"page=/x",
             "headers": [], "session": session}  # fmt: skip
    answer: Any = await stream(live, [Route("/x", page)])(Request(scope))
    async with aclosing(answer.body_iterator) as events:
        assert b"retry" in await anext(events)
        session.ended = True
        assert b"event: ended" in await anext(events)
        with pytest.raises(StopAsyncIteration):
            await anext(events)


# ---- behind TLS and proxies ----


async def test_with_tls_the_cookie_is_secure(visitor: Visitor) -> None:
    house = House(visitor, tls=True)
    answer = await house.log_in()
    cookie = answer.headers["set-cookie"]
    assert cookie.startswith(f"{SECURE_COOKIE}=") and "; secure" in cookie.lower()
    assert "strict-transport-security" in answer.headers
    await house.sessions.close()


async def test_at_a_path_the_cookie_is_of_this_path(visitor: Visitor) -> None:
    house = House(visitor, tls=True, base_path="/aerobee")
    fields = {"user": "ops", "secret": SECRET, "next": "/topics"}
    answer = await house.post("/aerobee/login", fields)
    assert answer.headers["location"] == "/aerobee/topics"
    cookie = answer.headers["set-cookie"]
    assert cookie.startswith(f"{SECURE_COOKIE_OF_PATH}=") and "path=/aerobee;" in cookie.lower()
    session = cookie.partition("=")[2].partition(";")[0]
    assert (await house.get("/aerobee/topics", session)).status == 200
    refused = await house.get("/aerobee/topics?sort=lag")
    assert refused.headers["location"] == "/aerobee/login?next=%2Ftopics%3Fsort%3Dlag"
    token = json.loads((await house.get("/aerobee/api/v1/session", session)).text)["csrf_token"]
    ended = await house.post("/aerobee/logout", {}, session, token=token)
    assert ended.headers["location"] == "/aerobee/login"
    assert "path=/aerobee;" in ended.headers["set-cookie"].lower()
    assert (await house.get("/aerobee/keys", session)).status == 303
    await house.sessions.close()


async def test_only_a_trusted_proxy_with_https_is_served(visitor: Visitor) -> None:
    house = House(visitor, trusted_proxies=(ip_network("127.0.0.0/8"),))
    forwarded = {"x-forwarded-proto": "https", "x-forwarded-for": "198.51.100.1, 203.0.113.7"}
    assert (await house.get("/login", **forwarded)).status == 200
    plain = await house.get("/login", **{"x-forwarded-proto": "http"})
    assert plain.status == 403 and "https" in plain.text
    fields = {"user": "ops", "secret": "wrong"}
    await house.post("/login", fields, **forwarded)
    assert house.log[-1]["address"] == "203.0.113.7"  # a client may invent the others
    other = House(visitor, trusted_proxies=(ip_network("10.0.0.0/8"),))
    answer = await other.get("/login", **forwarded)
    assert answer.status == 403 and "--trusted-proxy" in answer.text


async def test_an_unreachable_name_server_is_no_wrong_secret(house: House) -> None:
    def away(_: str, __: Any) -> Any:
        raise MqError(Code.BROKER_UNREACHABLE, "no answer from 10.0.0.5:9876")

    house.visitor.transport.answers["LogIn"] = away
    for _ in range(FAILURES_OF_USER + 1):
        answer = await house.log_in()
        assert answer.status == 502
        assert "10.0.0.5" not in answer.text, "a visitor without a session sees no address"
    assert house.log[-1]["reason"] == "no answer from 10.0.0.5:9876"
